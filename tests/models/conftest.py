"""For tests of torch models: random numbers that repeat, and layers as their modules write them.

And an environment for Windows programs.
"""

import os
import subprocess
from collections.abc import Iterator

import pytest
import torch

from sparsejit.x86 import instructions
from sparsejit.x86.forms import Form, Key


@pytest.fixture(autouse=True)
def _repeatable_and_by_the_book() -> Iterator[None]:
    """torch's fused layers leave zeros where a padding mask is set, its modules do not."""
    torch.manual_seed(5)
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.fixture(autouse=True)
def _forms_ship(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Models are compiled without PeachPy, also at a call: from forms of the table that ships."""
    learn, learned = instructions._learned, []

    def recording(key: Key) -> Form:
        learned.append(key)
        return learn(key)

    monkeypatch.setattr(instructions, "_learned", recording)
    yield
    if not request.config.getoption("--keep-forms"):
        assert not learned, "run this test with --keep-forms, and commit sparsejit/x86/forms.json"


@pytest.fixture(scope="session")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of wine, with a folder of its own."""
    folder = tmp_path_factory.mktemp("wine")
    quiet = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    environment = {**os.environ, **quiet, "WINEPREFIX": str(folder / "prefix")}
    environment.pop("DISPLAY", None)
    yield environment
    subprocess.run(["wineserver", "-k"], env=environment, check=False)
