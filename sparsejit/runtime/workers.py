"""Parts of a kernel on several cores: native worker threads that spin, then sleep.

    mailbox_at, Routines   mailboxes of the threads, and the native code that serves them
    NativePart             a part of a kernel
    Pool, pool             the process's workers
    HostThreads            threads that the host of exported code starts

The code:

    dispatcher  take the lock, fill each worker's mailbox, run part 0, look at the answers
    worker      look at the mailbox, take the request out (xchg), run the part, count the answer

The first thread to take the request out of the mailbox runs the part: the worker, or the caller
where the worker is asleep or has no core. The result is the same. One kernel at a time uses the
workers; a second thread that calls meanwhile runs all parts itself, as does a forked child until it
compiles a kernel for several threads.

x86 keeps stores in order and loads in order (SDM 3A 8.2.2), so a request needs no fence: the
request is written before the mailbox's state, and y before the count of answers.
docs/notes/threads.md explains when sleepers are woken, and the cost of waking.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from sparsejit.errors import CompileError
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler, Label
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
    rsp,
)
from sparsejit.x86.routines import pop, push

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
    """The native routines of the worker threads, which all kernels of this process share.

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
    """Emit a worker's sleep until it is woken, unless its mailbox, at rbx, has a request.

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


MAX_THREADS = 256

# A call that had to wake the worker took 9 us longer than one that found it awake.
CALLING_NS = 9_000.0

# Signals that a worker's own code raises; all others are for the interpreter's threads.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class NativePart(NamedTuple):
    """A part of a kernel: code f(x, y) at `label`, and the byte offsets of its share of y and x."""

    label: Label
    y_bytes: int
    x_bytes: int = 0


class Pool:
    """The process's workers, which live until it exits. Idle ones hold no reference to a kernel."""

    def __init__(self) -> None:
        size = mailbox_at(MAX_THREADS)
        memory = np.zeros(size + APART, np.uint8)
        start = -memory.ctypes.data % APART
        self._block = memory[start : start + size].view(np.uint32)
        self._native = Routines()
        self._threads: list[threading.Thread] = []
        self._size = 0
        self._changing = threading.Lock()
        self._stopped = False

    @property
    def address(self) -> int:
        """Address of the lock, which is 0 when free; the mailboxes follow it."""
        return int(self._block.ctypes.data)

    @property
    def workers(self) -> int:
        """Number of workers now."""
        return len(self._threads)

    def require(self, workers: int) -> None:
        """Start threads until there are `workers`; after a fork or `stop`, also all earlier ones.

        Raises CompileError where the system refuses another thread.
        """
        with self._changing:
            while len(self._threads) < max(self._size, workers):
                self._start(len(self._threads))
            self._size = len(self._threads)
            if self._stopped:
                self._stopped = False
                self._block[0] = 0

    def stop(self) -> None:
        """End the workers; kernels run on their callers' threads alone until `require`."""
        with self._changing:
            if self._stopped:
                return
            self._stopped = True
            self._native.seize(self.address)
            for number, thread in enumerate(self._threads):
                mailbox = mailbox_at(number)
                self._block[(mailbox + FUNCTION) // 4 : (mailbox + X) // 4] = 0
                self._block[(mailbox + STATE) // 4] = 1
                self._native.call_wake(self.address + mailbox)
                thread.join()
            self._forget_workers()

    def after_fork_in_child(self) -> None:
        """Reset the state: no worker survives a fork, nor may the thread that held a lock."""
        self._changing = threading.Lock()
        self._stopped = True
        self._forget_workers()

    def _forget_workers(self) -> None:
        self._threads = []
        self._block[0] = 1
        self._block[1:] = 0

    def _start(self, number: int) -> None:
        thread = threading.Thread(
            target=self._serve, args=(number,), name=f"sparsejit-worker-{number}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as problem:
            raise CompileError(
                f"the system refused worker thread {number + 1}: {problem}; compile with "
                f"threads={number + 1}, or raise the limit (ulimit -u)"
            ) from problem
        self._threads.append(thread)

    def _serve(self, number: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)
        self._native.serve(self.address + mailbox_at(number))

    def emit_dispatcher(self, asm: Assembler, parts: Sequence[NativePart], saved_ns: float) -> None:
        """Append void dispatcher(x, y), which runs `parts`; they must keep rdi and rsi.

        The caller runs the first part, which has no offsets. The workers are predicted to save the
        caller `saved_ns`; they must exist before the dispatcher is called (`require`).
        """
        wake = self._native.wake if saved_ns > CALLING_NS else self._native.wake_if_soon
        serial = asm.label("serial")
        asm.emit("push", rbx)  # also aligns the stack to 16 bytes
        asm.emit("mov", rbx, self.address)
        take(asm, Memory(rbx), 1)
        asm.jump("jnz", serial)
        mailboxes = [mailbox_at(number) for number in range(len(parts) - 1)]
        for mailbox, part in zip(mailboxes, parts[1:], strict=True):
            _post(asm, mailbox, part)
        for mailbox in mailboxes:
            _call_sleeper(asm, mailbox, wake)
        asm.jump("call", parts[0].label)
        for mailbox in mailboxes:
            asm.emit("lea", rdi, Memory(rbx, mailbox))
            asm.emit("mov", rax, self._native.finish)
            asm.emit("call", rax)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", Memory(rbx), dword(rax))
        asm.emit("pop", rbx)
        asm.emit("ret")
        asm.bind(serial)
        before = parts[0]
        for part in parts:
            asm.emit("add", rdi, part.x_bytes - before.x_bytes)
            asm.emit("add", rsi, part.y_bytes - before.y_bytes)
            before = part
            asm.jump("call", part.label)
        asm.emit("pop", rbx)
        asm.emit("ret")


@dataclass(frozen=True)
class HostThreads:
    """Threads of the host of exported code, which gives a table of functions.

    The table has its own pointer, `start(pointer, number, function, argument)` and `wait(pointer,
    number)`. Its address lies `slot` bytes into the workspace, MXCSR behind it. Where the address
    is 0, the caller's thread runs all parts.
    """

    slot: int

    def require(self, workers: int) -> None:
        """Do nothing: the host has its threads."""

    def emit_dispatcher(self, asm: Assembler, parts: Sequence[NativePart], saved_ns: float) -> None:
        """Append void dispatcher(workspace), which runs `parts`, as `Pool` does."""
        serial, end = asm.label("serial"), asm.label("parts are done")
        stubs = [asm.label(f"part {number}") for number in range(1, len(parts))]
        kept = rbx, r12, rbp
        push(asm, kept)
        asm.emit("mov", rbp, rsp)
        asm.emit("and", rsp, -16)  # as the host's functions expect it
        asm.emit("mov", rbx, rdi)
        asm.emit("stmxcsr", Memory(rbx, self.slot + 8))
        asm.emit("vzeroupper")
        asm.emit("mov", r12, Memory(rbx, self.slot))
        asm.emit("test", r12, r12)
        asm.jump("jz", serial)
        for number, (part, stub) in enumerate(zip(parts[1:], stubs, strict=True), 1):
            asm.emit("mov", rdi, Memory(r12))
            asm.emit("mov", dword(rsi), number)
            asm.address(rdx, stub)
            asm.emit("lea", rcx, Memory(rbx, part.x_bytes))
            asm.emit("mov", rax, Memory(r12, _START))
            asm.emit("call", rax)
        self._run(asm, parts[0])
        for number in range(1, len(parts)):
            asm.emit("mov", rdi, Memory(r12))
            asm.emit("mov", dword(rsi), number)
            asm.emit("mov", rax, Memory(r12, _WAIT))
            asm.emit("call", rax)
        asm.jump("jmp", end)
        asm.bind(serial)
        for part in parts:
            self._run(asm, part)
        asm.bind(end)
        asm.emit("mov", rsp, rbp)
        pop(asm, kept)
        asm.emit("ret")
        for part, stub in zip(parts[1:], stubs, strict=True):
            self._emit_stub(asm, part, stub)

    def _run(self, asm: Assembler, part: NativePart) -> None:
        asm.emit("lea", rdi, Memory(rbx, part.x_bytes))
        asm.jump("call", part.label)

    def _emit_stub(self, asm: Assembler, part: NativePart, stub: Label) -> None:
        """Append void stub(argument), which runs a part with the caller's MXCSR."""
        asm.align(16)
        asm.bind(stub)
        asm.emit("sub", rsp, 8)
        asm.emit("stmxcsr", Memory(rsp))
        asm.emit("ldmxcsr", Memory(rdi, self.slot + 8 - part.x_bytes))
        asm.jump("call", part.label)
        asm.emit("ldmxcsr", Memory(rsp))
        asm.emit("add", rsp, 8)
        asm.emit("ret")


_START, _WAIT = 8, 16  # offsets of the functions in the host's table


@cache
def pool() -> Pool:
    """Return the pool of this process."""
    made = Pool()
    atexit.register(made.stop)  # before the interpreter frees the workers' memory
    os.register_at_fork(after_in_child=made.after_fork_in_child)
    return made


def _post(asm: Assembler, mailbox: int, part: NativePart) -> None:
    """Emit code that puts the request for a part in a mailbox; rbx is the block, rdi x, rsi y."""
    add(asm, Memory(rbx, mailbox + EXPECTED), 1)
    asm.address(rax, part.label)
    asm.emit("mov", Memory(rbx, mailbox + FUNCTION), rax)
    asm.emit("lea", rax, Memory(rdi, part.x_bytes))
    asm.emit("mov", Memory(rbx, mailbox + X), rax)
    asm.emit("lea", rax, Memory(rsi, part.y_bytes))
    asm.emit("mov", Memory(rbx, mailbox + Y), rax)
    asm.emit("stmxcsr", Memory(rbx, mailbox + MXCSR))
    asm.emit("mov", dword(rax), 1)
    asm.emit("mov", Memory(rbx, mailbox + STATE), dword(rax))


def _call_sleeper(asm: Assembler, mailbox: int, wake: int) -> None:
    """Emit a call of `wake`, made if the worker is parked; rbx is the block."""
    awake = asm.label("awake")
    asm.emit("mov", dword(rax), Memory(rbx, mailbox + SLEEP))
    asm.emit("cmp", dword(rax), PARKED)
    asm.jump("jne", awake)
    asm.emit("push", rdi)
    asm.emit("lea", rdi, Memory(rbx, mailbox))
    asm.emit("mov", rax, wake)
    asm.emit("call", rax)
    asm.emit("pop", rdi)
    asm.bind(awake)
