"""Embedding bags: for each bag (list of indices) the sum, mean or maximum of a table's rows.

for each bag, for each few vectors of features that fit the registers:
    for each index of the bag:  sums += weight * table[index]
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.selection.table_rows import emit_row_address
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import counted_down, counted_up
from sparsejit.asm_templates.shared.rows import load, store, vector, zero
from sparsejit.ir.ops.selection import BagKind
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    xmm,
)

_VECTORS_AT_ONCE = 8
_FLOAT, _INDEX = 4, 8
_SAVED = (rbx, r12, r13)


@dataclass(frozen=True)
class Bags:
    """Sizes of a bag reduction: `bags` bags, with `indices` indices in all, into a float32 table.

    The table is (rows, features). Without offsets all bags are equally long. `result_pitch` is
    bytes from a result to the next.
    """

    bags: int
    indices: int
    rows: int
    features: int
    kind: BagKind
    with_offsets: bool
    weighted: bool
    result_pitch: int


def emit_bags(asm: Assembler, spec: Bags) -> None:
    """Append the reduction of all bags.

    rdi: indices, int64; rsi: table; rdx: result; rcx: offsets, int64 (bags,), if there are any; r9:
    weights, float32 like indices, if there are any. Leaves r8 = 1 if an index is out of range, or
    offsets do not ascend from 0 to at most `indices`, else 0. Clobbers rax, rcx, rdx, r10, r11,
    the vector registers and k7.
    """
    for register in _SAVED:
        asm.emit("push", register)
    asm.emit("xor", dword(r8), dword(r8))
    asm.emit("mov", rbx, spec.bags)
    if spec.with_offsets:
        _check_first_offset(asm)
    else:
        asm.emit("xor", dword(r11), dword(r11))
    with counted_down(asm, rbx):
        if spec.with_offsets:
            _find_bag(asm, spec)
        else:
            asm.emit("mov", r10, r11)
            asm.emit("add", r11, spec.indices // spec.bags)
        for first in range(0, spec.features, _VECTORS_AT_ONCE * asm.target.lanes):
            _reduce(asm, spec, first)
        asm.emit("add", rdx, spec.result_pitch)
    for register in reversed(_SAVED):
        asm.emit("pop", register)


def _check_first_offset(asm: Assembler) -> None:
    zero_first = asm.label("first offset is zero")
    asm.emit("mov", rax, Memory(rcx))
    asm.emit("test", rax, rax)
    asm.jump("jz", zero_first)
    asm.emit("mov", dword(r8), 1)
    asm.bind(zero_first)


def _find_bag(asm: Assembler, spec: Bags) -> None:
    """r10, r11 = first and end of the next bag; both 0, and r8 = 1, if its offsets are invalid."""
    is_last, is_wrong, is_right = map(asm.label, ("last bag", "wrong offsets", "right offsets"))
    asm.emit("mov", r10, Memory(rcx))
    asm.emit("mov", r11, spec.indices)
    asm.emit("cmp", rbx, 1)
    asm.jump("je", is_last)
    asm.emit("mov", r11, Memory(rcx, _INDEX))
    asm.bind(is_last)
    asm.emit("add", rcx, _INDEX)
    asm.emit("cmp", r11, spec.indices)
    asm.jump("ja", is_wrong)
    asm.emit("cmp", r10, r11)
    asm.jump("jbe", is_right)
    asm.bind(is_wrong)
    asm.emit("mov", dword(r8), 1)
    asm.emit("xor", dword(r10), dword(r10))
    asm.emit("xor", dword(r11), dword(r11))
    asm.bind(is_right)


def _reduce(asm: Assembler, spec: Bags, first: int) -> None:
    """Reduce a few vectors of features, from `first` on, over all rows of the bag."""
    lanes = asm.target.lanes
    firsts = range(first, spec.features, lanes)[:_VECTORS_AT_ONCE]
    sums = [vector(asm, number) for number in range(len(firsts))]
    weight, row, spare = (vector(asm, _VECTORS_AT_ONCE + number) for number in range(3))
    done = asm.label("end of bag")
    for total in sums:
        zero(asm, total)
    asm.emit("mov", r12, r10)
    asm.emit("cmp", r12, r11)
    asm.jump("jae", done)
    if spec.kind is BagKind.MAX:
        for total in sums:
            load_constant(asm, total, -np.inf)
    with counted_up(asm, r12, 1, r11):
        asm.emit("mov", r13, Memory(rdi, 0, r12, _INDEX))
        emit_row_address(asm, r13, spec.rows, _FLOAT * spec.features)
        if spec.weighted:
            asm.emit("vbroadcastss", weight, Memory(r9, 0, r12, _FLOAT))
        for total, place in zip(sums, firsts, strict=True):
            load(asm, row, r13, place, spec.features, spare)
            if spec.weighted:
                asm.emit("vfmadd231ps", total, weight, row)
            else:
                asm.emit("vmaxps" if spec.kind is BagKind.MAX else "vaddps", total, total, row)
    if spec.kind is BagKind.MEAN:
        asm.emit("mov", rax, r11)
        asm.emit("sub", rax, r10)
        low = xmm(weight.number)
        asm.emit("vcvtsi2ss", low, low, rax)
        asm.emit("vbroadcastss", weight, low)
        for total in sums:
            asm.emit("vdivps", total, total, weight)
    asm.bind(done)
    for total, place in zip(sums, firsts, strict=True):
        store(asm, total, rdx, place, spec.features, spare)
