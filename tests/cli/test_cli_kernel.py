"""`sparsejit explain` and `sparsejit disasm` on files that are right, wrong and damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.commands.kernel import read_matrix
from sparsejit.errors import DamagedFile, InvalidInput


@pytest.fixture
def weights() -> np.ndarray:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((40, 24)).astype(np.float32)
    return values * (rng.random(values.shape) < 0.2)


@pytest.fixture
def npy(tmp_path: Path, weights: np.ndarray) -> Path:
    np.save(tmp_path / "w.npy", weights)
    return tmp_path / "w.npy"


def test_explain_json_counts_the_weights(npy: Path, weights: np.ndarray) -> None:
    result = CliRunner().invoke(app, ["explain", str(npy), "--json"])
    report = json.loads(result.stdout)
    assert report["nnz"] == np.count_nonzero(weights)
    assert report["reason"].startswith(report["strategy"])


def test_disasm_lists_instructions_to_the_return(npy: Path) -> None:
    result = CliRunner().invoke(app, ["disasm", str(npy), "--strategy", "broadcast"])
    assert result.exit_code == 0
    assert "vfmadd231ps" in result.stdout
    assert result.stdout.split()[-1] == "ret"


def test_a_tensor_is_chosen_by_name(tmp_path: Path, weights: np.ndarray) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"a": weights, "b": weights * 2}, file)
    assert np.array_equal(read_matrix(file, "b"), weights * 2)
    for wrong in (None, "c"):
        with pytest.raises(InvalidInput, match=rf"no tensor {wrong!r}.*--tensor: a, b"):
            read_matrix(file, wrong)
    save_file({"only": weights}, file)
    assert np.array_equal(read_matrix(file), weights)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_damaged_file(tmp_path: Path, suffix: str) -> None:
    file = (tmp_path / "w").with_suffix(suffix)
    file.write_bytes(b"\x93NUMPY\x01\x00 cut short")
    with pytest.raises(DamagedFile, match="save it again"):
        read_matrix(file)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DamagedFile, match="Object arrays cannot be loaded"):
        read_matrix(tmp_path / "w.npy")


def test_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "w.pt").touch()
    with pytest.raises(InvalidInput, match=r"neither \.npy nor \.safetensors"):
        read_matrix(tmp_path / "w.pt")
