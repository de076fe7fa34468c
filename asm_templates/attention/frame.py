"""Where the kernel of masked attention keeps what is not in registers."""

from dataclasses import dataclass

from sparsejit.asm_templates.attention.tables import SUMS_BYTES, AttentionTiles
from sparsejit.machine.target import Target

FLOAT = 4
# The frame: addresses of the four operands, of this tile's numbers and the next one's, counters.
QUERY_SLOT, KEY_SLOT, VALUE_SLOT, RESULT_SLOT, TILE_SLOT, NEXT_SLOT = range(0, 48, 8)
COUNTERS = 48


@dataclass(frozen=True)
class AttentionStack:
    """A stack of attentions: `depth` features of queries and keys, `values` of values.

    `axes` from the outermost: its length, and the bytes by which Q, K, V and the result move. Where
    there are several masks, each place of the last axis has its own.
    """

    depth: int
    values: int
    scale: float
    axes: tuple[tuple[int, tuple[int, ...]], ...]

    def scratch_bytes(self, tiles: AttentionTiles, target: Target) -> int:
        """Beside the stack of calls."""
        places = places_of(self, target)
        return places.scores + target.vector_bytes * tiles.most_keys + SUMS_BYTES * tiles.queries


@dataclass(frozen=True)
class Places:
    """Offsets in the frame: rows, and the same transposed, of queries and results; scores.

    Before them each lane's largest score and sum, of this tile and of the one that it adds to.
    """

    largest: int
    total: int
    old_largest: int
    old_total: int
    rows: int
    columns: int
    scores: int
    query_pitch: int
    result_pitch: int


def places_of(stack: AttentionStack, target: Target) -> Places:
    """Rows are padded to whole vectors, since they are written so."""
    def whole(count: int) -> int:
        return -(-FLOAT * count // target.vector_bytes) * target.vector_bytes

    first = -(-(COUNTERS + 8 * (1 + len(stack.axes))) // 64) * 64
    sums = first, first + target.vector_bytes
    old_sums = first + 2 * target.vector_bytes, first + 3 * target.vector_bytes
    rows = first + 4 * target.vector_bytes
    query_pitch, result_pitch = whole(stack.depth), whole(stack.values)
    columns = rows + target.lanes * max(query_pitch, result_pitch)
    scores = columns + target.vector_bytes * max(stack.depth, stack.values)
    return Places(*sums, *old_sums, rows, columns, scores, query_pitch, result_pitch)
