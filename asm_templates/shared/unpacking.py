"""Unpacking of a vector of short weights to float32 in a register.

    float16   half a line a vector              vcvtph2ps zmm2, [ymmword]
    bfloat16  two vectors a, b share a line, lane by lane; each is the upper half of a float32:

              line    b15.a15 ... b1.a1 b0.a0    32 bits a lane
              a       vpslld zmm2, [line], 16    clears b
              b       vpandd zmm2, zmm3, [line]  clears a; zmm3 holds 0xFFFF0000

This takes one instruction more than float32, for half the bytes; sums are computed in float32.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.spec import DType
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Memory, Register

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Unpacking:
    """Unpacking of one dtype to `weight`; `upper_halves` holds 0xFFFF0000 in every lane."""

    asm: Assembler
    dtype: DType
    weight: Register
    upper_halves: Register

    def start(self) -> None:
        """Load the constant in `upper_halves`, for bfloat16."""
        if self.dtype is not DType.BFLOAT16:
            return
        upper = self.upper_halves
        if self._is_evex:
            self.asm.emit("vpternlogd", upper, upper, upper, 0xFF)
        else:
            self.asm.emit("vpcmpeqd", upper, upper, upper)
        self.asm.emit("vpslld", upper, upper, 16)

    def operand(self, place: Memory, odd: _Flags) -> tuple[list[Line], Register | Memory]:
        """Return lines that unpack the vector at `place`, and then the FMA's operand.

        `odd`: it is the second vector of a bfloat16 line. float32 is read by the FMA itself.
        """
        if self.dtype is DType.FLOAT32:
            return [], place
        if self.dtype is DType.FLOAT16:
            return [self._widened(place)], self.weight
        if self._is_evex:
            shift = [line("vpslld", self.weight, place, 16, when=~odd)]
        else:
            load = line("vmovups", self.weight, place, when=~odd)
            shift = [load, line("vpslld", self.weight, self.weight, 16, when=~odd)]
        return [*shift, self._clear_lower(place, odd)], self.weight

    def register(self, place: Memory, odd: _Flags, whole: Register) -> tuple[list[Line], Register]:
        """Return lines that load the vector at `place` into a register, and the register.

        Consecutive vectors of bfloat16 share one load of their line, in register `whole`.
        """
        if self.dtype is DType.FLOAT32:
            return [line("vmovups", self.weight, place)], self.weight
        if self.dtype is DType.FLOAT16:
            return [self._widened(place)], self.weight
        return [
            line("vmovups", whole, place, when=~odd),
            line("vpslld", self.weight, whole, 16, when=~odd),
            self._clear_lower(whole, odd),
        ], self.weight

    @property
    def _is_evex(self) -> bool:
        return self.asm.target.isa == "avx512"

    def _widened(self, place: Memory) -> Line:
        return line("vcvtph2ps", self.weight, place)

    def _clear_lower(self, source: Register | Memory, odd: _Flags) -> Line:
        mnemonic = "vpandd" if self._is_evex else "vpand"
        return line(mnemonic, self.weight, self.upper_halves, source, when=odd)
