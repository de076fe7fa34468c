"""Native stub for calls with torch tensors or numpy arrays, which returns the same.

    check the arguments, store their addresses     else  -> return None
    make arrays for the outputs, run the function  else  -> return None
    make tensors of the outputs if an argument was a tensor

The caller runs a call that returned None by way of Python. A tensor costs 0.3 us here, and
`tensor.numpy()` twice that. A function of DLPack's exchange API describes a tensor in a
structure with a fixed layout; the stub reads no structure of torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsejit.native.executable_memory import (
    ExecutableMemory,
    builtin,
    native_field,
    python_function,
)
from sparsejit.runtime.call_stub import CallStub
from sparsejit.runtime.python_objects import (
    LIST_ITEMS,
    METH_FASTCALL,
    REFERENCES,
    TYPE,
    ArrayType,
    emit_call,
    emit_constant,
    emit_vectorcall,
    layout_is_known,
    pointer_of,
)
from sparsejit.x86.assembler import Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r13,
    r14,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
)

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
) -> Callable[..., Any] | None:
    """Return a built-in `run(*inputs)` of a model's function, or None where none can be made.

    It returns the list of outputs, or, where `is_single`, the only output; they are tensors if an
    input is. It returns None for all but contiguous arrays and tensors of the input types, where
    `workspaces` is empty, and where the function returns a status. It takes tensors if torch is
    given and has DLPack's exchange API.
    """
    if not layout_is_known():
        return None
    known = None if torch is None else _TensorFunctions.of(torch)
    stub = _DirectStub(memory, tuple(input_types), tuple(output_types))
    stub.is_single, stub.torch = is_single, known
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
        """Fill the DLTensor from an argument."""
        asm = self._asm
        asm.emit("mov", rdi, Memory(rbx, 8 * number))
        asm.emit("lea", rsi, Memory(rsp, self._further))
        emit_call(asm, torch.describe)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jnz", self._clear)

    def _check_tensor(
        self, number: int, dtype: np.dtype[Any], shape: Sequence[int | Register | None], no: Label
    ) -> None:
        """Jump to `no` unless the DLTensor is plain and of this type; store its address."""
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
        """Call a Python object with one argument."""
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
        """Put the only item in place of the list."""
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
