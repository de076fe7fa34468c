"""Calls from Python without ctypes: small native stubs that CPython calls as built-in functions.

A ctypes call costs 0.3 us and asking a numpy array for its address 0.7 us, several times what a
small kernel takes. `call_trampoline` emits a built-in `call(x, out)` that checks both arrays by
reading numpy's array structure and calls the kernel; whatever is unusual goes to a Python fallback,
which accepts it or says what is wrong. `bind` emits a built-in without arguments for one fixed x
and y.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.runtime.executable_memory import ExecutableMemory, builtin, python_function
from sparsejit.runtime.python_objects import (
    ALIGNED,
    ARRAY_DATA,
    C_CONTIGUOUS,
    METH_FASTCALL,
    REFERENCES,
    WRITEABLE,
    Shape,
    bind_arguments,
    check_array,
    emit_call,
    jump_to_vectorcall,
    layout_is_known,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    r8,
    r9,
    r10,
    r12,
    r13,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.stack import pop, push

_FLOAT32 = np.dtype(np.float32)


def call_trampoline(
    kernel: ExecutableMemory,
    x_shape: Shape,
    y_shape: Shape,
    fallback: Callable[[Any, Any], Any],
) -> Callable[[Any, Any], Any]:
    """A built-in `call(x, out) -> out` for float32 arrays of these shapes that do not overlap.

    Any other pair of arguments is handed to `fallback(x, out)`, whose result is returned. The
    interpreter lock is released while the kernel runs.
    """
    if not layout_is_known():
        return fallback
    asm = Assembler(Target.detect())
    unusual = asm.label("unusual")
    asm.emit("mov", rax, Memory(rsi))
    asm.emit("mov", rcx, Memory(rsi, 8))
    check_array(asm, rax, _FLOAT32, x_shape, C_CONTIGUOUS | ALIGNED, unusual)
    check_array(asm, rcx, _FLOAT32, y_shape, C_CONTIGUOUS | ALIGNED | WRITEABLE, unusual)
    asm.emit("mov", r9, Memory(rax, ARRAY_DATA))
    asm.emit("mov", r10, Memory(rcx, ARRAY_DATA))
    _check_apart(asm, 4 * prod(x_shape), 4 * prod(y_shape), unusual)
    _run_unlocked(asm, kernel.address)
    asm.emit("ret")
    asm.bind(unusual)
    asm.emit("mov", rdi, id(fallback))
    jump_to_vectorcall(asm)
    memory = ExecutableMemory(asm.finish().data)
    return builtin("call", memory.address, METH_FASTCALL, (memory, kernel, fallback))


def bind(
    kernel: ExecutableMemory,
    x: npt.NDArray[np.float32],
    y: npt.NDArray[np.float32],
) -> Callable[[], None]:
    """A built-in `run()` that computes y from x, both checked already and held from here on.

    The interpreter lock stays held: releasing it costs more than a small kernel.
    """
    return bind_arguments(kernel, ((rdi, x.ctypes.data), (rsi, y.ctypes.data)), (x, y))


def _check_apart(asm: Assembler, x_bytes: int, y_bytes: int, unusual: Label) -> None:
    """Jump to `unusual` if [r9, r9 + x_bytes) and [r10, r10 + y_bytes) overlap."""
    apart = asm.label("apart")
    asm.emit("lea", r8, Memory(r9, x_bytes))
    asm.emit("cmp", r8, r10)
    asm.jump("jbe", apart)
    asm.emit("lea", r8, Memory(r10, y_bytes))
    asm.emit("cmp", r8, r9)
    asm.jump("ja", unusual)
    asm.bind(apart)


def _run_unlocked(asm: Assembler, kernel: int) -> None:
    """Call the kernel on r9 and r10 without the interpreter lock; rax = the object in rcx, owned.

    Three pushes leave the stack aligned to 16 bytes for the calls.
    """
    kept = rbx, r12, r13
    push(asm, kept)
    asm.emit("mov", rdx, Memory(rcx, REFERENCES))
    asm.emit("add", rdx, 1)
    asm.emit("mov", Memory(rcx, REFERENCES), rdx)
    asm.emit("mov", rbx, rcx)
    asm.emit("mov", r12, r9)
    asm.emit("mov", r13, r10)
    emit_call(asm, python_function("PyEval_SaveThread"))
    asm.emit("mov", rdi, r12)
    asm.emit("mov", rsi, r13)
    asm.emit("mov", r12, rax)
    emit_call(asm, kernel)
    asm.emit("mov", rdi, r12)
    emit_call(asm, python_function("PyEval_RestoreThread"))
    asm.emit("mov", rax, rbx)
    pop(asm, kept)
