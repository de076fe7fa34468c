"""Convolutions from bytes to bytes against exact integers, at guard pages, in parts."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import built_model, check_at_guard_pages, run_built
from sketch import Sketch
from test_divided_steps import divided

from sparsejit.asm_templates.convolution import int8_convolution
from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.int8_conversions import (
    ByteQuantisation,
    FloatRows,
    emit_to_bytes,
)
from sparsejit.asm_templates.convolution.int8_convolution import (
    LARGEST_PAIR,
    QUAD,
    UNROLLED,
    QuadForm,
    expected_quads,
    in_pairs,
    quad_stream,
    quads_of_rows,
)
from sparsejit.asm_templates.convolution.int8_pair_code import Binned, choose_shapes
from sparsejit.asm_templates.convolution.int8_planes import LINE, BytePlanes, windows_of
from sparsejit.asm_templates.convolution.int8_row_pairs import MOST_SHAPES, bins_of_rows
from sparsejit.asm_templates.convolution.int8_taps import fitting_order, in_order
from sparsejit.asm_templates.gather.int8_boundary import quantised_nonzeros
from sparsejit.errors import CompileError
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind, RoundedResult, windows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.cheapest_row import preferring
from sparsejit.planner.int8_plan import QUAD_FORMS, QuadWork, plan_quads
from sparsejit.x86.assembler import Assembler

LEVEL = Target.named("avx512")
TARGET = replace(LEVEL, instruction_sets=LEVEL.instruction_sets | {"avx512_vnni"})
NARROW = Target.named("avx2")
WITH_VEX = replace(NARROW, instruction_sets=NARROW.instruction_sets | {"avx_vnni"})
needs_vnni = pytest.mark.skipif(not TARGET.runs_on(Target.detect()), reason="needs AVX-512 VNNI")
at_both_levels = pytest.mark.parametrize(
    "target", [pytest.param(TARGET, marks=needs_vnni, id="avx512"), pytest.param(NARROW, id="avx2")]
)
NAMES = {row.emitter: row.name for row in QUAD_FORMS}
FORMS = [*NAMES]


def target_of(form: QuadForm) -> Target:
    """The target that has code for a form."""
    return NARROW if form.paired else TARGET


in_every_form = pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form.paired else needs_vnni, id=str(form)) for form in FORMS],
)
# Primes, so that ties are rare.
X_SCALE, OWN_SCALE, ADDED_SCALE = 0.0211, 0.0307, 0.0173


@dataclass(frozen=True)
class Case:
    """One convolution of x and perhaps an operand that is added, and what it should give."""

    channels: int
    outputs: int
    space: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    density: float = 0.1
    samples: int = 1
    shift: int = -128
    y_shift: int = -128
    activation: Activation = Activation.NONE
    adds: bool = False
    largest: int = 127
    y_scale: float = 0.0
    block: tuple[int, int] = (1, 1)
    rounds_first: bool = True  # the product, before another image is added

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.channels, self.outputs, *self.space])

    @property
    def weights(self) -> Array:
        """Integers; every other row of the first few has no nonzeros."""
        shape = self.outputs, self.channels, *self.kernel
        weights = self.random.integers(-self.largest, self.largest + 1, shape)
        rows, inputs = self.block
        blocks = -(-shape[0] // rows), -(-shape[1] // inputs), *self.kernel
        kept = self.random.random(blocks) < self.density
        kept = kept.repeat(rows, 0).repeat(inputs, 1)[: shape[0], : shape[1]]
        weights *= kept
        weights[1:6:2] = 0
        return weights

    @property
    def scales(self) -> Array:
        """Quantisation of rows."""
        return np.linspace(0.003, 0.009, self.outputs).astype(np.float32)

    @property
    def steps(self) -> tuple[Quantisation, Quantisation, Quantisation, Quantisation]:
        """The scales of x, of the product, of the added image, of the result."""
        spread = self.channels * np.prod(self.kernel) * self.density + 1
        scale = self.y_scale or 0.031 * float(np.sqrt(spread))
        own = Quantisation(scale, 11) if self.adds else Quantisation(scale, self.y_shift)
        result = Quantisation(scale * 1.37, self.y_shift) if self.adds else own
        added = Quantisation(ADDED_SCALE * scale * 20, -5)
        return Quantisation(X_SCALE, self.shift), own, added, result

    def graph(self) -> Graph:
        """In a graph; with whole steps of a scale that int8 keeps."""
        s, (x_steps, *_) = Sketch(), self.steps
        x = s.input(self.samples, self.channels, *self.space)
        op = Convolution(
            self.stride,
            self.padding,
            self.dilation,
            activation=self.activation,
            dtype=DType.INT8,
            x_steps=x_steps,
            rounding=self.rounding,
        )
        operands = [x, s.constant(self.float_weights), s.constant(self.bias)]
        if self.adds:
            shape = op.infer(*(value.type for value in operands))[0].shape
            operands.append(s.input(*shape))
        return s.finish(s(op, *operands))

    @property
    def rounding(self) -> RoundedResult:
        _, own, added, result = self.steps
        if not self.adds:
            return RoundedResult(result)
        return RoundedResult(result, own if self.rounds_first else None, added)

    @property
    def float_weights(self) -> Array:
        """float32, of each row's steps: the largest is 127 of them."""
        weights = self.weights
        largest = np.abs(weights).reshape(len(weights), -1).max(axis=1)
        weights.reshape(len(weights), -1)[largest > 0, 0] = self.largest
        step = self.scales.reshape(-1, 1, 1, 1)
        return (weights * step).astype(np.float32)

    @property
    def integers(self) -> tuple[Array, Array]:
        """As the layer quantises them, and the scale of each row."""
        floats = self.float_weights
        scale = SparseMatrix(floats.reshape(len(floats), -1)).int8_steps
        return np.rint(floats / scale.reshape(-1, 1, 1, 1)).astype(np.int64), scale

    @property
    def bias(self) -> Array:
        return self.random.standard_normal(self.outputs).astype(np.float32)

    def inputs(self, graph: Graph) -> list[Array]:
        """Images over the whole range and beyond it."""
        x_steps, _, added, _ = self.steps
        ranges = [x_steps, added]
        return [
            self.random.uniform(
                (-140 - steps.zero_point) * steps.scale,
                (140 - steps.zero_point) * steps.scale,
                value.shape,
            ).astype(np.float32)
            for value, steps in zip(graph.inputs, ranges, strict=False)
        ]

    def wanted(self, inputs: list[Array]) -> tuple[Array, Array]:
        """The integers of the result, and whether one more or less may be right: near ties."""
        x_steps, own, added, result = self.steps
        weights, scale = self.integers
        x = quantised(inputs[0], x_steps) - x_steps.zero_point
        around = [(0, 0), (0, 0), *((p, p) for p in self.padding)]
        seen = windows(np.pad(x, around), self.kernel, self.stride, self.dilation)
        sums = np.einsum("ncijuv,ocuv->noij", seen.astype(np.float64), weights.astype(np.float64))
        ratio = scale.astype(np.float64) * x_steps.scale
        product = sums * ratio.reshape(-1, 1, 1) + self.bias.astype(np.float64).reshape(-1, 1, 1)
        near = np.zeros(product.shape, bool)
        if self.adds and self.rounds_first:
            near = is_near(product / own.scale)
            of_own = np.rint(product / own.scale) + own.zero_point
            product = (of_own.clip(-128, 127) - own.zero_point) * own.scale
        if self.adds:
            product += (quantised(inputs[1], added) - added.zero_point) * added.scale
        near |= is_near(product / result.scale)
        low = {Activation.RELU: 0.0, Activation.RELU6: 0.0}.get(self.activation, -np.inf)
        high = 6.0 if self.activation is Activation.RELU6 else np.inf
        steps = np.rint(product.clip(low, high) / result.scale) + result.zero_point
        return steps.clip(-128, 127), near


def quantised(x: Array, steps: Quantisation) -> Array:
    """Integers, as kernels round: by the reciprocal in float32."""
    scaled = x * (np.float32(1) / np.float32(steps.scale))
    return (np.rint(scaled).astype(np.int64) + steps.zero_point).clip(-128, 127)


def is_near(values: Array) -> Array:
    """Whether float32 arithmetic may round them to either neighbour."""
    slack = 1e-3 + 1e-6 * np.abs(values)
    return np.abs(values - np.floor(values) - 0.5) < slack


def check(case: Case, target: Target) -> None:
    graph = case.graph()
    inputs = case.inputs(graph)
    lowered = lower_model(graph, ModelOptions(target))
    assert any(step.kernel.startswith(("quads", "byte-tiles")) for step in lowered.steps)
    found = run_built(built_model(lowered), [array[None] for array in inputs]).outputs[0][0]
    assert_same(case, inputs, found)


def assert_same(case: Case, inputs: list[Array], found: Array) -> None:
    steps = case.steps[3]
    integers, near = case.wanted(inputs)
    got = np.rint(found / np.float32(steps.scale)) + steps.zero_point
    np.testing.assert_array_equal(
        found, ((got - steps.zero_point).astype(np.float32) * np.float32(steps.scale))
    )
    off = np.abs(got - integers)
    assert off.max(initial=0) <= 1
    assert not (off > 0)[~near].any()


sizes = st.sampled_from([1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65])
shifts = st.sampled_from([-128, -100, 0, 7, 127])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 2), (5, 5), (7, 7)]))
    space = draw(sizes), draw(sizes)
    padding = draw(st.sampled_from([(0, 0), (1, 1), (kernel[0] // 2, kernel[1] // 2), (2, 3)]))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2)]))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [r - 2 * p for r, p in zip(reach, padding, strict=True)]
    return Case(
        channels=draw(st.sampled_from([1, 3, 4, 5, 16, 33])),
        outputs=draw(st.sampled_from([1, 2, 7, 16, 33])),
        space=(max(space[0], least[0]), max(space[1], least[1])),
        kernel=kernel,
        stride=draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (1, 2)])),
        padding=padding,
        dilation=dilation,
        density=draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        samples=draw(st.sampled_from([1, 1, 2, 3])),
        shift=draw(shifts),
        y_shift=draw(shifts),
        activation=draw(
            st.sampled_from([Activation.NONE, Activation.RELU, Activation.RELU6])
        ),
        adds=draw(st.booleans()),
        largest=draw(st.sampled_from([127, 127, 3])),
        block=draw(st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 4)])),
        rounds_first=draw(st.booleans()),
    )


@at_both_levels
@settings(max_examples=120)
@given(case=cases())
def test_any_windows(case: Case, target: Target) -> None:
    check(case, target)


@in_every_form
@settings(max_examples=60)
@given(case=cases())
def test_any_windows_in_every_form(form: QuadForm, case: Case) -> None:
    """Whatever the plan prefers."""
    with preferring(NAMES[form]):
        check(case, target_of(form))


@needs_vnni
@pytest.mark.parametrize(
    "form", [QuadForm(1), QuadForm(1, fours=True), QuadForm(1, fours=True, by_taps=True)], ids=str
)
@settings(max_examples=60)
@given(case=cases())
def test_any_windows_with_words_of_four_weights(case: Case, form: QuadForm) -> None:
    """AVX-VNNI, by the same instruction in its longer encoding, which more processors have."""
    with pytest.MonkeyPatch.context() as patch, preferring(NAMES[form]):
        patch.setattr(int8_convolution, "NARROW_PRODUCT", "vpdpbusd")
        check(case, WITH_VEX)


def test_a_processor_with_these_words_uses_them() -> None:
    lowered = lower_model(BLOCK.graph(), ModelOptions(WITH_VEX))
    image = build_model(lowered, "test", listed=True).image
    text = "\n".join(image.listing())
    assert "{vex} vpdpbusd" in text and "vpmaddubsw" not in text


@at_both_levels
@pytest.mark.parametrize("inputs", [1, 7, 8, 15, 16, 17, 31, 33, 127, 257, 1000])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_rows_of_any_length(inputs: int, density: float, target: Target) -> None:
    check(Case(inputs, 37, (9, 8), density=density), target)


@at_both_levels
@pytest.mark.parametrize("columns", [1, 7, 8, 9, 31, 32, 33, 45, 64, 100])
def test_any_floats_become_bytes(columns: int, target: Target) -> None:
    """NaN and what is too large become 255, what is too small 0; halves go to even."""
    planes, steps = BytePlanes.plain((2, 3, 5, columns)), ByteQuantisation(0.25, 77)
    asm = Assembler(target)
    rows = FloatRows(*(4 * columns * each for each in (15, 5, 1)))
    emit_to_bytes(asm, rows, planes, steps)
    asm.emit("vzeroupper")
    asm.emit("ret")
    extremes = [np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**33, -(2.0**33), 1e-40, -0.0]
    numbers = np.concatenate([np.arange(-40, 70, 0.125), np.tile(extremes, 20)])
    x = np.random.default_rng(columns).choice(numbers, (2, 3, 5, columns)).astype(np.float32)
    room = np.full(planes.bytes + 2 * LINE, 1, np.uint8)
    start = planes.before + -room.ctypes.data % LINE
    memory = ExecutableMemory(asm.finish().data)
    memory.function(2)(x.ctypes.data, room.ctypes.data + start)

    with np.errstate(over="ignore"):
        rounded = np.rint(np.fmin(x / np.float32(0.25), np.float32(1024)))
    shape = 2, 3, 5, columns
    found = np.lib.stride_tricks.as_strided(room[start:], shape, planes.strides)
    np.testing.assert_array_equal(found, (rounded + 77).clip(0, 255))


@at_both_levels
def test_sums_beyond_24_bits_and_results_beyond_32(target: Target) -> None:
    """float32 rounds the former; the latter are cut before they are integers."""
    beyond = Case(2000, 3, (3, 5), density=1.0, shift=-128, y_scale=40.0)
    check(beyond, target)
    check(replace(beyond, y_scale=1e-7), target)
    check(replace(beyond, y_scale=1e-7, adds=True), target)


BLOCK = Case(33, 40, (15, 17), (3, 3), padding=(1, 1), density=0.3, adds=True)
STRIDED = replace(BLOCK, stride=(2, 2), adds=False, density=1.0, activation=Activation.RELU)
BEYOND = Case(900, 5, (1, 70))  # inputs exceed L1


def test_inputs_beyond_l1_are_prefetched() -> None:
    def prefetches(case: Case) -> int:
        lowered = lower_model(case.graph(), ModelOptions(NARROW))
        listing = build_model(lowered, "test", listed=True).image.listing()
        return sum("prefetcht0" in each and "[rbx+" in each for each in listing)  # of inputs

    inside = prefetches(replace(BEYOND, channels=100))
    assert prefetches(BEYOND) == inside + QUAD * UNROLLED * 2  # whole vectors, and a first half


@in_every_form
@pytest.mark.parametrize(
    "case", [BLOCK, STRIDED, BEYOND], ids=["as it lies", "phases", "beyond L1"]
)
def test_at_guard_pages(case: Case, form: QuadForm) -> None:
    """x, y, and the workspace, which ends where its last buffer does."""
    graph = case.graph()
    inputs = case.inputs(graph)
    with preferring(NAMES[form]):
        built = built_model(lower_model(graph, ModelOptions(target_of(form))))
    check_at_guard_pages(built, inputs, lambda found: assert_same(case, inputs, found[0]))


@in_every_form
@pytest.mark.parametrize("case", [BLOCK, STRIDED], ids=["as it lies", "phases"])
def test_bits_do_not_depend_on_the_batch_or_on_threads(case: Case, form: QuadForm) -> None:
    def run(graph: Graph, arrays: list[Array]) -> Array:
        with preferring(NAMES[form]):
            built = built_model(lower_model(graph, ModelOptions(target_of(form))))
        return run_built(built, [array[None] for array in arrays]).outputs[0][0]

    several = replace(case, samples=3)
    inputs = several.inputs(several.graph())
    together = run(several.graph(), inputs)
    for number in range(3):
        alone = run(case.graph(), [array[number : number + 1] for array in inputs])
        assert alone.tobytes() == together[number : number + 1].tobytes()
    first = [array[:1] for array in inputs]
    for threads in (2, 3):
        with preferring(NAMES[form]):
            lowered, count = divided(case.graph(), target_of(form), threads, 0)
        assert count
        parts = run_built(built_model(lowered), [array[None] for array in first]).outputs[0][0]
        assert parts.tobytes() == together[:1].tobytes()


@at_both_levels
@pytest.mark.parametrize("shift", [-128, 5])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_the_largest_of_windows_stays_in_bytes(
    shift: int, kernel: int, stride: int, padding: int, target: Target
) -> None:
    case = Case(5, 12, (18, 23), (3, 3), padding=(1, 1), density=0.7, y_shift=shift)
    s, inner = Sketch(), case.graph()
    (node,) = inner.nodes
    x = s.input(*inner.inputs[0].shape)
    y = s(node.op, x, *(s.constant(inner.constants[each]) for each in node.inputs[1:]))
    pool = Pooling(PoolingKind.MAX, (kernel,) * 2, (stride,) * 2, ((padding,) * 2,) * 2, (1, 1))
    graph = s.finish(s(pool, y))
    inputs = case.inputs(inner)
    lowered = lower_model(graph, ModelOptions(target))
    assert any(step.kernel.startswith("byte-pooling") for step in lowered.steps)
    found = run_built(built_model(lowered), [inputs[0][None]]).outputs[0][0]
    before = run_built(
        built_model(lower_model(inner, ModelOptions(target))), [inputs[0][None]]
    ).outputs[0][0]
    (wanted,) = pool.reference(before)
    np.testing.assert_array_equal(found, wanted)


def test_other_processors_refuse_what_was_made_for_these() -> None:
    with pytest.raises(CompileError, match="vnni"):
        lower_model(BLOCK.graph(), ModelOptions(LEVEL))


@pytest.mark.parametrize("form", [form for form in FORMS if not form.by_row], ids=str)
@pytest.mark.parametrize("block", [(1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
def test_as_many_quads_are_read_as_the_plan_counts(block: tuple[int, int], form: QuadForm) -> None:
    """Exactly, but where zeros are assumed to lie at random, or all weights to find a partner."""
    case = Case(18, 31, (5, 5), (3, 3), padding=(1, 1), density=0.3, block=block)
    flat = case.integers[0].reshape(31, -1).astype(np.float32)
    matrix, places = SparseMatrix(flat), np.arange(flat.shape[1])
    stream = quad_stream(quantised_nonzeros(matrix)[0], places, 1, np.zeros((31, 3)), form, 9)
    expected = expected_quads(matrix, 9, form)
    is_exact = form.fours or 1 < form.together <= block[0] or form == QuadForm(1)
    assert len(stream.quads) == pytest.approx(expected, rel=0 if is_exact else 0.05)


@pytest.mark.plans
@pytest.mark.parametrize("kernel", [1, 3])
def test_blocks_over_channels_are_found_from_the_weights(kernel: int) -> None:
    """Each form wins its own zeros where there are rows enough to share the making of fours."""
    case = Case(64, 512, (14, 14), (kernel,) * 2, padding=(kernel // 2,) * 2, density=0.2)
    planes = BytePlanes.plain((1, 64, 14, 14))
    axis = Axis(14, 14, kernel, 1, kernel // 2, 1)
    seen, y = windows_of(planes, axis, axis), BytePlanes.plain((1, 512, 14, 14))
    found = {}
    for block in ((1, 1), (1, 4), (2, 4)):
        matrix = SparseMatrix(replace(case, block=block).weights.reshape(512, -1))
        found[block] = plan_quads(QuadWork(matrix, seen, y, False, TARGET)).row.emitter
    assert not found[1, 1].fours and found[1, 4].fours and found[2, 4] == QuadForm(2, fours=True)


@pytest.mark.plans
def test_few_inputs_of_many_rows_are_copied_once_for_each_tap() -> None:
    """A dense first layer; sparse rows read too few of the copies, and a 1x1 layer needs none."""
    found = []
    for channels, kernel, density in ((3, 3, 1.0), (3, 3, 0.05), (48, 1, 1.0), (64, 3, 1.0)):
        case = Case(channels, 32, (56, 56), (kernel,) * 2, density=density)
        planes = BytePlanes.plain((1, channels, 56, 56))
        axis = Axis(56, 56, kernel, 1, kernel // 2, 1)
        seen, y = windows_of(planes, axis, axis), BytePlanes.plain((1, 32, 56, 56))
        matrix = SparseMatrix(case.weights.reshape(32, -1))
        found.append(plan_quads(QuadWork(matrix, seen, y, False, NARROW)).row.emitter.by_taps)
    assert found == [True, False, False, False]


@pytest.mark.parametrize("inputs", [1, 2, 7, 40])
def test_inputs_that_fit_lie_side_by_side(inputs: int) -> None:
    random = np.random.default_rng(inputs)
    weights = random.integers(-127, 128, (30, inputs)).astype(np.float32)
    weights[:, 0] = 127
    rows = quantised_nonzeros(SparseMatrix(weights))[0]
    order = fitting_order(rows)
    assert sorted(order) == list(range(inputs))
    ordered = in_order(rows, order)
    np.testing.assert_array_equal(ordered.dense(), rows.dense()[:, order])
    form = QuadForm(1, fours=True, paired=True)
    assert quads_of_rows(ordered, 1, form) <= quads_of_rows(rows, 1, form)


@pytest.mark.plans
def test_rows_of_few_weights_are_computed_in_turn() -> None:
    """Others are not: a product of many weights costs by its quads."""
    found = []
    for channels, density in ((16, 0.1), (512, 0.2)):
        case = Case(channels, 96, (56, 56), density=density)
        planes, axis = BytePlanes.plain((1, channels, 56, 56)), Axis(56, 56, 1, 1, 0, 1)
        seen, y = windows_of(planes, axis, axis), BytePlanes.plain((1, 96, 56, 56))
        matrix = SparseMatrix(case.weights.reshape(96, -1))
        found.append(plan_quads(QuadWork(matrix, seen, y, False, NARROW)).row.emitter.by_row)
    assert found == [True, False]


@pytest.mark.plans
@pytest.mark.parametrize("form", [form for form in FORMS if form.paired], ids=str)
def test_tables_have_a_price(form: QuadForm) -> None:
    """By the parts that are looked up; none for rows in turn that have no weights.

    Rows of one input have tables of their own.
    """
    planes, axis = BytePlanes.plain((1, 16, 56, 56)), Axis(56, 56, 1, 1, 0, 1)
    seen, y = windows_of(planes, axis, axis), BytePlanes.plain((1, 96, 56, 56))

    def price(matrix: Array, looked_up: float) -> float:
        work = QuadWork(SparseMatrix(matrix), seen, y, False, NARROW, looked_up)
        return plan_quads(work, form).price.ns

    weights = Case(16, 96, (56, 56)).weights.reshape(96, -1)
    whole, half, none = (price(weights, share) for share in (1.0, 0.5, 0.0))
    assert whole > half > none
    assert form.by_row or whole - half == pytest.approx(half - none)
    nothing = np.zeros_like(weights)
    assert (price(nothing, 1.0) == price(nothing, 0.0)) == form.by_row


RANGES = {"any": (-128, 128), "large": (90, 128), "one sign": (1, 128), "least": (-128, -120)}


def integers_of(weights: str) -> tuple[Array, CompressedRows]:
    """Weights (23, 37) of one of `RANGES`, with zeros, as an array and as int8 rows."""
    random = np.random.default_rng(5)
    matrix = random.integers(*RANGES[weights], (23, 37)) * (random.random((23, 37)) < 0.6)
    if weights == "large":
        matrix *= random.choice([-1, 1], matrix.shape)
    matrix[3], matrix[4, 1:] = 0, 0
    rows, columns = np.nonzero(matrix)
    integers = SparseMatrix(np.ones_like(matrix, np.float32) * (matrix != 0)).nonzeros
    return matrix, integers.with_values(matrix[rows, columns].astype(np.int8))


def check_bins(binned: Binned, rows: int) -> None:
    """Whatever the bytes are, sums of a bin fit 16 bits; bins are counted, full ones first."""
    weights, bins = binned.pairs.weights, binned.sizes.shape[1]
    sums = np.zeros((2, rows, bins), int)
    for sign in range(2):
        parts = (weights.clip(0), weights.clip(max=0))[sign].sum(axis=1)
        np.add.at(sums[sign], (binned.pairs.row, binned.bins), 255 * parts)
    assert sums.max() < 2**15 and sums.min() >= -(2**15)
    counts = np.zeros((rows, bins), int)
    np.add.at(counts, (binned.pairs.row, binned.bins), 1)
    np.testing.assert_array_equal(counts, binned.sizes)
    assert (np.diff(counts, axis=1) <= 0).all()


@pytest.mark.parametrize("weights", RANGES)
def test_no_bin_of_a_row_exceeds_16_bits(weights: str) -> None:
    """Each weight is there once, with its own input."""
    matrix, integers = integers_of(weights)
    binned = bins_of_rows(integers)
    check_bins(binned, 23)
    found = np.zeros_like(matrix)
    pairs = binned.pairs
    for side in range(2):
        np.add.at(found, (pairs.row, pairs.places[:, side]), pairs.weights[:, side])
    np.testing.assert_array_equal(found, matrix)


def test_rows_without_weights_have_a_shape_of_their_own() -> None:
    """They are filled with one value; but not where other bytes are added."""
    matrix, integers = integers_of("any")
    matrix[7:11] = 0
    kept = np.isin(integers.rows, np.arange(7, 11), invert=True)
    rows, columns = integers.rows[kept], integers.columns[kept]
    fewer = SparseMatrix((matrix != 0).astype(np.float32)).nonzeros
    fewer = fewer.with_values(matrix[rows, columns].astype(np.int8))
    sizes = bins_of_rows(fewer).sizes
    shapes, kinds = choose_shapes(sizes, MOST_SHAPES)
    np.testing.assert_array_equal(kinds == shapes.index(()), ~matrix.any(axis=1))
    assert () not in choose_shapes(sizes, MOST_SHAPES, adds=True)[0]


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.paired and not form.by_row], ids=str
)
@pytest.mark.parametrize("weights", RANGES)
def test_no_pair_of_products_exceeds_16_bits(weights: str, form: QuadForm) -> None:
    """Whatever the bytes that they multiply; each weight is there once, with its own input."""
    matrix, integers = integers_of(weights)
    places = np.arange(37) if not form.fours else 4 * np.arange(10)
    stream = quad_stream(integers, places, 1, np.zeros((23, 3)), form)
    pairs = stream.quads["weight"].astype(int).reshape(-1, 2)
    sums = 255 * np.stack([pairs.clip(0), pairs.clip(max=0)]).sum(axis=2)
    assert sums.max() < 2**15 and sums.min() >= -(2**15)
    found, quad = np.zeros((23, 40), int), 0
    row = iter(stream.rows["offset"])
    for group in stream.groups[:-1]:
        for _ in range(group["rows"]):
            into = found[next(row)]
            for each in stream.quads[quad : quad + 8 * group["turns"] + group["entry"]]:
                steps = np.arange(4) if form.fours else 0
                np.add.at(into, each["offset"] + steps, each["weight"][0])
            quad += 8 * group["turns"] + group["entry"]
    np.testing.assert_array_equal(found[:, :37], matrix)
    if weights == "any" and not form.fours:
        assert quad <= 1.1 * np.ceil(np.count_nonzero(matrix, axis=1) / 4).sum()


def test_three_weights_of_one_sign_go_in_two_pairs() -> None:
    """One of them in two parts; a single pair would saturate, and three pairs are one more."""
    sizes = np.array([118, 80, 80, 70, 66, 65], np.int8)
    for sign in (1, -1):
        cells = np.arange(len(sizes))
        unit, cell, values = in_pairs(0 * cells, cells, (sign * sizes).reshape(-1, 1, 1))
        found = np.zeros(len(sizes), int)
        np.add.at(found, cell, values.reshape(-1))
        np.testing.assert_array_equal(found, sign * sizes.astype(int))
        assert len(unit) == 8
        assert np.abs(values.reshape(-1, 2).astype(int).sum(axis=1)).max() <= LARGEST_PAIR
