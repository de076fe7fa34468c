"""Runs one matrix-vector template on hostile surroundings and holds it to the float64 oracle."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from runnable import parameters, target_of

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, MatVec
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import Image

SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 33, 127, 256, 257, 1000)
TOLERANCE = 1e-5
_MARGIN = 64
_UNTOUCHED = np.float32(7.0e7)

FloatArray = npt.NDArray[np.float32]


def block_weights(
    shape: tuple[int, int], density: float, block_rows: int = 8, seed: int = 0
) -> FloatArray:
    """Random (out, in) weights of which whole (block_rows, 1) blocks are zero."""
    generator = np.random.default_rng(seed)
    out_features, in_features = shape
    kept = generator.random((-(-out_features // block_rows), in_features)) < density
    weights = generator.standard_normal(shape).astype(np.float32)
    return weights * np.repeat(kept, block_rows, axis=0)[:out_features]


def square_weights(shape: tuple[int, int], density: float, seed: int = 0) -> FloatArray:
    """Random (out, in) weights of which whole (4, 4) blocks are zero."""
    kept = np.random.default_rng(seed).random((-(-shape[0] // 4), -(-shape[1] // 4))) < density
    mask = kept.repeat(4, 0).repeat(4, 1)[: shape[0], : shape[1]]
    return np.where(mask, block_weights(shape, 1.0, 1, seed), np.float32(0))


def scattered(shape: tuple[int, int], density: float, seed: int = 0) -> FloatArray:
    """Random weights, zero at random places."""
    return block_weights(shape, density, block_rows=1, seed=seed)


def templates_of(family: str) -> list[Any]:
    """pytest parameters: every row of the table in `family` that this machine can run."""
    return parameters(row for row in MATVEC_TEMPLATES if row.family == family)


def shapes() -> Iterator[tuple[int, int]]:
    """Every size once as out_features and once as in_features, with another size that changes."""
    for position, size in enumerate(SIZES):
        yield size, SIZES[(5 * position + 3) % len(SIZES)]


def compile_kernel(
    row: Template, spec: MatVec, matrix: SparseMatrix, target: Target | None = None
) -> Image:
    """The template's code with the return that its caller adds, for the least target or another."""
    asm = Assembler(target or target_of(row))
    row.emit(asm, row.lower(spec, matrix, asm.target))
    asm.emit("vzeroupper")
    asm.emit("ret")
    return asm.finish()


def check(
    row: Template,
    weights: FloatArray,
    bias: FloatArray | None = None,
    activation: Activation = Activation.NONE,
) -> Image:
    """Assert that the kernel computes the spec and touches nothing but x and y.

    x lies between NaN, which even a zero weight would carry into the sums; y lies between
    values that must survive.
    """
    matrix = SparseMatrix(weights)
    spec = MatVec(*weights.shape, bias, activation, row.dtype)
    image = compile_kernel(row, spec, matrix)
    x = np.full(spec.in_features + 2 * _MARGIN, np.nan, np.float32)
    y = np.full(spec.out_features + 2 * _MARGIN, _UNTOUCHED)
    values = np.random.default_rng(1).standard_normal(spec.in_features).astype(np.float32)
    x[_MARGIN:-_MARGIN] = values
    native = ExecutableMemory(image.data).function(2)
    native(x.ctypes.data + 4 * _MARGIN, y.ctypes.data + 4 * _MARGIN)
    assert np.all(y[:_MARGIN] == _UNTOUCHED) and np.all(y[-_MARGIN:] == _UNTOUCHED)
    error = np.abs(y[_MARGIN:-_MARGIN] - reference.matvec(spec, matrix, values))
    scale = np.maximum(reference.error_scale(spec, matrix, values), 1.0)
    assert np.max(error / scale) < TOLERANCE
    return image
