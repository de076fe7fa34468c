"""Dense products against the float64 oracle, flush against inaccessible memory."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import SIZES, TOLERANCE, block_weights, check, templates_of
from runnable import LEVELS

from sparsejit.asm_templates.dense_product.few_rows import has_few_rows
from sparsejit.asm_templates.dense_product.lane_sums import add_lanes
from sparsejit.asm_templates.dense_product.tiled_product import emit_dense_product
from sparsejit.asm_templates.dense_product.tiling import most_sums, pack_columns, pack_rows, tiling
from sparsejit.asm_templates.families import Template
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.spec import Activation, DenseProduct
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.selftest.calling_convention import UNUSUAL_MXCSR, Checker
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import Image
from sparsejit.x86.operands import Memory, rdi, rdx, rsi

FloatArray = np.ndarray
UNTOUCHED = np.float32(7.0e7)
LEVEL = Target.named("avx512")
PAIRS = replace(LEVEL, instruction_sets=LEVEL.instruction_sets | {"avx512_bf16"})


@dataclass(frozen=True, eq=False)
class Problem:
    """A product, its operands as stored, and which of them is a constant: "a", "b" or neither."""

    spec: DenseProduct
    constant: str
    a: FloatArray
    b: FloatArray
    bias: FloatArray | None

    @classmethod
    def random(cls, spec: DenseProduct, constant: str = "", biased: bool = False) -> "Problem":
        random = np.random.default_rng(spec.rows + spec.columns)
        a_shape = (spec.depth, spec.rows) if spec.a_transposed else (spec.rows, spec.depth)
        b_shape = (spec.columns, spec.depth) if spec.transposed else (spec.depth, spec.columns)
        a, b = (random.standard_normal(s, np.float32) for s in (a_shape, b_shape))
        length = spec.rows if constant == "a" else spec.columns
        bias = random.standard_normal(length, np.float32) if constant and biased else None
        return cls(spec, constant, a, b, bias)

    def kernel(self, target: Target) -> ExecutableMemory:
        """The product as a function of the addresses of A, C and B."""
        return ExecutableMemory(self.image(target).data)

    def image(self, target: Target) -> Image:
        spec, asm = self.spec, Assembler(target)
        tiles = tiling(spec, target, self.constant == "a")
        a = pack_rows(self.a, self.bias, tiles) if self.constant == "a" else None
        b = pack_columns(self.b, self.bias, tiles, target) if self.constant == "b" else None
        emit_dense_product(asm, spec, a, b, tiles)
        return finished(asm)

    def check(self, kernel: ExecutableMemory, edge: Edge) -> None:
        """Compute between inaccessible pages; what lies between rows is NaN, or untouched in C."""
        spec = self.spec
        a = GuardedArray(spaced(self.a, spec.a_pitch, np.nan), edge)
        b = GuardedArray(spaced(self.b, spec.b_pitch, np.nan), edge)
        empty = np.full((spec.rows, spec.columns), np.nan, np.float32)
        c = GuardedArray(spaced(empty, spec.c_pitch, UNTOUCHED), edge)
        kernel.function(3)(a.address, c.address, b.address)
        assert a.surroundings_intact() and b.surroundings_intact() and c.surroundings_intact()
        found = np.append(c.values, np.full(-len(c.values) % (spec.c_pitch // 4), UNTOUCHED))
        found = found.reshape(spec.rows, -1)
        assert (found[:, spec.columns :] == UNTOUCHED).all()
        bias = self.bias
        if bias is not None and self.constant == "a":
            bias = bias[:, None]
        expected = reference.dense_product(spec, self.a, self.b, bias)
        positive = replace(spec, activation=Activation.NONE, scale=abs(spec.scale))
        scale = np.maximum(reference.dense_product(positive, np.abs(self.a), np.abs(self.b)), 1)
        assert np.max(np.abs(found[:, : spec.columns] - expected) / scale) < TOLERANCE


def spaced(values: FloatArray, pitch: int, filler: float) -> FloatArray:
    """Rows that many bytes apart, the last without the bytes that would follow it."""
    room = np.full((len(values), pitch // 4), filler, np.float32)
    room[:, : values.shape[1]] = values
    return room.ravel()[: room.size - pitch // 4 + values.shape[1]]


def finished(asm: Assembler) -> Image:
    """The emitted code, as a function."""
    asm.emit("vzeroupper")
    asm.emit("ret")
    return asm.finish()


sizes = st.one_of(st.sampled_from([s for s in SIZES if s < 300]), st.integers(1, 70))


@pytest.mark.parametrize("constant", ["", "a", "b"])
@pytest.mark.parametrize("isa", LEVELS)
def test_any_shape_inside_guard_pages(isa: str, constant: str) -> None:
    checks = []

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(
        shape=st.tuples(st.integers(1, 70), sizes, sizes),
        gaps=st.tuples(*[st.sampled_from([0, 4, 64, 100])] * 3),
        transposed=st.booleans() if not constant else st.just(False),
        a_transposed=st.booleans() if not constant else st.just(False),
        scale=st.sampled_from([1.0, 0.125, -3.0]) if not constant else st.just(1.0),
        activation=st.sampled_from(Activation),
        biased=st.booleans(),
        edge=st.sampled_from(EDGES),
    )
    def collect(
        shape: tuple[int, int, int],
        gaps: tuple[int, int, int],
        transposed: bool,
        a_transposed: bool,
        scale: float,
        activation: Activation,
        biased: bool,
        edge: Edge,
    ) -> None:
        tight = DenseProduct.contiguous(*shape, transposed, scale, activation)
        a_pitch = 4 * shape[0] if a_transposed else tight.a_pitch
        pitches = (a_pitch + gaps[0], tight.b_pitch + gaps[1], tight.c_pitch + gaps[2])
        spec = DenseProduct(
            *shape, *pitches, transposed, scale, activation, a_transposed=a_transposed
        )
        problem = Problem.random(spec, constant, biased)
        kernel = problem.kernel(Target.named(isa))
        checks.append((f"{spec}, {edge}", partial(problem.check, kernel, edge)))

    collect()
    run_in_child(checks).assert_clean()


@pytest.mark.skipif(
    not PAIRS.runs_on(Target.detect()), reason="needs products of pairs of bfloat16"
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(1, 1, 1), (2, 17, 3), (13, 16, 32), (14, 33, 31), (40, 70, 64), (29, 100, 77), (99, 64, 128)],
)
def test_pairs_of_two_matrices_of_a_call(
    rows: int, columns: int, depth: int, transposed: bool
) -> None:
    """Against float64 of elements that bfloat16 holds; rows lie apart."""
    tight = DenseProduct.contiguous(rows, columns, depth, transposed, -0.5)
    pitches = {f"{name}_pitch": getattr(tight, f"{name}_pitch") + 12 for name in "abc"}
    problem = Problem.random(replace(tight, together=2, **pitches))
    a, b = (reference.round_to_bfloat16(each) for each in (problem.a, problem.b))
    kernel, problem = problem.kernel(PAIRS), replace(problem, a=a, b=b)
    checks = [(edge, partial(problem.check, kernel, edge)) for edge in EDGES]
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("isa", LEVELS)
def test_rows_that_lie_in_one_set_of_the_cache(isa: str) -> None:
    spec = DenseProduct(20, 70, 40, 4096, 280, 4096)
    problem = Problem.random(spec)
    problem.check(problem.kernel(Target.named(isa)), "end")
    for pitch, most in ((4096, 8), (4096 + 64, 14)):
        wide = DenseProduct(64, 512, 40, pitch, 2048, 2048)
        heights = [each.height for each in tiling(wide, Target.named("avx512")).row_tiles]
        assert most // 2 < max(heights) <= most


@pytest.mark.parametrize("isa", LEVELS)
def test_weights_from_beyond_l2_are_fetched_ahead(isa: str) -> None:
    target = Target.named(isa)
    spec = DenseProduct.contiguous(33, 600, 500)
    problem = Problem.random(spec, "b", biased=True)
    assert problem.b.nbytes > target.l2_bytes
    image = problem.image(target)
    fetches = [text for text in image.listing() if "prefetcht1" in text]
    assert len(fetches) >= 4
    problem.check(ExecutableMemory(image.data), "end")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("isa", LEVELS)
def test_operands_are_kept_for_the_next_product(isa: str, transposed: bool) -> None:
    problem = Problem.random(DenseProduct.contiguous(9, 40, 33, transposed, 0.5))
    smaller = DenseProduct.contiguous(8, 39, 32, transposed)
    asm = Assembler(Target.named(isa))
    for spec in (smaller, problem.spec):
        emit_dense_product(asm, spec)
    problem.check(ExecutableMemory(finished(asm).data), "end")


@pytest.mark.parametrize("isa", LEVELS)
def test_a_transposing_product_keeps_what_a_function_must(isa: str) -> None:
    """Others are rows of the table, which `test_calling_convention` walks."""
    asm = Assembler(Target.named(isa))
    asm.emit("mov", rdx, rdi)
    spec = DenseProduct.contiguous(200, 20, 600, transposed=True)
    assert not has_few_rows(spec, asm.target)
    emit_dense_product(asm, spec)
    x, y = np.ones(120_000, np.float32), np.zeros(4000, np.float32)
    kernel = ExecutableMemory(finished(asm).data)
    report = Checker(asm.target).call(kernel.address, x.ctypes.data, y.ctypes.data)
    assert report.problem(UNUSUAL_MXCSR) is None
    np.testing.assert_array_equal(y, 600)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_tiles_cover_all_rows_and_fit_the_registers(isa: str) -> None:
    target = Target.named(isa)
    for rows in (1, 2, 7, 13, 29, 64, 100):
        for columns in (1, 16, 17, 100, 512):
            for activation in (Activation.NONE, Activation.TANH):
                spec = DenseProduct.contiguous(rows, columns, 50, activation=activation)
                tiles = tiling(spec, target)
                assert sum(each.count * each.height for each in tiles.row_tiles) == rows
                most = max(each.height for each in tiles.row_tiles) * tiles.vectors
                assert most + tiles.vectors <= most_sums(target)
                assert most <= target.vector_registers - 3


def test_batches_of_64_keep_both_multipliers_busy() -> None:
    """Loads and what ends a tile cost at most 4 % beside 32 products a cycle."""
    spec = DenseProduct.contiguous(64, 512, 512)
    for isa in ISA_LEVELS:
        target = Target.named(isa)
        products = 64 * 512 * 512 / target.lanes / 2
        assert tiling(spec, target).cycles < 1.08 * products


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "0x5 by 5x4; give sizes of at least 1"),
        ({"a_pitch": 16}, "a_pitch=16 for rows of 5 floats; give a multiple of 4 of at least 20"),
        ({"b_pitch": 18}, "b_pitch=18 for rows of 4 floats"),
        ({"c_pitch": 2**31 - 4}, "more than 2 GiB; split the product"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_products_that_cannot_be(change: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(DenseProduct.contiguous(3, 4, 5), **change)


@pytest.mark.parametrize("isa", LEVELS)
def test_a_strip_too_deep_for_the_stack_is_not_transposed(isa: str) -> None:
    target = Target.named(isa)
    assert has_few_rows(DenseProduct.contiguous(9000, 9, 40_000, transposed=True), target)
    assert not has_few_rows(DenseProduct.contiguous(9000, 9, 4000, transposed=True), target)


@pytest.mark.parametrize("row", templates_of("dot"))
class TestDot:
    """The family of few outputs."""

    @pytest.mark.parametrize("activation", Activation)
    def test_bias_and_activation(self, row: Template, activation: Activation) -> None:
        for outputs in range(1, 19):
            bias = np.linspace(-2, 2, outputs, dtype=np.float32)
            check(row, block_weights((outputs, 10 + 37 * outputs), 0.5), bias, activation)

    def test_code_does_not_grow_with_inputs(self, row: Template) -> None:
        few, many = (check(row, block_weights((8, size), 1.0)) for size in (512, 4096))
        assert many.code_bytes == few.code_bytes


@pytest.mark.parametrize("isa", LEVELS)
def test_lanes_of_any_number_of_registers_are_added(isa: str) -> None:
    """Integers, so that each sum is exact in any order."""
    target = Target.named(isa)
    lanes = target.lanes
    values = np.arange(lanes * lanes, dtype=np.float32).reshape(lanes, lanes) ** 2 % 1001
    for count in range(1, lanes + 1):
        asm = Assembler(target)
        registers = [vector(asm, number + 1) for number in range(count)][: lanes - 1]
        for number, register in enumerate(registers):
            asm.emit("vmovups", register, Memory(rdi, 4 * lanes * number))
        asm.emit("vmovups", Memory(rsi), add_lanes(asm, registers, 0))
        y = np.zeros(lanes, np.float32)
        ExecutableMemory(finished(asm).data).function(2)(values.ctypes.data, y.ctypes.data)
        used = len(registers)
        np.testing.assert_array_equal(y[:used], values[:used].sum(axis=1))
