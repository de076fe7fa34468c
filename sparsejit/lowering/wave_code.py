"""A wave as code: a function that the caller's thread calls, and one for each thread's steps.

    call wave
    wave:      hand thread 1 its function, run thread 0's, wait for the answer   runtime/workers.py
    thread 0:  step, step ...
    thread 1:  step, step ...
    body:      what steps of several threads run on columns of their own
"""

from collections import Counter
from collections.abc import Callable, Sequence

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.crew import ScheduledStep
from sparsejit.lowering.schedule import Wave
from sparsejit.lowering.step import Locations, Step
from sparsejit.runtime.workers import NativePart, pool
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import rdi, rsi
from sparsejit.x86.stack import pop, push

Locate = Callable[[Assembler, int, Step], Locations]
Body = Callable[[Assembler], None]


def emit_wave(asm: Assembler, wave: Wave, locate: Locate, saved_ns: float) -> None:
    """Append a wave of several threads; `saved_ns` is what these are expected to save in all."""
    function, end = asm.label("wave"), asm.label("end of wave")
    asm.emit("mov", rdi, WORKSPACE)
    asm.jump("call", function)
    asm.jump("jmp", end)
    labels = [asm.label(f"thread {number}") for number in range(len(wave.threads))]
    workers = pool()
    workers.require(len(labels) - 1)
    asm.align(64)
    asm.bind(function)
    workers.emit_dispatcher(asm, [NativePart(label, 0) for label in labels], saved_ns)
    bodies = _shared_bodies(asm, wave)
    for label, steps in zip(labels, wave.threads, strict=True):
        asm.align(64)
        asm.bind(label)
        _emit_thread(asm, steps, locate, bodies)
    for body, label in bodies.items():
        asm.align(64)
        asm.bind(label)
        body(asm)
        asm.emit("ret")
    asm.bind(end)


def _shared_bodies(asm: Assembler, wave: Wave) -> dict[Body, Label]:
    """Those of more than one step."""
    counts = Counter(each.step.body for each in wave.steps if each.step.body)
    return {body: asm.label("body") for body, count in counts.items() if count > 1}


def _emit_thread(
    asm: Assembler, steps: Sequence[ScheduledStep], locate: Locate, bodies: dict[Body, Label]
) -> None:
    """Append void function(workspace), which keeps rdi as dispatchers want it."""
    kept = WORKSPACE, rdi
    push(asm, kept)
    asm.emit("mov", WORKSPACE, rdi)
    for number, step in steps:
        at = locate(asm, number, step)
        if step.body in bodies:
            at.reads[0].point(asm, rdi)
            at.writes[0].point(asm, rsi)
            asm.jump("call", bodies[step.body])
        else:
            step.emit(asm, at)
    pop(asm, kept)
    asm.emit("vzeroupper")
    asm.emit("ret")
