"""Checks of arrays that native code reads and writes: used in place, copied, or refused.

    checked_array    the array, or a copy
    check_in_place   a refusal in place of a copy
    check_outputs    arrays that results are written to
    rows_check       a native check whether an array holds rows that native code may read in place

For one row, numpy takes 1 us and the native check 0.05 us; reading the array's type, dtype and
shape in Python alone would take longer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory, builtin
from sparsejit.runtime.python_objects import (
    ALIGNED,
    ARRAY_DATA,
    ARRAY_SHAPE,
    C_CONTIGUOUS,
    METH_O,
    ArrayType,
    check_array,
    emit_constant,
    layout_is_known,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Literal, Memory, dword, r9, rax, rcx, rdx, rsi, ymm

Array = npt.NDArray[Any]


def is_free(kind: ArrayType) -> bool:
    return None in kind.shape


def free_length(arrays: Sequence[Array], kinds: Sequence[ArrayType]) -> int:
    """Return the batch size of a call: the free length of the first array whose type has one.

    It is 0 where that array has too few axes, or no type has a free length.
    """
    for array, kind in zip(arrays, kinds, strict=True):
        if is_free(kind):
            axis = kind.shape.index(None)
            found = isinstance(array, np.ndarray) and axis < array.ndim
            return int(array.shape[axis]) if found else 0
    return 0


def require_number(what: str, found: int, kinds: Sequence[ArrayType]) -> None:
    if found != len(kinds):
        names = ", ".join(kind.name for kind in kinds)
        raise InvalidInput(f"{found} {what} given; the model has {len(kinds)}: {names}")


def checked_array(array: Array, kind: ArrayType, rows: int = 0) -> Array:
    """Return the array, or a contiguous copy in native byte order where it is not usable in place.

    Raises InvalidInput for another type, dtype or shape; `rows` is the free length.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidInput(
            f"{kind.name} is a {type(array).__name__}; give a numpy array of {kind.dtype}"
        )
    if array.dtype.newbyteorder("=") != kind.dtype:
        raise InvalidInput(
            f"{kind.name} has dtype {array.dtype}; convert it to {kind.dtype}"
        )
    if array.shape != with_rows(kind.shape, rows):
        lengths = ["any" if length is None else str(length) for length in kind.shape]
        wanted = ", ".join(lengths) + "," * (len(lengths) == 1)
        same = _rows_in_words(kind, rows)
        raise InvalidInput(f"{kind.name} has shape {array.shape}; give ({wanted}){same}")
    return array if _is_plain(array) else np.require(array, kind.dtype, ("C", "A", "E"))


def _rows_in_words(kind: ArrayType, rows: int) -> str:
    """Describe the free length and its axis, for an error message."""
    if not is_free(kind):
        return ""
    axis = kind.shape.index(None)
    return f"; axis {axis} is the batch, {rows} in this call"


def _is_plain(array: Array) -> bool:
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def check_in_place(arrays: Sequence[Array], kinds: Sequence[ArrayType]) -> None:
    """Raise InvalidInput for an array that could only be read or written as a copy."""
    for array, kind in zip(arrays, kinds, strict=True):
        if not _is_plain(array):
            raise InvalidInput(
                f"{kind.name} is not contiguous, aligned and in native byte order; "
                "give np.ascontiguousarray of it"
            )


def check_outputs(
    outputs: Sequence[Array], kinds: Sequence[ArrayType], inputs: Sequence[Array], rows: int = 0
) -> None:
    """Raise InvalidInput for arrays that native code cannot write results to, in place.

    They must have the types `kinds`, be writable, and share no memory with each other or `inputs`.
    """
    for number, (output, kind) in enumerate(zip(outputs, kinds, strict=True)):
        checked_array(output, kind, rows)
        check_in_place([output], [kind])
        if not output.flags.writeable:
            raise InvalidInput(f"{kind.name} is read-only; give a writable array")
        if any(np.may_share_memory(output, other) for other in [*inputs, *outputs[:number]]):
            raise InvalidInput(f"{kind.name} shares memory with another array; give a new array")


def with_rows(shape: tuple[int | None, ...], rows: int) -> tuple[int, ...]:
    return tuple(rows if length is None else length for length in shape)


_VECTOR_BYTES = 32
# The interpreter lock is held during the check, which takes a millisecond for larger arrays.
_MOST_BYTES = 1 << 24


def rows_check(
    columns: int, dtypes: Sequence[np.dtype[Any]], finite: bool
) -> Callable[[object], bool]:
    """Return a built-in `check(X)`: whether native code may read X, (rows, columns), in place.

    It returns True where X has rows, is contiguous and has one of the dtypes, float32 or float64,
    and, with `finite`, no value is NaN or infinite. False means only that slower checks are
    needed: it is also returned for arrays above 16 MiB with `finite`, and always where the layout
    of the interpreter's objects is unknown.
    """
    if not layout_is_known():
        return lambda X: False
    asm = Assembler(Target.detect())
    no = asm.label("no")
    for dtype in dtypes:
        other = asm.label(f"not {dtype}")
        check_array(asm, rsi, dtype, (None, columns), C_CONTIGUOUS | ALIGNED, other)
        _check_rows(asm, dtype, columns, finite, no)
        emit_constant(asm, True)
        asm.emit("ret")
        asm.bind(other)
    asm.bind(no)
    emit_constant(asm, False)
    asm.emit("ret")
    code = ExecutableMemory(asm.finish().data)
    return builtin("check", code.address, METH_O, code)


def _check_rows(
    asm: Assembler, dtype: np.dtype[Any], columns: int, finite: bool, no: Label
) -> None:
    asm.emit("mov", rcx, Memory(rsi, ARRAY_SHAPE))
    asm.emit("mov", rcx, Memory(rcx))
    asm.emit("test", rcx, rcx)
    asm.jump("jz", no)
    if not finite or not columns:
        return
    asm.emit("imul", rcx, rcx, columns * dtype.itemsize)
    asm.emit("cmp", rcx, _MOST_BYTES)
    asm.jump("ja", no)
    asm.emit("mov", rdx, Memory(rsi, ARRAY_DATA))
    _check_finite(asm, dtype, no)


def _check_finite(asm: Assembler, dtype: np.dtype[Any], no: Label) -> None:
    """Emit a jump to `no`, taken if a value in rcx bytes at rdx has all exponent bits set.

    Whole vectors are read first, then single values. Changes rax, rcx, rdx, r9 and ymm0 to ymm4.
    """
    names = ("vectors", "rest", "single", "done")
    vectors, rest, single, done = map(asm.label, names)
    exponent = np.array(np.inf, dtype)
    is_double = dtype.itemsize == 8
    equal, value, bits = ("vpcmpeqq", rax, r9) if is_double else ("vpcmpeqd", dword(rax), dword(r9))
    asm.emit("mov", bits, int(exponent.view(f"u{dtype.itemsize}")))
    lanes = np.full(_VECTOR_BYTES // dtype.itemsize, exponent)
    asm.emit("vmovups", ymm(0), Literal(asm.literal(lanes)))
    seen, loaded = (ymm(1), ymm(2)), (ymm(3), ymm(4))
    step = _VECTOR_BYTES * len(seen)
    for each in seen:
        asm.emit("vpxor", each, each, each)
    asm.emit("sub", rcx, step)
    asm.jump("jl", rest)
    asm.bind(vectors)
    for part, (each, vector) in enumerate(zip(seen, loaded, strict=True)):
        asm.emit("vpand", vector, ymm(0), Memory(rdx, part * _VECTOR_BYTES))
        asm.emit(equal, vector, vector, ymm(0))
        asm.emit("vpor", each, each, vector)
    asm.emit("add", rdx, step)
    asm.emit("sub", rcx, step)
    asm.jump("jge", vectors)
    asm.bind(rest)
    asm.emit("vpor", seen[0], seen[0], seen[1])
    asm.emit("vpmovmskb", dword(rax), seen[0])
    asm.emit("vzeroupper")
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", no)
    asm.emit("add", rcx, step)
    asm.jump("jz", done)
    asm.bind(single)
    asm.emit("mov", value, Memory(rdx))
    asm.emit("and", value, bits)
    asm.emit("cmp", value, bits)
    asm.jump("je", no)
    asm.emit("add", rdx, dtype.itemsize)
    asm.emit("sub", rcx, dtype.itemsize)
    asm.jump("jnz", single)
    asm.bind(done)
