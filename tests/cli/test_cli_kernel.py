"""`sparsejit explain` and `sparsejit disasm` on files that are right, wrong and damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.files import read_matrix
from sparsejit.machine.target import Target


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
    report = json.loads(result.stdout)["facts"]
    assert report["nnz"] == np.count_nonzero(weights)
    assert report["reason"].startswith(report["strategy"])


def test_explain_json_lists_the_candidates_with_predicted_times(npy: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(npy), "--json"])
    report = json.loads(result.stdout)
    candidates = report["layers"][0]["candidates"]
    times = [candidate["predicted_ns"] for candidate in candidates]
    assert times == sorted(times) and len(times) > 3
    assert candidates[0]["kernel"] == report["facts"]["kernel"]
    assert {"steps", "code_bytes", "data_bytes", "bound", "family"} < candidates[0].keys()
    assert Target.detect().core.data_of in report["facts"]["rates"]


def test_explain_writes_the_report_beside_what_it_prints(npy: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.json"
    options = ["--dtype", "bfloat16", "--out", str(out)]
    result = CliRunner().invoke(app, ["explain", str(npy), *options])
    assert result.exit_code == 0 and "predicted cheapest" in result.stdout
    report = json.loads(out.read_text())
    assert report["facts"]["dtype"] == "bfloat16" and report["layers"][0]["candidates"]


def test_explain_refuses_a_path_it_cannot_write_before_it_compiles(
    npy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsejit.api.kernels.compile_layer.compile_matrix", None)
    result = CliRunner().invoke(app, ["explain", str(npy), "--out", f"{npy}/report.json"])
    assert isinstance(result.exception, InvalidInput)
    assert "cannot be written" in str(result.exception)


def test_exact_is_passed_on(npy: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(npy), "--exact", "--json"])
    (layer,) = json.loads(result.stdout)["layers"]
    names = {candidate["kernel"] for candidate in layer["candidates"]}
    assert names and not names & {"f32-lane16-avx512", "f32-permute-avx2"}


def test_a_tensor_of_a_torch_file_is_explained(tmp_path: Path, weights: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    file = tmp_path / "layer.pt"
    torch.save({"fc.weight": torch.tensor(weights).bfloat16(), "fc.bias": torch.zeros(40)}, file)
    result = CliRunner().invoke(app, ["explain", str(file), "--json"])
    assert json.loads(result.stdout)["facts"]["nnz"] == np.count_nonzero(weights)


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


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".pt"])
def test_a_damaged_file(tmp_path: Path, suffix: str) -> None:
    file = (tmp_path / "w").with_suffix(suffix)
    file.write_bytes(b"\x93NUMPY\x01\x00 cut short")
    if suffix == ".pt":
        pytest.importorskip("torch")
    with pytest.raises(DamagedFile, match=r"save it again|write it with torch\.save"):
        read_matrix(file)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DamagedFile, match="Object arrays cannot be loaded"):
        read_matrix(tmp_path / "w.npy")


def test_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("1 2 3\n")
    with pytest.raises(InvalidInput, match=r"none of \.npy, \.safetensors, \.pt or \.pth"):
        read_matrix(tmp_path / "w.txt")
