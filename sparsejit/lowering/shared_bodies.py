"""Code that several steps have in common, once in a function: each of them calls it.

    point to the step's first read and first write;  call body;  jmp behind
    body:  ...  ret                                   where the first of them runs
    behind:
"""

from collections import Counter
from collections.abc import Iterable

from sparsejit.lowering.step import Body, Locations, Step
from sparsejit.x86.assembler import Assembler, Label


class SharedBodies:
    """The bodies that more than one of some steps have, and where those lie that were appended."""

    def __init__(self, steps: Iterable[Step]) -> None:
        counts = Counter(step.body for step in steps if step.body)
        self._shared = {body for body, count in counts.items() if count > 1}
        self._labels: dict[Body, Label] = {}

    def run(self, asm: Assembler, step: Step, at: Locations) -> None:
        """Append a step."""
        body = step.body
        if body is None or body not in self._shared:
            step.emit(asm, at)
            return
        at.point(asm)
        if body in self._labels:
            asm.jump("call", self._labels[body])
            return
        self._labels[body], behind = asm.label("body"), asm.label("behind the body")
        asm.jump("call", self._labels[body])
        asm.jump("jmp", behind)
        asm.align(64)
        asm.bind(self._labels[body])
        body(asm)
        asm.emit("ret")
        asm.bind(behind)
