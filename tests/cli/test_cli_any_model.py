"""`check`, `compile` and `bench` of anybody's model: what they take, say and refuse."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

import sparsejit
from sparsejit.api.reports.report import LayerReport, Report
from sparsejit.commands import bench_any
from sparsejit.commands.cli import app
from sparsejit.commands.console import console
from sparsejit.errors import InvalidInput
from sparsejit.frontends.model_source import example_arrays, read_source
from sparsejit.frontends.onnx import DeclaredInput
from sparsejit.perf.any_model import AnyComparison, AnyTask
from sparsejit.perf.call_latency import (
    busy_core,
    latency_report,
    native_latencies,
    spare_core,
)
from sparsejit.perf.model_contest import ContestantTime
from sparsejit.prune.shrink import shrunk

ROOT = Path(__file__).parents[2]
FACTORY = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU()), (torch.randn(1, 6),)
"""


def onnx_file(
    folder: Path, operator: str = "Mul", sizes: tuple[Any, ...] = ("batch", "length")
) -> Path:
    """y = operator(x (batch, length), n ()), in a file."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [*sizes]) for name in "xy")
    n = helper.make_tensor_value_info("n", TensorProto.FLOAT, [])
    node = helper.make_node(operator, ["x", "n"], ["y"], name="scaled")
    graph = helper.make_graph([node], "scaling", [x, n], [y])
    file = folder / "scaling.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), file)
    return file


def invoked(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments], terminal_width=200)


def test_a_file_is_compiled_with_the_sizes_and_numbers_of_the_command_line(tmp_path: Path) -> None:
    file, out = onnx_file(tmp_path), tmp_path / "model.sjit"
    done = invoked("compile", file, "--shape", "x=2x3", "--constant", "n=1.5", "--out", out)
    assert done.exit_code == 0, done.output
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(sparsejit.load(out)(x), 1.5 * x)


def test_one_model_through_every_command(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    model, saved = f"{tmp_path}/net.py:make", tmp_path / "net.sjit"
    done = invoked("compile", model, "--dtype", "bfloat16", "--batch", 2, "--out", saved)
    assert isinstance(done.exception, InvalidInput)  # a factory brings its own batch
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a model in training mode, say
        done = invoked("compile", model, "--dtype", "bfloat16", "--out", saved)
    *table, last = done.stdout.splitlines()
    assert [line.split()[0] for line in table[-3:]] == ["layer", "0", "all"], done.output
    assert "us, predicted" in table[-3] and last == f"model in {saved}"
    assert all(len(line) <= 80 for line in table)
    reports = [
        json.loads(invoked("explain", *each, "--json").stdout)["layers"]
        for each in ([model, "--dtype", "bfloat16"], [saved])
    ]
    assert reports[0] == reports[1] and "bf16" in reports[0][0]["kernel"]
    assert invoked("check", saved).output.startswith("every operator of")
    full = invoked("compile", saved, "--verbose", "--out", tmp_path / "again.sjit")
    assert "predicted cheapest" in full.output and (tmp_path / "again.sjit").exists()
    for options in (["--threads", 2], ["--dtype", "int8"]):
        done = invoked("explain", saved, *options)
        said = f"compiled with shapes and options of its own; leave out {options[0]}"
        assert said in str(done.exception)
    done = invoked("explain", model, "--tensor", "w")
    assert "--tensor and --strategy are for a matrix" in str(done.exception)


def test_explain_advises_on_models(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    done = invoked("explain", f"{tmp_path}/net.py:make", "--advise")
    assert done.exit_code == 0 and "change" in done.output, done.output
    found = json.loads(invoked("explain", f"{tmp_path}/net.py:make", "--advise", "--json").stdout)
    assert {"layers", "advice"} <= found.keys()
    np.save(tmp_path / "w.npy", np.ones((4, 3), np.float32))
    done = invoked("explain", tmp_path / "w.npy", "--advise")
    assert "is a matrix; --advise is for models" in str(done.exception)


def test_bench_refuses_inputs_that_the_model_does_not_take(tmp_path: Path) -> None:
    file = onnx_file(tmp_path, sizes=(1, 4))
    options = ["--shape", "x=1x5", "--peers", "", "--dtype", "float32"]
    done = invoked("bench", file, *options)
    assert isinstance(done.exception, InvalidInput)
    assert re.search(r"x has shape \(1, 5\); the model takes \(1, 4\)", str(done.exception))


def test_long_names_are_cut_to_80_columns() -> None:
    named = LayerReport("/encoder/" * 9 + "query", "padding, " * 9 + "dense", predicted_ns=1.5e9)
    report = Report("title", ("a line",), (named,), {})
    with console.capture() as captured:
        console.print(report.brief(), width=80)
    lines = captured.get().splitlines()
    assert [len(line) <= 80 for line in lines] == [True] * 4
    assert lines[2].split()[0].endswith("/query") and "dense   1,500,000.00" in lines[2]


@pytest.mark.parametrize("command", ["check", "explain", "bench"])
def test_torch_is_asked_for_only_where_a_torch_file_is_read(command: str, tmp_path: Path) -> None:
    """In a process of its own that cannot import torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('hidden by a test')")
    options = ["--shape", "x=2x3", "--constant", "n=2"]
    if command == "bench":
        options += ["--peers", "", "--dtype", "float32", "--latency", "0.05"]
    done = subprocess.run(
        [sys.executable, "-m", "sparsejit", command, onnx_file(tmp_path), *options],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = {"check": "every operator", "explain": "scaled", "bench": "no other engine here runs"}
    assert said[command] in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--constant", "n=2"], "input x has open sizes; give --shape x=1xlength"),
        (["--shape", "z=1x2"], "--shape z=...: the model's inputs are x, n"),
        (["--shape", "x=0x2"], "--shape x=0x2 is not valid; write it as x=1x576"),
        (["--constant", "n"], "--constant n is not valid; write it as sr=16000"),
        (["--shape", "x=1x2", "--constant", "m=2"], "constants has 'm'; the inputs are x, n"),
    ],
)
def test_inputs_that_do_not_fit_the_file_are_named(
    options: list[str], said: str, tmp_path: Path
) -> None:
    done = invoked("check", onnx_file(tmp_path), *options)
    assert isinstance(done.exception, InvalidInput) and said in str(done.exception)


def test_all_that_is_open_is_asked_for_at_once_and_constants_are_advised(tmp_path: Path) -> None:
    declared = [
        DeclaredInput("x", np.dtype("f4"), (None, "length")),
        DeclaredInput("state", np.dtype("f4"), (2, None, 128)),
        DeclaredInput("n", np.dtype("i8"), ()),
    ]
    said = r"inputs x, state have open sizes; give --shape x=1xlength --shape state=2x\?x128$"
    with pytest.raises(InvalidInput, match=said):
        example_arrays(declared)
    done = invoked("check", onnx_file(tmp_path, "BitwiseAnd"), "--shape", "x=1x3")
    assert "input n is one number: where it never changes, --constant n=..." in done.output


def test_a_torch_model_brings_its_own_inputs(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    with pytest.raises(InvalidInput, match="brings its own inputs; leave out --shape x=1x6"):
        read_source(f"{tmp_path}/net.py:make", ["x=1x6"])


def test_missing_operators_are_listed_without_compiling(tmp_path: Path) -> None:
    known = invoked("check", onnx_file(tmp_path), "--shape", "x=1x3")
    assert known.exit_code == 0 and "every operator of" in known.output
    file = onnx_file(tmp_path, "BitwiseAnd")
    done = invoked("check", file, "--shape", "x=1x3", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and not found["compiles"]
    assert any("BitwiseAnd" in line and "node scaled" in line for line in found["missing"])


def test_operators_without_a_mapping_may_be_left_to_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file, out, y = onnx_file(tmp_path, "Mod"), tmp_path / "model.sjit", tmp_path / "y.npy"
    model = onnx.load(file)
    model.graph.node[0].attribute.append(helper.make_attribute("fmod", 1))
    model.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
    odd = helper.make_node("Unique", ["z"], ["u"], name="odd")
    model.graph.node.append(odd)
    model.graph.output.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ["m"]))
    onnx.save(model, file)
    options = [file, "--shape", "x=1x3", "--constant", "n=2", "--fallback", "onnxruntime"]
    done = invoked("check", *options)
    assert done.exit_code == 0 and "part 2: onnxruntime, 1 node\n" in done.output
    assert "Unique (node odd): a call decides the size of its result" in done.output
    assert invoked("compile", *options, "--out", out).exit_code == 0
    x = np.array([[3, 5, 7.5]], np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["--input", tmp_path / "x.npy", "--out", y, "--out", tmp_path / "u.npy"]
    assert invoked("run", out, *given).exit_code == 0
    np.testing.assert_array_equal(np.load(y), x % 2)
    np.testing.assert_array_equal(np.load(tmp_path / "u.npy"), [-1.5, -1])
    assert "ONNX Runtime, 1 node" in invoked("explain", *options).output
    done = invoked("bench", *options, "--peers", "", "--dtype", "float32", "--json")
    (ours,) = json.loads(done.stdout)["times"]
    assert ours["name"] == "sparsejit" and ours["relative_error"] < 1e-6


def test_inputs_come_from_a_file_or_at_random(tmp_path: Path) -> None:
    file, data = onnx_file(tmp_path), tmp_path / "inputs.npz"
    x = np.ones((3, 2), np.float32)
    np.savez(data, x=x)
    source = read_source(str(file), constants=["n=4"], data=data)
    np.testing.assert_array_equal(source.args[0], x)
    task = AnyTask(source, tmp_path)
    np.testing.assert_array_equal(task.exact[0], 4 * x)
    with np.load(task.inputs_file) as held:
        given = list(held.values())
    assert [(each.shape, each.dtype) for each in given] == [((3, 2), "f4"), ((), "f4")]
    drawn = read_source(str(file), ["x=5x7"], always_inputs=True)
    assert [each.shape for each in drawn.args] == [(5, 7), ()]


@pytest.mark.parametrize("source", ["factory", "onnx", "pt2", "sjit"])
def test_ours_and_torch_are_timed_and_compared(source: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    model, options = f"{tmp_path}/net.py:make", ["--dtype", "int8"]
    options += ["--latency", "0.05", "--rate", "200"]
    if source == "onnx":
        model = str(onnx_file(tmp_path))
        options = ["--shape", "x=1x8", "--constant", "n=2", "--dtype", "float32"]
    if source == "pt2":
        model, options = str(tmp_path / "net.pt2"), ["--dtype", "bfloat16"]
        net = torch.nn.Linear(6, 4).eval()
        torch.export.save(torch.export.export(net, (torch.randn(1, 6),)), model)
    if source == "sjit":
        model, options = str(tmp_path / "net.sjit"), []
        sparsejit.compile(torch.nn.Linear(6, 4).eval(), (torch.randn(1, 6),)).save(model)
    done = invoked("bench", model, *options, "--peers", "torch", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    names = {one["name"]: one["relative_error"] for one in found["times"]}
    assert found["shrink"] == []  # too few weights
    ours = {
        "factory": {"sparsejit-int8"},
        "pt2": {"sparsejit-bfloat16"},
    }.get(source, {"sparsejit"})
    others = {"torch"} if source in ("factory", "pt2") else set()
    assert names.keys() == ours | others, found["skipped"]
    reasons = {"onnx": "runs no ONNX file", "sjit": "reads no .sjit file"}
    assert found["skipped"].get("torch") == (None if others else reasons[source])
    assert all(error < 0.1 for error in names.values())
    assert names.get("sparsejit", 0) < 1e-6 and names.get("torch", 0) < 1e-6
    assert found["verdicts"].keys() == {"called", "bound"}
    for verdict in found["verdicts"].values():
        assert ("the best other, torch" if others else "no other engine here") in verdict
        assert ("compare the model that it was" in verdict) == (source == "sjit")
    for one in found["times"]:  # alike for every source: torch's engines alone have no buffers
        assert (one["bound_ns_min"] is None) == (one["name"] == "torch")
        assert (one["bound_ns_median"] is None) == (one["name"] == "torch")
    if source == "factory":
        late = found["latency"]
        assert late["rate"] == 200 and {each["name"] for each in late["engines"]} == names.keys()
        assert all(each["calls"] == 10 == sum(each["histogram"]) for each in late["engines"])
        native = found["native"]
        assert native["rate"] == 0 and [each["name"] for each in native["engines"]] == [*ours]
        assert all(each["calls"] == sum(each["histogram"]) >= 1000 for each in native["engines"])
    else:
        assert found["latency"] is found["native"] is None


@pytest.mark.parametrize("option", [("--load",), ("--rate", "50")])
def test_options_of_latencies_need_them(option: tuple[str, ...], tmp_path: Path) -> None:
    done = invoked("bench", onnx_file(tmp_path), *option)
    assert isinstance(done.exception, InvalidInput)
    assert f"{' '.join(option)} is of no use alone; give --latency" in str(done.exception)


def test_native_steps_are_those_of_a_stream() -> None:
    gru = torch.nn.GRU(5, 8, batch_first=True).eval()
    given = torch.zeros(1, 1, 5), torch.zeros(1, 1, 8)
    fast = sparsejit.compile(gru, given, state={1: 1})
    found = native_latencies(fast, 0.001)
    assert len(found) >= 1000 and (found > 0).all()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_load_ends_with_its_context() -> None:
    with busy_core(spare_core()) as load:
        assert str(spare_core()) in load
        (child,) = children_of_this_process()
    assert child not in children_of_this_process()


def children_of_this_process() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return {int(each) for each in listed.split()}


WIDE = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Linear(128, 96), (torch.randn(1, 128),)
"""


def test_the_last_line_says_what_zeros_would_gain(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(WIDE)
    model, options = f"{tmp_path}/net.py:make", ["--dtype", "float32", "--peers", ""]
    last = invoked("bench", model, *options).stdout.splitlines()[-1]
    gains = r"(\S+) times as fast with half of the weights zero, (\S+) times with three quarters"
    found = re.match(f"shrink: {gains}", last)
    assert found is not None and 1 < float(found[1]) < float(found[2])
    assert last.endswith("--data samples.npz --out small.safetensors finds the error")


def test_no_forecast_loses_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("an operator that nobody foresaw")

    monkeypatch.setattr(shrunk, "predicted_speeds", fails)
    (tmp_path / "net.py").write_text(WIDE)
    done = invoked("bench", f"{tmp_path}/net.py:make", "--dtype", "float32", "--peers", "")
    assert done.exit_code == 0 and "no other engine here" in done.stdout.splitlines()[-1]


def test_latencies_of_engines_at_a_rate() -> None:
    ns = {"slow": [3e6] * 999 + [9e6], "quick": np.arange(1000, 11_000), "few": [5e4] * 9}
    found = latency_report(100.0, ns, {"late": "a call takes too long"})
    quick, few, slow = found.engines
    assert [each.name for each in (quick, few, slow)] == ["quick", "few", "slow"]
    # One call in a hundred takes longer than p99, of 10,000 one longer than p99.99.
    assert quick.percentiles == {50.0: 5.999, 99.0: 10.899, 99.9: 10.989, 99.99: 10.998}
    assert few.percentiles == {50.0: 50.0, 99.0: None, 99.9: None, 99.99: None}
    assert (slow.worst, slow.percentiles[99.9], slow.percentiles[99.99]) == (9000.0, 3000.0, None)
    assert [sum(each.histogram) for each in found.engines] == [10_000, 9, 1000]
    assert slow.bars[-1] != " " and slow.bars.strip()[0] == "█" and slow.bars[0] == " "
    assert found.edges[0] == 1.0 and found.edges[-1] == 9000.0
    ratios = np.divide(found.edges[1:], found.edges[:-1])
    np.testing.assert_allclose(ratios, ratios[0])
    assert latency_report(1.0, {}, {}).engines == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", 50], "--rate 50 is of no use alone; give --latency SECONDS"),
        (["--dtype", "fp4"], "dtype 'fp4' is unknown; use some of float32, bfloat16"),
        (["--threads", 4096], "4096 threads on "),
        (["--data", "more.npz"], "more.npz has z, and the model takes x, n"),
    ],
)
def test_options_that_bench_cannot_follow_are_refused(
    options: list[Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("more.npz", z=np.ones(3))
    done = invoked("bench", onnx_file(tmp_path), "--shape", "x=1x2", *options)
    assert isinstance(done.exception, InvalidInput) and said in str(done.exception)


def time_of(
    name: str, ns: float, error: float = 1e-7, bound: float | None = None
) -> ContestantTime:
    return ContestantTime(name, "1", ns, ns, error, 1, bound, bound)


def test_there_is_a_verdict_for_each_way_to_call() -> None:
    ours, torch_ = time_of("sparsejit", 400.0, bound=100.0), time_of("torch", 900.0)
    peer = time_of("onnxruntime", 500.0, bound=300.0)
    found = AnyComparison("m", (ours, peer, torch_), {}).verdicts
    best = "times as fast as the best other, onnxruntime"
    assert found == {"called": f"1.2 {best}", "bound": f"3.0 {best}"}
    alone = AnyComparison("m", (ours, torch_), {}).verdicts
    assert alone["bound"] == "9.0 times as fast as the best other, torch"  # as it is called
    same = AnyComparison("m", (time_of("sparsejit", 101.0), time_of("torch", 100.0)), {})
    assert same.verdicts["called"] == "as fast as the best other, torch"


def test_the_table_has_both_ways_and_names_them() -> None:
    times = time_of("sparsejit", 4e3, bound=1e3), time_of("torch", 9e3)
    with console.capture() as shown:
        bench_any._show(AnyComparison("m", times, {}))
    text = " ".join(shown.get().replace("│", " ").split())
    assert "called with arrays, or bound to buffers that are set once" in text
    assert "4.00 4.00 1.00 1.00 1.0e-07" in text and "9.00 9.00 1.0e-07" in text
    assert "called: 2.2 times as fast as the best other, torch" in text
    assert "bound: 9.0 times as fast as the best other, torch" in text


def test_the_verdict_is_a_sentence() -> None:
    peer, ours = time_of("onnxruntime", 300.0), time_of("sparsejit", 100.0)
    short = time_of("sparsejit-int8", 50.0, 2e-2)
    found = AnyComparison("m", (short, ours, peer, time_of("torch", 900.0)), {})
    best = "the best other, onnxruntime"
    assert found.verdicts["called"] == f"3.0 times as fast as {best}; int8 6.0 times at 2.0e-02"
    slow = AnyComparison("m", (peer, time_of("sparsejit", 600.0)), {})
    assert slow.verdicts["called"] == f"2.0 times slower than {best}"
    refused = AnyComparison("m", (peer,), {"sparsejit": "UnsupportedOperator: Erf"})
    assert refused.verdicts["called"] == "sparsejit does not run it: UnsupportedOperator: Erf"


def test_the_verdict_tells_precisions_apart_and_who_is_wrong() -> None:
    peer, short = time_of("onnxruntime", 300.0), time_of("sparsejit-bfloat16", 100.0, 5e-3)
    own = time_of("openvino-default", 150.0, 4e-3)
    found = AnyComparison("m", (short, own, peer), {})
    best = "as fast as the best other, onnxruntime, at 5.0e-03"
    bfloat16, openvino = f"bfloat16 3.0 times {best}", "openvino-default, in its own precision, 2.0"
    openvino += " times as fast as onnxruntime at 4.0e-03"
    assert found.verdicts["called"] == f"{bfloat16}; {openvino}"
    wrong = AnyComparison("m", (time_of("tvm", 1.0, 0.9), peer, time_of("sparsejit", 600.0)), {})
    verdict = wrong.verdicts["called"]
    assert verdict.startswith("tvm's outputs are 9.0e-01 from float64 as sparsejit reads")
    assert verdict.endswith("; 2.0 times slower than the best other, onnxruntime")


def test_other_engines_get_a_program_as_an_onnx_file(tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout()).eval()
    torch.export.save(torch.export.export(net, (torch.randn(1, 6),)), file)
    task = AnyTask(read_source(str(file)), tmp_path)
    onnx.checker.check_model(onnx.load(task.onnx_file(17)))


def test_named_arguments_are_refused_by_bench(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return x * scale

    file, x = tmp_path / "net.pt2", torch.randn(1, 6)
    torch.export.save(torch.export.export(Scaled(), (x,), {"scale": x}), file)
    done = invoked("bench", file)
    assert "net.pt2 takes scale by name; `bench` gives inputs by position" in str(done.exception)


def test_words_that_are_neither_a_command_nor_a_model_are_refused() -> None:
    done = invoked("bench", "nothing")
    assert done.exit_code == 2 and "No such command 'nothing'" in done.output
