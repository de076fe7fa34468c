"""The largest or the mean of every window, by `window_rows`.

    vmaxps zmm1, zmm31, zmm0     x if either is NaN
    vmaxps zmm31, zmm0, zmm31    the largest so far if either is NaN
    vorps  zmm31, zmm31, zmm1    NaN if either is NaN; else both are the same
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.convolution.window_loop import WindowLoop
from sparsejit.asm_templates.convolution.window_rows import RowWindows
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register


@dataclass(frozen=True)
class WindowPooling:
    """The largest element of each window or, if `share` is given, its sum times `share`."""

    loop: WindowLoop
    share: float | None


def emit_pooling(asm: Assembler, spec: WindowPooling) -> None:
    """Append the kernel: x at rdi, y at rsi; keeps callee-saved registers."""
    _PoolingCode(asm, spec).emit()


class _PoolingCode(RowWindows):
    """Appends the code; keeps the value of padding in a register."""

    def __init__(self, asm: Assembler, spec: WindowPooling) -> None:
        super().__init__(asm, spec.loop, 1)
        self.share, self.padding = spec.share, self.kept_register(0)

    def begin_sample(self) -> None:
        if self.share is None:
            load_constant(self.asm, self.padding, -np.inf)
        else:
            zero(self.asm, self.padding)

    def begin_channel(self) -> None:
        """Nothing differs from channel to channel."""

    def end_channel(self) -> None:
        """Nothing differs from channel to channel."""

    def fill(self, register: Register) -> None:
        self.asm.emit("vmovaps", register, self.padding)

    def start(self, sums: list[Register]) -> None:
        for total in sums:
            self.fill(total)

    def combine(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        asm, spare = self.asm, vector(self.asm, self.free_registers - 1)
        for total, element in zip(sums, x, strict=True):
            if element is None:
                continue
            if self.share is not None:
                asm.emit("vaddps", total, total, element)
                continue
            asm.emit("vmaxps", spare, total, element)
            asm.emit("vmaxps", total, element, total)
            asm.emit("vorps", total, total, spare)

    def finish(self, sums: list[Register], free: list[Register]) -> None:
        if self.share is not None:
            load_constant(self.asm, free[0], self.share)
            for total in sums:
                self.asm.emit("vmulps", total, total, free[0])
