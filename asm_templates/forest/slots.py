"""The values that trees compare: each used feature of x, with a substitute for a missing value.

A slot is a feature and the side to which NaN goes. A NaN that goes left becomes -inf, which is
below every threshold; one that goes right stays NaN, for which no comparison `<=` holds. The slot
behind the last is 0.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import half_vector, vector
from sparsejit.ir.ops.forest import Trees
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    rax,
)

_FLOAT, _DOUBLE = 4, 8
_UNORDERED = 3


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a forest: features of x to compare, each with the side to which NaN goes.

    By slot: its number in `features`, and whether NaN `goes_left`; `of_node` is the slot that each
    node compares. A slot, like x, is a float32 or float64 of `x_bytes`.
    """

    features: Array
    goes_left: Array
    of_node: Array
    x_bytes: int

    @classmethod
    def of(cls, trees: Trees) -> "Slots":
        """Return the slots of all nodes, in the order of features."""
        pairs = 2 * trees.nodes[:, 0] + (trees.nodes[:, 3] != 0)
        kinds, of_node = np.unique(pairs, return_inverse=True)
        return cls(kinds // 2, kinds % 2 == 1, of_node.reshape(-1), trees.x_bytes)

    def __len__(self) -> int:
        return len(self.features)

    def pitch(self, lanes: int) -> int:
        """Slots of a row with padding to whole vectors, which includes the slot of zero."""
        return round_up(len(self) + 1, lanes)

    def row_bytes(self, lanes: int) -> int:
        """Bytes of the slots of a row, with padding."""
        return self.pitch(lanes) * self.x_bytes


def emit_slots(asm: Assembler, slots: Slots, x: Register, into: Register) -> None:
    """Append code that fills the slots of one row.

    x: the row; into: the slots, `pitch` numbers. Clobbers rax, r8, r9, vectors 0 to 3 and k1.
    """
    size, is_double = slots.x_bytes, slots.x_bytes == _DOUBLE
    lanes = asm.target.vector_bytes // size
    count = slots.pitch(asm.target.lanes)
    index = np.zeros(count, np.int32)
    stand_in = np.full(count, np.nan, np.float64 if is_double else np.float32)
    index[: len(slots)] = slots.features
    stand_in[: len(slots)][slots.goes_left] = -np.inf
    parts = [part.reshape(-1, lanes).view(np.uint8) for part in (index, stand_in)]
    table = np.concatenate(parts, axis=1)
    indices = half_vector(asm, 1) if is_double else vector(asm, 1)
    compare, blend = ("vcmppd", "vblendvpd") if is_double else ("vcmpps", "vblendvps")
    asm.emit("lea", r9, Literal(asm.literal(table)))
    if count > lanes:
        asm.emit("mov", r8, into)
    place = r8 if count > lanes else into

    def fill() -> None:
        value = vector(asm, 0)
        asm.emit("vmovups", indices, Memory(r9))
        gather(asm, value, Memory(x, 0, indices, size), vector(asm, 2), is_double)
        stand_ins = Memory(r9, lanes * _FLOAT)
        if asm.target.isa == "avx512":
            asm.emit(compare, k(1), value, value, _UNORDERED)
            asm.emit("vmovupd" if is_double else "vmovups", value.masked(k(1)), stand_ins)
        else:
            asm.emit(compare, vector(asm, 2), value, value, _UNORDERED)
            asm.emit("vmovups", vector(asm, 3), stand_ins)
            asm.emit(blend, value, value, vector(asm, 3), vector(asm, 2))
        asm.emit("vmovups", Memory(place), value)
        if count > lanes:
            asm.emit("add", r9, lanes * (_FLOAT + size))
            asm.emit("add", place, lanes * size)

    repeat(asm, count // lanes, rax, fill)
    asm.emit("xor", dword(rax), dword(rax))
    nothing = rax if is_double else dword(rax)
    asm.emit("mov", Memory(into, size * len(slots)), nothing)


def gather(
    asm: Assembler, into: Register, place: Memory, mask: Register, is_double: bool = False
) -> None:
    """into = 32 bits, or 64, gathered for each lane of the dword index in `place`.

    AVX-512 clobbers k1, AVX2 `mask`.
    """
    name = "vgatherdpd" if is_double else "vpgatherdd"
    if asm.target.isa == "avx512":
        asm.emit("kxnorw", k(1), k(1), k(1))
        asm.emit(name, into.masked(k(1)), place)
    else:
        asm.emit("vpcmpeqd", mask, mask, mask)
        asm.emit(name, into, place, mask)
