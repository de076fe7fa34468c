"""Finished machine code with its literals, and its listing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError
from sparsejit.x86.encoder import instruction_sets
from sparsejit.x86.forms import Key
from sparsejit.x86.literal_pool import COMMON
from sparsejit.x86.operands import Literal, Operand, operand_text, pick

# Allocates an image's content: takes its size in bytes and a function that fills that memory.
MakeRoom = Callable[[int, Callable[[memoryview], None]], bytes | memoryview]


def in_bytes(size: int, fill: Callable[[memoryview], None]) -> memoryview:
    """Return the content in ordinary memory."""
    content = bytearray(size)
    fill(memoryview(content))
    return memoryview(content).toreadonly()


class Line(NamedTuple):
    """One instruction of a stamped body; `when` (bool per row) leaves it out of some rows."""

    mnemonic: str
    operands: tuple[Operand, ...]
    when: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Image:
    """Finished machine code followed by its literal pool; position-independent.

    `code_bytes` counts the instructions, `pool_bytes` the literals, `content` holds both. `counts`
    are the templates' counts, `forms` the forms of all instructions, `trace` their places, if they
    were kept.
    """

    content: bytes | memoryview = field(repr=False)
    code_bytes: int
    pool_bytes: int
    counts: Mapping[str, int]
    forms: frozenset[Key] = field(repr=False)
    trace: tuple["StampedRun", ...] | None = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of code and literals."""
        return len(self.content)

    @property
    def data(self) -> bytes:
        """Code and literals."""
        return bytes(self.content)

    @property
    def pool_start(self) -> int:
        return self.size - self.pool_bytes

    @property
    def instruction_sets(self) -> frozenset[str]:
        """Instruction sets of the code that not every x86-64 processor with AVX has."""
        return frozenset().union(*map(instruction_sets, self.forms))

    def uses(self, mnemonic: str) -> bool:
        """Whether the code has such an instruction."""
        return any(form[0] == mnemonic for form in self.forms)

    def listing(self) -> Iterator[str]:
        """Lines `offset  mnemonic operands  ; literal values`, in order of address.

        Raises CompileError where no trace was kept.
        """
        if self.trace is None:
            raise CompileError("this code has no listing; compile it again with one")
        rows = [row for run in self.trace for row in run.rows()]
        for position, text, literal in sorted(rows, key=lambda row: row[0]):
            comment = "" if literal is None else f"  ; {self._values_at(literal)}"
            yield f"{position:6x}  {text}{comment}"

    def _values_at(self, offset: int) -> str:
        if offset >= COMMON:
            return f"at {offset - COMMON:#x} of the literals in common"
        start = self.pool_start + offset
        values = np.frombuffer(self.content[start : start + 32], "<f4")
        return " ".join(f"{value:.6g}" for value in values) + " ..."


class StampedRun(NamedTuple):
    """Positions of the rows of one line, for the listing."""

    line: Line
    positions: Sequence[int] | npt.NDArray[np.int64]
    rows_taken: Sequence[int] | npt.NDArray[np.int64]

    def rows(self) -> Iterator[tuple[int, str, int | None]]:
        for position, row in zip(self.positions, self.rows_taken, strict=True):
            operands = ", ".join(operand_text(o, int(row)) for o in self.line.operands)
            literal = next((o for o in self.line.operands if isinstance(o, Literal)), None)
            offset = None if literal is None else pick(literal.offset, int(row))
            yield int(position), f"{self.line.mnemonic:14s}{operands}", offset
