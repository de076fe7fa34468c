"""Calls of a kernel, `void kernel(const float *x, float *y)`, from Python and without ctypes.

A ctypes call costs 0.3 us and asking a numpy array for its address 0.7 us, several times what a
small kernel takes. So a small native stub, which CPython calls as a built-in function, checks both
arrays by reading numpy's array structure and calls the kernel; whatever is unusual goes to a Python
fallback, which accepts it or says what is wrong.
"""

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.runtime.array_checks import check_in_place, check_outputs, checked_array
from sparsejit.runtime.executable_memory import ExecutableMemory, builtin, python_function
from sparsejit.runtime.python_objects import (
    ALIGNED,
    ARRAY_DATA,
    C_CONTIGUOUS,
    METH_FASTCALL,
    REFERENCES,
    WRITEABLE,
    ArrayType,
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

FloatArray = npt.NDArray[np.float32]

_FLOAT32 = np.dtype(np.float32)


class KernelCall:
    """A kernel as `run(x, out) -> out`, for float32 arrays of its shapes, and bound to two.

    An x that is not contiguous and aligned is copied. The interpreter lock is released meanwhile.
    Raises InvalidInput for other arrays, and for an out that is read-only or shares memory with x.
    """

    def __init__(self, memory: ExecutableMemory, x_shape: Shape, y_shape: Shape) -> None:
        self._checked = _CheckedKernelCall(memory, x_shape, y_shape)
        self._shapes = x_shape, y_shape

    @cached_property
    def run(self) -> Callable[[Any, Any], Any]:
        """Made at the first call."""
        return call_trampoline(self._checked.memory, *self._shapes, self._checked)

    def bind(self, x: FloatArray, out: FloatArray) -> Callable[[], None]:
        """A built-in `run()` that computes out from x as they are by then, and holds both.

        The interpreter lock stays held: releasing it costs more than a small kernel. No copy may
        replace x.
        """
        checked = self._checked
        checked.check(x, out)
        check_in_place([x], [checked.x])
        return bind_arguments(
            checked.memory, ((rdi, x.ctypes.data), (rsi, out.ctypes.data)), (x, out)
        )


class _CheckedKernelCall:
    """`call(x, out)` through ctypes: for what the stub does not take as it is."""

    def __init__(self, memory: ExecutableMemory, x_shape: Shape, y_shape: Shape) -> None:
        self.memory = memory
        self.x = ArrayType(_FLOAT32.name, x_shape, "x")
        self.y = ArrayType(_FLOAT32.name, y_shape, "out")
        self._native = memory.function(2)

    def __call__(self, x: FloatArray, out: FloatArray) -> FloatArray:
        source = self.check(x, out)
        self._native(source.ctypes.data, out.ctypes.data)
        return out

    def check(self, x: FloatArray, out: FloatArray) -> FloatArray:
        """What x is read from: itself, or a copy."""
        source = checked_array(x, self.x)
        check_outputs([out], [self.y], [x])
        return source


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
