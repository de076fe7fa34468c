"""Code that several steps have in common, once in a function: each of them calls it."""

from collections import Counter
from collections.abc import Iterable

from sparsejit.lowering.step import Locations, Step
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.routines import call_routine


class SharedBodies:
    """The bodies that more than one of some steps have."""

    def __init__(self, steps: Iterable[Step]) -> None:
        counts = Counter(step.body for step in steps if step.body)
        self._shared = {body for body, count in counts.items() if count > 1}

    def run(self, asm: Assembler, step: Step, at: Locations) -> None:
        """Append a step."""
        body = step.body
        if body is None or body not in self._shared:
            step.emit(asm, at)
            return
        at.point(asm)
        call_routine(asm, body, body)
