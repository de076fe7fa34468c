"""`sparsejit.onnxruntime` beside ONNX Runtime: the same results, descriptions and errors."""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
theirs = pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402

import sparsejit.onnxruntime as ours  # noqa: E402
from sparsejit.onnxruntime.capi import onnxruntime_pybind11_state as errors  # noqa: E402

LOGGER = "sparsejit.onnxruntime"
FLOAT, INT64, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_bytes(nodes: list[Any], inputs: list[Any], outputs: list[Any], *held: Any) -> bytes:
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(held), doc_string="a graph")
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="tests")
    helper.set_model_props(model, {"classes": "cat,dog"})
    return bytes(model.SerializeToString())


def weights(name: str, *shape: int) -> Any:
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return onnx.numpy_helper.from_array(made, name)


def product(batch: Any = "batch", kind: int = FLOAT) -> bytes:
    """x (batch, 4) times w, and its Relu."""
    held = onnx.numpy_helper.from_array(
        np.arange(8).reshape(4, 2).astype(helper.tensor_dtype_to_np_dtype(kind)), "w"
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    inputs, outputs = [info("x", [batch, 4], kind)], [info("y", None, kind), info("z", None, kind)]
    return model_bytes(nodes, inputs, outputs, held)


def lengths() -> bytes:
    """A convolution over an open length."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1])
    y = info("y", ["n", 3, "time"])
    return model_bytes([node], [info("x", ["n", 2, "time"])], [y], weights("w", 3, 2, 3))


def decided() -> bytes:
    """A copy of x as often as whole numbers say, whose shape they decide."""
    node = helper.make_node("Tile", ["x", "repeats"], ["y"])
    inputs = [info("x", [1, 4]), info("repeats", [2], INT64)]
    return model_bytes([node], inputs, [info("y", ["rows", "columns"])])


def partly() -> bytes:
    """A Relu, and a node that sparsejit does not compile."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Det", ["y"], ["z"]),
    ]
    return model_bytes(nodes, [info("x", [3, 3])], [info("z", [])])


def both(source: Any) -> tuple[Any, Any]:
    return theirs.InferenceSession(source), ours.InferenceSession(source)


def check(source: Any, *calls: dict[str, Any]) -> Any:
    """Both give the same for each call; return our session."""
    reference, session = both(source)
    for feeds in calls:
        wanted, found = reference.run(None, feeds), session.run(None, feeds)
        assert [(each.shape, each.dtype) for each in found] == [
            (each.shape, each.dtype) for each in wanted
        ]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return session


ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Softmax", "Neg", "Exp")


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(ACTIVATIONS)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from(["batch", 3]),
)
def test_random_networks_are_equal(layers: Any, width: int, batch: Any) -> None:
    nodes, held, name, size = [], [], "x", width
    for number, (out, activation) in enumerate(layers):
        held.append(weights(f"w{number}", size, out))
        nodes.append(helper.make_node("MatMul", [name, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node(activation, [f"m{number}"], [f"a{number}"]))
        name, size = f"a{number}", out
    outputs = [info(name, [batch, size]), info("m0", [batch, layers[0][0]])]
    source = model_bytes(nodes, [info("x", [batch, width])], outputs, *held)
    rows = (1, 3, 20) if batch == "batch" else (3,)
    random = np.random.default_rng(width)
    calls = [{"x": random.standard_normal((n, width)).astype(np.float32)} for n in rows]
    assert check(source, *calls).compiled


@pytest.mark.parametrize("batch", ["batch", 3, None])
def test_descriptions_are_equal(batch: Any) -> None:
    reference, session = both(product(batch))
    for asked in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        wanted, found = getattr(reference, asked)(), getattr(session, asked)()
        assert [(e.name, e.type) for e in found] == [(e.name, e.type) for e in wanted]
        if batch is not None:
            assert [e.shape for e in found] == [e.shape for e in wanted]
    theirs_about, about = reference.get_modelmeta(), session.get_modelmeta()
    for field in ("producer_name", "graph_name", "domain", "description", "graph_description"):
        assert getattr(about, field) == getattr(theirs_about, field)
    assert about.custom_metadata_map == {"classes": "cat,dog"}
    assert about.version == theirs_about.version
    assert session.get_providers() == ours.get_available_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert ours.get_device() == "CPU"
    assert ours.__version__ == theirs.__version__


def test_outputs_by_name() -> None:
    reference, session = both(product())
    for names in (["z"], ["z", "y"], ["y", "y"], []):
        wanted, found = reference.run(names, {"x": X}), session.run(names, {"x": X})
        assert len(found) == len(wanted)
        assert all(map(np.allclose, found, wanted))


WRONG = {
    "missing": (None, {}),
    "extra": (None, {"x": X, "q": X}),
    "output": (["q"], {"x": X}),
    "dtype": (None, {"x": X.astype(np.float64)}),
    "rank": (None, {"x": X[0]}),
    "size": (None, {"x": X[:, :3]}),
    "object": (None, {"x": 5}),
    "text": (None, {"x": np.array(["a"])}),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_of_calls_are_theirs(case: str) -> None:
    reference, session = both(product())
    with pytest.raises(Exception) as wanted:  # noqa: PT011, of any type
        reference.run(*WRONG[case])
    with pytest.raises(Exception) as found:  # noqa: PT011, of any type
        session.run(*WRONG[case])
    assert type(found.value).__name__ == type(wanted.value).__name__
    assert str(found.value) == str(wanted.value)
    assert len(session.run(None, {"x": X})) == 2


def test_errors_of_files_are_theirs(tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match="NO_SUCHFILE"):
        ours.InferenceSession(tmp_path / "none.onnx")
    with pytest.raises(errors.InvalidProtobuf, match="INVALID_PROTOBUF"):
        ours.InferenceSession(b"abc")
    with pytest.raises(TypeError, match="Unable to load from type"):
        ours.InferenceSession(5)
    unknown = model_bytes([helper.make_node("Nope", ["x"], ["y"])], [info("x", [1])], [])
    with pytest.raises((errors.InvalidGraph, errors.Fail)):
        ours.InferenceSession(unknown)


def test_errors_of_files_without_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(errors.InvalidProtobuf, match="INVALID_PROTOBUF"):
        ours.InferenceSession(b"abc")
    with pytest.raises(errors.InvalidGraph, match="INVALID_GRAPH"):
        ours.InferenceSession(model_bytes([helper.make_node("Relu", ["q"], ["y"])], [], []))
    assert len(ours.InferenceSession(product()).run(None, {"x": X})) == 2
    with pytest.raises(errors.NotImplemented, match=r"(?s)Det.*pip install"):
        ours.InferenceSession(partly()).run(None, {"x": np.eye(3, dtype=np.float32)})


def test_other_lengths_are_compiled_and_the_time_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    random = np.random.default_rng(0)
    shapes = [(1, 2, 10), (4, 2, 10), (1, 2, 16), (1, 2, 23), (2, 2, 23), (1, 2, 10)]
    calls = [{"x": random.standard_normal(shape).astype(np.float32)} for shape in shapes]
    with caplog.at_level(logging.INFO, LOGGER):
        session = check(lengths(), *calls)
    said = [each.message for each in caplog.records if each.name == LOGGER]
    assert [each.split("for ")[-1] for each in said] == ["x=1x2x10", "x=1x2x16", "x=1x2x23"]
    assert all("was compiled in" in each for each in said)
    assert len(session.compiled) == 2  # of the first length, and of the others


def test_whole_numbers_that_decide_the_graph_become_constants(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def calls(*rows: int) -> list[dict[str, Any]]:
        return [{"x": X[:1], "repeats": np.array([each, 2])} for each in rows]

    with caplog.at_level(logging.WARNING, LOGGER):
        session = check(decided(), *calls(2, 3, 2))
        assert [each.title.split(":")[0] for each in session.compiled] == ["sparsejit model"] * 2
        assert not caplog.records
        check(decided(), *calls(*range(1, 12)))
    assert len(caplog.records) == 1  # too many values are left to ONNX Runtime


def test_fallback_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(0)
    calls = [{"x": random.standard_normal((3, 3)).astype(np.float32)} for _ in range(3)]
    with caplog.at_level(logging.WARNING, LOGGER):
        check(partly(), *calls)
    (record,) = caplog.records
    assert "the model leaves 1 nodes to ONNX Runtime, the first is Det" in record.message


def test_severity_silences_messages(caplog: pytest.LogCaptureFixture) -> None:
    options = ours.SessionOptions()
    options.log_severity_level = 3
    with caplog.at_level(logging.DEBUG, LOGGER):
        session = ours.InferenceSession(partly(), options)
        session.run(None, {"x": np.eye(3, dtype=np.float32)})
    assert not caplog.records


def test_doubles_stay_doubles() -> None:
    x = X.astype(np.float64) / 3
    found = ours.InferenceSession(product(kind=DOUBLE)).run(["y"], {"x": x})[0]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, x @ np.arange(8.0).reshape(4, 2))


def test_no_rows() -> None:
    check(product(), {"x": X[:0]}, {"x": X})


def test_values_of_the_file_may_be_given() -> None:
    held = onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    inputs = [info("x", ["n", 4]), info("w", [4, 2])]
    source = model_bytes([node], inputs, [info("y", ["n", 2])], held)
    session = check(source, {"x": X}, {"x": X, "w": np.zeros((4, 2), np.float32)})
    assert [each.name for each in session.get_overridable_initializers()] == ["w"]


def test_a_path_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(product())
    session = ours.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    path.unlink()
    assert len(session.run(None, {"x": X})) == 2
    path.write_bytes(lengths())
    assert len(session.run(None, {"x": X})) == 2


def test_other_suffixes(tmp_path: Path) -> None:
    (tmp_path / "net.bin").write_bytes(product())
    check(str(tmp_path / "net.bin"), {"x": X})


def test_bound_inputs_and_outputs() -> None:
    reference, session = both(product())
    y = np.zeros((3, 2), np.float32)
    results = []
    for each in (reference, session):
        x = X.copy()
        binding = each.io_binding()
        binding.bind_cpu_input("x", x)
        x *= 2  # arrays are bound, not copied
        binding.bind_output("z")
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        each.run_with_iobinding(binding)
        results.append([*binding.copy_outputs_to_cpu(), y.copy()])
        values = binding.get_outputs()
        assert [v.data_type() for v in values] == ["tensor(float)"] * 2
        assert [v.shape() for v in values] == [[3, 2]] * 2
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(*results, strict=True))
    binding.bind_output("y", "cpu", 0, np.float32, (1, 2), y.ctypes.data)
    with pytest.raises(RuntimeError, match="Error in execution"):
        session.run_with_iobinding(binding)
    with pytest.raises(RuntimeError, match="Failed to find NodeArg"):
        binding.bind_cpu_input("q", X)
    binding.clear_binding_inputs()
    with pytest.raises(RuntimeError, match="Required inputs"):
        session.run_with_iobinding(binding)


def test_values() -> None:
    session = ours.InferenceSession(product())
    value = ours.OrtValue.ortvalue_from_numpy(X)
    wanted = session.run(["y"], {"x": X})[0]
    (found,) = session.run_with_ort_values(["y"], {"x": value})
    assert np.array_equal(found.numpy(), wanted)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    room = ours.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding.bind_ortvalue_output("y", room)
    session.run_with_iobinding(binding)
    assert np.array_equal(room.numpy(), wanted)
    value.update_inplace(np.zeros_like(X))
    assert not value.numpy().any()
    with pytest.raises(ValueError, match="the value is float32"):
        value.update_inplace(np.zeros(3))
    binding.bind_input("x", "cpu", 0, np.float32, [3, 4], value.data_ptr())
    session.run_with_iobinding(binding)
    assert not room.numpy().any()


def test_options() -> None:
    options = ours.SessionOptions()
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_mode = ours.ExecutionMode.ORT_PARALLEL
    options.intra_op_num_threads, options.enable_cpu_mem_arena = 1, False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(RuntimeError, match="does not have configuration"):
        options.get_session_config_entry("none")
    with pytest.raises(AttributeError):
        options.nothing = 1
    session = ours.InferenceSession(product(), sess_options=options)
    session.disable_fallback()
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_session_options() is options
    real = options.of_runtime(theirs)
    assert real.graph_optimization_level == theirs.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert ours.InferenceSession(product(), real).run(None, {"x": X})
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        ours.InferenceSession(product(), providers=["CUDAExecutionProvider"])


def test_options_that_only_onnx_runtime_has(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 3)
    session = ours.InferenceSession(product(), options)
    assert session.get_inputs()[0].shape == [3, 4]
    assert not session.compiled
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = ours.InferenceSession(product(), options)
    assert (tmp_path / "optimised.onnx").exists()
    session.run(None, {"x": X})
    assert session.compiled


def test_a_model_that_onnx_runtime_optimised_for_a_session_is_compiled_whole(
    tmp_path: Path,
) -> None:
    """ONNX Runtime alone would write convolutions in a layout of its own."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = info("x", [1, 16, 12, 12]), info("y", [1, 32, 12, 12])
    source = model_bytes(nodes, [x], [y], weights("w", 32, 16, 3, 3))
    domains = []
    for package in (theirs, ours):
        options, path = package.SessionOptions(), tmp_path / f"{package.__name__}.onnx"
        options.optimized_model_filepath = str(path)
        package.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        written = onnx.load(path)
        domains.append({node.domain for node in written.graph.node})
    assert "com.microsoft.nchwc" in domains[0] - domains[1]
    ones = np.ones((1, 16, 12, 12), np.float32)
    session = check(written.SerializeToString(), {"x": ones})
    assert session.compiled


def test_sizes_may_be_compiled_at_a_later_use() -> None:
    options = ours.SessionOptions()
    options.add_session_config_entry("sparsejit.compile_at_use", "2")
    session = ours.InferenceSession(product(), options)
    wanted = session.run(None, {"x": X})
    assert not session.compiled
    assert all(map(np.allclose, session.run(None, {"x": X}), wanted))
    assert session.compiled


def test_threads_share_a_session() -> None:
    session, failed = ours.InferenceSession(lengths()), []
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((1, 2, 5 + n % 3)).astype(np.float32) for n in range(12)]
    reference = theirs.InferenceSession(lengths())

    def call(x: Any) -> None:
        for _ in range(3):
            wanted = reference.run(None, {"x": x})[0]
            if not np.allclose(session.run(None, {"x": x})[0], wanted, atol=1e-5):
                failed.append(x.shape)

    threads = [threading.Thread(target=call, args=(x,)) for x in inputs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


def test_run_async() -> None:
    session, done, found = ours.InferenceSession(product()), threading.Event(), []

    def take(results: Any, data: Any, error: str) -> None:
        found.append((results, data, error))
        done.set()

    session.run_async(["y"], {"x": X}, take, "mine")
    assert done.wait(60)
    assert found[0][1:] == ("mine", "")
    assert np.array_equal(found[0][0][0], session.run(["y"], {"x": X})[0])


def test_other_names_are_onnx_runtime_s() -> None:
    assert ours.SparseTensor is theirs.SparseTensor
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ours.nothing
