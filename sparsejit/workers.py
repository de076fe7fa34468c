"""Parts of a kernel on several cores: native worker threads that spin, then sleep.

A kernel of n parts is called through a dispatcher, emitted in front of its parts. The dispatcher
leaves a request in the mailbox of n - 1 workers, runs part 0 itself, and waits for the answers. A
part is run by whoever takes the request out of the mailbox first, with one `xchg`: the worker, or
the caller where the worker is still asleep or was not given a core. Who runs a part does not change
what it computes.

One kernel at a time uses the workers. A second thread that calls meanwhile runs all parts itself,
as does a forked child, whose workers are gone, until it compiles a kernel for several threads.

x86 keeps stores in order and loads in order (SDM 3A 8.2.2), so a request needs no fence: the
mailbox is filled before its state says so, y is written before the worker counts its answer. A
worker without work says that it is parked, looks a last time, and sleeps until it is called
(futex(2) compares and sleeps in one). A dispatcher that just missed this finds its request untaken
and runs the part itself; the next one calls the worker, once, however long Linux lets that wait.
Calling costs more than sharing a small layer gains: then only the second of two calls in quick
succession does it, for others may follow.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sparsejit.assembler import Assembler, Label
from sparsejit.errors import CompileError
from sparsejit.memory import ExecutableMemory
from sparsejit.operands import (
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
from sparsejit.target import Target

MAX_THREADS = 256

# A pause is 40 to 140 cycles on current cores, so a worker looks for work some tens of
# microseconds long before it sleeps; waking it then costs the caller one or two.
SPINS_BEFORE_PARKING = 2000
SPINS_BEFORE_YIELDING = 2000
NAP_NS = 1_000_000

# A call that has to wake the worker took 9 us longer than one that found it awake. Quick succession
# is less than a worker spins, in ticks of the time stamp counter (2 to 4 a nanosecond).
CALLING_NS = 9_000.0
SOON_TICKS = 100_000

# Byte offsets. Cores that write apart get pairs of cache lines apart: Intel's L2 prefetches in
# pairs (Optimization Manual 3.7.3). The lock stands first, then one mailbox a worker.
_APART = 128
_STATE, _MXCSR, _FUNCTION, _X, _Y = 0, 4, 8, 16, 24  # the request; state 1: to be taken
_ANSWERS, _SLEEP, _CALLED_FROM = _APART, _APART + 4, _APART + 8  # mostly written by the worker
_EXPECTED, _LAST_PARKED = 2 * _APART, 2 * _APART + 8  # written by the dispatchers
_MAILBOX_BYTES = 3 * _APART

# Values of _SLEEP.
_AWAKE, _PARKED, _CALLED = 0, 1, 2

# Linux system calls on x86-64 (arch/x86/entry/syscalls, include/uapi/linux/futex.h).
_SCHED_YIELD, _NANOSLEEP, _FUTEX = 24, 35, 202
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129

# Raised by the code a thread runs; all other signals are for the interpreter's own threads.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class NativePart(NamedTuple):
    """A function f(x, y) at `label`, and the offset in bytes of its share of y."""

    label: Label
    y_bytes: int


class Pool:
    """The process's workers. They live until it exits, and hold nothing of a kernel when idle."""

    def __init__(self) -> None:
        size = _mailbox(MAX_THREADS)
        memory = np.zeros(size + _APART, np.uint8)
        start = -memory.ctypes.data % _APART
        self._block = memory[start : start + size].view(np.uint32)
        self._native = _Routines()
        self._threads: list[threading.Thread] = []
        self._size = 0
        self._changing = threading.Lock()
        self._stopped = False

    @property
    def address(self) -> int:
        """Where the lock is; zero means free."""
        return int(self._block.ctypes.data)

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        return len(self._threads)

    def require(self, workers: int) -> None:
        """Have at least so many workers, and after a fork or `stop` as many as ever.

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
                mailbox = _mailbox(number)
                self._block[(mailbox + _FUNCTION) // 4 : (mailbox + _X) // 4] = 0
                self._block[(mailbox + _STATE) // 4] = 1
                self._native.call_wake(self.address + mailbox)
                thread.join()
            self._forget_workers()

    def after_fork_in_child(self) -> None:
        """No worker survives a fork, and whoever held a lock may not be here either."""
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
        self._native.serve(self.address + _mailbox(number))

    def emit_dispatcher(
        self, asm: Assembler, parts: Sequence[NativePart], saved_ns: float
    ) -> None:
        """Append void dispatcher(x, y), which runs `parts`; they must keep rdi and rsi.

        The workers save the caller `saved_ns`; they must be there before it is called (`require`).
        """
        wake = self._native.wake if saved_ns > CALLING_NS else self._native.wake_if_soon
        serial = asm.label("serial")
        asm.emit("push", rbx)  # also aligns the stack to 16 bytes
        asm.emit("mov", rbx, self.address)
        _take(asm, Memory(rbx), 1)
        asm.jump("jnz", serial)
        mailboxes = [_mailbox(number) for number in range(len(parts) - 1)]
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
        at = 0
        for part in parts:
            asm.emit("add", rsi, part.y_bytes - at)
            at = part.y_bytes
            asm.jump("call", part.label)
        asm.emit("pop", rbx)
        asm.emit("ret")


@cache
def pool() -> Pool:
    """The one pool of this process."""
    made = Pool()
    atexit.register(made.stop)  # before the interpreter frees what they use
    os.register_at_fork(after_in_child=made.after_fork_in_child)
    return made


class _Routines:
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


def _mailbox(number: int) -> int:
    return _APART + number * _MAILBOX_BYTES


def _take(asm: Assembler, place: Memory, replacement: int) -> None:
    """Swap a number into memory; eax and the zero flag tell what was there. A full fence."""
    asm.emit("mov", dword(rax), replacement)
    asm.emit("xchg", place, dword(rax))
    asm.emit("test", dword(rax), dword(rax))


def _add(asm: Assembler, place: Memory, amount: int) -> None:
    """Add to memory that no other thread writes."""
    asm.emit("mov", dword(rax), place)
    asm.emit("add", dword(rax), amount)
    asm.emit("mov", place, dword(rax))


def _post(asm: Assembler, mailbox: int, part: NativePart) -> None:
    """Leave the request for a part in a mailbox; rbx is the block, rdi x, rsi y."""
    _add(asm, Memory(rbx, mailbox + _EXPECTED), 1)
    asm.address(rax, part.label)
    asm.emit("mov", Memory(rbx, mailbox + _FUNCTION), rax)
    asm.emit("mov", Memory(rbx, mailbox + _X), rdi)
    asm.emit("lea", rax, Memory(rsi, part.y_bytes))
    asm.emit("mov", Memory(rbx, mailbox + _Y), rax)
    asm.emit("stmxcsr", Memory(rbx, mailbox + _MXCSR))
    asm.emit("mov", dword(rax), 1)
    asm.emit("mov", Memory(rbx, mailbox + _STATE), dword(rax))


def _call_sleeper(asm: Assembler, mailbox: int, wake: int) -> None:
    """Call `wake` for a worker that is parked; rbx is the block."""
    awake = asm.label("awake")
    asm.emit("mov", dword(rax), Memory(rbx, mailbox + _SLEEP))
    asm.emit("cmp", dword(rax), _PARKED)
    asm.jump("jne", awake)
    asm.emit("push", rdi)
    asm.emit("lea", rdi, Memory(rbx, mailbox))
    asm.emit("mov", rax, wake)
    asm.emit("call", rax)
    asm.emit("pop", rdi)
    asm.bind(awake)


def _emit_serve(asm: Assembler) -> None:
    """void serve(mailbox): run requests until one has no function."""
    spin, look, taken, stop = (asm.label(name) for name in ("spin", "look", "taken", "stop"))
    for register in (rbx, rbp, r12):  # three, which aligns the stack to 16 bytes
        asm.emit("push", register)
    asm.emit("mov", rbx, rdi)
    asm.emit("mov", dword(r12), SPINS_BEFORE_PARKING)
    asm.bind(spin)
    asm.emit("mov", dword(rbp), dword(r12))
    asm.bind(look)
    asm.emit("mov", dword(rax), Memory(rbx, _STATE))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", taken)
    asm.emit("pause")
    asm.emit("sub", dword(rbp), 1)
    asm.jump("jnz", look)
    _emit_park(asm)
    asm.jump("jmp", spin)

    asm.bind(taken)
    _take(asm, Memory(rbx, _STATE), 0)
    asm.jump("jz", spin)
    asm.emit("mov", rax, Memory(rbx, _FUNCTION))
    asm.emit("test", rax, rax)
    asm.jump("jz", stop)
    asm.emit("ldmxcsr", Memory(rbx, _MXCSR))  # rounds and flushes as the caller does
    asm.emit("mov", rdi, Memory(rbx, _X))
    asm.emit("mov", rsi, Memory(rbx, _Y))
    asm.emit("call", rax)
    _add(asm, Memory(rbx, _ANSWERS), 1)
    asm.jump("jmp", spin)

    asm.bind(stop)
    for register in (r12, rbp, rbx):
        asm.emit("pop", register)
    asm.emit("ret")


def _emit_park(asm: Assembler) -> None:
    """Sleep until called, unless there is a request in the mailbox at rbx.

    r12 = how long to look for the next request: not at all on the core of the caller, who waits
    for that core. There the worker naps besides, so that it is not called every time (with both
    cores busy, calls of 4 us took 56 us where it looked, 9 us where it did not nap).
    """
    stay = asm.label("stay awake")
    _take(asm, Memory(rbx, _SLEEP), _PARKED)  # for its fence
    asm.emit("mov", dword(rax), Memory(rbx, _STATE))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", stay)
    asm.emit("lea", rdi, Memory(rbx, _SLEEP))
    asm.emit("mov", dword(rsi), _FUTEX_WAIT_PRIVATE)
    asm.emit("mov", dword(rdx), _PARKED)
    asm.emit("xor", dword(r10), dword(r10))  # no time limit
    asm.emit("mov", dword(rax), _FUTEX)
    asm.emit("syscall")
    asm.emit("mov", dword(r12), SPINS_BEFORE_PARKING)
    asm.emit("rdtscp")
    asm.emit("cmp", dword(rcx), Memory(rbx, _CALLED_FROM))
    asm.jump("jne", stay)
    asm.emit("mov", dword(r12), 1)
    asm.emit("lea", rdi, Literal(asm.literal(np.array([0, NAP_NS], np.int64))))
    asm.emit("xor", dword(rsi), dword(rsi))
    asm.emit("mov", dword(rax), _NANOSLEEP)
    asm.emit("syscall")
    asm.bind(stay)
    asm.emit("mov", dword(rax), _AWAKE)
    asm.emit("mov", Memory(rbx, _SLEEP), dword(rax))


def _emit_finish(asm: Assembler) -> None:
    """void finish(mailbox): wait for the answer, or run the part if nobody has taken it."""
    spin, look, take, done = (asm.label(name) for name in ("spin", "look", "take", "done"))
    asm.emit("push", rbx)
    asm.emit("mov", rbx, rdi)
    asm.bind(spin)
    asm.emit("mov", dword(r8), SPINS_BEFORE_YIELDING)
    asm.bind(look)
    asm.emit("mov", dword(rax), Memory(rbx, _ANSWERS))
    asm.emit("cmp", dword(rax), Memory(rbx, _EXPECTED))
    asm.jump("je", done)
    asm.emit("mov", dword(rax), Memory(rbx, _STATE))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", take)
    asm.emit("pause")
    asm.emit("sub", dword(r8), 1)
    asm.jump("jnz", look)
    asm.emit("mov", dword(rax), _SCHED_YIELD)  # the worker may need this very core
    asm.emit("syscall")
    asm.jump("jmp", spin)

    asm.bind(take)
    _take(asm, Memory(rbx, _STATE), 0)
    asm.jump("jz", look)
    _add(asm, Memory(rbx, _EXPECTED), -1)
    asm.emit("mov", rdi, Memory(rbx, _X))
    asm.emit("mov", rsi, Memory(rbx, _Y))
    asm.emit("mov", rax, Memory(rbx, _FUNCTION))
    asm.emit("call", rax)
    asm.bind(done)
    asm.emit("pop", rbx)
    asm.emit("ret")


def _emit_wake_if_soon(asm: Assembler) -> None:
    """void wake_if_soon(mailbox): as `wake`, on the second of two calls in quick succession."""
    soon = asm.label("soon")
    asm.emit("rdtsc")
    asm.emit("mov", dword(rcx), Memory(rdi, _LAST_PARKED))
    asm.emit("mov", Memory(rdi, _LAST_PARKED), dword(rax))
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
    asm.emit("mov", Memory(rdi, _CALLED_FROM), dword(rcx))
    asm.emit("mov", dword(rax), _CALLED)
    asm.emit("mov", Memory(rdi, _SLEEP), dword(rax))
    asm.emit("add", rdi, _SLEEP)
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
    _take(asm, Memory(rdi), 1)
    asm.jump("jnz", again)
    asm.emit("ret")
