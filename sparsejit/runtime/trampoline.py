"""Calls from Python without ctypes: small native stubs that CPython calls as built-in functions.

A ctypes call costs 0.3 us and asking a numpy array for its address 0.7 us, several times what a
small kernel takes. `call_trampoline` emits a built-in `call(x, out)` that checks both arrays by
reading numpy's array structure (PyArrayObject, whose layout is part of numpy's ABI) and calls the
kernel; whatever is unusual goes to a Python fallback, which accepts it or says what is wrong.
`bind` emits a built-in without arguments for one fixed x and y.
"""

import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.runtime.executable_memory import (
    ExecutableMemory,
    builtin,
    native_field,
    python_function,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
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

Shape: TypeAlias = tuple[int, ...]

METH_NOARGS, METH_FASTCALL = 0x0004, 0x0080

# PyObject and PyArrayObject_fields: byte offsets (Include/object.h, numpy/ndarraytypes.h).
_REFERENCES, _TYPE = 0, 8
_DATA, _DIMENSIONS_COUNT, _DIMENSIONS, _DTYPE, _FLAGS = 16, 24, 32, 56, 64
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x0001, 0x0100, 0x0400

# From CPython 3.12 on, None is immortal and its count must not be touched (PEP 683).
_NONE_IS_COUNTED = sys.version_info < (3, 12)


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
    if not _layout_is_known():
        return fallback
    asm = Assembler(Target.detect())
    unusual = asm.label("unusual")
    asm.emit("mov", rax, Memory(rsi))
    asm.emit("mov", rcx, Memory(rsi, 8))
    _check_array(asm, rax, x_shape, _C_CONTIGUOUS | _ALIGNED, unusual)
    _check_array(asm, rcx, y_shape, _C_CONTIGUOUS | _ALIGNED | _WRITEABLE, unusual)
    asm.emit("mov", r9, Memory(rax, _DATA))
    asm.emit("mov", r10, Memory(rcx, _DATA))
    _check_apart(asm, 4 * prod(x_shape), 4 * prod(y_shape), unusual)
    _run_unlocked(asm, kernel.address)
    asm.emit("ret")
    asm.bind(unusual)
    asm.emit("mov", rdi, id(fallback))
    asm.emit("xor", dword(rcx), dword(rcx))
    # PyObject_Vectorcall, without the dictionary, is no exported function before Python 3.11.
    asm.emit("mov", rax, python_function("PyObject_VectorcallDict"))
    asm.emit("jmp", rax)
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
    asm = Assembler(Target.detect())
    asm.emit("push", rbx)
    asm.emit("mov", rdi, x.ctypes.data)
    asm.emit("mov", rsi, y.ctypes.data)
    _call(asm, kernel.address)
    asm.emit("mov", rax, id(None))
    if _NONE_IS_COUNTED:
        asm.emit("mov", rcx, Memory(rax, _REFERENCES))
        asm.emit("add", rcx, 1)
        asm.emit("mov", Memory(rax, _REFERENCES), rcx)
    asm.emit("pop", rbx)
    asm.emit("ret")
    memory = ExecutableMemory(asm.finish().data)
    return builtin("run", memory.address, METH_NOARGS, (memory, kernel, x, y))


def _check_array(asm: Assembler, array: Register, shape: Shape, flags: int, unusual: Label) -> None:
    """Jump to `unusual` unless `array` is a numpy float32 array of that shape and flags."""
    for field, expected in ((_TYPE, id(np.ndarray)), (_DTYPE, id(np.dtype(np.float32)))):
        asm.emit("mov", r8, expected)
        asm.emit("cmp", r8, Memory(array, field))
        asm.jump("jne", unusual)
    asm.emit("mov", dword(r8), Memory(array, _DIMENSIONS_COUNT))
    asm.emit("cmp", dword(r8), len(shape))
    asm.jump("jne", unusual)
    for dimension, length in enumerate(shape):
        asm.emit("mov", r8, Memory(array, _DIMENSIONS))
        asm.emit("mov", r8, Memory(r8, 8 * dimension))
        asm.emit("cmp", r8, length)
        asm.jump("jne", unusual)
    asm.emit("mov", dword(r8), Memory(array, _FLAGS))
    asm.emit("and", dword(r8), flags)
    asm.emit("cmp", dword(r8), flags)
    asm.jump("jne", unusual)


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
    for register in (rbx, r12, r13):
        asm.emit("push", register)
    asm.emit("mov", rdx, Memory(rcx, _REFERENCES))
    asm.emit("add", rdx, 1)
    asm.emit("mov", Memory(rcx, _REFERENCES), rdx)
    asm.emit("mov", rbx, rcx)
    asm.emit("mov", r12, r9)
    asm.emit("mov", r13, r10)
    _call(asm, python_function("PyEval_SaveThread"))
    asm.emit("mov", rdi, r12)
    asm.emit("mov", rsi, r13)
    asm.emit("mov", r12, rax)
    _call(asm, kernel)
    asm.emit("mov", rdi, r12)
    _call(asm, python_function("PyEval_RestoreThread"))
    asm.emit("mov", rax, rbx)
    for register in (r13, r12, rbx):
        asm.emit("pop", register)


def _call(asm: Assembler, address: int) -> None:
    asm.emit("mov", rax, address)
    asm.emit("call", rax)


@cache
def _layout_is_known() -> bool:
    """Whether this interpreter and numpy lay objects out as the offsets above say."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe = np.zeros(3, np.float32)
    fields = {
        _TYPE: id(np.ndarray),
        _DATA: probe.ctypes.data,
        _DTYPE: id(np.dtype(np.float32)),
    }
    found = all(native_field(id(probe) + at, 8) == value for at, value in fields.items())
    dimensions = native_field(id(probe) + _DIMENSIONS, 8)
    return (
        found
        and native_field(id(probe) + _DIMENSIONS_COUNT, 4) == 1
        and native_field(dimensions, 8) == len(probe)
        and native_field(id(probe) + _FLAGS, 4) & _WRITEABLE != 0
    )
