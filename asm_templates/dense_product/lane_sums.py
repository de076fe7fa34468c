"""Sums over the lanes of several registers at once, which end as the lanes of one.

    a7 .. a1 a0   b7 .. b1 b0      exchange halves, add: each round halves registers and terms
    low halves    high halves      unpack by 1, by 2, then by parts of 128 bits
"""

from dataclasses import dataclass

from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Number, Register

_SUMS = 8  # independent accumulators at most: an FMA takes four cycles and two start in each
_PRODUCTS = 32  # products in a turn of the loop

# Instructions for the low and the high halves, and their control byte; 0 where they have none.
_Halves = tuple[tuple[str, int], tuple[str, int]]
_UNPACK: tuple[_Halves, ...] = (
    (("vunpcklps", 0), ("vunpckhps", 0)),
    (("vunpcklpd", 0), ("vunpckhpd", 0)),
)
_PARTS: dict[str, tuple[_Halves, ...]] = {
    "avx512": ((("vshuff32x4", 0x88), ("vshuff32x4", 0xDD)),) * 2,
    "avx2": ((("vperm2f128", 0x20), ("vperm2f128", 0x31)),),
}


def products_a_turn(rows: int) -> int:
    """Return the number of vectors of each row that a turn of the loop multiplies."""
    return max(1, _PRODUCTS // rows)


@dataclass(frozen=True)
class InnerProducts:
    """Registers of `rows` inner products that are summed at a time, `chains` partial sums for each.

    A turn of the loop takes up to `steps` vectors of each row. Registers lie from the last one
    down.
    """

    asm: Assembler
    rows: int
    steps: int

    @property
    def chains(self) -> int:
        """Partial sums of each row."""
        return max(1, min(_SUMS // self.rows, self.steps))

    @property
    def vectors(self) -> int:
        """Vectors of each row, in a turn of the loop."""
        return products_a_turn(self.rows)

    def register(self, row: Number, step: Number) -> Register:
        """Return the register of the sum that takes the `step`-th vector of a row."""
        number = step % self.chains * self.rows + row
        return vector(self.asm, self.asm.target.vector_registers - 1 - number)

    def start(self) -> None:
        """Set all sums to 0."""
        for chain in range(self.chains):
            for row in range(self.rows):
                zero(self.asm, self.register(row, chain))

    def finish(self) -> Register:
        """Append code that adds up all sums; return a register with a row's sum in each lane.

        Clobbers vector register 0.
        """
        chains = self.chains
        while chains > 1:
            half = ceil_div(chains, 2)
            for chain in range(half, chains):
                for row in range(self.rows):
                    total = self.register(row, chain - half)
                    self.asm.emit("vaddps", total, total, self.register(row, chain))
            chains = half
        return add_lanes(self.asm, [self.register(row, 0) for row in range(self.rows)], 0)


def add_lanes(asm: Assembler, registers: list[Register], spare: int) -> Register:
    """Return a register whose lane n is the sum of the n-th register's lanes, for up to all lanes.

    Further lanes are undefined. Clobbers the registers and vector register `spare`.
    """
    held, other = list(registers), vector(asm, spare)
    for low, high in (*_UNPACK, *_PARTS[asm.target.isa]):
        for first, second in zip(held[::2], [*held[1::2], held[-1]], strict=False):
            for target, (mnemonic, control) in ((other, low), (first, high)):
                asm.emit(mnemonic, target, first, second, *([control] if control else []))
            asm.emit("vaddps", first, first, other)
        held = held[::2]
    return held[0]
