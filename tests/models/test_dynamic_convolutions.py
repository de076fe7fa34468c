"""Convolutions of bytes by a scale and zero point of the call, and files that have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import built_model, check_at_guard_pages, run_built
from onnx import TensorProto, helper, numpy_helper
from sketch import Sketch
from test_byte_convolutions import (
    FORMS,
    NAMES,
    NARROW,
    TARGET,
    WITH_VEX,
    Case,
    at_both_levels,
    cases,
    needs_vnni,
    target_of,
)
from test_divided_steps import divided

import sparsejit
from sparsejit.asm_templates.convolution import int8_convolution
from sparsejit.asm_templates.convolution.int8_convolution import QuadForm
from sparsejit.errors import CompileError
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import DynamicConvolution
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.int8_choice import with_cheapest_convolutions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import preferring
from sparsejit.planner.convolution_plan import FLOATS, SUMS

SCALE = np.float32(0.0211)
SUM_FORMS = [
    pytest.param(form, marks=() if form.paired else needs_vnni, id=str(form))
    for form in FORMS
    if not form.by_row
]
in_every_form = pytest.mark.parametrize("form", SUM_FORMS)
zeros = st.sampled_from([0, 1, 31, 128, 255])


def graph_of(case: Case) -> Graph:
    s = Sketch()
    x = s.input(case.samples, case.channels, *case.space)
    op = DynamicConvolution(case.stride, case.padding, case.dilation)
    scale, zero, weights = s.input(), s.input(), s.constant(case.weights.astype(np.float32))
    return s.finish(s(op, x, scale, zero, weights))


def inputs_of(case: Case, zero: int) -> list[Array]:
    """x over the whole range and beyond it, in no step of which it is near a tie."""
    steps = case.random.integers(-20 - zero, 276 - zero, (case.samples, case.channels, *case.space))
    off = case.random.uniform(-0.4, 0.4, steps.shape)
    return [((steps + off) * SCALE).astype(np.float32), SCALE, np.float32(zero)]


def run(graph: Graph, inputs: list[Array], target: Target) -> Array:
    built = built_model(lower_model(graph, ModelOptions(target)))
    return run_built(built, [np.asarray(each)[None] for each in inputs]).outputs[0][0]


def check(case: Case, zero: int, target: Target) -> None:
    """Sums are exact: float32 rounds those beyond 24 bits, once."""
    graph, inputs = graph_of(case), inputs_of(case, zero)
    (wanted,) = graph.nodes[0].op.reference(*inputs, case.weights.astype(np.float64))
    np.testing.assert_array_equal(run(graph, inputs, target), wanted.astype(np.float32))


@at_both_levels
@settings(max_examples=60)
@given(case=cases(), zero=zeros)
def test_any_windows(case: Case, zero: int, target: Target) -> None:
    check(case, zero, target)


@in_every_form
@settings(max_examples=30)
@given(case=cases(), zero=zeros)
def test_any_windows_in_every_form(form: QuadForm, case: Case, zero: int) -> None:
    with preferring(NAMES[form]):
        check(case, zero, target_of(form))


@needs_vnni
@pytest.mark.parametrize("fours", [False, True])
def test_words_of_four_weights(fours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX-VNNI, by the same instruction in its longer encoding."""
    monkeypatch.setattr(int8_convolution, "NARROW_PRODUCT", "vpdpbusd")
    with preferring(NAMES[QuadForm(1, fours)]):
        check(WINDOWS, 77, WITH_VEX)


WINDOWS = Case(5, 37, (14, 9), (3, 3), padding=(1, 2), density=0.5)
STRIDED = Case(7, 33, (15, 17), (3, 3), stride=(2, 2), padding=(1, 1), density=0.5)


@at_both_levels
def test_sums_beyond_24_bits(target: Target) -> None:
    check(Case(2000, 3, (3, 5), density=1.0), 255, target)


@in_every_form
@pytest.mark.parametrize("case", [WINDOWS, STRIDED], ids=["as it lies", "phases"])
def test_guard_pages_and_threads(case: Case, form: QuadForm) -> None:
    graph, inputs = graph_of(case), inputs_of(case, 100)
    (wanted,) = graph.nodes[0].op.reference(*inputs, case.weights.astype(np.float64))
    with preferring(NAMES[form]):
        built = built_model(lower_model(graph, ModelOptions(target_of(form))))
        halves, count = divided(graph, target_of(form), 2, 0)
    assert count
    arrays = [np.asarray(each)[None] for each in inputs]
    np.testing.assert_array_equal(run_built(built_model(halves), arrays).outputs[0][0], wanted)
    check_at_guard_pages(
        built,
        [np.asarray(each) for each in inputs],
        lambda found: np.testing.assert_array_equal(found[0], wanted),
    )


def test_strides_without_code_are_refused_and_never_planned() -> None:
    graph = graph_of(Case(4, 4, (9, 9), (3, 3), stride=(3, 3)))
    with pytest.raises(CompileError, match=r"stride of 3 .* dtype='float32'"):
        lower_model(graph, ModelOptions(NARROW))
    with preferring(SUMS):
        chosen = with_cheapest_convolutions(graph, ModelOptions(NARROW))
    assert not any(isinstance(node.op, DynamicConvolution) for node in chosen.nodes)


@pytest.mark.parametrize("name", [SUMS, FLOATS])
@pytest.mark.parametrize("target", [NARROW, TARGET], ids=["avx2", "avx512"])
def test_both_elements_have_the_same_sums(name: str, target: Target) -> None:
    if not target.runs_on(Target.detect()):
        pytest.skip("needs AVX-512 VNNI")
    graph, inputs = graph_of(WINDOWS), inputs_of(WINDOWS, 9)
    with preferring(name):
        chosen = with_cheapest_convolutions(graph, ModelOptions(target))
    kinds = [isinstance(node.op, DynamicConvolution) for node in chosen.nodes]
    assert any(kinds) == (name == SUMS)
    (wanted,) = graph.nodes[0].op.reference(*inputs, WINDOWS.weights.astype(np.float64))
    np.testing.assert_array_equal(run(chosen, inputs, target), wanted)


def model_of(shape: tuple[int, ...], weights: Array, per_row: bool, **windows: Any) -> Any:
    """As `quantize_dynamic` writes a convolution; its sums as floats are the second output."""
    rank, outputs = len(shape) - 2, len(weights)
    scale = np.linspace(0.01, 0.02, outputs if per_row else 1).astype(np.float32)
    constants = {
        "w": weights,
        "w_scale": scale.reshape(-1, *[1] * rank) if per_row else scale,
        "w_zero": weights.dtype.type(128 if weights.dtype == np.uint8 else 0),
        "bias": np.linspace(-1, 1, outputs).astype(np.float32).reshape(1, -1, *[1] * rank),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "q_scale", "q_zero"]),
        helper.make_node("ConvInteger", ["q", "w", "q_zero", "w_zero"], ["sums"], **windows),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["q_scale", "w_scale"], ["scale"]),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "floats")]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", [x], made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FILES = {
    "1x1": ((1, 33, 14, 14), (40, 33, 1, 1), {}),
    "3x3, padded": ((2, 8, 15, 9), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "padded at one end": ((1, 8, 15, 9), (16, 8, 3, 3), {"pads": [0, 1, 2, 1]}),
    "strided": ((1, 5, 17, 15), (7, 5, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "by three": ((1, 5, 17, 15), (7, 5, 4, 4), {"strides": [3, 4]}),
    "dilated": ((1, 5, 17, 15), (7, 5, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "groups": ((1, 12, 9, 9), (8, 6, 3, 3), {"group": 2}),
    "by channel": ((1, 12, 9, 9), (12, 1, 3, 3), {"group": 12, "pads": [1, 1, 1, 1]}),
    "over time": ((2, 16, 50), (24, 16, 3), {"pads": [1, 1]}),
    "over time, strided": ((1, 16, 50), (24, 16, 5), {"strides": [2]}),
}


@pytest.mark.plans
@pytest.mark.parametrize("prefers", [None, SUMS])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", FILES)
def test_files_equal_onnx_runtime_to_the_last_bit(
    name: str, dtype: type, prefers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights beyond int8, and windows without code, are float32 with the same sums."""
    monkeypatch.setenv("SPARSEJIT_CODE_CACHE_MB", "0")
    shape, of_weights, windows = FILES[name]
    random = np.random.default_rng(len(name))
    weights = random.integers(*((-127, 128) if dtype is np.int8 else (0, 256)), of_weights)
    model = model_of(shape, weights.astype(dtype), name.startswith("3x3"), **windows)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with preferring(prefers or ""):
        fast = sparsejit.compile(model, free_batch=False)
    for offset in (0, 3, -3):
        x = (random.standard_normal(shape) + offset).astype(np.float32)
        y, sums = fast(x)
        wanted = session.run(None, {"x": x})
        np.testing.assert_array_equal(sums, wanted[1])
        np.testing.assert_allclose(y, wanted[0], rtol=1e-6, atol=1e-6)


def test_readers_of_the_same_steps_share_their_bytes() -> None:
    case = replace(WINDOWS, samples=1)
    s = Sketch()
    x, scale, zero = s.input(1, case.channels, *case.space), s.input(), s.input()
    op = DynamicConvolution(case.stride, case.padding, case.dilation)
    weights = case.weights.astype(np.float32)
    made = [s(op, x, scale, zero, s.constant(sign * weights)) for sign in (1, -1)]
    lowered = lower_model(s.finish(*made), ModelOptions(NARROW))
    assert [step.kernel for step in lowered.steps].count("to-bytes-avx2") == 1
