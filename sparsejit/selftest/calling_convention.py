"""Checks that a function keeps its caller's state: fills it with patterns, calls, compares.

The System V ABI, section 3.2.1 and figure 3.4, lists the state that a function must keep.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    ymm,
    zmm,
)
from sparsejit.x86.routines import pop, push

CALLEE_SAVED = (rbx, rbp, r12, r13, r14, r15)
_ARGUMENTS = (rdi, rsi, rdx, rcx)
_NAMES = ("rbx", "rbp", "r12", "r13", "r14", "r15")
PATTERNS = [0x1111111111111111 * (number + 1) for number in range(len(CALLEE_SAVED))]
# Round to nearest, denormals kept, all exceptions masked, no flag set: the state of a new thread.
USUAL_MXCSR = 0x1F80
# Round towards zero, flush to zero, denormals are zero, all exceptions masked, no flag set.
UNUSUAL_MXCSR = 0xFFC0
STATUS_FLAGS = 0x3F
UPPER_REGISTERS = 16  # vzeroupper clears registers 0-15 above their low 16 bytes


@dataclass(frozen=True)
class StateAfterCall:
    """State after a call: registers, MXCSR, and the vectors' bytes above the sixteenth.

    `registers` has the values of `CALLEE_SAVED`, in its order.
    """

    registers: list[int]
    mxcsr: int
    upper_bytes: npt.NDArray[np.uint8]

    def problem(self, mxcsr: int) -> str | None:
        """Describe state that the function, called under `mxcsr`, failed to keep; None if none."""
        for name, found, pattern in zip(_NAMES, self.registers, PATTERNS, strict=True):
            if found != pattern:
                return f"changed the callee-saved register {name}"
        if self.mxcsr & ~STATUS_FLAGS != mxcsr:
            return f"changed MXCSR from {mxcsr:#x} to {self.mxcsr:#x}"
        if self.upper_bytes.any():
            return "left the upper halves of vector registers dirty: vzeroupper is missing"
        return None


class Checker:
    """Calls functions of up to four pointers or integers, with the registers of `target`."""

    def __init__(self, target: Target) -> None:
        self._vector_bytes = target.vector_bytes
        self._call = ExecutableMemory(_checker_code(target)).function(2)

    def call(
        self, function: int, *arguments: int, mxcsr: int = UNUSUAL_MXCSR
    ) -> StateAfterCall:
        """Call the function at that address with these arguments, under `mxcsr`."""
        general = np.zeros(len(CALLEE_SAVED), np.uint64)
        states = np.array([mxcsr, 0], np.uint32)
        vectors = np.zeros((UPPER_REGISTERS, self._vector_bytes), np.uint8)
        arrays = (array.ctypes.data for array in (general, states, vectors))
        missing = len(_ARGUMENTS) - len(arguments)
        places = np.array([*arrays, *arguments, *[0] * missing], np.uint64)
        self._call(places.ctypes.data, function)
        return StateAfterCall(general.tolist(), int(states[1]), vectors[:, 16:])


def _checker_code(target: Target) -> bytes:
    """Code of void checker(places, function); `places` are seven words, see `Checker.call`."""
    asm = Assembler(target)
    kept = *CALLEE_SAVED, rdi  # seven, which aligns the stack to 16 bytes
    push(asm, kept)
    asm.emit("sub", rsp, 16)
    asm.emit("stmxcsr", Memory(rsp))
    asm.emit("mov", rax, rsi)
    asm.emit("mov", rcx, Memory(rdi, 8))
    asm.emit("ldmxcsr", Memory(rcx))
    for number, register in reversed([*enumerate(_ARGUMENTS, 3)]):
        asm.emit("mov", register, Memory(rdi, 8 * number))
    for register, pattern in zip(CALLEE_SAVED, PATTERNS, strict=True):
        asm.emit("mov", register, pattern)
    for number in range(UPPER_REGISTERS):
        _fill_with_ones(asm, _vector(target, number))
    asm.emit("call", rax)
    asm.emit("mov", rdi, Memory(rsp, 16))
    _store_state(asm, target)
    asm.emit("ldmxcsr", Memory(rsp))
    asm.emit("add", rsp, 16)
    pop(asm, kept)
    asm.emit("vzeroupper")
    asm.emit("ret")
    return asm.finish().data


def _store_state(asm: Assembler, target: Target) -> None:
    asm.emit("mov", rcx, Memory(rdi))
    for position, register in enumerate(CALLEE_SAVED):
        asm.emit("mov", Memory(rcx, 8 * position), register)
    asm.emit("mov", rcx, Memory(rdi, 8))
    asm.emit("stmxcsr", Memory(rcx, 4))
    asm.emit("mov", rdx, Memory(rdi, 16))
    for number in range(UPPER_REGISTERS):
        asm.emit("vmovups", Memory(rdx, target.vector_bytes * number), _vector(target, number))


def _fill_with_ones(asm: Assembler, register: Register) -> None:
    if register.kind == "zmm":
        asm.emit("vpternlogd", register, register, register, 0xFF)
    else:
        asm.emit("vpcmpeqd", register, register, register)


def _vector(target: Target, number: int) -> Register:
    return zmm(number) if target.isa == "avx512" else ymm(number)
