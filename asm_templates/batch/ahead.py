"""Prefetching the code and the weights of a tile while the tile before it runs.

    prefetcht1 [r14+64*k]     a line of the next tile's code; each panel prefetches a share
    prefetcht1 [rbx+64*k]     a line of its weights

Code that comes from beyond L2 as it runs arrives at a third of the speed at which data does;
prefetching all of it at once would stall the running code.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.batch.row_tiles import BoolArray, Products
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Label, Line, line
from sparsejit.x86.operands import Literal, Memory, Register

_CODE_A_WEIGHT, _CODE_AN_INPUT = 8, 7


@dataclass(frozen=True)
class Ahead:
    """The next tile: a label of its code, a literal of its weights, and lines of each for a panel.

    `pointers` are two registers that advance with the panels.
    """

    code: Label
    weights: int
    code_lines: int
    weight_lines: int
    pointers: tuple[Register, Register]

    @classmethod
    def of(
        cls,
        tile: Products,
        places: tuple[Label, int],
        pointers: tuple[Register, Register],
        panels: int,
    ) -> "Ahead":
        """Return the prefetch of a tile's code and weights, spread over `panels` panels."""
        inputs = int(np.count_nonzero(tile.first))
        code_bytes = _CODE_A_WEIGHT * len(tile) + _CODE_AN_INPUT * inputs
        sizes = (code_bytes, tile.weight.nbytes)
        code, weights = (ceil_div(size, CACHE_LINE_BYTES * panels) for size in sizes)
        return cls(*places, code, weights, pointers)

    def begin(self, asm: Assembler) -> None:
        """Append code before the first panel."""
        asm.address(self.pointers[0], self.code)
        asm.emit("lea", self.pointers[1], Literal(self.weights))

    def lines(self, steps: int) -> list[Line]:
        """Return the prefetches before some of `steps` steps."""
        counts = zip(self.pointers, (self.code_lines, self.weight_lines), strict=True)
        return [_spread(pointer, count, steps) for pointer, count in counts]

    def advance(self, asm: Assembler) -> None:
        """Append code behind a panel."""
        for pointer, count in zip(
            self.pointers, (self.code_lines, self.weight_lines), strict=True
        ):
            asm.emit("add", pointer, CACHE_LINE_BYTES * count)


def spread_evenly(count: int, steps: int) -> BoolArray:
    """Choose `count` of `steps` steps at equal distances; return a mask (steps,)."""
    asked = np.zeros(steps, bool)
    if steps:  # a tile may have no weights
        asked[np.linspace(0, steps, count, endpoint=False).astype(int)] = True
    return asked


def _spread(pointer: Register, count: int, steps: int) -> Line:
    asked = spread_evenly(count, steps)
    place = Memory(pointer, CACHE_LINE_BYTES * (np.cumsum(asked) - asked))
    return line("prefetcht1", place, when=asked)
