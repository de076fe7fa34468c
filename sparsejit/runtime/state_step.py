"""Native steps of a stream: code around a model's function that keeps its states in one block.

    StateLayout    the places of states in a block
    emit_step      int step(inputs, outputs, state, workspace)
    emit_steps     int steps(inputs, outputs, state, workspace, n)
    step_function  one of these as a native function that Python calls
    StepPlaces     the operands' addresses, for code that runs after each step

A block, aligned to 64 bytes:

    parity | half 0: state, state, ... | half 1: state, state, ... | states in place: state, ...

A step reads the states in half `parity`, writes the new ones to the other half and flips the
parity, so that no state is copied. A state of which a step replaces some rows, such as a cache of
keys, lies once: its input and output have one address. `inputs` and `outputs` are tables of the
model's other operands. After a status that is not 0 the parity stays, and with it the states in
halves. Denormal numbers count as zero within a step: a state that fades away would slow all later
ones. MXCSR is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsejit.machine.target import Target
from sparsejit.runtime.program import Program, build
from sparsejit.runtime.python_objects import emit_call
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r12,
    r13,
    r14,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
)
from sparsejit.x86.routines import flush_denormals, pop, push, reserve

STATE_ALIGNMENT = 64
HEADER_BYTES = 64  # the parity, a whole number of 64 bits
_POINTER = 8
# The block, the workspace, steps left, samples; five pushes, which align the stack to 16 bytes.
_STATE, _WORKSPACE, _LEFT, _SAMPLES = rbx, r12, r13, r14
_SAVED = (_STATE, _WORKSPACE, _LEFT, _SAMPLES, rdi)

# Appends a call of the model's function, whose arguments are in their registers.
Call = Callable[[Assembler], None]


class StepPlaces(NamedTuple):
    """Places on the stack, while steps run: the addresses of all operands, and a last argument."""

    inputs: Sequence[Memory]
    outputs: Sequence[Memory]
    argument: Memory


# Appends code after each step, which may jump to the label with a status in eax. It keeps rbx,
# r12 to r14 and the stack.
AfterStep = Callable[[Assembler, StepPlaces, Label], None]


@dataclass(frozen=True)
class StateLayout:
    """The places of states in a block.

    Attributes:
        inputs: for each input of the model the offset of its state in a half, in bytes; from
            `half_bytes` on, of a state in place; None for an input that the caller gives
        outputs: the same for each output
        half_bytes: bytes of a half, a multiple of 64
        samples: samples of each state; None where each call says how many of them run
        placed_bytes: bytes of the states in place, a multiple of 64
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    half_bytes: int
    samples: int | None
    placed_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Size of a block in bytes, a multiple of 64."""
        return HEADER_BYTES + 2 * self.half_bytes + self.placed_bytes

    def first(self, parity: int) -> int:
        """Offset in bytes of a half."""
        return HEADER_BYTES + parity * self.half_bytes

    def start(self, place: int, parity: int) -> int:
        """Offset in the block of a state with this place, in bytes."""
        return self.first(parity if place < self.half_bytes else 1) + place


def places_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offsets of states of these sizes in a half, and the bytes of the half."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += round_up(size, STATE_ALIGNMENT)
    return places, end


def emit_step(asm: Assembler, layout: StateLayout, call: Call) -> None:
    """Append `int step(inputs, outputs, state, workspace)`, without `vzeroupper` and return.

    Where the layout leaves the number of samples open, it is a fifth argument.
    """
    _StepCode(asm, layout, call).emit(None, r8)


def emit_steps(
    asm: Assembler,
    layout: StateLayout,
    call: Call,
    advances: Sequence[int],
    after: AfterStep | None = None,
) -> None:
    """Append `int steps(inputs, outputs, state, workspace, n)`, without `vzeroupper` and return.

    It runs n steps, and ends before that at a status that is not 0. `advances` are the bytes from
    one step's data to the next one's for each operand that the caller gives, inputs first; 0 for
    an operand that all steps share. Where the layout leaves the number of samples open, it is a
    sixth argument. With `after`, `StepPlaces.argument` is the sixth instead.
    """
    _StepCode(asm, layout, call, after).emit(advances, r9)


class _StepCode:
    """Code of a step.

    The stack holds the tables of all operands, MXCSR, what replaces it, and the last argument.
    """

    def __init__(
        self, asm: Assembler, layout: StateLayout, call: Call, after: AfterStep | None = None
    ) -> None:
        self._asm, self._layout, self._call, self._after = asm, layout, call, after
        places = (*layout.inputs, *layout.outputs)
        self._operands = [Memory(rsp, _POINTER * number) for number in range(len(places))]
        pairs = zip(places, self._operands, strict=True)
        self._given = [slot for place, slot in pairs if place is None]
        table = _POINTER * len(places)
        self._mxcsr, self._flushing = Memory(rsp, table), Memory(rsp, table + 4)
        read = len(layout.inputs)
        argument = Memory(rsp, table + _POINTER)
        self._places = StepPlaces(self._operands[:read], self._operands[read:], argument)
        self._frame = round_up(table + 2 * _POINTER, 16)

    def emit(self, advances: Sequence[int] | None, samples: Register) -> None:
        asm, layout = self._asm, self._layout
        again, end = asm.label("next step"), asm.label("end of steps")
        push(asm, _SAVED)
        reserve(asm, self._frame)
        for kept, given in ((_STATE, rdx), (_WORKSPACE, rcx)):
            asm.emit("mov", kept, given)
        asm.emit("mov", _SAMPLES, samples if layout.samples is None else layout.samples)
        if self._after is not None:
            asm.emit("mov", self._places.argument, samples)
        self._take_operands()
        flush_denormals(asm, self._mxcsr, self._flushing)
        if advances is None:
            self._run(end)
        else:
            asm.emit("mov", _LEFT, r8)
            asm.emit("xor", dword(rax), dword(rax))
            asm.emit("test", _LEFT, _LEFT)
            asm.jump("jz", end)
            asm.bind(again)
            self._run(end)
            if self._after is not None:
                self._after(asm, self._places, end)
            self._advance(advances)
            asm.emit("sub", _LEFT, 1)
            asm.jump("jnz", again)
        asm.bind(end)
        asm.emit("ldmxcsr", self._mxcsr)
        asm.emit("add", rsp, self._frame)
        pop(asm, _SAVED)

    def _take_operands(self) -> None:
        """Copy the caller's tables, at rdi and rsi, to the places of its operands."""
        inputs = self._layout.inputs.count(None)
        for number, slot in enumerate(self._given):
            table, place = (rdi, number) if number < inputs else (rsi, number - inputs)
            self._asm.emit("mov", rax, Memory(table, _POINTER * place))
            self._asm.emit("mov", slot, rax)

    def _run(self, end: Label) -> None:
        """Run a step and flip the parity; eax = the status; jump to `end` if it is not 0."""
        asm, layout = self._asm, self._layout
        asm.emit("mov", rax, Memory(_STATE))
        asm.emit("imul", rcx, rax, layout.half_bytes)
        asm.emit("lea", rdi, Memory(_STATE, layout.first(0), rcx, 1))
        asm.emit("lea", rsi, Memory(_STATE, layout.first(1)))
        asm.emit("sub", rsi, rcx)
        halves = (*[rdi] * len(layout.inputs), *[rsi] * len(layout.outputs))
        places = (*layout.inputs, *layout.outputs)
        for half, place, slot in zip(halves, places, self._operands, strict=True):
            if place is not None:
                in_half = place < layout.half_bytes
                at = Memory(half, place) if in_half else Memory(_STATE, layout.start(place, 0))
                asm.emit("lea", rax, at)
                asm.emit("mov", slot, rax)
        asm.emit("mov", rdi, rsp)
        asm.emit("lea", rsi, Memory(rsp, _POINTER * len(layout.inputs)))
        asm.emit("mov", rdx, _WORKSPACE)
        asm.emit("mov", rcx, _SAMPLES)
        self._call(asm)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jnz", end)
        asm.emit("mov", dword(rcx), 1)
        asm.emit("sub", rcx, Memory(_STATE))
        asm.emit("mov", Memory(_STATE), rcx)

    def _advance(self, advances: Sequence[int]) -> None:
        """Move the caller's operands on to the next step."""
        for slot, size in zip(self._given, advances, strict=True):
            if size:
                self._asm.emit("mov", rcx, slot)
                self._asm.emit("add", rcx, size)
                self._asm.emit("mov", slot, rcx)


def step_function(
    run: Program,
    layout: StateLayout,
    target: Target,
    advances: Sequence[int] | None = None,
    after: AfterStep | None = None,
) -> Program:
    """Build `int step(inputs, outputs, memory, samples)`, with the arguments of a model's function.

    `memory` is a block with the workspace behind it. The number of samples is ignored where the
    layout has one. With `advances`, build `int steps(inputs, outputs, memory, n)`; with `after`, it
    has a fifth argument, `StepPlaces.argument`, and the layout has a number of samples.
    """

    def call(asm: Assembler) -> None:
        emit_call(asm, run.pointer)

    def body(asm: Assembler) -> None:
        if after is not None:
            asm.emit("mov", r9, r8)
        asm.emit("mov", r8, rcx)
        asm.emit("lea", rcx, Memory(rdx, layout.bytes))
        if advances is None:
            emit_step(asm, layout, call)
        else:
            emit_steps(asm, layout, call, advances, after)

    return build(f"{run.name} step", target, body, beside=run.memory)
