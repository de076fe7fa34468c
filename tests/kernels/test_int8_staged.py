"""Which inputs each step of `int8-staged` multiplies, and how they are brought together."""

import numpy as np
import numpy.typing as npt
import pytest
from matvec_checks import block_weights, compile_kernel, templates_of

from sparsejit.asm_templates.families import Template
from sparsejit.asm_templates.gather.int8_layout import REGISTER_INPUTS, byte_of_input
from sparsejit.asm_templates.gather.int8_staged import (
    SLOTS,
    StagedGroup,
    expect,
    lower,
    staged_groups,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec, Quantisation
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory

SHAPES = [(1, 1), (40, 70), (256, 300), (300, 1024)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.04, 0.5])
def test_every_block_is_multiplied_once(shape: tuple[int, int], density: float) -> None:
    weights = np.kron(
        np.random.default_rng(1).random((-(-shape[0] // 16), shape[1])) < density, np.ones((16, 1))
    )[: shape[0]].astype(np.float32)
    used = SparseMatrix(weights).block_mask(16)
    taken = np.zeros(used.shape, int)
    for group in staged_groups(SparseMatrix(weights)):
        own = np.tile(group.block_rows, group.chains)
        for columns in group.columns:
            for row, some in zip(own, columns, strict=True):
                taken[row, some[some >= 0]] += 1
    np.testing.assert_array_equal(taken, used)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.02, 0.2])
def test_rounds_bring_what_steps_multiply(shape: tuple[int, int], density: float) -> None:
    """As the kernel's permutations do, over x that says which input each byte is."""
    weights = block_weights(shape, density, 16)
    registers = -(-shape[1] // REGISTER_INPUTS)
    x = np.zeros((registers, REGISTER_INPUTS), int)
    x[:, byte_of_input()] = np.arange(registers * REGISTER_INPUTS).reshape(registers, -1)
    for group in staged_groups(SparseMatrix(weights)):
        wanted, found = group.columns, staged(group, x)
        found = found[:, : wanted[0].size if len(wanted) else 0].reshape(wanted.shape)
        np.testing.assert_array_equal(found[wanted >= 0], wanted[wanted >= 0])


def staged(group: StagedGroup, x: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The row of the stack of each trip."""
    rows = np.zeros((len(group.columns), SLOTS * 4), int)
    for each in group.rounds():
        selectors, places = np.divmod(each.indices, REGISTER_INPUTS)
        for selector in range(4):
            register = each.register(selector)
            if register >= 0:
                lanes = selectors == selector
                rows[each.trip, lanes] = x[register, places[lanes]]
    return rows


@pytest.mark.parametrize("row", templates_of("int8-staged"))
@pytest.mark.parametrize("shape", [(300, 1024), (1030, 2500)])
def test_sums_of_few_blocks_are_exact(row: Template, shape: tuple[int, int]) -> None:
    """Inputs of a trip lie in many registers of x."""
    random = np.random.default_rng(3)
    weights = np.rint(100 * block_weights(shape, 0.02, 16)).clip(-127, 127).astype(np.float32)
    weights[:, 7] = 127  # so that the scale of each row is 1
    spec = MatVec(*shape, dtype=DType.INT8, x_steps=Quantisation(1.0, 0, symmetric=True))
    x = random.integers(-127, 128, shape[1]).astype(np.float32)
    y = np.full(shape[0], np.nan, np.float32)
    memory = ExecutableMemory(compile_kernel(row, spec, SparseMatrix(weights)).data)
    memory.function(2)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, weights.astype(np.int64) @ x.astype(np.int64))


def test_four_blocks_make_a_step() -> None:
    """The deck's recurrent layer: 7,864 blocks of which four make a step, and few zeros."""
    matrix = SparseMatrix(block_weights((3072, 1024), 0.04, 16))
    spec = MatVec(3072, 1024, dtype=DType.INT8, x_steps=Quantisation(1 / 127, 0, symmetric=True))
    target = Target.named("avx512")
    lowered = lower(spec, matrix, target)
    steps = sum(group.columns[..., 0].size for group in lowered.groups)
    blocks = int(matrix.block_mask(16).sum())
    assert blocks / 4 <= steps < 1.1 * blocks / 4
    assert lowered.counts == expect(spec, matrix, target)
