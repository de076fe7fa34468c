"""Mailboxes of the worker threads of `workers.py`, and the native code that serves them."""

from collections.abc import Callable

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    dword,
    r8,
    r10,
    r12,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.stack import pop, push

# Each spin has a `pause`, 22 to 70 ns: a worker looks for work for some 40 microseconds before it
# sleeps, and a caller waits that long for a worker before it yields its core.
SPINS_BEFORE_PARKING = 2000
SPINS_BEFORE_YIELDING = 2000
# Time for which a worker keeps off its caller's core.
NAP_NS = 1_000_000

# Two calls that find a worker parked count as a quick succession within this number of ticks of the
# time stamp counter (2 to 4 a nanosecond), which is less than a worker spins.
SOON_TICKS = 100_000

# Byte offsets. Fields that different cores write lie in different pairs of cache lines: Intel's L2
# prefetches in pairs (Optimization Manual 3.7.3). The lock is first, then one mailbox a worker.
APART = 128
STATE, MXCSR, FUNCTION, X, Y = 0, 4, 8, 16, 24  # the request; STATE is 1 until it is taken
ANSWERS, SLEEP, CALLED_FROM = APART, APART + 4, APART + 8  # mostly written by the worker
EXPECTED, LAST_PARKED = 2 * APART, 2 * APART + 8  # written by the dispatchers
MAILBOX_BYTES = 3 * APART

# Values of SLEEP.
AWAKE, PARKED, CALLED = 0, 1, 2

# Linux system calls on x86-64 (arch/x86/entry/syscalls, include/uapi/linux/futex.h).
_SCHED_YIELD, _NANOSLEEP, _FUTEX = 24, 35, 202
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


class Routines:
    """The native code that all kernels share.

    `serve`, `call_wake` and `seize` are called from Python with the interpreter lock released;
    `finish`, `wake` and `wake_if_soon` are addresses for the dispatchers.
    """

    def __init__(self) -> None:
        asm = Assembler(Target.detect())
        offsets = []
        for emit in (_emit_serve, _emit_finish, _emit_wake_if_soon, _emit_wake, _emit_seize):
            asm.align(64)
            offsets.append(asm.position)
            emit(asm)
        memory = ExecutableMemory(asm.finish().data)
        serve, finish, wake_if_soon, wake, seize = offsets
        self.serve: Callable[[int], None] = memory.function(1, serve)
        self.call_wake: Callable[[int], None] = memory.function(1, wake)
        self.seize: Callable[[int], None] = memory.function(1, seize)
        self.finish = memory.address + finish
        self.wake = memory.address + wake
        self.wake_if_soon = memory.address + wake_if_soon


def mailbox_at(number: int) -> int:
    return APART + number * MAILBOX_BYTES


def take(asm: Assembler, place: Memory, replacement: int) -> None:
    """Emit a swap of a number into memory, a full fence; eax and the zero flag get the old one."""
    asm.emit("mov", dword(rax), replacement)
    asm.emit("xchg", place, dword(rax))
    asm.emit("test", dword(rax), dword(rax))


def add(asm: Assembler, place: Memory, amount: int) -> None:
    """Emit an addition to memory that no other thread writes."""
    asm.emit("mov", dword(rax), place)
    asm.emit("add", dword(rax), amount)
    asm.emit("mov", place, dword(rax))


def _emit_serve(asm: Assembler) -> None:
    """void serve(mailbox): run requests until one has no function."""
    spin, look, taken, stop = (asm.label(name) for name in ("spin", "look", "taken", "stop"))
    kept = rbx, rbp, r12  # three, which aligns the stack to 16 bytes
    push(asm, kept)
    asm.emit("mov", rbx, rdi)
    asm.emit("mov", dword(r12), SPINS_BEFORE_PARKING)
    asm.bind(spin)
    asm.emit("mov", dword(rbp), dword(r12))
    asm.bind(look)
    asm.emit("mov", dword(rax), Memory(rbx, STATE))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", taken)
    asm.emit("pause")
    asm.emit("sub", dword(rbp), 1)
    asm.jump("jnz", look)
    _emit_park(asm)
    asm.jump("jmp", spin)

    asm.bind(taken)
    take(asm, Memory(rbx, STATE), 0)
    asm.jump("jz", spin)
    asm.emit("mov", rax, Memory(rbx, FUNCTION))
    asm.emit("test", rax, rax)
    asm.jump("jz", stop)
    asm.emit("ldmxcsr", Memory(rbx, MXCSR))  # the caller's rounding and flushing
    asm.emit("mov", rdi, Memory(rbx, X))
    asm.emit("mov", rsi, Memory(rbx, Y))
    asm.emit("call", rax)
    add(asm, Memory(rbx, ANSWERS), 1)
    asm.jump("jmp", spin)

    asm.bind(stop)
    pop(asm, kept)
    asm.emit("ret")


def _emit_park(asm: Assembler) -> None:
    """Emit code that sleeps until a call, unless there is a request in the mailbox at rbx.

    Sets r12 to the number of spins before the next sleep. On the core of the caller, which waits
    for that core, it is 1, and the worker first naps, so that not every call wakes it.
    """
    stay = asm.label("stay awake")
    take(asm, Memory(rbx, SLEEP), PARKED)  # `take`, because it is a fence
    asm.emit("mov", dword(rax), Memory(rbx, STATE))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", stay)
    asm.emit("lea", rdi, Memory(rbx, SLEEP))
    asm.emit("mov", dword(rsi), _FUTEX_WAIT_PRIVATE)
    asm.emit("mov", dword(rdx), PARKED)
    asm.emit("xor", dword(r10), dword(r10))  # no time limit
    asm.emit("mov", dword(rax), _FUTEX)
    asm.emit("syscall")
    asm.emit("mov", dword(r12), SPINS_BEFORE_PARKING)
    asm.emit("rdtscp")
    asm.emit("cmp", dword(rcx), Memory(rbx, CALLED_FROM))
    asm.jump("jne", stay)
    asm.emit("mov", dword(r12), 1)
    asm.emit("lea", rdi, Literal(asm.literal(np.array([0, NAP_NS], np.int64))))
    asm.emit("xor", dword(rsi), dword(rsi))
    asm.emit("mov", dword(rax), _NANOSLEEP)
    asm.emit("syscall")
    asm.bind(stay)
    asm.emit("mov", dword(rax), AWAKE)
    asm.emit("mov", Memory(rbx, SLEEP), dword(rax))


def _emit_finish(asm: Assembler) -> None:
    """void finish(mailbox): wait for the answer, or run the part if nobody has taken it."""
    spin, look, own, done = (asm.label(name) for name in ("spin", "look", "own", "done"))
    asm.emit("push", rbx)
    asm.emit("mov", rbx, rdi)
    asm.bind(spin)
    asm.emit("mov", dword(r8), SPINS_BEFORE_YIELDING)
    asm.bind(look)
    asm.emit("mov", dword(rax), Memory(rbx, ANSWERS))
    asm.emit("cmp", dword(rax), Memory(rbx, EXPECTED))
    asm.jump("je", done)
    asm.emit("mov", dword(rax), Memory(rbx, STATE))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", own)
    asm.emit("pause")
    asm.emit("sub", dword(r8), 1)
    asm.jump("jnz", look)
    asm.emit("mov", dword(rax), _SCHED_YIELD)  # the worker may need this very core
    asm.emit("syscall")
    asm.jump("jmp", spin)

    asm.bind(own)
    take(asm, Memory(rbx, STATE), 0)
    asm.jump("jz", look)
    add(asm, Memory(rbx, EXPECTED), -1)
    asm.emit("mov", rdi, Memory(rbx, X))
    asm.emit("mov", rsi, Memory(rbx, Y))
    asm.emit("mov", rax, Memory(rbx, FUNCTION))
    asm.emit("call", rax)
    asm.bind(done)
    asm.emit("pop", rbx)
    asm.emit("ret")


def _emit_wake_if_soon(asm: Assembler) -> None:
    """void wake_if_soon(mailbox): wake on the second of two calls in quick succession."""
    soon = asm.label("soon")
    asm.emit("rdtsc")
    asm.emit("mov", dword(rcx), Memory(rdi, LAST_PARKED))
    asm.emit("mov", Memory(rdi, LAST_PARKED), dword(rax))
    asm.emit("sub", dword(rax), dword(rcx))  # modulo 2**32: a second or two
    asm.emit("cmp", dword(rax), SOON_TICKS)
    asm.jump("jb", soon)
    asm.emit("ret")
    asm.bind(soon)
    _emit_wake(asm)


def _emit_wake(asm: Assembler) -> None:
    """void wake(mailbox): end its worker's sleep; keeps rsi."""
    asm.emit("push", rsi)
    asm.emit("rdtscp")  # ecx = the core (arch/x86/kernel/cpu/common.c, setup_getcpu)
    asm.emit("mov", Memory(rdi, CALLED_FROM), dword(rcx))
    asm.emit("mov", dword(rax), CALLED)
    asm.emit("mov", Memory(rdi, SLEEP), dword(rax))
    asm.emit("add", rdi, SLEEP)
    asm.emit("mov", dword(rsi), _FUTEX_WAKE_PRIVATE)
    asm.emit("mov", dword(rdx), 1)
    asm.emit("mov", dword(rax), _FUTEX)
    asm.emit("syscall")
    asm.emit("pop", rsi)
    asm.emit("ret")


def _emit_seize(asm: Assembler) -> None:
    """void seize(lock): wait until it is free and take it."""
    again = asm.label("again")
    asm.bind(again)
    asm.emit("pause")
    take(asm, Memory(rdi), 1)
    asm.jump("jnz", again)
    asm.emit("ret")
