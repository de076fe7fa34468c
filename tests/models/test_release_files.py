"""Files of earlier releases are read, and give what they gave (`release_files.py` wrote them)."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("sklearn")

from release_files import KINDS, results

import sparsejit
from sparsejit.api.compiled import LOADER_MODULES
from sparsejit.artefact import sealed

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("release-*/*.sjit"))


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def arrays(path: Path, kind: str) -> list[np.ndarray]:
    with np.load(path) as stored:
        return [stored[name] for name in sorted(stored.files) if name.startswith(kind)]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_of_a_release_gives_what_it_gave(path: Path) -> None:
    stored = path.with_suffix(".npz")
    found = results(sparsejit.load(path), tuple(arrays(stored, "input")))
    wanted = arrays(stored, "output")
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# Kinds that came after the major version's first release: the next release's files have them.
LATER = {"scales"}


def test_every_kind_of_file_is_kept_of_this_major_version() -> None:
    major = sparsejit.__version__.split(".")[0]
    kept = list(DATA.glob(f"release-{major}.0/*.sjit"))
    assert {path.stem for path in kept} >= set(KINDS)
    assert {sealed.read(path, LOADER_MODULES).kind for path in kept} == set(LOADER_MODULES) - LATER
