"""Scratch memory of the attention kernel (its frame), and the loops over the keys of a tile."""

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
    """Shapes and strides of an attention, and the loops that repeat it, as for samples and heads.

    Each attention has `keys` keys; queries and keys have `depth` features, values have `values`.
    `axes`, from the outermost: the turns of its loop, and the bytes by which Q, K, V and the result
    move in each turn. If there are several masks, each place of the last axis has its own.
    `packed_from`: bytes from row to row of V, which is then copied to rows side by side, each in
    whole vectors; with 0, V is read in place. `pairs`: operands are multiplied in pairs of
    bfloat16, to which K and V are copied.
    """

    keys: int
    depth: int
    values: int
    scale: float
    axes: tuple[tuple[int, tuple[int, ...]], ...]
    packed_from: int = 0
    pairs: bool = False

    def scratch_bytes(self, tiles: AttentionTiles, target: Target) -> int:
        """Return the bytes of scratch memory: the frame, and the copies of V and K."""
        return places_of(self, tiles, target).end

    @property
    def together(self) -> int:
        """Number of features of a key, and of keys of a value, that one product takes."""
        return 2 if self.pairs else 1

    @property
    def steps(self) -> int:
        """Number of products for a score."""
        return ceil_div(self.depth, self.together)


def packed_pitch(values: int, target: Target) -> int:
    """Return the bytes of a row in the copy of V, of two keys with pairs."""
    return ceil_div(values, target.lanes) * target.vector_bytes


def paired_pitch(depth: int) -> int:
    """Return the bytes of a row in the copy of K, in pairs of features."""
    return round_up(2 * depth, 64)


@dataclass(frozen=True)
class Places:
    """Byte offsets of the kernel's arrays in its scratch memory (the frame).

    Arrays with a number for each row (query) of a tile: `largest` score, `total` of its powers,
    `share`, by which its new sums of values are multiplied; for a tile that adds to the results of
    an earlier one, that tile's `old_largest` and `old_total`, which is replaced by the factor of
    the earlier results. Then the tile's `queries`, transposed, and its `scores`; `sums` keeps the
    largest score and the total of all rows of all tiles, `values` the copy of V and `keys` of K.
    The memory ends at `end`.
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
    keys: int
    end: int


def places_of(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> Places:
    first = round_up(COUNTERS + 8 * (1 + len(stack.axes)), 64)
    row = FLOAT * tiles.rows
    largest, total, share, old_largest, old_total, queries = range(first, first + 6 * row, row)
    scores = queries + row * stack.steps
    sums = scores + row * tiles.most_keys
    values = round_up(sums + SUMS_BYTES * tiles.queries, 64)
    olds = old_largest, old_total
    copied, pitch = ceil_div(stack.keys, stack.together), packed_pitch(stack.values, target)
    keys = values + (copied * pitch if stack.packed_from or stack.pairs else 0)
    end = keys + (2 * copied * paired_pitch(stack.depth) if stack.pairs else 0)
    return Places(largest, total, share, *olds, queries, scores, sums, values, keys, end)


class AttentionCode:
    """State that all parts of the kernel share while they append to `asm`."""

    def __init__(self, asm: Assembler, stack: AttentionStack, tiles: AttentionTiles) -> None:
        self.asm, self.stack, self.tiles = asm, stack, tiles
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        self.wide = asm.target.isa == "avx512"
        self.multiply = "vdpbf16ps" if stack.pairs else "vfmadd231ps"
        self.row_bytes = FLOAT * tiles.rows  # bytes of a number for each row of a tile
        self.places = places_of(stack, tiles, asm.target)
        last = asm.target.vector_registers - 1
        self.largest = [vector(asm, last - number) for number in range(tiles.width)]
        self.total = [vector(asm, last - tiles.width - number) for number in range(tiles.width)]
        self.numbers = asm.literal(tiles.numbers)

    def start(self, operand: int) -> None:
        """Append code: TABLE = the address of this tile's row offsets, BASE = an operand's address.

        `operand` is the frame's slot with the address of Q, K, V or the result; a copy of K or V
        is preferred.
        """
        self.asm.emit("mov", TABLE, Memory(FRAME, TILE_SLOT))
        if operand == VALUE_SLOT and (self.stack.packed_from or self.stack.pairs):
            self.asm.emit("lea", BASE, Memory(FRAME, self.places.values))
        elif operand == KEY_SLOT and self.stack.pairs:
            self.asm.emit("lea", BASE, Memory(FRAME, self.places.keys))
        else:
            self.asm.emit("mov", BASE, Memory(FRAME, operand))

    def start_groups(self, operand: int) -> None:
        """Append code that prepares `each_group`, the loop over the tile's groups of 8 keys.

        TABLE points at the first group in the table, SCORES at its scores, BASE at the operand;
        GROUPS_LEFT = the number of groups.
        """
        self.start(operand)
        self.start_list(3 * FLOAT * self.tiles.rows)
        self.asm.emit("lea", SCORES, Memory(FRAME, self.places.scores))

    def start_list(self, first: int) -> None:
        """Append code: TABLE = the list of a header at TABLE, GROUPS_LEFT = its length.

        The header has the list's place at its byte `first`.
        """
        asm = self.asm
        asm.emit("mov", dword(GROUPS_LEFT), Memory(TABLE, first + FLOAT))
        asm.emit("mov", dword(rax), Memory(TABLE, first))
        asm.emit("lea", TABLE, Literal(self.numbers))
        asm.emit("add", TABLE, rax)

    @contextmanager
    def each_group(self, rows: int = KEYS) -> Iterator[None]:
        """Append the `with` block's code as a loop over a tile's groups; see `start_groups`.

        A group has `rows` rows of scores.
        """
        asm = self.asm
        with counted_down(asm, dword(GROUPS_LEFT)):
            yield
            asm.emit("add", TABLE, self.tiles.group_bytes)
            asm.emit("add", SCORES, rows * self.row_bytes)

    def point(self, is_value: bool) -> list[Register]:
        """Append code: the registers = the addresses of a group's rows in K or V.

        BASE points at the operand, TABLE at the group.
        """
        rows = list(KEY_ROWS[: self.tiles.offsets])
        first = FLOAT * len(rows) * is_value
        for number, register in enumerate(rows):
            self.asm.emit("mov", dword(register), Memory(TABLE, first + FLOAT * number))
            self.asm.emit("add", register, BASE)
        return rows

    def point_row(self, register: Register, row: int, which: int) -> None:
        """Append code: register = the byte offset of the tile's query `row` in one of three arrays.

        `which`: 0 for Q, 1 for the result, 2 for the saved largest scores and sums.
        """
        place = FLOAT * (which * self.tiles.rows + row)
        self.asm.emit("mov", dword(register), Memory(TABLE, place))
