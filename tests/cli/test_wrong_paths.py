"""Wrong paths and files: every command refuses them in a sentence with the path and a remedy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import sparsejit  # noqa: E402
from sparsejit.commands.cli import app  # noqa: E402
from sparsejit.errors import SparseJitError  # noqa: E402

NET = """
import torch

def make():
    return torch.nn.Linear(64, 8).eval(), (torch.zeros(1, 64),)
"""
SUFFIXES = (".onnx", ".pt2", ".sjit", ".npy", ".npz", ".yaml", ".py", ".wav", ".safetensors")
MODELS = [
    *("missing.onnx", "missing.pt2", "missing.sjit", "missing", "missing.py:make", "net.py:mak"),
    *("folder", "folder.onnx", "folder.pt2", "folder.sjit", "folder.py:make"),
    *("empty.onnx", "empty.pt2", "empty.sjit", "text.txt", "text.txt:make", "net.py", "x.npy"),
    *("text.onnx", "text.pt2", "text.sjit"),
]
DATA = [
    *("missing.npz", "missing.npy", "missing", "empty.npz", "empty.npy", "folder.npy", "folder"),
    *("text.txt", "text.npz", "text.npy", "model.onnx", "two.npz", "shape.npz", "shape.npy"),
]
RECIPE = str(Path(__file__).parents[2] / "examples" / "digits.yaml")
BENCH = ("--peers", "", "--dtype", "float32")
# Each refuses one wrong path, the argument of the function.
COMMANDS: dict[str, tuple[Callable[[str], list[str]], list[str]]] = {
    "compile": (lambda path: ["compile", path, "--out", "out.sjit"], MODELS),
    "check": (lambda path: ["check", path], MODELS),
    "explain": (lambda path: ["explain", path], [each for each in MODELS if each != "x.npy"]),
    "bench": (lambda path: ["bench", path, "--peers", ""], MODELS),
    "shrink": (
        lambda path: ["shrink", path, "--data", "x.npz", "--out", f"out{shrunk(path)}"],
        [*MODELS, "model.sjit"],
    ),
    "run": (
        lambda path: ["run", path, "--input", "x.npy", "--out", "y.npy"],
        [*MODELS, "model.onnx", "net.pt2", "net.py:make"],
    ),
    "disasm": (
        lambda path: ["disasm", path],
        [each for each in MODELS if each != "x.npy"] + ["model.onnx", "model.sjit"],
    ),
    "run-with": (lambda path: ["run-with", path], ["missing.py", "folder"]),
    "prune": (
        lambda path: ["prune", path, "--recipe", RECIPE],
        ["missing.py:make", "net.py:mak", "net.py", "missing", "folder"],
    ),
    "recipe": (
        lambda path: ["prune", "net.py:make", "--recipe", path],
        ["missing.yaml", "folder", "empty.yaml", "text.txt", "x.npy"],
    ),
    "train": (lambda path: ["train", path], ["missing", "folder", "text.txt"]),
    "bench data": (lambda path: ["bench", "model.onnx", "--data", path, *BENCH], DATA),
    "bench data of a compiled model": (
        lambda path: ["bench", "model.sjit", "--data", path, "--peers", ""],
        DATA,
    ),
    "bench data of a program": (
        lambda path: ["bench", "net.pt2", "--data", path, *BENCH],
        ["x.npy"],
    ),
    "shrink data": (
        lambda path: ["shrink", "model.onnx", "--data", path, "--out", "out.onnx"],
        [each for each in DATA if not each.startswith("shape")],
    ),
    "run input": (
        lambda path: ["run", "model.sjit", "--input", path, "--out", "y.npy"],
        [*(each for each in DATA if not each.startswith("shape")), "x.npz"],
    ),
}
CASES = [(name, path) for name, (_, paths) in COMMANDS.items() for path in paths]
# A remedy stands behind a semicolon or a colon, as an order; the parser's own errors show the help.
REMEDY = re.compile(
    r"[;:] (check|give|write|use|name|convert|export|save|compile|copy|put|correct|leave out)"
    r"|: it is compiled already; give|: did you mean"
    r"|Try '[^']* --help' for help"
)


def shrunk(path: str) -> str:
    suffix = Path(path).suffix
    return suffix if suffix in (".onnx", ".pt2") else ".safetensors"


def write_model(path: Path) -> None:
    """Write an ONNX file of 64 inputs and 8 outputs."""
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size])
        for name, size in (("x", 64), ("y", 8))
    )
    weights = onnx.numpy_helper.from_array(np.ones((64, 8), np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "net", [x], [y], [weights])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    write_model(folder / "model.onnx")
    for suffix in SUFFIXES:
        (folder / f"empty{suffix}").touch()
        if suffix != ".py":  # errors of a user's own code come through
            (folder / f"text{suffix}").write_text("This is no such file.\n" * 9)
    for suffix in ("", ".onnx", ".pt2", ".sjit", ".npy", ".py"):
        (folder / f"folder{suffix}").mkdir()
    (folder / "text.txt").write_text("hello")
    (folder / "net.py").write_text(NET)
    net, x = torch.nn.Linear(64, 8).eval(), np.zeros((1, 64), np.float32)
    torch.export.save(torch.export.export(net, (torch.zeros(1, 64),)), folder / "net.pt2")
    sparsejit.compile(net, (x,)).save(folder / "model.sjit")
    np.save(folder / "x.npy", x)
    np.save(folder / "shape.npy", np.zeros((3, 7), np.float32))
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "shape.npz", x=np.zeros((3, 7), np.float32))
    np.savez(folder / "two.npz", x=x, labels=x)
    return folder


@pytest.fixture(autouse=True)
def _there(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize(("name", "path"), CASES)
def test_a_wrong_path_is_refused_with_the_path_and_a_remedy(name: str, path: str) -> None:
    make, _ = COMMANDS[name]
    done = CliRunner().invoke(app, make(path))
    error = done.exception
    assert isinstance(error, SparseJitError | SystemExit), repr(error)
    assert done.exit_code, done.output
    said = done.output if isinstance(error, SystemExit) else str(error)
    said = " ".join(said.replace("│", " ").split())
    assert path.partition(":")[0] in said, said
    assert REMEDY.search(said), said


def test_every_command_that_takes_a_path_is_tried() -> None:
    from typer.main import get_command

    tried = {make("x")[0] for make, _ in COMMANDS.values()}
    known = get_command(app).commands.items()  # type: ignore[attr-defined]
    # `synth` and `demo` read voices and speech, which their own tests damage.
    given = {
        name
        for name, command in known
        if any(each.param_type_name == "argument" for each in command.params)
    }
    assert given - {"synth", "demo"} <= tried


@pytest.mark.parametrize("path", ["net.pt2", "net.py:make", Path("net.pt2")], ids=str)
def test_compile_takes_each_path_that_the_command_line_takes(path: Any) -> None:
    x = np.ones((1, 64), np.float32)
    fast = sparsejit.compile(path)
    assert fast(x).shape == (1, 8)
    assert sparsejit.quantise(path, [x]).layers is not None


@pytest.mark.parametrize("path", ["model.onnx", "net.pt2", "net.py:make"])
def test_load_says_that_a_source_is_not_compiled(path: str) -> None:
    with pytest.raises(SparseJitError, match=f"{path} is not compiled yet; compile it first"):
        sparsejit.load(path)


def test_one_array_serves_a_model_of_one_input() -> None:
    for data in ("x.npy", "x.npz"):
        done = CliRunner().invoke(app, ["bench", "model.onnx", "--data", data, *BENCH])
        assert done.exit_code == 0, done.output
