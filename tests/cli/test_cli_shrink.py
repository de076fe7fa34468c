"""`sparsejit shrink`: ONNX files and factories in, the same kind out, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result
from whole_page import WholePage

from sparsejit.commands.cli import app
from sparsejit.errors import InvalidInput

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

FACTORY = """
import numpy as np
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    layers = nn.Linear(48, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 48)
    return nn.Sequential(*layers).eval(), (torch.randn(16, 48),)

def size(outputs):
    return -float(np.mean([np.abs(y).mean() for y in outputs]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(FACTORY)
    generator = np.random.default_rng(0)
    plane = generator.normal(size=(8, 48))
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(48):
        x = (generator.normal(size=(16, 8)) @ plane).astype(np.float32)
        np.save(samples / f"{number:02}.npy", x)
    return tmp_path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["shrink", *map(str, arguments)])


def test_a_factory_and_a_folder(folder: Path) -> None:
    out = folder / "small.safetensors"
    given = f"{folder}/net.py:net", "--data", folder / "samples", "--out", out
    result = invoke(*given, "--speed", "1.2x", "--json", "--no-peers")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["error"] > 0 and len(summary["layers"]) == 3 and out.exists()
    assert summary["peers"] == []


def test_a_program(folder: Path) -> None:
    import runpy

    model, (x,) = runpy.run_path(str(folder / "net.py"))["net"]()
    torch.export.save(torch.export.export(model, (x,)), folder / "net.pt2")
    report, out = folder / "report.html", folder / "small.pt2"
    data = "--data", folder / "samples", "--out", out
    result = invoke(folder / "net.pt2", *data, "--speed", "1.2x", "--report", report, "--no-peers")
    assert result.exit_code == 0, result.output
    assert "svg" in WholePage(report.read_text()).tags
    torch.export.load(out)


def test_a_file_and_an_archive(folder: Path) -> None:
    import runpy

    model, (x,) = runpy.run_path(str(folder / "net.py"))["net"]()
    file, out = folder / "net.onnx", folder / "small.onnx"
    torch.onnx.export(model, (x[:1],), str(file), dynamo=False, input_names=["x"])
    samples = [np.load(path) for path in sorted((folder / "samples").glob("*.npy"))]
    np.savez(folder / "samples.npz", x=np.concatenate(samples))
    report = folder / "report.json"
    data = "--data", folder / "samples.npz", "--out", out
    result = invoke(file, *data, "--dtype", "float32", "--budget", "30%", "--report", report)
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text())
    assert str(out) in result.output and found["error"] <= 0.3
    assert [each["name"] for each in found["peers"]] == ["onnxruntime"]
    assert "times as fast as the dense model in onnxruntime" in result.output
    onnx.checker.check_model(str(out))
    metric = f"{folder}/net.py:size"
    result = invoke(file, *data, "--budget", "0.5", "--metric", metric, "--no-peers")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "small.onnx"), r"is no \.safetensors path"),
        (("--out", "s.safetensors", "--report", "r.txt"), r"is no \.html or \.json path"),
        (("--out", "s.safetensors", "--report", "/dev/null/r.html"), r"cannot be written"),
        (("--out", "s.safetensors", "--budget", "little"), r"--budget little is no number"),
        (("--out", "s.safetensors", "--speed", "2x", "--budget", "1%"), r"are both given"),
        (("--out", "s.safetensors", "--metric", "net.py:nothing"), r"no file|no function"),
    ],
)
def test_what_makes_no_sense_is_refused(
    folder: Path, options: tuple[str, ...], message: str
) -> None:
    result = invoke(f"{folder}/net.py:net", "--data", folder / "samples", *options)
    assert result.exit_code == 1
    with pytest.raises(InvalidInput, match=message):
        raise result.exception or AssertionError(result.output)
    assert not Path("s.safetensors").exists()
