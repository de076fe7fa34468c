"""Graphs as files: what is read is what was written, or one exception."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsejit.artefact import sealed
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.graph_file import OPERATOR_RECORDS, graph_from_data, graph_to_data
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.ops.selection import Embedding, TopK
from sparsejit.ir.ops.views import Pad, Slice
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Element, Origin, TensorType

ROOT = Path(__file__).parents[2]



def to_data(graph: Graph) -> tuple[Any, dict[str, Any]]:
    """Header and tensors."""
    writer = ArrayWriter()
    return graph_to_data(graph, writer), writer.tensors


def from_data(header: Any, tensors: dict[str, Any]) -> Graph:
    reader = ArrayReader(tensors)
    graph = graph_from_data(header, reader)
    reader.finish()
    return graph


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


@given(st.floats(allow_nan=False), st.integers(-(2**70), 2**70))
def test_numbers_come_back_exactly(number: float, whole: int) -> None:
    pad = Pad(((whole, 0),), number)
    again = OPERATOR_RECORDS.decode(through_json(OPERATOR_RECORDS.encode(pad)))
    assert repr(again) == repr(pad)


def test_numpy_s_numbers_are_saved_as_python_s() -> None:
    data = OPERATOR_RECORDS.encode(Pad(((np.int64(1), 2),), np.float32(0.5)))  # type: ignore[arg-type]
    assert through_json(data) == {"record": "Pad", "widths": [[1, 2]], "value": 0.5}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Pad(((0, 1),), float("nan")), "nan is not a finite number"),
        (Pad(((0, 1.5),)), "1.5 is no int"),  # type: ignore[arg-type]
        (Embedding, "a type cannot be saved; use only "),
        (TensorType((2,)), "a TensorType cannot be saved"),
    ],
)
def test_records_that_cannot_be_saved_are_refused(record: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OPERATOR_RECORDS.encode(record)


LINEAR = OPERATOR_RECORDS.encode(Linear())
# As files of 1.0.0 have it, but for the scale and the zero point of x.
OLD_LINEAR = {"record": "Linear", "activation": "relu", "dtype": "int8"}
SLICE = OPERATOR_RECORDS.encode(Slice(1, 0, 4, 2))
CONVOLUTION = OPERATOR_RECORDS.encode(Convolution((1, 2), (0, 1), (1, 1)))
POOLING = OPERATOR_RECORDS.encode(
    Pooling(PoolingKind.AVERAGE, (2, 2), (2, 2), ((0, 1), (0, 0)), (1, 1))
)


@pytest.mark.parametrize(
    ("scale", "shift", "steps"),
    [
        (None, None, None),
        (0.1, None, Quantisation(0.1, 0, symmetric=True)),
        (0.1, 0, Quantisation(0.1, 0)),
        (0.1, -128, Quantisation(0.1, -128)),
    ],
)
def test_scales_of_files_of_1_0_0_become_steps(
    scale: float | None, shift: int | None, steps: Quantisation | None
) -> None:
    given = {"input_scale": scale, "input_shift": shift}
    found = OPERATOR_RECORDS.decode({**OLD_LINEAR, **given})
    assert found == Linear(Activation.RELU, DType.INT8, steps)
    old = {**CONVOLUTION, **given}
    del old["x_steps"]
    assert OPERATOR_RECORDS.decode(old) == Convolution((1, 2), (0, 1), (1, 1), x_steps=steps)
    assert OPERATOR_RECORDS.decode(OPERATOR_RECORDS.encode(found)) == found


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "has None where a record belongs"),
        ([], "where a record belongs"),
        ({}, "where a record belongs"),
        ({**SLICE, "record": "Origin"}, "where a record belongs"),
        ({**SLICE, "record": ["Slice"]}, "where a record belongs"),
        ({**SLICE, "record": "os.system"}, "where a record belongs"),
        ({**SLICE, "more": 1}, "unknown or missing fields: more"),
        ({k: v for k, v in SLICE.items() if k != "step"}, "unknown or missing fields: step"),
        ({**SLICE, "step": True}, "True is no int"),
        ({**SLICE, "step": 1.0}, "1.0 is no int"),
        ({**SLICE, "step": "1"}, "'1' is no int"),
        ({**SLICE, "step": None}, "None is no int"),
        ({"record": "Pointwise", "kind": "no"}, "function 'no' is unknown"),
        ({"record": "Concat", "axis": [1]}, r"\[1\] is no int"),
        ({"record": "Reshape", "shape": 3}, "3 is no list"),
        ({"record": "Reshape", "shape": [[3]]}, r"\[3\] is no int"),
        ({"record": "Pad", "widths": [[1, 2, 3]], "value": 0.0}, "a Pad that is not valid"),
        ({"record": "Pad", "widths": [[1, 2]], "value": "nan"}, "'nan' is no float"),
        ({"record": "Pad", "widths": [[1, 2]], "value": float("nan")}, "nan is not a finite"),
        ({"record": "Pad", "widths": [[1, 2]], "value": 0}, "0 is no float"),
        ({"record": "Bmm", "transposed": 0, "scale": 1.0}, "0 is no bool"),
        ({"record": "ArgMax", "keeps_axis": "yes"}, "'yes' is no bool"),
        ({**LINEAR, "dtype": "float64"}, "'float64' is not a valid DType"),
        ({**LINEAR, "dtype": 3}, "3 is no str"),
        ({**LINEAR, "x_steps": "1"}, "'1' is none of"),
        ({**OLD_LINEAR, "input_scale": "1", "input_shift": 0}, "is none of"),
        ({**OLD_LINEAR, "input_scale": None, "input_shift": 0}, "unknown or missing fields"),
        ({**OLD_LINEAR, "input_scale": 0.1}, "unknown or missing fields"),
        ({**OPERATOR_RECORDS.encode(softmax((2,))), "results": [9]}, r"names values \(9,\) of 7"),
        ({**OPERATOR_RECORDS.encode(softmax((2,))), "results": [-1]}, "name earlier values"),
        ({**OPERATOR_RECORDS.encode(softmax((2,))), "steps": [SLICE]}, "where a ChainStep belongs"),
        ({**CONVOLUTION, "stride": [0, 1]}, "a size below 1"),
        ({**CONVOLUTION, "padding": [0, -1]}, "a size below 0"),
        ({**POOLING, "kernel": [2, 0]}, "a size below 1"),
    ],
)
def test_a_damaged_record_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DamagedFile, match=message):
        OPERATOR_RECORDS.decode(data)


def model(density: float = 0.2) -> Graph:
    """A graph with several inputs and outputs, elements and forms of constants."""
    generator = np.random.default_rng(1)
    build = GraphBuilder()
    x = build.input(TensorType((2, 3, 8)), Origin("x"))
    words = build.input(TensorType((2, 3), Element.INT64), Origin("words"))
    weights = generator.standard_normal((5, 8)) * (generator.random((5, 8)) < density)
    weights[0, 0], weights[1, 1] = -0.0, np.float32(1e-42)
    at = Origin("fc", "model.fc", "model.py:12", "y = self.fc(x) \u2192 \"y\"")
    matrix = build.constant(weights, Origin("fc.weight", "model.fc"))
    bias = build.constant(np.zeros(5, np.float32), Origin("fc.bias"))
    table = build.constant(generator.standard_normal((9, 5)), Origin("table"))
    y = build.one(Linear(Activation.TANH), x, matrix, bias, origin=at)
    rows = build.one(Embedding(), words, table, origin=Origin("embedding"))
    both = build.one(Pointwise("add"), y, rows, origin=Origin("sum"))
    top = build.add(TopK(2), both, origin=Origin("top"))
    mask = build.constant(np.array([True, False, True, True, False]), Origin("mask"))
    shift = build.constant(np.array(3), Origin("shift"))
    picked = build.one(Pointwise("where"), mask, both, y, origin=Origin("where"))
    return build.finish([picked, *top, shift, x])


def arrays_of(graph: Graph) -> list[bytes]:
    return [array.tobytes() for array in graph.constants.values()]


@pytest.mark.parametrize("density", [0.0, 0.2, 0.9])
def test_a_graph_comes_back_the_same(tmp_path: Path, density: float) -> None:
    graph = model(density)
    header, tensors = to_data(graph)
    form = "packed" if density < 0.5 else "whole"
    assert header["constants"][0]["array"]["form"] == form
    sealed.write(tmp_path / "m.sjit", "model", header, tensors)
    kind, header_again, tensors_again = sealed.read(tmp_path / "m.sjit", {"model"})
    again = from_data(header_again, tensors_again)
    assert kind == "model" and str(again) == str(graph)
    assert [v.type for v in again.values()] == [v.type for v in graph.values()]
    assert [v.origin for v in again.values()] == [v.origin for v in graph.values()]
    assert arrays_of(again) == arrays_of(graph)
    inputs = [np.ones((2, 3, 8)), np.arange(6).reshape(2, 3)]
    for left, right in zip(graph.evaluate(inputs), again.evaluate(inputs), strict=True):
        np.testing.assert_array_equal(left, right)


SIGNS = [0, 0x80000000]


@given(st.data())
def test_packed_constants_keep_every_bit(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(0, 17), st.integers(0, 9)))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bits = generator.integers(0, 2**32, shape, np.uint32)
    bits[generator.random(shape) < data.draw(st.floats(0, 1))] &= data.draw(st.sampled_from(SIGNS))
    build = GraphBuilder()
    value = build.constant(bits.view(np.float32).T, Origin("w"))
    graph = build.finish([value])
    again = from_data(*to_data(graph))
    assert arrays_of(again) == [bits.T.tobytes()]


def change(path: list[Any], value: Any) -> Callable[[Any], None]:
    """Sets header[path[0]][path[1]]..."""

    def apply(header: Any) -> None:
        for name in path[:-1]:
            header = header[name]
        header[path[-1]] = value

    return apply


FIRST = ["constants", 0, "array"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change(["more"], 1), "where only inputs, constants, nodes, outputs, notes, batch_axes"),
        (change(["nodes"], {}), "where only inputs, constants, nodes, outputs, notes, batch_axes"),
        (change(["inputs", 0], 3), "has 3 where only element, shape, origin belong"),
        (change(["inputs", 0, "shape"], [2, -3, 8]), r"a tensor has sizes \[2, -3, 8\]"),
        (change(["inputs", 0, "shape"], [2, True, 8]), "value of shape"),
        (change(["inputs", 0, "shape"], [2, 3, 9]), "a node that is not valid"),
        (change(["inputs", 0, "element"], "float16"), "element 'float16'"),
        (change(["inputs", 0, "origin"], ["x"]), "origin"),
        (change([*FIRST, "tensors"], [99, 98]), "has none as tensor 99"),
        (change([*FIRST, "form"], "whole"), r"has float32\[5, 8\] as 'whole' of 3 tensors"),
        (change([*FIRST, "form"], 1), "where only element, shape, form, tensors belong"),
        (change([*FIRST, "element"], "int64"), r"has int64\[5, 8\] as 'packed' of 3 tensors"),
        (change([*FIRST, "form"], "rows"), "as tensor 0, not int64"),
        (change([*FIRST, "shape"], [2**40, 2**40]), "a tensor has sizes"),
        (change([*FIRST, "shape"], [4, 8]), "as tensor 0, not uint8"),
        (change(["constants", 4, "array", "element"], "bool"), r"int64\[\] as tensor \d+, not"),
        (change(["constants", 0, "origin"], [1, 2, 3, 4]), "origin"),
        (change(["nodes", 2, "inputs"], [7]), "a node that is not valid"),
        (change(["nodes", 0, "outputs", 0, "shape"], [2, 3, 6]), r"makes \(float32\[2, 3, 6\]\)"),
        (change(["nodes", 0, "inputs"], [0, 2, 7]), "names value 7 where the count of values is 7"),
        (change(["nodes", 0, "inputs"], [0, 2, -1]), "names value -1"),
        (change(["nodes", 0, "inputs"], [0, 2, True]), "names value True"),
        (change(["nodes", 0, "outputs"], []), r"makes \(\), but it makes"),
        (change(["nodes", 3, "op", "count"], 0), "a node that is not valid"),
        (change(["outputs"], [99]), "names value 99"),
        (change(["notes"], "text"), "only inputs, constants, nodes, outputs, notes, batch_axes"),
        (change(["notes"], [3]), r"has the notes \[3\]"),
        (change(["batch_axes"], [[0]]), r"has batch axes \[\[0\]\]"),
        (change(["batch_axes"], [[0], [-1]]), "has batch axes"),
        (change(["batch_axes"], [[3], [0]]), "has batch axes"),
        (change(["batch_axes"], [[0], [True]]), "has batch axes"),
        (change(["batch_axes"], [[0, 0], [0]]), "has batch axes"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(damage: Callable[[Any], None], message: str) -> None:
    header, tensors = to_data(model())
    header = through_json(header)
    damage(header)
    with pytest.raises(DamagedFile, match=message):
        from_data(header, tensors)


def test_tensors_that_nothing_reads_are_refused() -> None:
    header, tensors = to_data(model())
    with pytest.raises(DamagedFile, match="unread tensors: more"):
        from_data(header, {**tensors, "more": np.zeros(2)})


def test_a_field_newer_than_the_file_may_lack() -> None:
    data = OPERATOR_RECORDS.encode(TopK(3))
    del data["least"]
    assert OPERATOR_RECORDS.decode(data) == TopK(3)


def test_arrays_in_another_order_of_axes_are_written_row_by_row(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {"columns": np.asfortranarray(rows), "strided": rows[:, ::2], "one": np.float32(7)}
    sealed.write(tmp_path / "f", "model", {}, {n: np.asarray(a) for n, a in arrays.items()})
    for name, array in sealed.read(tmp_path / "f", {"model"}).tensors.items():
        np.testing.assert_array_equal(array, arrays[name])
