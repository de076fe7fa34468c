"""Code of native stubs that reads, checks and makes Python's objects and numpy's arrays.

The layouts are part of CPython's and numpy's ABI; `layout_is_known` checks them.
"""

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import (
    ExecutableMemory,
    builtin,
    native_field,
    python_function,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, Register, dword, r8, rax, rbx, rcx

METH_NOARGS, METH_O, METH_FASTCALL = 0x0004, 0x0008, 0x0080

# PyObject, PyListObject and PyArrayObject_fields: byte offsets (Include/object.h,
# Include/cpython/listobject.h, numpy/ndarraytypes.h).
REFERENCES, TYPE = 0, 8
LIST_SIZE, LIST_ITEMS = 16, 24
ARRAY_DATA, ARRAY_AXES, ARRAY_SHAPE, ARRAY_DTYPE, ARRAY_FLAGS = 16, 24, 32, 56, 64
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x0001, 0x0100, 0x0400
# Index of PyArray_Empty(axes, shape, dtype, fortran) in numpy's table of functions
# (numpy/__multiarray_api.h).
_PYARRAY_EMPTY = 184

# From CPython 3.12 on, None, True and False are immortal: counts must not be touched (PEP 683).
_CONSTANTS_ARE_COUNTED = sys.version_info < (3, 12)


class ArrayType(NamedTuple):
    """Type of an array that native code reads or writes: dtype, shape, and a name for messages.

    A free length is None; in native code only the first may be free.
    """

    dtype: str
    shape: tuple[int | None, ...]
    name: str

    @property
    def bytes(self) -> int:
        """Size in bytes of an array without a free length."""
        return np.dtype(self.dtype).itemsize * prod(length or 0 for length in self.shape)


def check_array(
    asm: Assembler,
    array: Register,
    dtype: np.dtype[Any],
    shape: Sequence[int | Register | None],
    flags: int,
    unusual: Label,
) -> None:
    """Emit a jump to `unusual`, taken unless `array` is a numpy array of this dtype, shape, flags.

    A length may be in a register; None allows any length. Changes r8.
    """
    for field, expected in ((TYPE, id(np.ndarray)), (ARRAY_DTYPE, id(dtype))):
        asm.emit("mov", r8, expected)
        asm.emit("cmp", r8, Memory(array, field))
        asm.jump("jne", unusual)
    asm.emit("mov", dword(r8), Memory(array, ARRAY_AXES))
    asm.emit("cmp", dword(r8), len(shape))
    asm.jump("jne", unusual)
    for axis, length in enumerate(shape):
        if length is None:
            continue
        asm.emit("mov", r8, Memory(array, ARRAY_SHAPE))
        asm.emit("mov", r8, Memory(r8, 8 * axis))
        asm.emit("cmp", r8, length)
        asm.jump("jne", unusual)
    asm.emit("mov", dword(r8), Memory(array, ARRAY_FLAGS))
    asm.emit("and", dword(r8), flags)
    asm.emit("cmp", dword(r8), flags)
    asm.jump("jne", unusual)


def emit_call(asm: Assembler, address: int) -> None:
    """Emit a call of a function at any address; the stack must be aligned to 16 bytes."""
    asm.emit("mov", rax, address)
    asm.emit("call", rax)


def emit_constant(asm: Assembler, value: bool | None) -> None:
    """Set rax to None, True or False, with a reference to return. Changes rcx."""
    asm.emit("mov", rax, id(value))
    if _CONSTANTS_ARE_COUNTED:
        asm.emit("mov", rcx, Memory(rax, REFERENCES))
        asm.emit("add", rcx, 1)
        asm.emit("mov", Memory(rax, REFERENCES), rcx)


def jump_to_vectorcall(asm: Assembler) -> None:
    """Emit a tail call of the object in rdi, with the rdx arguments at rsi."""
    asm.emit("xor", dword(rcx), dword(rcx))
    # PyObject_Vectorcall, without the dictionary, is no exported function before Python 3.11.
    asm.emit("mov", rax, python_function("PyObject_VectorcallDict"))
    asm.emit("jmp", rax)


def emit_vectorcall(asm: Assembler) -> None:
    """Emit a call of the object in rdi, with the rdx arguments at rsi; the stack as in a call."""
    asm.emit("xor", dword(rcx), dword(rcx))
    emit_call(asm, python_function("PyObject_VectorcallDict"))


def bind_arguments(
    native: ExecutableMemory,
    arguments: Sequence[tuple[Register, int]],
    keep: object,
    before: Callable[[Assembler], None] | None = None,
) -> Callable[[], None]:
    """Return a built-in `run()` that calls native code with fixed numbers in registers.

    It holds `keep` alive. `before` emits code for the start of each call. The interpreter lock
    stays held: releasing it costs more than a small kernel.
    """
    asm = Assembler(Target.detect())
    asm.emit("push", rbx)
    if before is not None:
        before(asm)
    for register, number in arguments:
        asm.emit("mov", register, number)
    emit_call(asm, native.address)
    emit_constant(asm, None)
    asm.emit("pop", rbx)
    asm.emit("ret")
    memory = ExecutableMemory(asm.finish().data)
    return builtin("run", memory.address, METH_NOARGS, (memory, native, keep))


@cache
def layout_is_known() -> bool:
    """Whether this interpreter and numpy have their fields at the offsets of this module."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe, items = np.zeros(3, np.float32), [object()]
    fields = {
        id(probe) + TYPE: id(np.ndarray),
        id(probe) + ARRAY_DATA: probe.ctypes.data,
        id(probe) + ARRAY_DTYPE: id(np.dtype(np.float32)),
        id(items) + LIST_SIZE: 1,
    }
    if any(native_field(address, 8) != value for address, value in fields.items()):
        return False
    shape = native_field(id(probe) + ARRAY_SHAPE, 8)
    return (
        native_field(id(probe) + ARRAY_AXES, 4) == 1
        and native_field(shape, 8) == len(probe)
        and native_field(id(probe) + ARRAY_FLAGS, 4) & WRITEABLE != 0
        and native_field(native_field(id(items) + LIST_ITEMS, 8), 8) == id(items[0])
    )


@cache
def new_array_function() -> int:
    """Address of numpy's PyArray_Empty, which takes over one reference to the dtype."""
    core: Any = import_module("numpy._core._multiarray_umath")
    return native_field(pointer_of(core._ARRAY_API) + 8 * _PYARRAY_EMPTY, 8)


def pointer_of(capsule: Any, name: bytes | None = None) -> int:
    """Return the pointer of a capsule. Raises ValueError for a capsule of another name."""
    pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_in.restype = ctypes.c_void_p
    pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer: int = pointer_in(capsule, name)
    return pointer
