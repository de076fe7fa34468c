"""A native stub for calls of one function: checks its inputs, makes its outputs, takes a workspace.

    check the arguments, store their addresses     else  -> fallback
    make a list and arrays for the outputs         else  -> return with the Python error set
    pop a workspace off the list of free ones      else  -> fallback, which makes one
    release the interpreter lock, run, take it again
    push the workspace; return the list            else  -> fallback, which reports the status

All steps except the run hold the interpreter lock, so that no two calls get the same workspace.

A ctypes call costs 0.3 us and the address of a numpy array, in Python, 0.7 us: several times the
time of a small kernel. CPython calls the stub as a built-in function, and the stub reads numpy's
array structure. The stub of a kernel, `void kernel(x, y)`, has no workspace and no list, and
accepts a y as well.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory, builtin, python_function
from sparsejit.runtime.filled_memory import emit_fill_array, emit_fill_bytes, fills
from sparsejit.runtime.python_objects import (
    ALIGNED,
    ARRAY_DATA,
    ARRAY_SHAPE,
    C_CONTIGUOUS,
    LIST_ITEMS,
    LIST_SIZE,
    METH_FASTCALL,
    REFERENCES,
    WRITEABLE,
    ArrayType,
    check_array,
    emit_call,
    jump_to_vectorcall,
    layout_is_known,
    new_array_function,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r12,
    r13,
    r14,
    r15,
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

_SAVED = (rbx, rbp, r12, r13, r14, r15)


def call_stub(
    memory: ExecutableMemory,
    input_types: Sequence[ArrayType],
    output_types: Sequence[ArrayType],
    workspaces: list[Any] | None,
    fallback: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a built-in `run(*inputs) -> outputs` for plain numpy arrays.

    All other calls go to `fallback`. `workspaces` is the list of workspaces not in use, each an
    array of the bytes that the function needs. Where it is None the function is a kernel, and the
    stub is `run(x) -> y`, or `run(x, y) -> y` where y shares no memory with x.
    """
    if not layout_is_known():
        return fallback
    kind = CallStub if workspaces is not None else _KernelStub
    code = kind(memory, tuple(input_types), tuple(output_types)).emit(workspaces, fallback)
    return builtin("run", code.address, METH_FASTCALL, (code, memory, workspaces, fallback))


class CallStub:
    """Emits the stub of a model's function.

    Registers: rbx, rbp: the arguments and their number; r12: rows of the free batch, later the
    status; r13: the list of outputs; r14: the thread's state; r15: the workspace. The stack holds
    the tables of addresses, the shape of an array to be made, and the number of samples.
    """

    _has_workspace = True
    _further_bytes = 0  # on the stack, at `_further`

    def __init__(
        self,
        memory: ExecutableMemory,
        input_types: tuple[ArrayType, ...],
        output_types: tuple[ArrayType, ...],
    ) -> None:
        self._function = memory.address
        self._inputs, self._outputs = input_types, output_types
        self._asm = asm = Assembler(Target.detect())
        self._unusual, self._discard = asm.label("unusual"), asm.label("discard")
        self._failed, self._done = asm.label("failed"), asm.label("done")
        longest = max((len(kind.shape) for kind in output_types), default=0)
        self._output_table = 8 * len(input_types)
        self._shape = self._output_table + 8 * len(output_types)
        self._samples = self._shape + 8 * longest
        self._further = self._samples + 8
        # After the return address and six pushes, the stack is 8 bytes off a multiple of 16.
        self._frame = (self._further + self._further_bytes) // 16 * 16 + 8

    def emit(
        self, workspaces: Any, fallback: Callable[..., Any] | None = None
    ) -> ExecutableMemory:
        asm = self._asm
        push(asm, _SAVED)
        asm.emit("sub", rsp, self._frame)
        asm.emit("mov", rbx, rsi)
        asm.emit("mov", rbp, rdx)
        self._call(workspaces)
        asm.emit("mov", rax, r13)
        asm.bind(self._done)
        self._leave()
        asm.emit("ret")
        self._emit_failure()
        self._emit_fallback(fallback)
        return ExecutableMemory(asm.finish().data)

    def _call(self, workspaces: Any) -> None:
        asm = self._asm
        asm.emit("cmp", rbp, len(self._inputs))
        asm.jump("jne", self._unusual)
        self._check_inputs()
        self._count_samples()
        self._make_outputs()
        self._take_workspace(workspaces)
        self._run_unlocked()
        self._return_workspace(workspaces)
        asm.emit("test", dword(r12), dword(r12))
        asm.jump("jnz", self._discard)

    def _check_inputs(self) -> None:
        rows: Register | None = None
        for number, kind in enumerate(self._inputs):
            shape = [rows if length is None else length for length in kind.shape]
            self._check_input(number, np.dtype(kind.dtype), shape, self._unusual)
            rows = r12 if None in shape else rows

    def _check_input(
        self, number: int, dtype: np.dtype[Any], shape: Sequence[int | Register | None], no: Label
    ) -> None:
        """Jump to `no` unless an argument is an array of this type; store its address."""
        asm = self._asm
        asm.emit("mov", rax, Memory(rbx, 8 * number))
        check_array(asm, rax, dtype, shape, C_CONTIGUOUS | ALIGNED, no)
        self._store_input(number, shape, Memory(rax, ARRAY_SHAPE), Memory(rax, ARRAY_DATA))

    def _store_input(
        self, number: int, shape: Sequence[int | Register | None], lengths: Memory, data: Memory
    ) -> None:
        """Store the address of an input, and its rows in r12 where the shape leaves them open."""
        asm = self._asm
        if None in shape:
            asm.emit("mov", rcx, lengths)
            asm.emit("mov", r12, Memory(rcx))
        asm.emit("mov", rcx, data)
        asm.emit("mov", Memory(rsp, 8 * number), rcx)

    def _count_samples(self) -> None:
        asm = self._asm
        if any(None in kind.shape for kind in self._inputs):
            asm.emit("mov", rax, r12)
        else:
            asm.emit("mov", rax, 1)
        asm.emit("mov", Memory(rsp, self._samples), rax)

    def _make_outputs(self) -> None:
        asm = self._asm
        asm.emit("mov", rdi, len(self._outputs))
        emit_call(asm, python_function("PyList_New"))
        asm.emit("mov", r13, rax)
        asm.emit("test", rax, rax)
        asm.jump("jz", self._done)
        for number, kind in enumerate(self._outputs):
            self._make_array(kind)
            asm.jump("jz", self._failed)
            asm.emit("mov", rcx, Memory(r13, LIST_ITEMS))
            asm.emit("mov", Memory(rcx, 8 * number), rax)
            asm.emit("mov", rcx, Memory(rax, ARRAY_DATA))
            asm.emit("mov", Memory(rsp, self._output_table + 8 * number), rcx)

    def _make_array(self, kind: ArrayType) -> None:
        """Set rax to a new array, owned; the zero flag is set where it is 0 and an error is set."""
        asm = self._asm
        for axis, length in enumerate(kind.shape):
            if length is not None:
                asm.emit("mov", rax, length)
            asm.emit("mov", Memory(rsp, self._shape + 8 * axis), r12 if length is None else rax)
        dtype = id(np.dtype(kind.dtype))
        asm.emit("mov", rdi, dtype)  # one reference, which the new array takes over
        emit_call(asm, python_function("Py_IncRef"))
        asm.emit("mov", rdi, len(kind.shape))
        asm.emit("lea", rsi, Memory(rsp, self._shape))
        asm.emit("mov", rdx, dtype)
        asm.emit("xor", dword(rcx), dword(rcx))
        emit_call(asm, new_array_function())
        asm.emit("test", rax, rax)

    def _take_workspace(self, workspaces: list[Any]) -> None:
        """Pop the last workspace; as in list.pop, the list's allocation stays as it is."""
        asm = self._asm
        asm.emit("mov", rax, id(workspaces))
        asm.emit("mov", rcx, Memory(rax, LIST_SIZE))
        asm.emit("sub", rcx, 1)
        asm.jump("jl", self._discard)
        asm.emit("mov", Memory(rax, LIST_SIZE), rcx)
        asm.emit("mov", rdx, Memory(rax, LIST_ITEMS))
        asm.emit("mov", r15, Memory(rdx, 0, rcx, 8))

    def _run_unlocked(self) -> None:
        asm = self._asm
        emit_call(asm, python_function("PyEval_SaveThread"))
        asm.emit("mov", r14, rax)
        if fills():
            self._fill()
        self._pass_arguments()
        emit_call(asm, self._function)
        asm.emit("mov", dword(r12), dword(rax))
        asm.emit("mov", rdi, r14)
        emit_call(asm, python_function("PyEval_RestoreThread"))

    def _fill(self) -> None:
        for number, kind in enumerate(self._outputs):
            emit_fill_array(self._asm, Memory(rsp, self._output_table + 8 * number), kind, r12)
        if self._has_workspace:
            emit_fill_bytes(self._asm, r15)

    def _pass_arguments(self) -> None:
        asm = self._asm
        asm.emit("mov", rdi, rsp)
        asm.emit("lea", rsi, Memory(rsp, self._output_table))
        asm.emit("mov", rdx, Memory(r15, ARRAY_DATA))
        asm.emit("mov", rcx, Memory(rsp, self._samples))

    def _return_workspace(self, workspaces: list[Any]) -> None:
        asm = self._asm
        asm.emit("mov", rdi, id(workspaces))
        asm.emit("mov", rsi, r15)
        emit_call(asm, python_function("PyList_Append"))
        asm.emit("mov", dword(r14), dword(rax))
        asm.emit("mov", rdi, r15)
        emit_call(asm, python_function("Py_DecRef"))
        asm.emit("test", dword(r14), dword(r14))
        asm.jump("jnz", self._failed)

    def _emit_failure(self) -> None:
        """Emit the failure path: drop the outputs and return NULL; the Python error is set."""
        asm = self._asm
        asm.bind(self._failed)
        asm.emit("mov", rdi, r13)
        emit_call(asm, python_function("Py_DecRef"))
        asm.emit("xor", dword(rax), dword(rax))
        asm.jump("jmp", self._done)

    def _emit_fallback(self, fallback: Callable[..., Any] | None) -> None:
        asm = self._asm
        asm.bind(self._discard)
        asm.emit("mov", rdi, r13)
        emit_call(asm, python_function("Py_DecRef"))
        asm.bind(self._unusual)
        asm.emit("mov", rdi, id(fallback))
        asm.emit("mov", rsi, rbx)
        asm.emit("mov", rdx, rbp)
        self._leave()
        jump_to_vectorcall(asm)

    def _leave(self) -> None:
        self._asm.emit("add", rsp, self._frame)
        pop(self._asm, _SAVED)


class _KernelStub(CallStub):
    """Emits the stub of `void kernel(x, y)`; r13: the result."""

    _has_workspace = False

    def _call(self, workspaces: Any) -> None:
        asm = self._asm
        taken, new, ready = (asm.label(name) for name in ("number taken", "new result", "ready"))
        (result,) = self._outputs
        for count in (1, 2):
            asm.emit("cmp", rbp, count)
            asm.jump("je", taken)
        asm.jump("jmp", self._unusual)
        asm.bind(taken)
        self._check_inputs()
        asm.emit("cmp", rbp, 1)
        asm.jump("je", new)
        asm.emit("mov", r13, Memory(rbx, 8))
        flags = C_CONTIGUOUS | ALIGNED | WRITEABLE
        check_array(asm, r13, np.dtype(result.dtype), result.shape, flags, self._unusual)
        asm.emit("mov", rcx, Memory(r13, ARRAY_DATA))
        self._check_apart()
        asm.emit("mov", rax, Memory(r13, REFERENCES))
        asm.emit("add", rax, 1)
        asm.emit("mov", Memory(r13, REFERENCES), rax)
        asm.jump("jmp", ready)
        asm.bind(new)
        self._make_array(result)
        asm.jump("jz", self._done)
        asm.emit("mov", r13, rax)
        asm.emit("mov", rcx, Memory(rax, ARRAY_DATA))
        asm.bind(ready)
        asm.emit("mov", Memory(rsp, self._output_table), rcx)
        self._run_unlocked()

    def _check_apart(self) -> None:
        """Jump to `unusual` if x, on the stack, and y, at rcx, overlap."""
        asm, apart = self._asm, self._asm.label("apart")
        asm.emit("mov", rdx, Memory(rsp))
        for first, second, kind, jump, to in (
            (rdx, rcx, self._inputs[0], "jbe", apart),
            (rcx, rdx, self._outputs[0], "ja", self._unusual),
        ):
            asm.emit("lea", rax, Memory(first, kind.bytes))
            asm.emit("cmp", rax, second)
            asm.jump(jump, to)
        asm.bind(apart)

    def _pass_arguments(self) -> None:
        for register, place in ((rdi, 0), (rsi, self._output_table)):
            self._asm.emit("mov", register, Memory(rsp, place))
