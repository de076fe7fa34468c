"""Native stubs for calls of one function: they check inputs, make outputs, and take a workspace.

    call_stub      takes numpy arrays; other calls go to a fallback in Python
    direct_stub    takes numpy arrays and torch tensors, and returns the same; None for other calls

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

The direct stub makes tensors of the outputs if an argument was a tensor. A tensor costs 0.3 us
there, and `tensor.numpy()` twice that. A function of DLPack's exchange API describes a tensor in a
structure with a fixed layout; the stub reads no structure of torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import (
    ExecutableMemory,
    builtin,
    native_field,
    python_function,
)
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
    TYPE,
    WRITEABLE,
    ArrayType,
    check_array,
    emit_call,
    emit_constant,
    emit_vectorcall,
    jump_to_vectorcall,
    layout_is_known,
    new_array_function,
    pointer_of,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
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
    has_block: bool = False,
) -> Callable[..., Any]:
    """Return a built-in `run(*inputs) -> outputs` for plain numpy arrays.

    All other calls go to `fallback`. `workspaces` is the list of workspaces not in use, each an
    array of the bytes that the function needs. Where it is None the function is a kernel, and the
    stub is `run(x) -> y`, or `run(x, y) -> y` where y shares no memory with x. If it `has_block`,
    the only workspace keeps states, which nothing fills.
    """
    if not layout_is_known():
        return fallback
    kind = CallStub if workspaces is not None else _KernelStub
    stub = kind(memory, tuple(input_types), tuple(output_types))
    stub.has_block = has_block
    code = stub.emit(workspaces, fallback)
    return builtin("run", code.address, METH_FASTCALL, (code, memory, workspaces, fallback))


class CallStub:
    """Emits the stub of a model's function.

    Registers: rbx, rbp: the arguments and their number; r12: rows of the free batch, later the
    status; r13: the list of outputs; r14: the thread's state; r15: the workspace. The stack holds
    the tables of addresses, the shape of an array to be made, and the number of samples.
    """

    _has_workspace = True
    has_block = False
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
        """Store the address of an input, and its rows in r12 where the shape leaves them open.

        `lengths` and `data` are the places of the pointers to its shape and to its elements.
        """
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
        """Emit code that makes an array, owned, in rax; where that fails, rax is 0.

        Then a Python error is set. The zero flag tells which.
        """
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
        """Emit code that pops the last workspace off the list into r15.

        As in list.pop, the list's allocation stays as it is.
        """
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
        if self._has_workspace and not self.has_block:
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


# DLTensor and DLPackExchangeAPI: byte offsets (dlpack.h, major version 1).
_DATA, _DEVICE, _AXES, _DTYPE, _SHAPE, _STRIDES, _OFFSET = 0, 8, 16, 20, 24, 32, 40
_DLTENSOR_BYTES = 48
_DESCRIBE = 40  # int dltensor_from_py_object_no_sync(object, DLTensor *)
_CPU, _MAJOR = 1, 1
_KINDS = {"i": 0, "f": 2, "b": 6}  # DLDataTypeCode, by numpy's kind


def direct_stub(
    memory: ExecutableMemory,
    input_types: Sequence[ArrayType],
    output_types: Sequence[ArrayType],
    workspaces: list[Any],
    is_single: bool,
    torch: Any = None,
    has_block: bool = False,
) -> Callable[..., Any] | None:
    """Return a built-in `run(*inputs)` of a model's function, or None where none can be made.

    It returns the list of outputs, or, where `is_single`, the only output; they are tensors if an
    input is. It returns None for all but contiguous arrays and tensors of the input types, where
    `workspaces` is empty, and where the function returns a status. It takes tensors if torch is
    given and has DLPack's exchange API. `has_block` is as in `call_stub`.
    """
    if not layout_is_known():
        return None
    known = None if torch is None else _TensorFunctions.of(torch)
    stub = _DirectStub(memory, tuple(input_types), tuple(output_types))
    stub.is_single, stub.torch, stub.has_block = is_single, known, has_block
    code = stub.emit(workspaces)
    return builtin("run", code.address, METH_FASTCALL, (code, memory, workspaces, known))


class _TensorFunctions(NamedTuple):
    """The class of tensors, functions of Python's objects, and the address of a C function."""

    tensor: Any
    is_negated: Any
    from_array: Any
    describe: int

    @classmethod
    def of(cls, torch: Any) -> "_TensorFunctions | None":
        """Return the functions; None in versions of torch that lack DLPack's exchange API."""
        capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if capsule is None:
            return None
        api = pointer_of(capsule, b"dlpack_exchange_api")
        if native_field(api, 4) != _MAJOR:
            return None
        describe = native_field(api + _DESCRIBE, 8)
        return cls(torch.Tensor, torch.Tensor.is_neg, torch.from_numpy, describe)


class _DirectStub(CallStub):
    """Code of a direct stub; the stack also holds a DLTensor, and whether an input is a tensor."""

    _further_bytes = _DLTENSOR_BYTES + 8
    is_single = False
    torch: _TensorFunctions | None = None

    def _call(self, workspaces: Any) -> None:
        asm = self._asm
        self._is_tensor = Memory(rsp, self._further + _DLTENSOR_BYTES)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self._is_tensor, rax)
        self._clear = asm.label("clear the error")
        super()._call(workspaces)
        if self.torch is not None:
            self._make_tensors(self.torch)
        if self.is_single:
            self._take_single()

    def _check_input(
        self, number: int, dtype: np.dtype[Any], shape: Sequence[int | Register | None], no: Label
    ) -> None:
        torch = self.torch
        if torch is None:
            super()._check_input(number, dtype, shape, no)
            return
        asm = self._asm
        tensor, done = asm.label(f"tensor {number}"), asm.label(f"checked {number}")
        super()._check_input(number, dtype, shape, tensor)
        asm.jump("jmp", done)
        asm.bind(tensor)
        asm.emit("mov", rax, Memory(rbx, 8 * number))
        asm.emit("mov", r8, id(torch.tensor))
        asm.emit("cmp", r8, Memory(rax, TYPE))
        asm.jump("jne", no)
        self._check_sign(torch, number, no)
        self._describe(torch, number)
        self._check_tensor(number, dtype, shape, no)
        asm.emit("mov", self._is_tensor, rcx)  # the address of the values, which is not 0
        asm.bind(done)

    def _check_sign(self, torch: _TensorFunctions, number: int, no: Label) -> None:
        """Jump to `no` for a tensor whose memory holds the negative values."""
        asm = self._asm
        self._call_object(id(torch.is_negated), Memory(rbx, 8 * number))
        asm.emit("test", rax, rax)
        asm.jump("jz", self._clear)
        asm.emit("mov", r14, rax)
        asm.emit("mov", rdi, rax)
        emit_call(asm, python_function("Py_DecRef"))
        asm.emit("mov", r8, id(False))
        asm.emit("cmp", r8, r14)
        asm.jump("jne", no)

    def _describe(self, torch: _TensorFunctions, number: int) -> None:
        """Emit a call of DLPack's function that fills the stack's DLTensor from an argument."""
        asm = self._asm
        asm.emit("mov", rdi, Memory(rbx, 8 * number))
        asm.emit("lea", rsi, Memory(rsp, self._further))
        emit_call(asm, torch.describe)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jnz", self._clear)

    def _check_tensor(
        self, number: int, dtype: np.dtype[Any], shape: Sequence[int | Register | None], no: Label
    ) -> None:
        """Jump to `no` unless the DLTensor has this type and is contiguous on the CPU.

        It must be aligned and have no offset. Store its address.
        """
        asm, first = self._asm, self._further
        kind = _KINDS[dtype.kind] | 8 * dtype.itemsize << 8 | 1 << 16
        for place, expected in ((_DEVICE, _CPU), (_AXES, len(shape)), (_DTYPE, kind)):
            asm.emit("mov", dword(r8), Memory(rsp, first + place))
            asm.emit("cmp", dword(r8), expected)
            asm.jump("jne", no)
        asm.emit("mov", rcx, Memory(rsp, first + _SHAPE))
        asm.emit("mov", rdx, Memory(rsp, first + _STRIDES))
        step = 1
        for axis, length in reversed(list(enumerate(shape))):
            # torch may give any stride to an axis of one element.
            for table, field in ((rcx, length), (rdx, None if length == 1 else step)):
                if field is not None:
                    asm.emit("mov", r8, Memory(table, 8 * axis))
                    asm.emit("cmp", r8, field)
                    asm.jump("jne", no)
            step *= length if isinstance(length, int) else 1  # only the first axis has no number
        self._check_address(dtype, no)
        self._store_input(
            number, shape, Memory(rsp, first + _SHAPE), Memory(rsp, first + _DATA)
        )

    def _check_address(self, dtype: np.dtype[Any], no: Label) -> None:
        """Jump to `no` for a DLTensor without memory, with an offset, or not aligned."""
        asm, first = self._asm, self._further
        asm.emit("mov", rcx, Memory(rsp, first + _DATA))
        asm.emit("test", rcx, rcx)
        asm.jump("jz", no)
        asm.emit("test", dword(rcx), dtype.itemsize - 1)
        asm.jump("jnz", no)
        asm.emit("mov", rcx, Memory(rsp, first + _OFFSET))
        asm.emit("test", rcx, rcx)
        asm.jump("jnz", no)

    def _call_object(self, called: int, arguments: Memory) -> None:
        """Emit a call of the Python object at address `called` with one argument."""
        self._asm.emit("mov", rdi, called)
        self._asm.emit("lea", rsi, arguments)
        self._asm.emit("mov", rdx, 1)
        emit_vectorcall(self._asm)

    def _make_tensors(self, torch: _TensorFunctions) -> None:
        """Put tensors of the same memory in place of the outputs, if an input is a tensor."""
        asm = self._asm
        arrays = asm.label("arrays")
        asm.emit("mov", rax, self._is_tensor)
        asm.emit("test", rax, rax)
        asm.jump("jz", arrays)
        for number in range(len(self._outputs)):
            asm.emit("mov", rcx, Memory(r13, LIST_ITEMS))
            self._call_object(id(torch.from_array), Memory(rcx, 8 * number))
            asm.emit("test", rax, rax)
            asm.jump("jz", self._failed)
            asm.emit("mov", rcx, Memory(r13, LIST_ITEMS))
            asm.emit("mov", rdi, Memory(rcx, 8 * number))
            asm.emit("mov", Memory(rcx, 8 * number), rax)
            emit_call(asm, python_function("Py_DecRef"))
        asm.bind(arrays)

    def _take_single(self) -> None:
        """Replace the list of outputs in r13 by its only item."""
        asm = self._asm
        asm.emit("mov", rdi, r13)
        asm.emit("mov", rcx, Memory(r13, LIST_ITEMS))
        asm.emit("mov", r13, Memory(rcx))
        asm.emit("mov", rcx, Memory(r13, REFERENCES))
        asm.emit("add", rcx, 1)
        asm.emit("mov", Memory(r13, REFERENCES), rcx)
        emit_call(asm, python_function("Py_DecRef"))

    def _emit_fallback(self, fallback: Callable[..., Any] | None) -> None:
        asm = self._asm
        asm.bind(self._discard)
        asm.emit("mov", rdi, r13)
        emit_call(asm, python_function("Py_DecRef"))
        asm.jump("jmp", self._unusual)
        asm.bind(self._clear)
        emit_call(asm, python_function("PyErr_Clear"))
        asm.bind(self._unusual)
        emit_constant(asm, None)
        asm.jump("jmp", self._done)
