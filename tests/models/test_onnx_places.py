"""Gathers and scatters of ONNX by places of several axes, against loops in numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

UPDATES = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": min,
    "max": max,
}


def compiled(
    operator: str,
    inputs: dict[str, np.ndarray],
    known: dict[str, np.ndarray],
    axes: int,
    **attributes: Any,
) -> Any:
    """One node, called with `inputs`; the others are initialisers; its result has `axes` axes."""
    operands = ["x", "places", "updates"][: len(inputs) + len(known)]
    node = helper.make_node(operator, operands, ["y"], **attributes)
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in inputs.items()
    ]
    held = [numpy_helper.from_array(each, name) for name, each in known.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"y{n}" for n in range(axes)])
    graph = helper.make_graph([node], "places", declared, [result], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return sparsejit.compile(model, free_batch=False)


def drawn(data: st.DataObject, most: int = 3) -> tuple[np.ndarray, np.random.Generator]:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 5, 8]), min_size=1, max_size=most))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return generator.standard_normal(shape).astype(np.float32), generator


@settings(max_examples=40)
@given(data=st.data(), is_known=st.booleans())
def test_elements_along_an_axis(data: st.DataObject, is_known: bool) -> None:
    x, generator = drawn(data)
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    shape = [int(generator.integers(1, n + 1)) for n in x.shape]
    shape[axis] = data.draw(st.sampled_from([1, 3, 9]))
    places = generator.integers(-x.shape[axis], x.shape[axis], shape)
    arrays = {"x": x}, {"places": places}
    if not is_known:
        arrays = {"x": x, "places": places}, {}
    found = compiled("GatherElements", *arrays, x.ndim, axis=axis)(*arrays[0].values())
    cut = x[tuple(slice(None if n == axis % x.ndim else m) for n, m in enumerate(shape))]
    np.testing.assert_array_equal(found, np.take_along_axis(cut, places, axis))


@settings(max_examples=40)
@given(data=st.data(), is_known=st.booleans())
def test_parts_by_tuples(data: st.DataObject, is_known: bool) -> None:
    x, generator = drawn(data)
    batch_axes = data.draw(st.integers(0, x.ndim - 1))
    depth = data.draw(st.integers(1, x.ndim - batch_axes))
    lead = (*x.shape[:batch_axes], *data.draw(st.lists(st.integers(1, 4), max_size=2)))
    named = x.shape[batch_axes : batch_axes + depth]
    places = np.stack([generator.integers(-n, n, lead) for n in named], axis=-1)
    arrays = ({"x": x}, {"places": places}) if is_known else ({"x": x, "places": places}, {})
    axes = len(lead) + x.ndim - batch_axes - depth
    found = compiled("GatherND", *arrays, axes, batch_dims=batch_axes)(*arrays[0].values())
    wanted = [x[(*at[:batch_axes], *places[at])] for at in np.ndindex(lead)]
    np.testing.assert_array_equal(
        found.reshape(len(wanted), -1), np.reshape(wanted, (len(wanted), -1))
    )


@settings(max_examples=40)
@given(data=st.data(), reduction=st.sampled_from(sorted(UPDATES)), is_known=st.booleans())
def test_replaced_along_an_axis(data: st.DataObject, reduction: str, is_known: bool) -> None:
    x, generator = drawn(data)
    axis = data.draw(st.integers(0, x.ndim - 1))
    shape = [int(generator.integers(1, n + 1)) for n in x.shape]
    most = 6 if reduction != "none" else x.shape[axis]
    shape[axis] = int(generator.integers(1, most + 1))
    places = generator.integers(-x.shape[axis], x.shape[axis], shape)
    if reduction == "none":  # of places that are named twice, which comes last is not said
        places = np.argsort(
            generator.random((*shape[:axis], x.shape[axis], *shape[axis + 1 :])), axis
        )
        places = places.take(range(shape[axis]), axis)
    updates = generator.standard_normal(shape).astype(np.float32)
    given_first, given_last = {"x": x}, {"updates": updates}
    if is_known:
        given, known = {**given_first, **given_last}, {"places": places}
    else:
        given, known = {**given_first, "places": places, **given_last}, {}
    run = compiled("ScatterElements", given, known, x.ndim, axis=axis, reduction=reduction)
    wanted = x.copy()
    for at in np.ndindex(*shape):
        to = (*at[:axis], places[at], *at[axis + 1 :])
        wanted[to] = UPDATES[reduction](wanted[to], updates[at])
    np.testing.assert_allclose(run(*given.values()), wanted, rtol=1e-6, atol=1e-6)


@settings(max_examples=40)
@given(data=st.data(), reduction=st.sampled_from(sorted(UPDATES)), is_known=st.booleans())
def test_replaced_by_tuples(data: st.DataObject, reduction: str, is_known: bool) -> None:
    x, generator = drawn(data)
    depth = data.draw(st.integers(1, x.ndim))
    parts = np.array(list(np.ndindex(*x.shape[:depth])))
    count = data.draw(st.integers(1, min(6, len(parts))))
    places = parts[generator.choice(len(parts), count, replace=reduction != "none")]
    places = places - generator.integers(0, 2, places.shape) * x.shape[:depth]
    updates = generator.standard_normal((count, *x.shape[depth:])).astype(np.float32)
    if is_known:
        given, known = {"x": x, "updates": updates}, {"places": places}
    else:
        given, known = {"x": x, "places": places, "updates": updates}, {}
    run = compiled("ScatterND", given, known, x.ndim, reduction=reduction)
    wanted = x.copy()
    for number, at in enumerate(places):
        old = wanted[tuple(at)]
        new = np.vectorize(UPDATES[reduction])(old, updates[number])
        wanted[tuple(at)] = new
    np.testing.assert_allclose(run(*given.values()), wanted, rtol=1e-6, atol=1e-6)


def test_places_that_are_none_are_refused() -> None:
    x, places = np.ones((2, 3), np.float32), np.array([[0, 2, 1]])
    run = compiled("GatherElements", {"x": x, "places": places}, {}, 2, axis=1)
    for wrong in (3, -4, 2**62):
        with pytest.raises(InvalidInput, match="an index without a row in its table"):
            run(x, np.array([[0, wrong, 1]]))
    with pytest.raises(UnsupportedOperator, match="names a place beyond 3"):
        compiled("GatherElements", {"x": x}, {"places": np.array([[3, 0, 0]])}, 2, axis=1)
    with pytest.raises(UnsupportedOperator, match=r"has places \[3, 1\] for \[2, 3\] along axis 1"):
        compiled("GatherElements", {"x": x}, {"places": np.zeros((3, 1), int)}, 2, axis=1)
    given = {"x": x, "places": places, "updates": x[:1]}
    run = compiled("ScatterElements", given, {}, 2, axis=1)
    for wrong in (3, -4, 2**62):
        with pytest.raises(InvalidInput, match="an index without a row in its table"):
            run(x, np.array([[0, wrong, 1]]), x[:1])
    whole = {"x": x.astype(int), "places": places, "updates": x[:1].astype(int)}
    with pytest.raises(UnsupportedOperator, match="reduces whole numbers by 'mul' at places"):
        compiled("ScatterElements", whole, {}, 2, axis=1, reduction="mul")


def test_updates_that_lie_otherwise_than_their_places_are_refused() -> None:
    x, updates = np.ones((4, 4, 4), np.float32), np.ones((2, 4, 4), np.float32)
    places = np.zeros((2, 1, 1), np.int64)
    with pytest.raises(UnsupportedOperator, match=r"\(2, 4, 4\), not \(2, 1, 4, 4\)"):
        compiled("ScatterND", {"x": x, "updates": updates}, {"places": places}, 3)
    with pytest.raises(UnsupportedOperator, match=r"\(2, 4, 4\), not \(4, 4, 2\)"):
        compiled(
            "ScatterElements",
            {"x": x, "updates": updates},
            {"places": np.zeros((4, 4, 2), np.int64)},
            3,
        )


def sliced(length: int, behind: int, dtype: Any = np.int64) -> Any:
    """x (2, 7, 3) from a place on axis 1 that is an input, to that many behind it."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Add", ["at", "one"], ["first"]),
        helper.make_node("Sub", ["first", "back"], ["less"]),
        helper.make_node("Add", ["count", "less"], ["end"]),
        helper.make_node("Unsqueeze", ["first", "zero"], ["starts"]),
        helper.make_node("Unsqueeze", ["end", "zero"], ["ends"]),
        helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["y"]),
    ]
    held = {"one": 1, "back": 2, "count": behind + 2}
    arrays = {name: np.asarray(n, dtype) for name, n in held.items()}
    arrays |= {"axes": np.array([-2], dtype), "zero": np.array([0])}
    graph = helper.make_graph(
        nodes,
        "slice",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, length, 3]),
            helper.make_tensor_value_info("at", number, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c"])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_a_slice_from_a_place_that_a_call_gives(dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 3)).astype(np.float32)
    run = sparsejit.compile(sliced(7, 3, dtype), free_batch=False)
    for place in range(4):
        np.testing.assert_array_equal(run(x, np.asarray(place, dtype)), x[:, place + 1 : place + 4])
    for place in (4, -2):
        with pytest.raises(InvalidInput, match="an index without a row in its table"):
            run(x, np.asarray(place, dtype))


def test_a_slice_to_a_place_that_a_call_gives_is_refused() -> None:
    model = sliced(7, 3)
    model.graph.node[-1].input[1] = "axes"
    with pytest.raises(UnsupportedOperator, match="its ends is not known"):
        sparsejit.compile(model)
    model = sliced(7, 3)
    model.graph.node[2].input[1] = "at"
    model.graph.node[2].input[0] = "first"
    with pytest.raises(UnsupportedOperator, match="its number of elements is not known"):
        sparsejit.compile(model)
