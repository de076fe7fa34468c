"""Cutting of the batch, the rows and the inputs, in a batch kernel that loops over data.

Columns of the batch are computed some vectors at a time, a *pass*; in a pass a block of inputs lies
in a panel of its own, and the sums of a block of rows in another, both in a workspace.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

import numpy as np

from sparsejit.asm_templates.batch.csr_stream import (
    CsrBlocks,
    segment_counts,
    words_by_block,
)
from sparsejit.asm_templates.batch.workspace import LARGEST_WORKSPACE
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.compressed_rows import count_distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up


class Arithmetic(Enum):
    """Number formats of products, and the number of inputs in a word of weights (`together`).

    `PAIRS`: int8 as int16, by `vpmaddwd`, whose sums of two are exact.
    `INTEGERS`: int8 as float32. The products of a segment, `MOST` of 127 * 127, add up exactly.
    `QUADS`: bytes of any four inputs at a time, which are interleaved as they are multiplied.
    """

    FLOATS = "floats"
    BYTES = "bytes"
    PAIRS = "pairs"
    INTEGERS = "integers"
    QUADS = "quads"

    @property
    def together(self) -> int:
        if self is Arithmetic.BYTES:
            return 4
        return 2 if self is Arithmetic.PAIRS else 1

    @property
    def in_bytes(self) -> bool:
        return self in (Arithmetic.BYTES, Arithmetic.QUADS)

    @property
    def is_short(self) -> bool:
        """Whether quantised inputs take less room than float32."""
        return self.in_bytes or self is Arithmetic.PAIRS


# Vectors in a pass: more would share a weight's and an offset's load, but fewer inputs fit L1.
_VECTORS = {"avx512": 4, "avx2": 8}
# Chains of additions for a row, for 1, 2 and more vectors in a pass: together they hide the latency
# of an addition. Rows of words of bytes are longer, so that fewer of them are under way at once.
_CHAINS = {
    Arithmetic.FLOATS: (4, 2, 2),
    Arithmetic.INTEGERS: (4, 2, 2),
    Arithmetic.BYTES: (4, 4, 4, 2),
    Arithmetic.PAIRS: (1,),
    Arithmetic.QUADS: (1,),
}
_OTHER_REGISTERS = 3  # a weight, four of them, and inputs
_LEAST_WEIGHTS = 8  # of a row in a block: loading and storing sums should cost little beside them
_MOST_PANEL_BYTES = 1 << 17  # where `_LEAST_WEIGHTS` takes more inputs than L1 holds
STAGED = 64  # inputs that become integers at once
_ROUND = 16  # inputs and rows come in multiples of this, as whole vectors


@dataclass(frozen=True)
class Pass:
    """`vectors` vectors of columns at once, `times` times; the last begins `shift` columns early.

    That vector ends where the batch ends, and computes some columns twice, to the same result.
    """

    vectors: int
    times: int
    shift: int = 0


@dataclass(frozen=True)
class CsrShape:
    """The passes, blocks and workspace of a kernel.

    `pitch`: bytes from one word's inputs to the next in the panel, except for `QUADS`, and from one
    row's sums to the next; `OFFSET_UNIT` times a power of two. `chains`: separate sums of a row,
    added at the end of a segment.
    """

    arithmetic: Arithmetic
    passes: tuple[Pass, ...]
    blocks: CsrBlocks
    pitch: int
    chains: int

    @property
    def panel_pitch(self) -> int:
        """Bytes from one word's inputs to the next in the panel."""
        return CACHE_LINE_BYTES if self.arithmetic is Arithmetic.QUADS else self.pitch

    @property
    def panel_bytes(self) -> int:
        return self.blocks.width * self.panel_pitch

    @property
    def block_inputs(self) -> int:
        return self.blocks.width * self.arithmetic.together

    @property
    def staging(self) -> int:
        """Offset of float32 inputs that will become shorter, behind the sums."""
        return self.panel_bytes + self.blocks.rows * self.pitch

    @property
    def scales(self) -> int:
        """Offset of the reciprocal scales of x, for int8; the scales follow a `pitch` later."""
        return self.staging + (STAGED * self.pitch if self.arithmetic.is_short else 0)

    @cached_property
    def workspace_bytes(self) -> int:
        return self.scales + 2 * self.pitch

    @cached_property
    def pass_count(self) -> int:
        return sum(part.times for part in self.passes)

    @property
    def widths(self) -> list[int]:
        """Numbers of vectors of the passes, each once."""
        return list(dict.fromkeys(part.vectors for part in self.passes))


@dataclass(frozen=True)
class CsrCounts:
    """Work of one pass, for the price; `shape` has the number of passes.

    `weights`, or words of them, are in `segments` of `groups`, and in `quads`.
    """

    target: Target
    spec: MatMul
    shape: CsrShape
    weights: int
    segments: int
    quads: int
    groups: int


def csr_shape(
    arithmetic: Arithmetic, spec: MatMul, matrix: SparseMatrix, target: Target
) -> CsrShape:
    """Return the shape with the fewest passes, nearly equally wide.

    A part of a batch adds in the order of the whole, so that a column has the same bits for any
    number of threads: it has the same number of chains, and its passes are no wider. Blocks are the
    same for any batch, so that all batches share the stream.
    """
    whole, alone = spec if spec.part_of is None else spec.part_of, target.alone
    key = "csr blocks", arithmetic, alone
    blocks = matrix.once(key, lambda: _blocks(arithmetic, matrix, alone))
    return _shape(arithmetic, blocks, spec.batch, whole.batch, alone)


def _blocks(arithmetic: Arithmetic, matrix: SparseMatrix, target: Target) -> CsrBlocks:
    columns = ceil_div(matrix.in_features, arithmetic.together)
    widest_pitch = _pitch(_VECTORS[target.isa], target)
    in_panel = CACHE_LINE_BYTES if arithmetic is Arithmetic.QUADS else widest_pitch
    width = _even(columns, _width(arithmetic, matrix, in_panel, target))
    # Pitches of the workspace besides the sums of rows, with a margin for rounding rows up.
    others = width + STAGED + 2 + _ROUND
    rows = _even(matrix.out_features, LARGEST_WORKSPACE // widest_pitch - others)
    return CsrBlocks(matrix.out_features, columns, rows, width)


@lru_cache(maxsize=256)  # layers are alike
def _shape(
    arithmetic: Arithmetic, blocks: CsrBlocks, batch: int, whole_batch: int, target: Target
) -> CsrShape:
    most = _widest(whole_batch, _VECTORS[target.isa], target)
    chains = _CHAINS[arithmetic][min(most, len(_CHAINS[arithmetic])) - 1]
    if most * chains > target.vector_registers - _OTHER_REGISTERS:
        chains = 1
    pitch = _pitch(_widest(batch, most, target), target)
    return CsrShape(arithmetic, _passes(batch, most, target), blocks, pitch, chains)


def _pitch(vectors: int, target: Target) -> int:
    """Return the bytes of `vectors` vectors, as a power of two, which addresses multiply by."""
    return target.vector_bytes << (vectors - 1).bit_length()


def counted(words: SparseMatrix, blocks: CsrBlocks) -> tuple[int, int, int, int]:
    """Return the nonzero words of (out_features, columns), and their segments, quads and groups."""
    block, in_row = words_by_block(words, blocks)
    segments = int(segment_counts(in_row).sum())
    quads = int(ceil_div(in_row, 4).sum())
    # A block has a group for each number of words of its rows, and one if it has rows without any.
    alike = count_distinct(block * (blocks.width + 1) + in_row, blocks.count * (blocks.width + 1))
    used, used_rows = np.unique(block, return_counts=True)
    rows_of = np.minimum(blocks.rows, blocks.out_features - used // blocks.across * blocks.rows)
    groups = alike + blocks.count - int(np.count_nonzero(used_rows == rows_of))
    return words.nnz, segments, quads, groups


def _width(arithmetic: Arithmetic, matrix: SparseMatrix, pitch: int, target: Target) -> int:
    """Return the columns that fit a share of L1, or more if few have a weight in a row."""
    layouts = target.core.layouts
    share = layouts.quads_block if arithmetic is Arithmetic.QUADS else layouts.csr_block
    fitting = int(share * target.l1d_bytes) // pitch
    density = max(matrix.nnz, 1) / (matrix.in_features * matrix.out_features)
    used = 1 - (1 - density) ** arithmetic.together
    wanted = min(int(_LEAST_WEIGHTS / used), _MOST_PANEL_BYTES // pitch)
    return max(fitting, wanted)


def _even(length: int, most: int) -> int:
    """Return the size of equal parts of a length, a multiple of `_ROUND`, as is the limit."""
    parts = ceil_div(length, max(most, _ROUND))
    return round_up(ceil_div(length, parts), _ROUND)


def _widest(batch: int, most: int, target: Target) -> int:
    """Return the vectors of the widest pass, for the fewest passes of at most `most` vectors."""
    vectors = ceil_div(batch, target.lanes)
    return ceil_div(vectors, ceil_div(vectors, most))


def _passes(batch: int, most: int, target: Target) -> tuple[Pass, ...]:
    """Cut a batch into passes of at most `most` vectors; the last one may shift its last vector."""
    vectors = ceil_div(batch, target.lanes)
    count, missing = ceil_div(vectors, most), vectors * target.lanes - batch
    narrow, wider = divmod(vectors, count)
    widths = np.array([narrow + 1] * wider + [narrow] * (count - wider))
    shift = missing if vectors > 1 else 0
    *before, last = widths
    parts = [Pass(int(width), before.count(width)) for width in dict.fromkeys(before)]
    if not shift and parts and parts[-1].vectors == last:
        return (*parts[:-1], Pass(int(last), parts[-1].times + 1))
    return (*parts, Pass(int(last), 1, shift))
