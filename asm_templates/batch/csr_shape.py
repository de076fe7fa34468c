"""How a batch kernel that loops over data cuts its batch, its rows and its inputs.

Columns of the batch are computed some vectors at a time, a *pass*; in a pass a block of inputs lies
in a panel of its own, and the sums of a block of rows in another, both in a workspace.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.batch.csr_stream import (
    OFFSET_UNIT,
    CsrBlocks,
    segment_counts,
    weights_by_block,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.machine.target import Target

# Vectors in a pass: more would share a weight's and an offset's load, but fewer inputs fit L1.
_VECTORS = {"avx512": 4, "avx2": 8}
# Chains of additions for a row, by vectors in a pass: together they hide an addition's latency.
_CHAINS = {1: 4, 2: 2, 3: 2}
_SHARE_OF_L1 = 2 / 3  # that the inputs of a block may take
_SUMS_BYTES = 1 << 20  # of stack, that the sums of a block of rows may take
_LEAST_WEIGHTS = 8  # of a row in a block: loading and storing sums should cost little beside them
_MOST_PANEL_BYTES = 1 << 17  # where that takes more inputs than L1 holds
_ROUND = 16  # inputs and rows come in multiples of so many, as whole vectors


@dataclass(frozen=True)
class Pass:
    """`vectors` of columns at once, so many `times`; the last vector begins `shift` columns early.

    It ends where the batch ends then, and computes some columns a second time to the same result.
    """

    vectors: int
    times: int
    shift: int = 0


@dataclass(frozen=True)
class CsrShape:
    """`pitch` are bytes from one input to the next in the panel, and from one row's sums to the
    next; `chains` are separate sums of a row, added at the end of a segment.
    """

    passes: tuple[Pass, ...]
    blocks: CsrBlocks
    pitch: int
    chains: int

    @property
    def panel_bytes(self) -> int:
        return self.blocks.inputs * self.pitch

    @property
    def workspace_bytes(self) -> int:
        return self.panel_bytes + self.blocks.rows * self.pitch

    @property
    def pass_count(self) -> int:
        return sum(part.times for part in self.passes)

    @property
    def widths(self) -> list[int]:
        """Vectors of its passes, each once."""
        return list(dict.fromkeys(part.vectors for part in self.passes))


@dataclass(frozen=True)
class CsrCounts:
    """What one pass does, and how many there are, for the price.

    `weights` in `segments` of `groups` and in `quads`.
    """

    target: Target
    spec: MatMul
    shape: CsrShape
    weights: int
    segments: int
    quads: int
    groups: int


def csr_shape(spec: MatMul, matrix: SparseMatrix, target: Target) -> CsrShape:
    """As few passes as possible, nearly equally wide."""
    vectors = -(-spec.batch // target.lanes)
    count = -(-vectors // _VECTORS[target.isa])
    widest = -(-vectors // count)
    pitch = widest * target.vector_bytes
    blocks = CsrBlocks(
        spec.out_features,
        spec.in_features,
        _even(spec.out_features, _SUMS_BYTES // pitch),
        _even(spec.in_features, _inputs(spec, matrix, pitch, target)),
    )
    shape_passes = _passes(vectors, count, vectors * target.lanes - spec.batch, target)
    return CsrShape(shape_passes, blocks, pitch, _CHAINS.get(widest, 1))


def csr_counts(spec: MatMul, matrix: SparseMatrix, target: Target) -> CsrCounts:
    """Counted from where zeros are."""
    shape = csr_shape(spec, matrix, target)
    weights = weights_by_block(matrix, shape.blocks)
    segments = int(segment_counts(weights).sum())
    quads = int((-(-weights // 4)).sum())
    rows = shape.blocks.rows
    groups = sum(
        len(np.unique(block))
        for first in range(0, len(weights), rows)
        for block in weights[first : first + rows].T
    )
    return CsrCounts(target, spec, shape, matrix.nnz, segments, quads, groups)


def _inputs(spec: MatMul, matrix: SparseMatrix, pitch: int, target: Target) -> int:
    """As many as fit a share of L1, or more where few of them have a weight in a row."""
    fitting = int(_SHARE_OF_L1 * target.l1d_bytes) // pitch
    density = max(matrix.nnz, 1) / (spec.in_features * spec.out_features)
    wanted = min(int(_LEAST_WEIGHTS / density), _MOST_PANEL_BYTES // pitch)
    return min(max(fitting, wanted), (OFFSET_UNIT << 16) // pitch)


def _even(length: int, most: int) -> int:
    """The size of equal parts of a length, rounded up; none is larger than `most` rounded up."""
    parts = -(-length // max(most, _ROUND))
    return -(-length // parts // _ROUND) * _ROUND


def _passes(vectors: int, count: int, missing: int, target: Target) -> tuple[Pass, ...]:
    """`vectors` in so many passes; the last one lacks `missing` columns of whole vectors."""
    narrow, wider = divmod(vectors, count)
    widths = np.array([narrow + 1] * wider + [narrow] * (count - wider))
    shift = missing if vectors > 1 else 0
    *before, last = widths
    parts = [Pass(int(width), before.count(width)) for width in dict.fromkeys(before)]
    if not shift and parts and parts[-1].vectors == last:
        return (*parts[:-1], Pass(int(last), parts[-1].times + 1))
    return (*parts, Pass(int(last), 1, shift))
