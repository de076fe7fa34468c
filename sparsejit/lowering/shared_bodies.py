"""Code that several steps have in common, once in a function: each of them calls it.

A step with a `body` hands over two addresses in registers. One with a `code_key` leaves those of
all its operands in the workspace, where the code finds them as it finds inputs.
"""

from collections import Counter
from collections.abc import Iterable

from sparsejit.asm_templates.shared.location import WORKSPACE, ByPointer
from sparsejit.lowering.step import Locations, Step, point
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rax
from sparsejit.x86.routines import call_routine

OPERAND_SLOTS = 8  # in the workspace: what a step with more operands has, it has for itself
# Handing over takes some nanoseconds: a step that takes less than so many has its own code.
_LEAST_NS = 1000.0


class SharedBodies:
    """The bodies, and the codes with keys, that more than one of some steps have.

    `slots` is where the workspace has `OPERAND_SLOTS` pointers; None where threads share it. What
    runs `beside` these steps in the same function has other slots, but bodies may be the same.
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
        """Append a step."""
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
