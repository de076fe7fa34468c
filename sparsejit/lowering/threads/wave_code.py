"""A wave as code: a function that the caller's thread calls, and one for each thread's steps.

    call wave
    wave:      hand thread 1 its function, run thread 0's, wait for the answer   runtime/workers.py
    thread 0:  step, step ...
    thread 1:  step, step ...

Steps of several threads that run the same code on their own columns share it (`SharedBodies`).
"""

from collections.abc import Callable, Sequence
from functools import partial

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.threads.waves import ScheduledStep, Wave
from sparsejit.runtime.workers import NativePart, pool
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import rdi
from sparsejit.x86.routines import pop, push

RunSteps = Callable[[Assembler, Sequence[ScheduledStep]], None]


def emit_wave(asm: Assembler, wave: Wave, run: RunSteps, saved_ns: float) -> None:
    """Append a wave of several threads, whose steps `run` appends.

    saved_ns: predicted saving by this and later waves.
    """
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
    for label, steps in zip(labels, wave.threads, strict=True):
        emit_thread(asm, label, partial(run, asm, steps))
    asm.bind(end)


def emit_thread(asm: Assembler, label: Label, run: Callable[[], None]) -> None:
    """Append void function(workspace) around the code of `run`; it keeps rdi for dispatchers."""
    kept = WORKSPACE, rdi
    asm.align(64)
    asm.bind(label)
    push(asm, kept)
    asm.emit("mov", WORKSPACE, rdi)
    run()
    pop(asm, kept)
    asm.emit("vzeroupper")
    asm.emit("ret")
