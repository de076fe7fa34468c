"""The attention kernel's frame in memory, and its walk over keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparsejit.asm_templates.attention.tables import KEYS, SUMS_BYTES, AttentionTiles
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rcx,
    rdi,
    rdx,
    rsi,
)

FLOAT = 4
FRAME, TABLE, BASE, SCORES, GROUPS_LEFT = rbp, r9, r13, r14, r15
KEY_ROWS = (rax, rcx, rdx, rsi, rdi, r10, r11, r12)
# Slots of the frame: addresses of the four operands and of this tile's numbers, the offset of the
# current rows, then counters.
QUERY_SLOT, KEY_SLOT, VALUE_SLOT, RESULT_SLOT, TILE_SLOT, BLOCK_SLOT = range(0, 48, 8)
COUNTERS = 48


@dataclass(frozen=True)
class AttentionStack:
    """A stack of attentions: `depth` features of queries and keys, `values` of values.

    `axes` from the outermost: its length, and the bytes by which Q, K, V and the result move. If
    there are several masks, each place of the last axis has its own. `packed_from`: V, whose rows
    are that many bytes apart, is copied first, its `keys` rows side by side, each in whole vectors;
    with 0 it is read in place.
    """

    keys: int
    depth: int
    values: int
    scale: float
    axes: tuple[tuple[int, tuple[int, ...]], ...]
    packed_from: int = 0

    def scratch_bytes(self, tiles: AttentionTiles, target: Target) -> int:
        """Return the bytes of scratch memory: the frame, and the copy of V."""
        copied = self.keys * packed_pitch(self.values, target) if self.packed_from else 0
        return places_of(self, tiles, target).values + copied


def packed_pitch(values: int, target: Target) -> int:
    """Return the bytes of a row in the copy of V."""
    return ceil_div(values, target.lanes) * target.vector_bytes


@dataclass(frozen=True)
class Places:
    """Offsets in the frame.

    A number for each row of a tile: its largest score, the sum of its powers, and the factor of its
    sums of values; the largest score and sum of an earlier tile that it adds to, the latter
    replaced by the factor of the earlier results. Then the tile's queries, transposed, its scores,
    the largest scores and sums of all rows, and the copy of V.
    """

    largest: int
    total: int
    share: int
    old_largest: int
    old_total: int
    queries: int
    scores: int
    sums: int
    values: int


def places_of(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> Places:
    first = round_up(COUNTERS + 8 * (1 + len(stack.axes)), 64)
    row = FLOAT * tiles.rows
    largest, total, share, old_largest, old_total, queries = range(first, first + 6 * row, row)
    scores = queries + row * stack.depth
    sums = scores + row * tiles.most_keys
    values = round_up(sums + SUMS_BYTES * tiles.queries, 64)
    olds = old_largest, old_total
    return Places(largest, total, share, *olds, queries, scores, sums, values)


class AttentionCode:
    """State that all parts of the kernel share while they append to `asm`."""

    def __init__(self, asm: Assembler, stack: AttentionStack, tiles: AttentionTiles) -> None:
        self.asm, self.stack, self.tiles = asm, stack, tiles
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        self.wide = asm.target.isa == "avx512"
        self.row_bytes = FLOAT * tiles.rows  # bytes of a number for each row of a tile
        self.places = places_of(stack, tiles, asm.target)
        last = asm.target.vector_registers - 1
        self.largest = [vector(asm, last - number) for number in range(tiles.width)]
        self.total = [vector(asm, last - tiles.width - number) for number in range(tiles.width)]
        self.numbers = asm.literal(tiles.numbers)

    def start(self, operand: int) -> None:
        """Point TABLE at this tile's rows and BASE at an operand."""
        self.asm.emit("mov", TABLE, Memory(FRAME, TILE_SLOT))
        if operand == VALUE_SLOT and self.stack.packed_from:
            self.asm.emit("lea", BASE, Memory(FRAME, self.places.values))
        else:
            self.asm.emit("mov", BASE, Memory(FRAME, operand))

    def start_groups(self, operand: int) -> None:
        """Point TABLE at this tile's first group of keys, SCORES at its scores, BASE at an operand.

        GROUPS_LEFT = the number of groups.
        """
        asm, keys = self.asm, 3 * FLOAT * self.tiles.rows
        self.start(operand)
        asm.emit("mov", dword(GROUPS_LEFT), Memory(TABLE, keys + FLOAT))
        asm.emit("mov", dword(rax), Memory(TABLE, keys))
        asm.emit("lea", TABLE, Literal(self.numbers))
        asm.emit("add", TABLE, rax)
        asm.emit("lea", SCORES, Memory(FRAME, self.places.scores))

    @contextmanager
    def each_group(self) -> Iterator[None]:
        """Append the code of the block as a loop over the groups from `start_groups` on."""
        asm = self.asm
        with counted_down(asm, dword(GROUPS_LEFT)):
            yield
            asm.emit("add", TABLE, self.tiles.group_bytes)
            asm.emit("add", SCORES, KEYS * self.row_bytes)

    def point(self, first: int) -> None:
        """KEY_ROWS = rows of the operand at BASE, by the group's offsets from byte `first` on."""
        for number, register in enumerate(KEY_ROWS):
            self.asm.emit("mov", dword(register), Memory(TABLE, first + FLOAT * number))
            self.asm.emit("add", register, BASE)

    def point_row(self, register: Register, row: int, which: int) -> None:
        """register = the offset of a tile's row in Q, the result or the sums (`which` 0, 1, 2)."""
        place = FLOAT * (which * self.tiles.rows + row)
        self.asm.emit("mov", dword(register), Memory(TABLE, place))
