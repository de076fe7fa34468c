"""One kernel of a model: what it reads and writes, its code, and what is known of its cost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from sparsejit.asm_templates.shared.location import WORKSPACE, Location
from sparsejit.ir.graph import Origin
from sparsejit.ir.spec import Layer
from sparsejit.lowering.memory.storage import View
from sparsejit.planner.plan import Plan
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax, rdi, rdx, rsi


@dataclass(frozen=True)
class StatusWord:
    """The word of the workspace that becomes the function's result: 0, or a step's `code`."""

    offset: int
    code: int

    def report(self, asm: Assembler) -> None:
        """Have the function return this step's code. Clobbers rax."""
        asm.emit("mov", dword(rax), self.code)
        asm.emit("mov", Memory(WORKSPACE, self.offset), rax)

    def report_where(self, asm: Assembler, missing: Register) -> None:
        """The same where `missing` is not 0: an index was out of range."""
        fine = asm.label("indices in range")
        asm.emit("test", dword(missing), dword(missing))
        asm.jump("jz", fine)
        self.report(asm)
        asm.bind(fine)


@dataclass(frozen=True)
class Locations:
    """Where a step's views begin when it runs, in the order of its lists."""

    reads: Sequence[Location]
    writes: Sequence[Location]
    scratch: Location
    status: StatusWord

    def point(self, asm: Assembler) -> None:
        """rdi = where the first read begins, rsi = the first write, as most kernels take them."""
        self.reads[0].point(asm, rdi)
        self.writes[0].point(asm, rsi)


Body = Callable[[Assembler], None]


def between(body: Body, scratch: bool = False) -> Callable[[Assembler, Locations], None]:
    """What appends a body with registers pointing to what it takes, as `point` has them."""

    def emit(asm: Assembler, at: Locations) -> None:
        point(asm, at, scratch)
        body(asm)

    return emit


def point(asm: Assembler, at: Locations, scratch: bool) -> None:
    """rdi = the first read, rsi = the first write, rdx = scratch memory or the second read."""
    at.point(asm)
    if scratch:
        at.scratch.point(asm, rdx)
    elif len(at.reads) > 1:
        at.reads[1].point(asm, rdx)


@dataclass(frozen=True)
class Facts:
    """What a step computes and what it should cost; figures are of one run of it.

    `effective_flops` count every weight of the layer, `flops` those that are not zero. `plan` is
    the record of the planner's choice, where it made one, for `layer`; `zeros` has a bit for every
    weight of it that is zero, rows one after the other, as numpy.packbits has them; `parameter` is
    what the user's model calls the weights. `code_bytes` are those of code in which weights are
    literals. `moved_bytes` are those that an elementwise kernel reads and writes.
    """

    reason: str
    predicted_ns: float | None = None
    nnz: int = 0
    weights: int = 0
    weight_bytes: int = 0
    code_bytes: int = 0
    effective_flops: int = 0
    flops: int = 0
    bound: str = ""
    plan: Plan | None = None
    layer: Layer | None = None
    zeros: bytes = field(default=b"", repr=False)
    parameter: str = ""
    moved_bytes: int = 0


class CodeKey:
    """All that the code of a step depends on. Its hash is computed once."""

    def __init__(self, *parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodeKey):
            return NotImplemented
        return self is other or (self._hash == other._hash and self._parts == other._parts)


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel between views. `emit` may clobber all but rbx, rbp, rsp and r12 to r15.

    `in_place`: of which read the first write may take the memory where nobody else wants it.
    `parts`: the same code in parts, each of which a loop may run for all its streams before the
    next, so that its weights are still near. Unless they are `exact`, results may differ from those
    of `emit` by rounding.
    `divide(n)`: ways to do the same by up to n steps that may run at once, the best guess first.
    `share`: which part of the whole such a step is, in words.
    `body`: what `emit` appends behind pointing registers as `point` does; steps that have the same
    one may share its code.
    `code_key`: steps that have an equal one append the same code, but for where their views lie.
    """

    kernel: str
    origin: Origin
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    emit: Callable[[Assembler, Locations], None]
    facts: Facts
    scratch_bytes: int = 0
    in_place: int | None = None
    parts: tuple[Callable[[Assembler, Locations], None], ...] = ()
    parts_are_exact: bool = False
    divide: Callable[[int], Sequence[Sequence[Step]]] | None = None
    share: str = ""
    body: Body | None = None
    code_key: CodeKey | None = None

    @property
    def ns(self) -> float:
        """What it should take; 0 where nothing is known."""
        return self.facts.predicted_ns or 0.0

    def without_code(self) -> Step:
        """A record of it: what it holds of weights and code is let go."""
        return Step(
            self.kernel,
            self.origin,
            (),
            (),
            _no_code,
            self.facts,
            self.scratch_bytes,
            self.in_place,
            parts_are_exact=self.parts_are_exact,
            share=self.share,
        )


def _no_code(asm: Assembler, at: Locations) -> None:
    raise AssertionError("a record has no code")
