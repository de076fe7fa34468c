"""A step: one kernel of a model, with its operands, its code and its predicted cost.

    Step            the kernel; `Facts`: what it costs, and why it was chosen
    Locations       the locations of a step's views when it runs; `StatusWord`: its error
    CodeKey         all that a step's code depends on
    SharedBodies    appends steps; a function contains code that several share once, and calls it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from sparsejit.asm_templates.shared.location import WORKSPACE, ByPointer, Location
from sparsejit.ir.spec import Layer
from sparsejit.ir.values import Origin
from sparsejit.lowering.memory.storage import View
from sparsejit.planner.kernel_choice import Plan
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax, rdi, rdx, rsi
from sparsejit.x86.routines import call_routine

OPERAND_SLOTS = 8  # in the workspace: a step with more operands has its own code
# A call takes some nanoseconds: a step that takes less than this has its own code.
_LEAST_NS = 1000.0


@dataclass(frozen=True)
class StatusWord:
    """The word of the workspace that the function returns: 0, or a step's `code`."""

    offset: int
    code: int

    def report(self, asm: Assembler) -> None:
        """Store this step's code as the function's result. Clobbers rax."""
        asm.emit("mov", dword(rax), self.code)
        asm.emit("mov", Memory(WORKSPACE, self.offset), rax)

    def report_where(self, asm: Assembler, missing: Register) -> None:
        """Store this step's code if `missing` is not 0, because an index was out of range."""
        fine = asm.label("indices in range")
        asm.emit("test", dword(missing), dword(missing))
        asm.jump("jz", fine)
        self.report(asm)
        asm.bind(fine)


@dataclass(frozen=True)
class Locations:
    """Locations of a step's views when it runs, in the order of its `reads` and `writes`."""

    reads: Sequence[Location]
    writes: Sequence[Location]
    scratch: Location
    status: StatusWord

    def point(self, asm: Assembler) -> None:
        """rdi = address of the first read, rsi = of the first write, as most kernels take them."""
        self.reads[0].point(asm, rdi)
        self.writes[0].point(asm, rsi)


Body = Callable[[Assembler], None]


def between(body: Body, scratch: bool = False) -> Callable[[Assembler, Locations], None]:
    """An `emit` function that sets registers to the operands with `point`, then appends `body`."""

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
    """Description and predicted cost of a step; figures are of one run of it.

    `effective_flops` count every weight of the layer, `flops` only nonzero weights. `plan` is the
    record of the planner's choice for `layer`, where it made one; `zeros` has a bit for every
    weight, 1 where it is zero, row after row, as numpy.packbits packs them; `parameter` is the name
    of the weights in the user's model. `code_bytes` counts code in which weights are literals;
    `moved_bytes`, the bytes that an elementwise kernel reads and writes.
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
    """A kernel between views. `emit` may clobber all registers except rbx, rbp, rsp and r12 to r15.

    `in_place`: the number of the read whose memory the first write may reuse, if no other step
    needs it.
    `parts`: the same code in parts; a loop may run each part for all its streams before the next,
    so that its weights are still in the cache. Unless `parts_are_exact`, their results may differ
    from the results of `emit` by rounding.
    `divide(n)`: ways to divide the work into up to n steps that may run at once, the best guess
    first.
    `share`: the part of the whole that a divided step computes, in words.
    `body`: the code that `emit` appends after it has set registers with `point`; steps with the
    same body may share its code.
    `code_key`: steps with equal keys append the same code, except for the locations of their views.
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
        """Predicted nanoseconds; 0 without a prediction."""
        return self.facts.predicted_ns or 0.0

    def without_code(self) -> Step:
        """A record of the step that holds neither views nor code, so that weights can be freed."""
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
    raise AssertionError("the record of a step has no code")


class SharedBodies:
    """The bodies and the code with keys that two or more of some steps share.

    A step with a `body` passes addresses in registers, as `point` sets them. A step with a
    `code_key` stores the addresses of all its operands in the workspace, where the code finds them
    like inputs.

    `slots` is the workspace offset of `OPERAND_SLOTS` pointers; None where threads share the
    workspace. Steps `beside` these in the same function have other slots, but may share bodies.
    """

    def __init__(
        self, steps: Iterable[Step], slots: int | None, beside: Iterable[Step] = ()
    ) -> None:
        self._slots = slots
        numbers = range(0 if slots is None else OPERAND_SLOTS)
        self._places = [Memory(WORKSPACE, (slots or 0) + 8 * number) for number in numbers]
        all_steps = list(steps)
        bodies = Counter(step.body for step in (*all_steps, *beside) if step.body)
        keyed = [step for step in all_steps if self._is_worth_it(step)]
        keys = Counter(step.code_key for step in keyed)
        self._shared = {body for body, count in bodies.items() if count > 1}
        self._calling = {step for step in keyed if keys[step.code_key] > 1}

    def _is_worth_it(self, step: Step) -> bool:
        if self._slots is None or step.code_key is None or step.ns < _LEAST_NS:
            return False
        return len(step.reads) + len(step.writes) + 1 <= OPERAND_SLOTS

    def run(self, asm: Assembler, step: Step, at: Locations) -> None:
        """Append a step: its own code, or a call of the shared code."""
        if step.body is not None and step.body in self._shared:
            point(asm, at, step.scratch_bytes > 0)
            call_routine(asm, step.body, step.body)
        elif step in self._calling:
            self._call(asm, step, at)
        else:
            step.emit(asm, at)

    def _call(self, asm: Assembler, step: Step, at: Locations) -> None:
        operands = *at.reads, *at.writes, at.scratch
        for place, operand in zip(self._places, operands, strict=False):
            operand.point(asm, rax)
            asm.emit("mov", place, rax)

        def emit_body(asm: Assembler) -> None:
            reads, slots = len(at.reads), self._places[: len(operands)]
            places = [ByPointer(int(place.displacement)) for place in slots]
            step.emit(asm, Locations(places[:reads], places[reads:-1], places[-1], at.status))

        call_routine(asm, ("step", self._slots, step.code_key), emit_body)
