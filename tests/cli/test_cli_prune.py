"""`sparsejit prune`: the example as the documentation has it, resuming, and clear refusals."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner, Result

from sparsejit.commands.cli import app
from sparsejit.errors import DamagedFile, InvalidInput, UnsupportedTarget
from sparsejit.prune import load_weights, load_workload

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/notes/pruning.md").read_text()
GUIDE = (ROOT / "docs/guides/smaller.md").read_text()

MODEL = """
import os, signal
import torch
from torch import nn
from sparsejit.prune import Workload
from beside import SIZE

torch.manual_seed(0)
INPUTS = torch.randn(32, SIZE)
CLASSES = torch.randint(4, (32,))
steps = 0

def loss(model, batch):
    global steps
    steps += 1
    if steps == int(os.environ.get("STOP_AT", 0)):
        signal.raise_signal(signal.SIGINT)
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes)

def bare():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 4))

def workload():
    return Workload(bare(), [(INPUTS, CLASSES)], loss)

def wrong():
    return 3

def sized(size):
    return nn.Linear(size, size)

NUMBER = 4
"""
ONE_SHOT = "method: one-shot\nprune: {targets: [0.weight], amount: 0.5, pattern: 1x8}\n"
GRADUAL = """
method: gradual
prune:
  targets: [0.weight]
  amount: 0.5
  schedule: {kind: cubic, start: 0, end: 8, every: 2}
train: {steps: 12}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "beside.py").write_text("SIZE = 16\n")
    (tmp_path / "one_shot.yaml").write_text(ONE_SHOT)
    (tmp_path / "gradual.yaml").write_text(GRADUAL)
    return tmp_path


def prune(folder: Path, factory: str, recipe: str, *options: str) -> Result:
    arguments = ["prune", f"{folder}/net.py:{factory}", "--recipe", str(folder / recipe)]
    return CliRunner().invoke(app, [*arguments, "--out", str(folder / "p.safetensors"), *options])


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert recipe == (ROOT / "examples/digits.yaml").read_text()
    (command,) = re.findall(r"^sparsejit (prune .*)$", GUIDE, re.MULTILINE)
    report = tmp_path / "report.json"
    outputs = ["--out", str(tmp_path / "p.safetensors"), "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "sparsejit.commands.cli", *command.split(), *outputs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(report.read_text())
    assert found["total"]["density"] == pytest.approx(0.1, abs=0.002)
    assert found["after"]["accuracy"] > 0.95
    assert found["after"]["accuracy"] > found["before"]["accuracy"] - 0.02
    for layer in found["layers"]:
        assert layer["density"] == layer["block_density"]
        assert layer["kernel"] and layer["predicted_ns"] and layer["measured_ns"]
        assert layer["name"] in done.stdout
    weights = load_file(tmp_path / "p.safetensors")
    zeros = {name: int((weights[name] == 0).sum()) for name in ("0.weight", "2.weight")}
    assert zeros == {row["name"]: row["elements"] - row["nnz"] for row in found["layers"]}


def test_json_alone_on_stdout(folder: Path) -> None:
    result = prune(folder, "bare", "one_shot.yaml", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    (layer,) = report["layers"]
    assert (layer["name"], layer["shape"], layer["nnz"]) == ("0.weight", [32, 16], 256)
    assert report["recipe"]["prune"]["pattern"] == "1x8"
    assert report["before"] == report["after"] == {}


def test_ctrl_c_and_the_same_command_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, out = folder / "c.pt", folder / "p.safetensors"
    again = ("workload", "gradual.yaml", "--checkpoint", str(checkpoint))
    monkeypatch.setenv("STOP_AT", "5")
    stopped = prune(folder, *again)
    assert stopped.exit_code == 130, stopped.output
    assert stopped.stderr == f"stopped; the same command goes on from {checkpoint}\n"
    assert torch.load(checkpoint, weights_only=True)["step"] == 5
    assert not out.exists()
    monkeypatch.delenv("STOP_AT")
    going_on = prune(folder, *again)
    assert (going_on.exit_code, going_on.stderr) == (0, f"going on from {checkpoint}\n")
    resumed = load_file(out)
    assert not checkpoint.exists()
    assert prune(folder, "workload", "gradual.yaml").exit_code == 0
    whole = load_file(out)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_trained_weights_are_what_is_pruned(folder: Path, suffix: str) -> None:
    torch.manual_seed(5)
    state = {key: torch.randn_like(value) for key, value in bare(folder).state_dict().items()}
    file = folder / f"trained{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    result = prune(folder, "bare", "one_shot.yaml", "--weights", str(file))
    assert result.exit_code == 0, result.output
    pruned = load_file(folder / "p.safetensors")
    kept = pruned["0.weight"] != 0
    assert torch.equal(pruned["0.weight"][kept], state["0.weight"][kept])
    assert torch.equal(pruned["3.weight"], state["3.weight"])


def test_weights_are_written_though_timing_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", "sse2")
    failed = prune(folder, "bare", "one_shot.yaml")
    assert isinstance(failed.exception, UnsupportedTarget)
    assert (load_file(folder / "p.safetensors")["0.weight"] == 0).float().mean() == 0.5


def bare(folder: Path) -> nn.Module:
    return load_workload(f"{folder}/net.py:bare").model


def test_weights_that_do_not_fit_or_cannot_be_read(folder: Path) -> None:
    model = bare(folder)
    other = folder / "other.safetensors"
    save_file({"0.weight": torch.zeros(2, 2)}, other)
    with pytest.raises(InvalidInput, match=r"other\.safetensors.*size mismatch for 0\.weight"):
        load_weights(model, other)
    torch.save({"state_dict": model.state_dict()}, folder / "nested.pt")
    with pytest.raises(InvalidInput, match=r"Missing key.*give this model's own state_dict"):
        load_weights(model, folder / "nested.pt")
    torch.save([1], folder / "list.pt")
    with pytest.raises(InvalidInput, match=r"list\.pt"):
        load_weights(model, folder / "list.pt")
    torch.save(model, folder / "pickle.pt")
    with pytest.raises(DamagedFile, match=r"as tensors alone; write it with torch\.save"):
        load_weights(model, folder / "pickle.pt")
    for name in ("cut.pt", "cut.safetensors"):
        (folder / name).write_bytes(b"\x00\x01")
        with pytest.raises(DamagedFile, match=name):
            load_weights(model, folder / name)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("net.py", "does not end in ':' and the name of a factory: write path/to/file.py:factory"),
        ("net.py:", "does not end in ':' and the name of a factory"),
        ("absent.py:workload", "there is no file .*absent.py: check the path"),
        ("absent.module:workload", r"there is no module absent\.module"),
        ("torch.absent:workload", r"there is no module torch\.absent"),
        ("..up:workload", r"there is no module \.\.up"),
        ("net.py:worklod", "has no function 'worklod': did you mean 'workload'?"),
        ("net.py:zzz", "has no function 'zzz': use one of loss, bare, workload, wrong, sized"),
        ("net.py:NUMBER", "has no function 'NUMBER'"),
        ("net.py:sized", "missing a required argument: 'size'; name a function of no arguments"),
        ("net.py:wrong", r"returned int: return a sparsejit\.prune\.Workload"),
    ],
)
def test_references_that_name_no_workload(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidInput, match=message):
        load_workload(reference)


def test_a_dotted_name_is_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "nets_of_a_test"
    package.mkdir()
    (package / "small.py").write_text("from torch import nn\ndef make(): return nn.Linear(3, 2)\n")
    monkeypatch.chdir(folder)
    assert isinstance(load_workload("nets_of_a_test.small:make").model, nn.Linear)
    # One that is imported already is not run again.
    sys.modules["nets_of_a_test.small"].make = lambda: nn.Linear(5, 2)
    assert load_workload("nets_of_a_test.small:make").model.in_features == 5


@pytest.mark.parametrize("reference", ["broken.py:make", "broken:make"])
def test_errors_of_the_user_s_own_code_are_shown_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    (folder / "broken.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(folder)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_workload(reference)


@pytest.mark.parametrize("option", ["--out", "--report", "--checkpoint"])
@pytest.mark.parametrize("place", ["beside/{}", "/proc/{}"])
def test_outputs_are_checked_before_the_model_is_made(
    folder: Path, option: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "beside").write_text("no folder")
    monkeypatch.setattr("sparsejit.prune.load_workload", lambda name: pytest.fail("was made"))
    path = folder / place.format("p.safetensors")
    refused = prune(folder, "bare", "one_shot.yaml", option, str(path))
    assert isinstance(refused.exception, InvalidInput)
    assert str(refused.exception).startswith(f"{str(path)!r} cannot be written: ")
    assert not (folder / "p.safetensors").exists()


def test_impossible_options_are_refused_before_anything_is_written(folder: Path) -> None:
    wrong = folder / "wrong.yaml"
    wrong.write_text(ONE_SHOT.replace("amount", "amuont"))
    refused = prune(folder, "bare", "wrong.yaml")
    assert isinstance(refused.exception, InvalidInput)
    assert str(refused.exception) == "wrong.yaml: prune.amuont is unknown: did you mean 'amount'?"
    refused = prune(folder, "bare", "gradual.yaml")
    assert isinstance(refused.exception, InvalidInput)
    assert str(refused.exception).startswith("training needs batches: return Workload(model,")
    assert prune(folder, "bare", "absent.yaml").exit_code == 2
    assert prune(folder, "bare", "one_shot.yaml", "--checkpoint", str(folder)).exit_code == 2
    refused = prune(folder, "bare", "one_shot.yaml", "--out", str(folder / "p.pt"))
    assert isinstance(refused.exception, InvalidInput)
    assert str(refused.exception).endswith("a .safetensors path; give a name that ends so")
    assert not (folder / "p.safetensors").exists()


def test_two_outputs_may_not_be_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report would take the place of the weights."""
    monkeypatch.setattr("sparsejit.prune.load_workload", lambda name: pytest.fail("was made"))
    path = str(folder / "p.safetensors")
    refused = prune(folder, "bare", "one_shot.yaml", "--out", path, "--report", path)
    assert isinstance(refused.exception, InvalidInput)
    assert "two outputs are one file" in str(refused.exception)
