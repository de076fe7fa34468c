"""Parts of a kernel on several cores: native worker threads that spin, then sleep.

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
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sparsejit.errors import CompileError
from sparsejit.runtime.worker_code import (
    APART,
    EXPECTED,
    FUNCTION,
    MXCSR,
    PARKED,
    SLEEP,
    STATE,
    Routines,
    X,
    Y,
    add,
    mailbox_at,
    take,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, rax, rbx, rdi, rsi

MAX_THREADS = 256

# A call that had to wake the worker took 9 us longer than one that found it awake.
CALLING_NS = 9_000.0

# Signals that a worker's own code raises; all others are for the interpreter's threads.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class NativePart(NamedTuple):
    """A function f(x, y) at `label`, and the offsets in bytes of its share of y and of x."""

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
