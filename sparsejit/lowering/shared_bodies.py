"""Code that several steps share: a function contains it once, and each step calls it.

A step with a `body` passes addresses in registers, as `point` sets them. A step with a `code_key`
stores the addresses of all its operands in the workspace, where the code finds them like inputs.
"""

from collections import Counter
from collections.abc import Iterable

from sparsejit.asm_templates.shared.location import WORKSPACE, ByPointer
from sparsejit.lowering.step import Locations, Step, point
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rax
from sparsejit.x86.routines import call_routine

OPERAND_SLOTS = 8  # in the workspace: a step with more operands has its own code
# A call takes some nanoseconds: a step that takes less than this has its own code.
_LEAST_NS = 1000.0


class SharedBodies:
    """The bodies and the code with keys that two or more of some steps share.

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
