"""Fills the outputs and the workspace before each call, for tests: SPARSEJIT_FILL=1.

The bytes are 0xFF: NaN as a float of any width, -1 as a whole number. An operator that leaves a
part of its output unwritten, or reads a value before it is written, returns these.
"""

import ctypes
import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.native.executable_memory import python_function
from sparsejit.runtime.python_objects import ARRAY_DATA, ARRAY_SHAPE, ArrayType, emit_call
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rdi, rdx, rsi

PATTERN = 0xFF


def fills() -> bool:
    """Whether memory is filled before calls; each new function reads the variable again."""
    return os.environ.get("SPARSEJIT_FILL", "0") not in ("", "0")


def fill(arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Fill arrays, each contiguous, with bytes 0xFF."""
    for array in arrays:
        ctypes.memset(array.ctypes.data, PATTERN, array.nbytes)


def emit_fill_arrays(asm: Assembler, arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Emit code that fills these arrays, each contiguous; their addresses are constants in it."""
    for array in arrays:
        asm.emit("mov", rdi, array.ctypes.data)
        asm.emit("mov", rdx, array.nbytes)
        _emit_fill(asm)


def emit_fill_array(asm: Assembler, address: Memory, kind: ArrayType, rows: Register) -> None:
    """Emit code that fills an array whose address is in memory; `rows` is its free length."""
    row_bytes = np.dtype(kind.dtype).itemsize * prod(n for n in kind.shape if n is not None)
    if None in kind.shape:
        asm.emit("imul", rdx, rows, row_bytes)
    else:
        asm.emit("mov", rdx, row_bytes)
    asm.emit("mov", rdi, address)
    _emit_fill(asm)


def emit_fill_bytes(asm: Assembler, array: Register) -> None:
    """Emit code that fills a numpy array of bytes with one axis."""
    asm.emit("mov", rdi, Memory(array, ARRAY_DATA))
    asm.emit("mov", rdx, Memory(array, ARRAY_SHAPE))
    asm.emit("mov", rdx, Memory(rdx))
    _emit_fill(asm)


def _emit_fill(asm: Assembler) -> None:
    """Emit code that fills rdx bytes at rdi with 0xFF."""
    asm.emit("mov", dword(rsi), PATTERN)
    emit_call(asm, python_function("memset"))
