"""The examples of whole models run; each checks its own results against torch's."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from system_tools import needs_gcc

FOLDER = Path(__file__).parents[2] / "examples"
AGREED = r"x \[.*\]: torch .* us, sparsejit .* us, .* times as fast; results agree\n"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports an example, whose comparisons then take one round."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(importlib.import_module("comparing"), "ROUNDS", 1)
    return importlib.import_module


@pytest.mark.parametrize(
    ("name", "comparisons", "layers"), [("mlp", 2, 3), ("gru_tagger", 1, 3), ("transformer", 1, 16)]
)
def test_a_model_gives_torch_s_results(
    example: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    name: str,
    comparisons: int,
    layers: int,
) -> None:
    example(name).main()
    printed = capsys.readouterr().out
    assert len(re.findall(AGREED, printed)) == comparisons
    assert re.search(rf"sparsejit model: {layers} layers, .* kernels", printed)


@needs_gcc
def test_c_gives_python_s_bits(
    example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    example("deploy_from_c").main(tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith("C and Python agree in all bits of 10 outputs; digits.o has ")
    assert re.search(AGREED, printed)


def test_every_example_can_be_run_by_itself() -> None:
    for path in FOLDER.glob("*.py"):
        text = path.read_text()
        assert path.stem in ("comparing", "digits") or f"python examples/{path.name}" in text
