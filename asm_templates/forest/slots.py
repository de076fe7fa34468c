"""The values that trees compare: each used feature of x, with what stands for a missing value.

A slot is a feature and where NaN goes there; one that goes left becomes -inf, which is below every
threshold, and one that goes right stays NaN, which no comparison `<=` holds for. The slot behind
the last is 0.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.graph import Array
from sparsejit.ir.ops.forest import Trees
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

_FLOAT = 4
_UNORDERED = 3


@dataclass(frozen=True, eq=False)
class Slots:
    """`features` and `goes_left` of each slot; `of_node` is the slot that each node compares."""

    features: Array
    goes_left: Array
    of_node: Array

    @classmethod
    def of(cls, trees: Trees) -> "Slots":
        """The slots of all nodes, in the order of features."""
        pairs = 2 * trees.nodes[:, 0] + (trees.nodes[:, 3] != 0)
        kinds, of_node = np.unique(pairs, return_inverse=True)
        return cls(kinds // 2, kinds % 2 == 1, of_node.reshape(-1))

    def __len__(self) -> int:
        return len(self.features)

    def pitch(self, lanes: int) -> int:
        """Slots of a row with those that pad it, the one of zero among them."""
        return -(-(len(self) + 1) // lanes) * lanes


def emit_slots(asm: Assembler, slots: Slots, x: Register, into: Register) -> None:
    """Append what fills the slots of one row.

    x: the row; into: float32 (pitch,). Clobbers rax, r8, r9, vectors 0 to 3 and k1.
    """
    lanes = asm.target.lanes
    count = slots.pitch(lanes)
    index, stand_in = np.zeros(count, np.int32), np.full(count, np.nan, np.float32)
    index[: len(slots)] = slots.features
    stand_in[: len(slots)][slots.goes_left] = -np.inf
    table = np.stack([index.view(np.float32).reshape(-1, lanes), stand_in.reshape(-1, lanes)], 1)
    asm.emit("lea", r9, Literal(asm.literal(table)))
    if count > lanes:
        asm.emit("mov", r8, into)
    place = r8 if count > lanes else into

    def fill() -> None:
        value = vector(asm, 0)
        asm.emit("vmovups", vector(asm, 1), Memory(r9))
        gather(asm, value, Memory(x, 0, vector(asm, 1), _FLOAT), vector(asm, 2))
        if asm.target.isa == "avx512":
            asm.emit("vcmpps", k(1), value, value, _UNORDERED)
            asm.emit("vmovups", value.masked(k(1)), Memory(r9, lanes * _FLOAT))
        else:
            asm.emit("vcmpps", vector(asm, 2), value, value, _UNORDERED)
            asm.emit("vmovups", vector(asm, 3), Memory(r9, lanes * _FLOAT))
            asm.emit("vblendvps", value, value, vector(asm, 3), vector(asm, 2))
        asm.emit("vmovups", Memory(place), value)
        if count > lanes:
            asm.emit("add", r9, 2 * lanes * _FLOAT)
            asm.emit("add", place, lanes * _FLOAT)

    repeat(asm, count // lanes, rax, fill)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("mov", Memory(into, _FLOAT * len(slots)), dword(rax))


def gather(asm: Assembler, into: Register, place: Memory, mask: Register) -> None:
    """into = 32 bits for each lane of the index of `place`. AVX-512 clobbers k1, AVX2 `mask`."""
    if asm.target.isa == "avx512":
        asm.emit("kxnorw", k(1), k(1), k(1))
        asm.emit("vpgatherdd", into.masked(k(1)), place)
    else:
        asm.emit("vpcmpeqd", mask, mask, mask)
        asm.emit("vpgatherdd", into, place, mask)
