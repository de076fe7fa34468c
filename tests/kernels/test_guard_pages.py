"""No kernel reads or writes outside its arrays: they lie flush against inaccessible pages."""

import ctypes
import signal
from collections.abc import Callable
from functools import partial
from itertools import cycle

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from matvec_checks import block_weights, compile_kernel
from runnable import LEVELS, runnable

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.asm_templates.pointwise.class_draw import emit_categorical_draw, scratch_floats
from sparsejit.asm_templates.pointwise.elementwise import emit_elementwise
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import BLOCK_1X8, UNSTRUCTURED, SparseMatrix
from sparsejit.ir.spec import Activation, CategoricalDraw, Elementwise, MatVec
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rcx, xmm

SHAPES = (
    *((1, 1), (1, 300), (300, 1), (3, 5), (7, 9), (8, 8), (15, 17), (16, 16), (17, 15)),
    *((31, 33), (63, 65), (100, 257), (127, 130), (129, 511), (257, 100), (260, 515)),
)
LARGEST = SHAPES[-1]
LENGTHS = (1, 7, 8, 9, 15, 16, 17, 65, 300)

RUNNABLE_ROWS = runnable(MATVEC_TEMPLATES)


def test_the_guard_catches_what_it_should() -> None:
    """One float too far in either direction, read or written, ends the child."""
    for edge, offset in (("start", -4), ("end", 400)):
        for touch in (_read, _overwrite):
            array = GuardedArray(np.zeros(100, np.float32), edge)
            outcome = run_in_child([("touch", partial(touch, array.address + offset))])
            assert outcome.signal == signal.SIGSEGV


def _read(address: int) -> None:
    assert ctypes.c_float.from_address(address).value == 0.0


def _overwrite(address: int) -> None:
    ctypes.c_float.from_address(address).value = 1.0


def test_the_guard_reports_a_failure_inside_the_child() -> None:
    array = GuardedArray(np.ones(1, np.float32), "end")
    not_zero = partial(_read, array.address)
    outcome = run_in_child([("first", not_zero), ("second", not_zero)])
    assert (outcome.signal, outcome.last_check) == (0, "first")
    assert "AssertionError" in outcome.failure
    with pytest.raises(AssertionError, match="first"):
        outcome.assert_clean()


def test_the_guard_sees_a_stray_write_inside_the_page() -> None:
    array = GuardedArray(np.zeros(5, np.float32), "end")
    assert array.surroundings_intact()
    _overwrite(array.address - 4)
    assert not array.surroundings_intact()


@pytest.mark.parametrize("row", RUNNABLE_ROWS, ids=lambda row: row.name)
def test_matrix_kernels(row: Template) -> None:
    """Shapes with zeros of two patterns in turn, the largest with both."""
    checks = []
    patterns = cycle((UNSTRUCTURED, BLOCK_1X8))
    for number, (shape, pattern) in enumerate(zip((*SHAPES, LARGEST), patterns, strict=False)):
        matrix = SparseMatrix(block_weights(shape, 0.3, pattern.rows, seed=number))
        bias = np.linspace(-1, 1, shape[0], dtype=np.float32)
        activation = list(Activation)[number % len(Activation)]
        spec = MatVec(*shape, bias, activation, row.dtype)
        kernel = ExecutableMemory(compile_kernel(row, spec, matrix).data)
        for edge in EDGES:
            check = partial(_check_matvec, kernel, spec, matrix, edge)
            checks.append((f"{shape}, {spec.activation.value}, {edge}", check))
    run_in_child(checks).assert_clean()


def _check_matvec(
    kernel: ExecutableMemory, spec: MatVec, matrix: SparseMatrix, edge: Edge
) -> None:
    values = np.random.default_rng(5).standard_normal(spec.in_features, np.float32)
    x = GuardedArray(values, edge)
    y = GuardedArray(np.full(spec.out_features, np.nan, np.float32), edge)
    kernel.function(2)(x.address, y.address)
    assert x.surroundings_intact() and y.surroundings_intact()
    np.testing.assert_array_equal(x.values, values)
    np.testing.assert_allclose(y.values, reference.matvec(spec, matrix, values), 1e-4, 1e-4)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("isa", LEVELS)
def test_elementwise(isa: str, activation: Activation) -> None:
    checks = []
    for length in LENGTHS:
        spec = Elementwise(length, activation)
        kernel = _native(isa, partial(emit_elementwise, spec=spec))
        for edge in EDGES:
            checks.append((f"{length}, {edge}", partial(_check_elementwise, kernel, spec, edge)))
    run_in_child(checks).assert_clean()


def _check_elementwise(kernel: ExecutableMemory, spec: Elementwise, edge: Edge) -> None:
    values = np.linspace(-4, 4, spec.length, dtype=np.float32)
    x, y = GuardedArray(values, edge), GuardedArray(np.full_like(values, np.nan), edge)
    kernel.function(2)(x.address, y.address)
    assert x.surroundings_intact() and y.surroundings_intact()
    np.testing.assert_allclose(y.values, reference.elementwise(spec, values), atol=1e-6)


@pytest.mark.parametrize("isa", LEVELS)
def test_categorical_draw(isa: str) -> None:
    checks = []
    for classes in LENGTHS:
        spec = CategoricalDraw(classes)
        kernel = _native(isa, partial(_emit_draw_from_pointer, spec=spec))
        floats = scratch_floats(Target.named(isa), spec)
        for edge in EDGES:
            check = partial(_check_categorical_draw, kernel, spec, floats, edge)
            checks.append((f"{classes}, {edge}", check))
    run_in_child(checks).assert_clean()


def _emit_draw_from_pointer(asm: Assembler, spec: CategoricalDraw) -> None:
    asm.emit("vmovss", xmm(0), Memory(rcx))
    emit_categorical_draw(asm, spec)


def _check_categorical_draw(
    kernel: ExecutableMemory, spec: CategoricalDraw, scratch_length: int, edge: Edge
) -> None:
    values = np.random.default_rng(spec.classes).standard_normal(spec.classes, np.float32)
    uniform = np.array([0.6], np.float32)
    empty = (np.zeros(2, np.float32), np.zeros(scratch_length, np.float32))
    logits, drawn, scratch, number = (
        GuardedArray(array, edge) for array in (values, *empty, uniform)
    )
    arrays = (logits, drawn, scratch, number)
    kernel.function(4)(*(array.address for array in arrays))
    assert all(array.surroundings_intact() for array in arrays)
    expected = reference.categorical_draw(spec, values, float(uniform[0]))
    assert drawn.values.view(np.int64)[0] == expected


def _native(isa: str, body: Callable[[Assembler], None]) -> ExecutableMemory:
    asm = Assembler(Target.named(isa))
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)
