"""A depthwise convolution: windows whose taps are multiplied and added, by `window_rows`.

    vmovups     zmm0, [r10+row+4*tap]   16 elements of a row of x, shifted by the tap
    vfmadd231ps zmm31, zmm0, zmm9       += for the row of y that reads them under tap 0,
    vfmadd231ps zmm30, zmm0, zmm12      for the row above under tap 1

The weights of small kernels stay in registers; large kernels load each weight with its product.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.window_loop import WindowLoop
from sparsejit.asm_templates.convolution.window_rows import RowWindows, registers_to_keep
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.ir.spec import Activation
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, rdx

_MOST_KEPT_TAPS = 12


@dataclass(frozen=True, eq=False)
class Depthwise:
    """y[n, c * multiplier + m] = activation(bias + kernel[c * multiplier + m] over x[n, c]).

    `taps` (channels * multiplier, kernel rows, kernel columns) and `bias` are float32.
    """

    loop: WindowLoop
    taps: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    activation: Activation


def emit_depthwise(asm: Assembler, spec: Depthwise) -> None:
    """Append the kernel: x at rdi, y at rsi; keeps callee-saved registers."""
    _DepthwiseCode(asm, spec).emit()


class _DepthwiseCode(RowWindows):
    """Appends the code; rdx points at a channel's taps, which its bias follows."""

    def __init__(self, asm: Assembler, spec: Depthwise) -> None:
        self.spec, self.kernel = spec, spec.taps[0].size
        room = min(_MOST_KEPT_TAPS + 1, registers_to_keep(spec.loop, asm.target))
        self.keeps = asm.target.isa == "avx512" and self.kernel + 1 <= room  # and the bias
        super().__init__(asm, spec.loop, self.kernel + 1 if self.keeps else 0)
        taps = spec.taps.reshape(len(spec.taps), -1)
        each = taps if spec.bias is None else np.concatenate([taps, spec.bias[:, None]], axis=1)
        self.weights, self.weight_bytes = asm.literal(each), each[0].nbytes

    def begin_sample(self) -> None:
        self.asm.emit("lea", rdx, Literal(self.weights))

    def begin_channel(self) -> None:
        if self.keeps:
            for number in range(self.weight_bytes // 4):
                place = Memory(rdx, 4 * number)
                self.asm.emit("vbroadcastss", self.kept_register(number), place)

    def end_channel(self) -> None:
        self.asm.emit("add", rdx, self.weight_bytes)

    def fill(self, register: Register) -> None:
        zero(self.asm, register)

    def start(self, sums: list[Register]) -> None:
        for total in sums:
            if self.spec.bias is None:
                zero(self.asm, total)
            elif self.keeps:
                self.asm.emit("vmovaps", total, self.kept_register(self.kernel))
            else:
                self.asm.emit("vbroadcastss", total, Memory(rdx, 4 * self.kernel))

    def combine(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        asm, weight = self.asm, self._weight(tap)
        for total, element in zip(sums, x, strict=True):
            if element is not None:
                asm.emit("vfmadd231ps", total, element, weight)

    def _weight(self, tap: int) -> Register | Memory:
        if self.keeps:
            return self.kept_register(tap)
        if self.wide:
            return Memory(rdx, 4 * tap, broadcast=self.lanes)
        weight = vector(self.asm, self.free_registers - 1)
        self.asm.emit("vbroadcastss", weight, Memory(rdx, 4 * tap))
        return weight

    def finish(self, sums: list[Register], free: list[Register]) -> None:
        apply_activation(self.asm, self.spec.activation, sums, free)
