"""`sparsejit compile` and `sparsejit run`: from a factory and from a .pt2 file, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import sparsejit
from sparsejit.commands.cli import app
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.model_source import call_factory
from sparsejit.frontends.torch_export import read_program

FACTORIES = """
import torch
from torch import nn

def bare():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)).eval()

def net():
    return bare(), (torch.randn(2, 12),)

def one_input():
    return bare(), torch.randn(2, 12)

def estimator():
    import numpy as np
    from sklearn.linear_model import LinearRegression
    return LinearRegression().fit(np.eye(12), np.ones(12)), np.eye(12)

def whole():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConstantPad1d((2, 1), 0.0), nn.Conv1d(1, 4, 4), nn.ReLU())
    return model.eval(), (torch.randn(1, 1, 64),)

class Halves(nn.Module):
    def forward(self, x, scale):
        return {"low": x * scale, "high": torch.sigmoid(x)}

def halves():
    return Halves().eval(), (torch.randn(3, 4), torch.randn(3, 1))
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(FACTORIES)
    return f"{tmp_path}/nets.py:net"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def compile_quickly(model: str, out: Path, *more: object) -> Result:
    result = invoke("compile", model, "--out", out, *more)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def assert_refused(message: str, *arguments: object) -> None:
    with pytest.raises((InvalidInput, DamagedFile), match=message):
        raise invoke(*arguments).exception or AssertionError("nothing was refused")


@pytest.mark.parametrize("factory", ["net", "one_input"])
def test_a_model_is_compiled_saved_and_run(tmp_path: Path, net: str, factory: str) -> None:
    model = f"{tmp_path}/nets.py:{factory}"
    printed = compile_quickly(model, tmp_path / "m.sjit").stdout
    assert "2 layers" in printed and f"model in {tmp_path}/m.sjit" in printed
    x = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    files = ["--input", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    result = invoke("run", tmp_path / "m.sjit", *files)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("y.npy: float32 [5, 4]\n")
    y = np.load(tmp_path / "y.npy")
    np.testing.assert_array_equal(y, sparsejit.load(tmp_path / "m.sjit")(x))
    with torch.no_grad():
        wanted = call_factory(f"{tmp_path}/nets.py:bare")(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5)


def test_several_inputs_and_outputs(tmp_path: Path, net: str) -> None:
    compile_quickly(f"{tmp_path}/nets.py:halves", tmp_path / "m.sjit")
    x, scale = np.ones((2, 4), np.float32), np.full((2, 1), 3, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "scale.npy", scale)
    given = ["run", tmp_path / "m.sjit", "--input", tmp_path / "x.npy"]
    both = [*given, "--input", tmp_path / "scale.npy"]
    files = ["--out", tmp_path / "low.npy", "--out", tmp_path / "high.npy"]
    assert invoke(*both, *files).exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "low.npy"), x * scale)
    assert_refused("1 --out given; the model has 2 outputs", *both, *files[:2])
    assert_refused("1 inputs given; the model has 2: x, scale", *given, *files)
    assert_refused("two outputs are one file", *both, *files[:2], *files[:2])


def test_an_estimator_is_compiled_and_saved(tmp_path: Path, net: str) -> None:
    compile_quickly(f"{tmp_path}/nets.py:estimator", tmp_path / "e.sjit")
    made, x = call_factory(f"{tmp_path}/nets.py:estimator")
    again = sparsejit.load(tmp_path / "e.sjit")
    assert isinstance(again, sparsejit.CompiledEstimator)
    np.testing.assert_allclose(again.predict(x), made.predict(x), atol=1e-5)
    np.save(tmp_path / "x.npy", x)
    files = ["--input", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    assert_refused("holds a CompiledEstimator, not a model", "run", tmp_path / "e.sjit", *files)


def test_a_program_of_torch_export(tmp_path: Path) -> None:
    layer = nn.Linear(6, 3).eval()
    free = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (torch.randn(2, 6),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "p.pt2")
    compile_quickly(f"{tmp_path}/p.pt2", tmp_path / "m.sjit")
    x = torch.randn(5, 6)
    with torch.no_grad():
        torch.testing.assert_close(sparsejit.load(tmp_path / "m.sjit")(x), layer(x))
    _, args, kwargs = read_program(tmp_path / "p.pt2")
    assert [tuple(x.shape) for x in args] == [(2, 6)] and kwargs == {}


def test_a_program_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.pt2").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DamagedFile, match=r"p\.pt2 cannot be read by torch .*torch\.export\.save"):
        read_program(tmp_path / "p.pt2")
    assert not caplog.records
    assert_refused("there is no file", "compile", tmp_path / "q.pt2", "--out", tmp_path / "m.sjit")
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    program._example_inputs = None
    monkeypatch.setattr(torch.export, "load", lambda file: program)
    with pytest.raises(InvalidInput, match="has no example inputs"):
        read_program(tmp_path / "p.pt2")


def test_options_reach_the_compiler(tmp_path: Path, net: str) -> None:
    options = ["--dtype", "0=bfloat16", "--dtype", "2=int8", "--target", "avx2", "--exact"]
    compile_quickly(net, tmp_path / "m.sjit", *options)
    model = sparsejit.load(tmp_path / "m.sjit")
    assert isinstance(model, sparsejit.CompiledModel)
    stored = [node.op.dtype.value for node in model.graph.nodes if hasattr(node.op, "dtype")]
    assert stored == ["bfloat16", "int8"]
    settings = model.parts.settings
    assert (settings.target, settings.exact, settings.tune) == ("avx2", True, False)
    compile_quickly(net, tmp_path / "m.sjit", "--dtype", "float16", "--threads", "2")
    model = sparsejit.load(tmp_path / "m.sjit")
    assert isinstance(model, sparsejit.CompiledModel) and model.parts.settings.threads == 2


def test_the_report_as_json_and_as_a_page(tmp_path: Path, net: str) -> None:
    pages = ["--html", tmp_path / "page.html", "--json"]
    done = compile_quickly(net, tmp_path / "m.sjit", *pages)
    assert [layer["layer"] for layer in json.loads(done.stdout)["layers"]] == ["0", "2"]
    assert done.stderr.splitlines()[-1] == f"report in {tmp_path / 'page.html'}"
    assert (tmp_path / "page.html").read_text().lstrip().lower().startswith("<!doctype html")


def test_code_for_c_is_written_beside_it(tmp_path: Path, net: str) -> None:
    files = ["--export", tmp_path / "net.o", "--header", tmp_path / "net.h"]
    printed = compile_quickly(net, tmp_path / "m.sjit", *files).stdout
    assert f"code for C in {tmp_path}/net.o" in printed
    assert (tmp_path / "net.o").read_bytes().startswith(b"\x7fELF")
    assert "ptrdiff_t samples);" in (tmp_path / "net.h").read_text()


def test_a_package_for_cmake_is_a_folder(tmp_path: Path, net: str) -> None:
    folder = tmp_path / "package"
    options = ["--export", folder, "--cmake", "tiny", "--system", "windows"]
    assert f"code for C in {folder}" in compile_quickly(net, tmp_path / "m.sjit", *options).stdout
    assert sorted(path.name for path in folder.iterdir()) == [
        *("sparsejit.hpp", "tiny.h", "tiny.hpp", "tiny.obj", "tinyConfig.cmake")
    ]


def test_an_estimator_has_no_package(tmp_path: Path, net: str) -> None:
    model, options = net.replace(":net", ":estimator"), ["--export", tmp_path / "f"]
    said = "has no CMake package; leave out --cmake"
    assert_refused(said, "compile", model, "--out", tmp_path / "m.sjit", *options, "--cmake", "f")


def test_the_step_of_a_model_of_whole_sequences(tmp_path: Path, net: str) -> None:
    """Compiled, explained, checked and timed: 8 frames a call, which are late by one."""
    whole, step = net.replace(":net", ":whole"), ["--step", 8, "--axis", 2]
    compile_quickly(whole, tmp_path / "m.sjit", *step)
    fast = sparsejit.load(tmp_path / "m.sjit")
    assert isinstance(fast, sparsejit.CompiledModel) and (fast.step, fast.delay) == (8, 1)
    model, (x,) = call_factory(whole)
    late = fast.stream().run(x.numpy())[..., 1:]
    np.testing.assert_allclose(late, model(x).detach()[..., :-1], atol=1e-6)
    states = [f"{state}" for state in fast.states]
    found = json.loads(invoke("check", whole, *step, "--json").stdout)
    assert found["compiles"] and found["delay"] == 1 and found["states"] == states
    said = invoke("check", whole, *step).stdout
    assert "a step of 8 frames, late by 1 frame" in said and states[0] in said
    assert states[0] in " ".join(invoke("explain", whole, *step).stdout.split())


def test_a_step_is_timed_alone(net: str) -> None:
    whole = net.replace(":net", ":whole")
    bench = "bench", whole, "--step", 8, "--peers", "torch", "--json"
    found = json.loads(invoke(*bench).stdout)
    (ours,) = found["times"]
    assert ours["name"] == "sparsejit" and ours["relative_error"] < 1e-6
    assert found["skipped"] == {"torch": "reads no .sjit file"}
    assert any(".past" in state for state in found["states"])
    assert_refused("give one --dtype", *bench, "--dtype", "float32", "--dtype", "int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "3"], "window=3 says how a step is made; give step too"),
        (["--axis", "1"], "axis=1 says how a step is made"),
        (["--step", "8", "--state", "auto"], "leave out dynamic_shapes, free_shapes, state"),
        (["--step", "8", "--axis", "3"], "axis=3; give the axis of time in the first argument"),
    ],
)
@pytest.mark.parametrize("command", ["check", "explain", "bench"])
def test_steps_that_cannot_be(net: str, command: str, options: list[str], message: str) -> None:
    assert_refused(message, command, net.replace(":net", ":whole"), *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "m.safetensors"], "is not a .sjit path"),
        (["--out", "nets.py/m.sjit"], "cannot be written"),
        (["--out", "m.sjit", "--header", "m.h"], "--header .* describes the file of --export"),
        (["--out", "m.sjit", "--export", "m.dll"], r"is no \.o or \.so file"),
        (["--out", "m.sjit", "--export", "my-net.o"], "becomes a name in C"),
        (["--out", "m.sjit", "--html", "nets.py/page.html"], "cannot be written"),
        (["--out", "m.sjit", "--cmake", "net"], "name the folder by --export"),
        (["--out", "m.sjit", "--export", "f", "--cmake", "net", "--header", "m.h"], "--header"),
        (["--out", "m.sjit", "--export", "f", "--cmake", "my-net"], "becomes a name in C"),
        (["--out", "m.sjit", "--export", "nets.py", "--cmake", "net"], "cannot be written"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_the_work(
    tmp_path: Path,
    net: str,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sparsejit.frontends.model_source.read_source", None)
    assert_refused(message, "compile", net, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["nets.py"]


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        ("bare", [], "returned a Sequential; return a torch module and a tuple"),
        ("none", [], "has no function 'none'"),
        ("net", ["--dtype", "float64"], "dtype 'float64' is unknown"),
        ("net", ["--dtype", "int8", "--dtype", "0=int8"], "write LAYERS=int8"),
        ("net", ["--dtype", "fc=int8"], "matches no layer; layers are 0, 2"),
    ],
)
def test_a_model_that_cannot_be_compiled_leaves_no_file(
    tmp_path: Path,
    net: str,
    factory: str,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = f"{tmp_path}/nets.py:{factory}"
    assert_refused(message, "compile", model, "--out", "m.sjit", *options)
    assert not {path.suffix for path in tmp_path.iterdir()} & {".sjit", ".o"}


def test_a_kernel_is_no_model_and_a_text_no_array(tmp_path: Path, net: str) -> None:
    sparsejit.compile_matrix(np.ones((2, 3))).save(tmp_path / "k.sjit")
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    files = ["--input", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    assert_refused("holds a Kernel, not a model; load and", "run", tmp_path / "k.sjit", *files)
    out = ["--out", tmp_path / "m.sjit"]
    assert_refused("'net.onx' is no model: give an .onnx", "compile", "net.onx", *out)
    compile_quickly(net, tmp_path / "m.sjit")
    assert_refused(r"input has shape \(3,\)", "run", tmp_path / "m.sjit", *files)
    (tmp_path / "x.npy").write_text("1 2 3")
    assert_refused("is not a .npy array", "run", tmp_path / "m.sjit", *files)
    assert not (tmp_path / "y.npy").exists()


def test_an_onnx_file_is_compiled_and_run(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weights = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 6])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.save(model, tmp_path / "p.onnx")
    compile_quickly(f"{tmp_path}/p.onnx", tmp_path / "m.sjit")
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    np.testing.assert_allclose(sparsejit.load(tmp_path / "m.sjit")(x), x @ weights, rtol=1e-5)
