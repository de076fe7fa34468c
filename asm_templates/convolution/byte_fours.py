"""Planes of bytes with four channels side by side, which `vpdpbusd` reads without a copy.

    channels 0 to 3   abcd abcd abcd ...  0000 ... | channels 4 to 7   abcd abcd ...

    a, b, c, d     = 64 positions of four channels, dwords transposed 4x4        vpermd
    e0, e1, e2, e3 = side by side, 16 positions each                             `interleaved`
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.convolution.byte_planes import LINE, BytePlanes
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    r8,
    r9,
    r10,
    rax,
    rcx,
    rdi,
    rsi,
    zmm,
)

_TOGETHER = 4
_ORDER, _GAP = zmm(12), zmm(13)


@dataclass(frozen=True)
class ChannelFours:
    """Layout of planes with four channels side by side; `phases` planes belong to a channel.

    Channels missing from the last four hold the gap's value: taps of the next sample may read them.
    """

    planes: BytePlanes
    phases: int = 1

    @property
    def channels(self) -> int:
        return self.planes.channels // self.phases

    @property
    def four(self) -> int:
        """Bytes from a plane of four channels to the next."""
        return _TOGETHER * self.planes.channel

    @property
    def sample(self) -> int:
        return ceil_div(self.channels, _TOGETHER) * self.phases * self.four

    @property
    def before(self) -> int:
        """Bytes before the first position."""
        return _TOGETHER * self.planes.before

    @property
    def bytes(self) -> int:
        """Bytes of all planes, with the margins before and behind them that vectors may read."""
        return 2 * self.before + self.planes.samples * self.sample + _TOGETHER * LINE


def emit_fours(asm: Assembler, y: ChannelFours, gap: int) -> None:
    """Append the copy of the planes at rdi to fours at rsi, and their gap before the first."""
    planes = y.planes
    apart = y.phases * planes.channel
    load_order(asm, _ORDER)
    spread = np.full(4, gap, np.uint8)
    asm.emit("vpbroadcastd", _GAP, Literal(asm.literal(spread)))
    asm.emit("lea", rax, Memory(rsi, -y.before))

    def before() -> None:
        asm.emit("vmovdqu64", Memory(rax), _GAP)
        asm.emit("add", rax, LINE)

    repeat(asm, y.before // LINE, rcx, before)

    def four(count: int) -> None:
        def line() -> None:
            _line(asm, count, apart)
            asm.emit("add", rdi, LINE)
            asm.emit("add", rsi, _TOGETHER * LINE)

        repeat(asm, apart // LINE, r10, line)
        asm.emit("add", rdi, (count - 1) * apart)

    def sample() -> None:
        whole, rest = divmod(y.channels, _TOGETHER)
        repeat(asm, whole, r9, lambda: four(_TOGETHER))
        if rest:
            four(rest)

    repeat(asm, planes.samples, r8, sample)


def _line(asm: Assembler, count: int, apart: int) -> None:
    """Copy 64 positions of `count` channels, at most four."""
    inputs = [zmm(number) for number in range(4, 8)]
    for number, register in enumerate(inputs):
        if number < count:
            asm.emit("vpermd", register, _ORDER, Memory(rdi, number * apart))
        else:
            asm.emit("vmovdqa64", register, _GAP)
    for number, register in interleaved(asm, inputs, [zmm(number) for number in range(8, 12)]):
        asm.emit("vmovdqu64", Memory(rsi, number * LINE), register)


def load_order(asm: Assembler, register: Register) -> None:
    """Load the indices with which `vpermd` transposes 16 dwords as a 4x4 matrix."""
    order = np.arange(16, dtype=np.int32).reshape(4, 4).T.reshape(-1)
    asm.emit("vmovdqu64", register, Literal(asm.literal(order, LINE)))
