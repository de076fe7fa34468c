"""Functions of one byte behind convolutions: tables, and biases behind a first rounding."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from native import built_model, run_built
from onnx.reference import ReferenceEvaluator
from sketch import Sketch
from test_byte_convolutions import NAMES, Case, at_both_levels, is_near, preferring, quantised
from test_byte_layers import CHANNELS, SIZE, Qdq, convolutions, in_bytes

import sparsejit
from sparsejit.asm_templates.convolution import int8_row_pairs
from sparsejit.asm_templates.convolution.int8_convolution import QuadForm
from sparsejit.asm_templates.convolution.int8_results import ByteEpilogue, fused
from sparsejit.asm_templates.convolution.int8_row_pairs import rows_of_one_input
from sparsejit.asm_templates.convolution.int8_tables import TableParts, look_up
from sparsejit.errors import InvalidInput
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import RoundedResult
from sparsejit.ir.spec import Activation, Quantisation
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.passes.default import run_passes
from sparsejit.passes.int8_layers import byte_layers
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, rcx, rdi, rsi, ymm

CASE = Case(33, 41, (11, 12), density=0.2, shift=-7, y_shift=5)
RESULT = Quantisation(0.027, -19)
TABLE = tuple(np.random.default_rng(3).integers(-128, 128, 256).tolist())


def rectified(first: int, power: float, zero: int = -128) -> tuple[int, ...]:
    """A table of bytes that is constant up to the place `first`, and rises behind it."""
    places = (np.arange(-128, 128) - first).clip(0)
    return tuple((np.rint(places**power) + zero).clip(-128, 127).astype(int).tolist())


# By the places between the first entry that differs and the last: 256 of them need four registers
# of AVX-512, and a line needs none.
TABLES = {
    "any": TABLE,
    "four registers": rectified(-80, 1.05),
    "three registers": rectified(-50, 1.1, -90),
    "two registers": rectified(3, 1.14),
    "a register": rectified(80, 1.5),
    "a line": rectified(-20, 1.0, -7),
    "a constant": rectified(127, 1.0, 9),
    "falling": tuple(-each - 1 for each in rectified(10, 1.1)),
}


def with_rounding(case: Case, rounding: RoundedResult) -> Graph:
    s, inner = Sketch(), case.graph()
    (node,) = inner.nodes
    x = s.input(*inner.inputs[0].shape)
    others = (
        s.constant(inner.constants[each]) if each in inner.constants else s.input(*each.shape)
        for each in node.inputs[1:]
    )
    return s.finish(s(replace(node.op, rounding=rounding), x, *others))


def integers_of(graph: Graph, inputs: list[Array], target: Target) -> Array:
    built = built_model(lower_model(graph, ModelOptions(target)))
    found = run_built(built, [x[None] for x in inputs])
    return np.rint(found.outputs[0][0] / np.float32(RESULT.scale)).astype(int) + RESULT.zero_point


@at_both_levels
@pytest.mark.parametrize("shift", [-128, 5, 127])
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_says_what_becomes_of_a_byte(
    table: tuple[int, ...], activation: Activation, density: float, shift: int, target: Target
) -> None:
    """At density 1 two rows share their inputs."""
    case = replace(CASE, y_shift=shift, density=density, activation=activation)
    own = case.steps[1]
    graph = with_rounding(case, RoundedResult(RESULT, own, table=table))
    (x,) = case.inputs(case.graph())
    found = integers_of(graph, [x], target)
    integers, near = case.wanted([x])
    wanted = np.array(table)[integers.astype(int) + 128]
    np.testing.assert_array_equal(found[~near], wanted[~near])
    (said,) = graph.evaluate([x])
    right = (wanted - RESULT.zero_point) * RESULT.scale
    np.testing.assert_allclose(said[~near], right[~near], 1e-6)


@at_both_levels
@pytest.mark.parametrize("ratio", [0.7713, 1.4632, 3.3171, 6.7193])
@pytest.mark.parametrize("least", [-128, -30])
@pytest.mark.parametrize("adds", [False, True])
def test_bytes_in_other_steps_are_multiplied(
    adds: bool, least: int, ratio: float, target: Target
) -> None:
    """By a factor, with an addition or two doublings before it, and bounds."""
    case = replace(CASE, adds=adds)
    own, added = case.steps[3 if adds else 1], case.steps[2] if adds else None
    places = np.arange(-128, 128) - own.zero_point
    table = (np.rint(places * ratio) - 30).clip(least, 101).astype(int).tolist()
    sums = {"added": added, "summed": own} if adds else {}
    first = case.steps[1] if not adds or case.rounds_first else None
    graph = with_rounding(case, RoundedResult(RESULT, first, table=tuple(table), **sums))
    inputs = case.inputs(graph)
    found = integers_of(graph, inputs, target)
    integers, near = case.wanted(inputs)
    wanted = np.array(table)[integers.astype(int) + 128]
    np.testing.assert_array_equal(found[~near], wanted[~near])
    bytes_of = (np.array(table) + 128).astype(np.uint8)
    assert ByteEpilogue(0).with_function(bytes_of, own.zero_point + 128).slope is not None


@at_both_levels
@pytest.mark.parametrize("has_table", [False, True])
def test_a_late_bias_comes_behind_the_first_rounding(has_table: bool, target: Target) -> None:
    own, more = CASE.steps[1], dict[str, Any]()
    read = Quantisation(0.029, 17) if has_table else RESULT
    if has_table:
        more = {"summed": read, "table": TABLE}
    graph = with_rounding(CASE, RoundedResult(RESULT, own, late=True, **more))
    (x,) = CASE.inputs(CASE.graph())
    found = integers_of(graph, [x], target)
    weights, scale = CASE.integers
    shifted = quantised(x, CASE.steps[0]) - CASE.steps[0].zero_point
    sums = np.einsum("ncij,oc->noij", shifted, weights[..., 0, 0])
    product = sums * (scale.astype(np.float64) * CASE.steps[0].scale)[:, None, None] / own.scale
    of_own = (np.rint(product) + own.zero_point).clip(-128, 127) - own.zero_point
    y = (of_own * own.scale + CASE.bias.astype(np.float64)[:, None, None]) / read.scale
    wanted = (np.rint(y) + read.zero_point).clip(-128, 127).astype(int)
    if has_table:
        wanted = np.array(TABLE)[wanted + 128]
    near = is_near(product) | is_near(y)
    np.testing.assert_array_equal(found[~near], wanted[~near])
    (said,) = graph.evaluate([x])
    right = (wanted - RESULT.zero_point) * RESULT.scale
    np.testing.assert_allclose(said[~near], right[~near], 1e-6)


@at_both_levels
@pytest.mark.parametrize("rounds_first", [False, True])
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_follows_a_sum(
    table: tuple[int, ...], density: float, rounds_first: bool, target: Target
) -> None:
    case = replace(CASE, density=density, adds=True, rounds_first=rounds_first)
    _, own, added, summed = case.steps
    rounding = RoundedResult(RESULT, own if rounds_first else None, added, False, summed, table)
    graph = with_rounding(case, rounding)
    inputs = case.inputs(graph)
    found = integers_of(graph, inputs, target)
    integers, near = case.wanted(inputs)
    wanted = np.array(table)[integers.astype(int) + 128]
    np.testing.assert_array_equal(found[~near], wanted[~near])
    (said,) = graph.evaluate(inputs)
    right = (wanted - RESULT.zero_point) * RESULT.scale
    np.testing.assert_allclose(said[~near], right[~near], 1e-6)


BYTES = np.arange(256)
RANDOM = np.array(TABLE) + 128
SILU = np.rint((BYTES - 130) * 2.1 / (1 + np.exp((130 - BYTES) / 16)) + 90 - RANDOM % 3) % 256
BYTE_TABLES = {
    "any": RANDOM,
    "the same everywhere": np.full(256, 93),
    "parts of one value": RANDOM[BYTES // 16 * 16],
    "zero where negative": np.maximum(BYTES - 128, 0),
    "the same where negative": np.maximum(BYTES, 93),
    "steps of two": np.maximum(2 * BYTES - 256, 0) + 90,
    "a bend": SILU,
    "a bend, and a step": np.where(BYTES == 200, 3, SILU),
    "the same in two pairs of parts": np.where(BYTES // 16 % 8 < 2, 93, RANDOM),
}


@pytest.mark.parametrize("kind", BYTE_TABLES)
def test_every_byte_is_looked_up(kind: str) -> None:
    """With AVX2; parts that have the zero point alone have no code, smooth tables have half."""
    table, zero_point = BYTE_TABLES[kind].astype(np.uint8), 93
    parts = TableParts.of(table, zero_point)
    if kind in ("parts of one value", "zero where negative", "steps of two", "a bend"):
        assert parts.is_zero is None
    else:
        assert parts.is_zero == tuple((table.reshape(16, 16) == zero_point).all(axis=1))
    asm = Assembler(Target.named("avx2"))
    asm.emit("lea", rcx, Literal(asm.literal(np.frombuffer(parts.entries, np.uint8))))
    for place in range(0, 256, 32):
        asm.emit("vmovdqu", ymm(0), Memory(rdi, place))
        look_up(asm, parts.is_zero, Memory(rcx), ymm(0), [ymm(number) for number in range(1, 10)])
        asm.emit("vmovdqu", Memory(rsi, place), ymm(0))
    asm.emit("vzeroupper")
    asm.emit("ret")
    memory, x = ExecutableMemory(asm.finish().data), np.random.default_rng(5).permutation(BYTES)
    x, y = x.astype(np.uint8), np.zeros(256, np.uint8)
    memory.function(2)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y + np.uint8(zero_point), table[x])


@pytest.mark.parametrize(
    ("activation", "shift"),
    [
        *((Activation.NONE, shift) for shift in (-128, 5, 127)),
        *((Activation.RELU6, shift) for shift in (-128, 5)),  # with 127 y is one number
    ],
)
@pytest.mark.parametrize("samples", [1, 2])
def test_rows_of_one_input_have_tables_of_their_own(
    activation: Activation, shift: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give the bytes of their products, whatever the input."""
    case = Case(2, 64, (18, 17), (1, 1), y_shift=shift, activation=activation, samples=samples)
    graph = with_rounding(case, RoundedResult(RESULT, case.steps[1], table=TABLE))
    (x,) = case.inputs(case.graph())

    def run() -> Array:
        with preferring(NAMES[QuadForm(1, paired=True, by_row=True)]):
            lowered = lower_model(graph, ModelOptions(Target.named("avx2")))
        return run_built(built_model(lowered), [x[None]]).outputs[0][0]

    counts = (case.integers[0] != 0).sum(axis=(1, 2, 3))
    assert set(counts) == {0, 1, 2}
    with_tables, found = run(), list[Array]()

    def none(weights: CompressedRows) -> Array:
        found.append(rows_of_one_input(weights))
        return np.empty(0, np.int64)

    monkeypatch.setattr(int8_row_pairs, "rows_of_one_input", none)
    np.testing.assert_array_equal(with_tables, run())
    assert found[0].tolist() == np.flatnonzero(counts == 1).tolist()


# A sum, its scale and a bias: 2**-60 beside a tie of float32, which float64 cannot tell from it.
BESIDE_TIES = [
    (4097, 16773121 * 2.0**-60, 1.0),
    (4161, 16515135 * 2.0**-60, 1.0 + 2.0**-23),
    (-4097, 16773121 * 2.0**-60, -1.0),
    (-4161, 16515135 * 2.0**-60, -1.0 - 2.0**-23),
]


def test_tables_of_one_input_are_rounded_once() -> None:
    """As the code rounds a product and a sum, exactly."""
    random = np.random.default_rng(11)
    drawn = random.integers(-32640, 32641, 2000), random.normal(0, 0.1, 2000)
    columns = (*drawn, random.choice([1.0, 3.0, 0.1, -7.3], 2000))
    sums, scale, bias = np.array([*BESIDE_TIES, *zip(*columns, strict=True)], np.float32).T
    found = fused(sums, scale, bias)
    numbers = (each.tolist() for each in (sums, scale, bias))
    for x, factor, addend, one in zip(*numbers, found, strict=True):
        exact = Fraction(x) * Fraction(factor) + Fraction(addend)
        away = [abs(exact - Fraction(float(n))) for n in neighbours(one)]
        assert away[1] <= min(away)
        assert away[1] not in (away[0], away[2]) or one.view(np.uint32) % 2 == 0
    table = RANDOM.astype(np.uint8)
    ends = np.stack([scale, bias], axis=1)
    made = ByteEpilogue(0).with_function(table, 40).bytes_of(sums.astype(int)[:, None], ends)
    wanted = table[(np.rint(found) + 40).clip(0, 255).astype(int)]
    np.testing.assert_array_equal(made[:, 0], wanted)


def neighbours(value: np.float32) -> list[np.float32]:
    below, above = (np.nextafter(value, np.float32(end)) for end in (-np.inf, np.inf))
    return [below, value, above]


SUMS = np.append(np.arange(-600, 600), (-(2**15), 2**15 - 1))


def packed(epilogue: ByteEpilogue) -> Array:
    """y for rounded `SUMS`, as the epilogue has it."""
    zero = epilogue.packed_zero
    sums = SUMS if epilogue.slope is None else epilogue.slope.of(SUMS)
    packed = (sums + zero).clip(0, 255).clip(epilogue.least, epilogue.most)
    if epilogue.table is None:
        return packed
    return epilogue.table[packed.clip(0, epilogue.table.size - 1)].astype(int)


@pytest.mark.parametrize("bounds", [(0, 255), (120, 255), (120, 180)])
@pytest.mark.parametrize("zero", [0, 93, 130, 255])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_keeps_the_entries_that_differ(
    table: tuple[int, ...], zero: int, bounds: tuple[int, int]
) -> None:
    """And bytes of any sum find the same entry."""
    bytes_of = (np.array(table) + 128).astype(np.uint8)
    plain = ByteEpilogue(7, *bounds)
    made = plain.with_function(bytes_of, zero)
    wanted = bytes_of[(SUMS + zero).clip(0, 255).clip(*bounds)]
    np.testing.assert_array_equal(packed(made), wanted)
    if made.table is not None:
        assert made.table[0] != made.table[1] and made.table[-1] != made.table[-2]
    assert made.zero == plain.zero


RATIOS = {0.3117: True, 0.7713: True, 1.0: True, 1.4632: True, 1.9371: True, 2.0837: True}
RATIOS |= {3.3171: True, 6.7193: True, 11.03: False, -0.61: False, 0.5: False, 1.5: False}


@pytest.mark.parametrize("zero", [40, 93, 130])
@pytest.mark.parametrize(("ratio", "agree"), RATIOS.items())
@pytest.mark.parametrize("bounds", [(0, 255), (128, 255)])
def test_a_factor_is_one_where_all_bytes_agree(
    bounds: tuple[int, int], ratio: float, agree: bool, zero: int
) -> None:
    """Bytes in other steps, behind a ReLU or not. Ties at 0.5 and 1.5 go to even in the table."""
    table = (np.rint((np.arange(256) - zero) * ratio) + 128).clip(*bounds).astype(np.uint8)
    made = ByteEpilogue(7).with_function(table, zero)
    wanted = table[(SUMS + zero).clip(0, 255)]
    np.testing.assert_array_equal(packed(made), wanted)
    assert (made.table is None) == agree
    kept = ByteEpilogue(7).with_function(table, zero, 4)
    assert kept.slope is None
    np.testing.assert_array_equal(packed(kept), wanted)


PARTS = {"any": 4, "four registers": 4, "three registers": 3, "two registers": 2}
PARTS |= {"a register": 1, "a line": 0, "a constant": 0}


@pytest.mark.parametrize(("name", "parts"), PARTS.items())
def test_a_table_takes_few_registers(name: str, parts: int) -> None:
    table = (np.array(TABLES[name]) + 128).astype(np.uint8)
    assert ByteEpilogue(0).with_function(table, 128).parts == parts


@pytest.mark.parametrize("given", [{"late": True}, {"table": TABLE}])
def test_functions_behind_a_rounding_need_it(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="own"):
        RoundedResult(RESULT, **given)
    with pytest.raises(InvalidInput, match="256"):
        RoundedResult(RESULT, RESULT, table=TABLE[:-1])
    with pytest.raises(InvalidInput, match="`added` or `late`"):
        RoundedResult(RESULT, RESULT, RESULT, late=True)
    for sums in ({"late": True}, {"added": RESULT}):
        with pytest.raises(InvalidInput, match="a table follows a sum"):
            RoundedResult(RESULT, RESULT, table=TABLE, **sums)


def activated(kind: str) -> Any:
    """Two convolutions, and a function of the first one's byte, as quantize_static writes it."""
    q = Qdq()
    product = q.convolution(q.steps("x", 0.02, 7), 32, CHANNELS)
    y = q.steps(product, 0.043, 120)
    if kind == "silu":
        y = q("Mul", y, q.steps(q("Sigmoid", y), 0.0039))
    elif kind == "silu, read in steps of their own":
        y = q("Mul", q.steps(product, 0.043, 120), q.steps(q("Sigmoid", y), 0.0039))
    elif kind == "hardswish":
        y = q("HardSwish", y)
    elif kind == "gelu":
        half, one = q.constant(np.float32(0.5)), q.constant(np.float32(1))
        inner = q("Erf", q("Div", y, q.constant(np.float32(np.sqrt(2)))))
        y = q("Mul", q("Mul", y, q("Add", inner, one)), half)
    else:
        y = q("Add", y, q.constant(np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 32, 1, 1)))
    y = q.steps(y, 0.031, 12)
    model = q.model(q.steps(q.convolution(y, CHANNELS, 32), 0.061, 121))
    (same,) = model.opset_import
    same.version = 17
    return model


@pytest.mark.parametrize("kind", ["silu", "hardswish", "gelu"])
def test_functions_of_one_byte_become_tables(kind: str) -> None:
    model = activated(kind)
    graph = in_bytes(model)
    first, second = convolutions(graph)
    assert first.rounding is not None and first.rounding.table is not None
    assert second.rounding is not None and second.rounding.own is None
    x = np.random.default_rng(5).uniform(-3, 3, (1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    layers = quantised_layers(import_onnx(model).graph(1))
    (found,), (wanted,) = graph.evaluate([x]), run_passes(layers).evaluate([x])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    without = run_passes(byte_layers(layers, lambda node: True, has_tables=False))
    assert all(op.rounding is None or op.rounding.table is None for op in convolutions(without))


@at_both_levels
@pytest.mark.parametrize(
    "kind",
    ["silu", "silu, read in steps of their own", "hardswish", "gelu", "bias by channel"],
)
def test_they_compute_what_the_file_says(
    kind: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "sparsejit.lowering.convolution.int8_choice._takes_bytes"
    monkeypatch.setattr(path, lambda low, node: True)
    model = activated(kind)
    fast = sparsejit.compile(model, target=target)
    kernels = [step.kernel for step in fast.parts.variants[0].steps]
    if target.isa == "avx2" or target.has("avx512vbmi"):
        assert not any(kernel.startswith("sigmoid") for kernel in kernels)
    x = np.random.default_rng(5).uniform(-3, 3, (2, CHANNELS, SIZE, SIZE)).astype(np.float32)
    (same,) = model.opset_import
    same.version = 19
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    steps = np.abs(fast(x) - wanted) / 0.061
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.01
