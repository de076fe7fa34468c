"""The multiplication of one block: a row's sums, then its weights one after the other.

    mov             rax, [rsi-24*q]          four offsets by one load
    vbroadcastf32x4 zmm29, [rsi-24*q+8]      four weights by another: loads limit the speed
    movzx           ebx, ax                  the first offset; `shr rax, 16` before each other one
    lea             rbx, [rcx+8*rbx]         address of this input's columns, 256 bytes an input
    vpermilps       zmm31, zmm29, 0          its weight; 0x55, 0xaa, 0xff the others
    vfmadd231ps     zmm0, zmm31, [rbx]       16 columns; repeated for each vector of the pass

`vpdpbusd` multiplies bytes; x is its unsigned operand, which must be in a register. `vpmaddwd`
multiplies pairs of 16 bits and `vpaddd` adds them.

There is code for `MOST` weights; a segment of n weights enters it n weights before its end. All
segments of a group enter at the same place, so that the processor predicts it. `lea` is there
because an address with two registers would cost every multiplication an extra operation on some
processors.
"""

from collections.abc import Hashable

import numpy as np

from sparsejit.asm_templates.batch.csr_shape import Arithmetic, CsrShape
from sparsejit.asm_templates.batch.csr_stream import (
    GROUP_BYTES,
    MOST,
    OFFSET_UNIT,
    QUAD,
    quad_of,
)
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    word,
)

# Arguments of the subroutine; it advances the first three past the data that it reads.
GROUPS, QUADS, ROWS, WORKSPACE = rdi, rsi, rdx, rcx
_ENTRY_BYTES = 32  # from one entry to the next: loads, a shift and a jump
_PREFETCH_AHEAD = 3072  # bytes, if the weights come from beyond L2
_BY_LOAD = 4  # offsets


def emit_core(asm: Assembler, entry: Label, shape: CsrShape, vectors: int, far: bool) -> None:
    """Append the subroutine for passes of `vectors` vectors; `far`: weights come from beyond L2.

    Adds a block's products to the sums in the workspace, behind the panel. Clobbers rax, rbx,
    r8-r12 and vectors.
    """
    asm.bind(entry)
    key = core_key(shape, vectors, far)
    asm.append_known(key, lambda: _CsrLoop(asm, shape, vectors, far).emit())


def core_key(shape: CsrShape, vectors: int, far: bool) -> Hashable:
    """Return the properties that the subroutine depends on."""
    return "csr core", shape.arithmetic, shape.pitch, shape.panel_bytes, shape.chains, vectors, far


def quad_bytes(arithmetic: Arithmetic) -> int:
    """Return the bytes of four offsets and four words."""
    return quad_of(np.int8 if arithmetic is Arithmetic.QUADS else np.uint32).itemsize


class _CsrLoop:
    """Appends the code of one width."""

    def __init__(self, asm: Assembler, shape: CsrShape, vectors: int, far: bool) -> None:
        self.asm, self.shape, self.vectors, self.far = asm, shape, vectors, far
        self.weight = vector(asm, asm.target.vector_registers - 1)
        self.inputs = vector(asm, asm.target.vector_registers - 2)
        self.four = vector(asm, asm.target.vector_registers - 3)
        self.arithmetic = shape.arithmetic
        self.scale, self.input_scale = shape.pitch // OFFSET_UNIT, shape.panel_pitch // OFFSET_UNIT
        self.quad_bytes = quad_bytes(shape.arithmetic)
        # Labels in the code, by the number of weights left.
        self.left = [asm.label(f"{count} left") for count in range(MOST + 1)]

    def emit(self) -> None:
        asm = self.asm
        entries, group, done = (asm.label(name) for name in ("entries", "group", "done"))
        asm.address(r9, entries)
        asm.bind(group)
        asm.emit("mov", dword(r11), Memory(GROUPS))
        asm.emit("mov", dword(r10), Memory(GROUPS, 4))
        asm.emit("mov", dword(r12), Memory(GROUPS, 8))
        asm.emit("add", GROUPS, GROUP_BYTES)
        asm.emit("sub", dword(r10), 0)
        asm.jump("jz", done)
        asm.emit("shl", r11, _ENTRY_BYTES.bit_length() - 1)
        asm.emit("add", r11, r9)
        asm.align(16)
        with counted_down(asm, dword(r10)):
            self._start()
            asm.emit("jmp", r11)
            self._products()
            self._finish()
        asm.jump("jmp", group)
        self._entries(entries)
        asm.bind(done)
        asm.emit("ret")

    def _sum(self, chain: int, number: int) -> Register:
        return vector(self.asm, chain * self.vectors + number)

    def _sums_place(self, number: int) -> Memory:
        return Memory(r8, self.shape.panel_bytes + number * self.asm.target.vector_bytes)

    def _start(self) -> None:
        asm = self.asm
        asm.emit("mov", dword(r8), Memory(ROWS))
        asm.emit("add", ROWS, 4)
        asm.emit("add", QUADS, r12)
        asm.emit("lea", r8, Memory(WORKSPACE, 0, r8, self.scale))
        for number in range(self.vectors):
            for chain in range(self.shape.chains):
                if chain == 0 and self.arithmetic is not Arithmetic.INTEGERS:
                    asm.emit("vmovups", self._sum(0, number), self._sums_place(number))
                else:
                    zero(asm, self._sum(chain, number))
        if self.far:
            asm.emit("prefetcht0", Memory(QUADS, _PREFETCH_AHEAD))

    def _products(self) -> None:
        if self.arithmetic is Arithmetic.QUADS:
            self._quads()
            return
        asm = self.asm
        for left in range(MOST, 0, -1):
            slot = -left % _BY_LOAD
            first = -QUAD.itemsize * ceil_div(left, _BY_LOAD)
            if slot == 0:
                asm.bind(self.left[left])
                asm.emit("mov", rax, Memory(QUADS, first))
                self._four(first)
                if self.far and left // _BY_LOAD % 2 == 0:
                    asm.emit("prefetcht0", Memory(QUADS, first + _PREFETCH_AHEAD))
            else:
                asm.emit("shr", rax, 16)
                asm.bind(self.left[left])
            asm.emit("movzx", dword(rbx), word(rax))
            asm.emit("lea", rbx, Memory(WORKSPACE, 0, rbx, self.input_scale))
            asm.emit("vpermilps", self.weight, self.four, 0x55 * slot)
            for number in range(self.vectors):
                self._product(slot % self.shape.chains, number)
        asm.bind(self.left[0])

    def _four(self, quad: int) -> None:
        """Bring the four words of a quad into every 128 bits."""
        wide = self.asm.target.isa == "avx512"
        load = "vbroadcastf32x4" if wide else "vbroadcastf128"
        self.asm.emit(load, self.four, Memory(QUADS, quad + 8))

    def _quads(self) -> None:
        asm = self.asm
        for left in range(MOST, 0, -_BY_LOAD):
            for count in range(left, left - _BY_LOAD, -1):
                asm.bind(self.left[count])
            first = -self.quad_bytes * (left // _BY_LOAD)
            self._quad(first)
            if self.far and left // _BY_LOAD % 4 == 0:
                asm.emit("prefetcht0", Memory(QUADS, first + _PREFETCH_AHEAD))
        asm.bind(self.left[0])

    def _quad(self, place: int) -> None:
        """Interleave four inputs, a byte for each of 64 columns, and multiply by four weights."""
        asm = self.asm
        inputs = [vector(asm, number) for number in range(4, 8)]
        pairs = [vector(asm, number) for number in range(8, 12)]
        asm.emit("mov", rax, Memory(QUADS, place))
        for number, register in enumerate(inputs):
            if number:
                asm.emit("shr", rax, 16)
            asm.emit("movzx", dword(rbx), word(rax))
            asm.emit("vmovdqu64", register, Memory(WORKSPACE, 0, rbx, self.input_scale))
        asm.emit("vpbroadcastd", self.weight, Memory(QUADS, place + 2 * _BY_LOAD))
        for number, four in interleaved(asm, inputs, pairs):
            asm.emit("vpdpbusd", vector(asm, number), four, self.weight)

    def _product(self, chain: int, number: int) -> None:
        asm, total = self.asm, self._sum(chain, number)
        place = Memory(rbx, number * asm.target.vector_bytes)
        if self.arithmetic is Arithmetic.BYTES:
            asm.emit("vmovups", self.inputs, place)
            asm.emit("vpdpbusd", total, self.inputs, self.weight)
        elif self.arithmetic is Arithmetic.PAIRS:
            asm.emit("vpmaddwd", self.inputs, self.weight, place)
            asm.emit("vpaddd", total, total, self.inputs)
        else:
            asm.emit("vfmadd231ps", total, self.weight, place)

    def _finish(self) -> None:
        """Add the chains up, in pairs, and store the sums."""
        chains = self.shape.chains
        add = "vpaddd" if self.arithmetic is Arithmetic.BYTES else "vaddps"
        while chains > 1:
            chains //= 2
            for chain in range(chains):
                for number in range(self.vectors):
                    total, other = self._sum(chain, number), self._sum(chain + chains, number)
                    self.asm.emit(add, total, total, other)
        for number in range(self.vectors):
            total, place = self._sum(0, number), self._sums_place(number)
            if self.arithmetic is Arithmetic.INTEGERS:
                self.asm.emit("vcvtps2dq", total, total)
                self.asm.emit("vpaddd", total, total, place)
            self.asm.emit("vmovups", place, total)

    def _entries(self, entries: Label) -> None:
        """Append an entry for each length of segment: load its first offsets, and jump to code."""
        asm = self.asm
        asm.align(_ENTRY_BYTES)
        asm.bind(entries)
        for count in range(MOST + 1):
            asm.align(_ENTRY_BYTES)
            slot = -count % _BY_LOAD
            if slot and self.arithmetic is not Arithmetic.QUADS:
                quad = -QUAD.itemsize * ceil_div(count, _BY_LOAD)
                asm.emit("mov", rax, Memory(QUADS, quad))
                self._four(quad)
                asm.emit("shr", rax, 16 * slot)
            asm.jump("jmp", self.left[count])
        asm.align(_ENTRY_BYTES)
