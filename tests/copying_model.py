"""Native functions with the signature of a compiled model: one copies its inputs, one waits."""

from collections.abc import Sequence

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.python_objects import ArrayType
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, r8, r9, r10, rax, rcx, rdi, rdx, rsi

RANDOM = np.random.default_rng(0)
MISALIGNED = 9
MOST_LOOKS = 1 << 30  # half a minute or more


def copy_words(asm: Assembler, name: str, source: Register, to: Register, count: int) -> None:
    again = asm.label(name)
    asm.emit("mov", r10, 0)
    asm.bind(again)
    asm.emit("mov", dword(rax), Memory(source, 0, r10, 4))
    asm.emit("mov", Memory(to, 0, r10, 4), dword(rax))
    asm.emit("add", r10, 1)
    asm.emit("cmp", r10, count)
    asm.jump("jl", again)


def copier(sample_bytes: Sequence[int], status: int = 0) -> ExecutableMemory:
    """Copies input i to output i, sample after sample, by way of the workspace."""
    asm = Assembler(Target.detect())
    end = asm.label("end")
    asm.emit("mov", rax, MISALIGNED)
    asm.emit("test", dword(rdx), 63)
    asm.jump("jnz", end)
    asm.emit("mov", rax, status)
    asm.emit("test", rcx, rcx)
    asm.jump("jz", end)
    for number, size in enumerate(sample_bytes):
        asm.emit("push", rcx)
        asm.emit("mov", r8, Memory(rdi, 8 * number))
        asm.emit("mov", r9, Memory(rsi, 8 * number))
        again = asm.label(f"sample of {number}")
        asm.bind(again)
        copy_words(asm, f"in {number}", r8, rdx, size // 4)
        copy_words(asm, f"out {number}", rdx, r9, size // 4)
        asm.emit("add", r8, size)
        asm.emit("add", r9, size)
        asm.emit("sub", rcx, 1)
        asm.jump("jnz", again)
        asm.emit("pop", rcx)
    asm.emit("mov", rax, status)
    asm.bind(end)
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)


def copying(*types: ArrayType, status: int = 0) -> NativeCall:
    """A model whose outputs are its inputs."""
    sizes = [
        np.dtype(kind.dtype).itemsize * int(np.prod([n or 1 for n in kind.shape]))
        for kind in types
    ]
    return NativeCall(copier(sizes, status), types, types, max(sizes))


def of_type(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape) * 2).astype(dtype)


class Subclass(np.ndarray):
    """Not exactly numpy's array: the stub must not assume its layout."""


def spin_until_told() -> ExecutableMemory:
    """Says in the second input that it runs, and waits until the first begins with anything but 0.

    It waits long, but not for ever.
    """
    asm = Assembler(Target.detect())
    again, told = asm.label("again"), asm.label("told")
    asm.emit("mov", rsi, Memory(rdi, 8))
    asm.emit("mov", rdi, Memory(rdi))
    asm.emit("mov", dword(rax), Memory(rdi, 4))
    asm.emit("mov", Memory(rsi, 4), dword(rax))
    asm.emit("mov", rcx, MOST_LOOKS)
    asm.bind(again)
    asm.emit("mov", dword(rax), Memory(rdi))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", told)
    asm.emit("pause")
    asm.emit("sub", rcx, 1)
    asm.jump("jnz", again)
    asm.bind(told)
    asm.emit("mov", Memory(rsi), dword(rax))
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)
