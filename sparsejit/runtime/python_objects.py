"""How native stubs read, check and make Python's objects and numpy's arrays.

The layouts are part of CPython's and numpy's ABI; `layout_is_known` looks whether they hold.
"""

import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.runtime.executable_memory import ExecutableMemory, builtin, native_field
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, Register, dword, r8, rax, rbx, rcx

Shape: TypeAlias = tuple[int, ...]

METH_NOARGS, METH_FASTCALL = 0x0004, 0x0080

# PyObject and PyArrayObject_fields: byte offsets (Include/object.h, numpy/ndarraytypes.h).
REFERENCES, TYPE = 0, 8
ARRAY_DATA, ARRAY_AXES, ARRAY_SHAPE, ARRAY_DTYPE, ARRAY_FLAGS = 16, 24, 32, 56, 64
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x0001, 0x0100, 0x0400

# From CPython 3.12 on, None is immortal and its count must not be touched (PEP 683).
_NONE_IS_COUNTED = sys.version_info < (3, 12)


def check_array(
    asm: Assembler,
    array: Register,
    dtype: np.dtype[Any],
    shape: Sequence[int | Register],
    flags: int,
    unusual: Label,
) -> None:
    """Jump to `unusual` unless `array` is a numpy array of that dtype, shape and flags.

    A length may be in a register. Changes r8.
    """
    for field, expected in ((TYPE, id(np.ndarray)), (ARRAY_DTYPE, id(dtype))):
        asm.emit("mov", r8, expected)
        asm.emit("cmp", r8, Memory(array, field))
        asm.jump("jne", unusual)
    asm.emit("mov", dword(r8), Memory(array, ARRAY_AXES))
    asm.emit("cmp", dword(r8), len(shape))
    asm.jump("jne", unusual)
    for axis, length in enumerate(shape):
        asm.emit("mov", r8, Memory(array, ARRAY_SHAPE))
        asm.emit("mov", r8, Memory(r8, 8 * axis))
        asm.emit("cmp", r8, length)
        asm.jump("jne", unusual)
    asm.emit("mov", dword(r8), Memory(array, ARRAY_FLAGS))
    asm.emit("and", dword(r8), flags)
    asm.emit("cmp", dword(r8), flags)
    asm.jump("jne", unusual)


def emit_call(asm: Assembler, address: int) -> None:
    """Call a function anywhere in memory; the stack must be aligned to 16 bytes."""
    asm.emit("mov", rax, address)
    asm.emit("call", rax)


def bind_arguments(
    native: ExecutableMemory, arguments: Sequence[tuple[Register, int]], keep: object
) -> Callable[[], None]:
    """A built-in `run()` that calls native code with fixed numbers in registers, and holds `keep`.

    The interpreter lock stays held: releasing it costs more than a small kernel.
    """
    asm = Assembler(Target.detect())
    asm.emit("push", rbx)
    for register, number in arguments:
        asm.emit("mov", register, number)
    emit_call(asm, native.address)
    asm.emit("mov", rax, id(None))
    if _NONE_IS_COUNTED:
        asm.emit("mov", rcx, Memory(rax, REFERENCES))
        asm.emit("add", rcx, 1)
        asm.emit("mov", Memory(rax, REFERENCES), rcx)
    asm.emit("pop", rbx)
    asm.emit("ret")
    memory = ExecutableMemory(asm.finish().data)
    return builtin("run", memory.address, METH_NOARGS, (memory, native, keep))


@cache
def layout_is_known() -> bool:
    """Whether this interpreter and numpy lay objects out as the offsets above say."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe = np.zeros(3, np.float32)
    fields = {
        TYPE: id(np.ndarray),
        ARRAY_DATA: probe.ctypes.data,
        ARRAY_DTYPE: id(np.dtype(np.float32)),
    }
    found = all(native_field(id(probe) + at, 8) == value for at, value in fields.items())
    shape = native_field(id(probe) + ARRAY_SHAPE, 8)
    return (
        found
        and native_field(id(probe) + ARRAY_AXES, 4) == 1
        and native_field(shape, 8) == len(probe)
        and native_field(id(probe) + ARRAY_FLAGS, 4) & WRITEABLE != 0
    )
