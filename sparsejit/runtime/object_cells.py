"""A native reader of numpy arrays of Python objects: words become codes, numbers become float64.

    read_cells(objects, table, result) -> bool

    each cell    of words      the code that a dict of Python has for it
                               else the code of NaN, or of words that the dict lacks
                 of numbers    its float64

A dict is the hash table, so words are equal where Python finds them equal: strings, None, numbers
and booleans alike. A row of ten cells takes 0.2 us there. The reader returns False where a cell
needs slower code: a refused one, an odd kind of NaN, or an object that is no number.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import (
    ExecutableMemory,
    builtin,
    native_field,
    python_function,
)
from sparsejit.runtime.python_objects import (
    ARRAY_DATA,
    ARRAY_SHAPE,
    METH_FASTCALL,
    TYPE,
    emit_call,
    emit_constant,
    layout_is_known,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
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
    xmm,
)
from sparsejit.x86.routines import pop, push

Array = npt.NDArray[Any]

_SAVED = (rbx, rbp, r12, r13, r14, r15)
_FRAME = 24  # bytes of the stack: bytes of a row of objects, columns of the table, a cell
_ROW_BYTES, _COLUMNS, _CELL = (Memory(rsp, place) for place in (0, 8, 16))
_FLOAT_VALUE = 16  # of PyFloatObject (Include/cpython/floatobject.h)
# A row of the table: byte offset of a cell in its row of objects, address of the dict or 0, bits of
# the codes of NaN and of other words.
OFFSET, WORDS, NAN, OTHERS = range(4)
REFUSED = 0x7FF4_0000_0000_0001  # bits of a code, a signalling NaN: the cell is refused
_NAN_FROM = 0xFFE0_0000_0000_0000  # twice the bits of infinity
_MINUS_ONE = int(np.float64(-1).view(np.uint64))


@cache
def cells_reader() -> Callable[[Array, Array, Array], bool]:
    """Return the built-in `read_cells`.

    objects (rows, features) is of dtype object, the table int64 (columns, 4), the result float64
    (rows, columns); all are contiguous. Where the layout of the interpreter's objects is unknown it
    returns False for all.
    """
    if not (layout_is_known() and _floats_are_known()):
        return lambda objects, table, result: False
    code = ExecutableMemory(_CellReader().data())
    return builtin("read_cells", code.address, METH_FASTCALL, code)


def _floats_are_known() -> bool:
    probe = 1.25
    return native_field(id(probe) + _FLOAT_VALUE, 8) == int(np.float64(probe).view(np.uint64))


class _CellReader:
    """Emits the reader.

    Registers: rbx: a row of objects; rbp: the next result; r12: rows left; r13: the table; r14:
    columns left; r15: a row of the table.
    """

    def __init__(self) -> None:
        self._asm = Assembler(Target.detect())
        names = ("store", "next", "no", "done")
        self._store, self._next, self._no, self._done = map(self._asm.label, names)

    def data(self) -> bytes | memoryview:
        asm = self._asm
        push(asm, _SAVED)
        asm.emit("sub", rsp, _FRAME)
        self._begin()
        self._rows()
        emit_constant(asm, True)
        asm.bind(self._done)
        asm.emit("add", rsp, _FRAME)
        pop(asm, _SAVED)
        asm.emit("ret")
        asm.bind(self._no)
        emit_constant(asm, False)
        asm.jump("jmp", self._done)
        return asm.finish().data

    def _begin(self) -> None:
        asm = self._asm
        asm.emit("mov", rax, Memory(rsi))
        asm.emit("mov", rbx, Memory(rax, ARRAY_DATA))
        asm.emit("mov", rax, Memory(rax, ARRAY_SHAPE))
        asm.emit("mov", r12, Memory(rax))
        asm.emit("mov", rcx, Memory(rax, 8))
        asm.emit("shl", rcx, 3)
        asm.emit("mov", _ROW_BYTES, rcx)
        asm.emit("mov", rax, Memory(rsi, 8))
        asm.emit("mov", r13, Memory(rax, ARRAY_DATA))
        asm.emit("mov", rax, Memory(rax, ARRAY_SHAPE))
        asm.emit("mov", rcx, Memory(rax))
        asm.emit("mov", _COLUMNS, rcx)
        asm.emit("mov", rax, Memory(rsi, 16))
        asm.emit("mov", rbp, Memory(rax, ARRAY_DATA))

    def _rows(self) -> None:
        asm = self._asm
        row, cell, end = map(asm.label, ("row", "cell", "end"))
        asm.bind(row)
        asm.emit("test", r12, r12)
        asm.jump("jz", end)
        asm.emit("mov", r15, r13)
        asm.emit("mov", r14, _COLUMNS)
        asm.bind(cell)
        self._cell()
        asm.bind(self._store)
        asm.emit("mov", Memory(rbp), rax)
        asm.bind(self._next)
        asm.emit("add", rbp, 8)
        asm.emit("add", r15, 32)
        asm.emit("sub", r14, 1)
        asm.jump("jnz", cell)
        asm.emit("add", rbx, _ROW_BYTES)
        asm.emit("sub", r12, 1)
        asm.jump("jmp", row)
        asm.bind(end)

    def _cell(self) -> None:
        """Set rax to the bits of a cell's code or number."""
        asm = self._asm
        number, lacking = asm.label("number"), asm.label("lacking")
        asm.emit("mov", rax, Memory(r15, 8 * OFFSET))
        asm.emit("add", rax, rbx)
        asm.emit("mov", rsi, Memory(rax))
        asm.emit("test", rsi, rsi)
        asm.jump("jz", self._no)
        asm.emit("mov", rdi, Memory(r15, 8 * WORDS))
        asm.emit("test", rdi, rdi)
        asm.jump("jz", number)
        asm.emit("mov", _CELL, rsi)
        emit_call(asm, python_function("PyDict_GetItem"))
        asm.emit("test", rax, rax)
        asm.jump("jz", lacking)
        asm.emit("mov", rax, Memory(rax, _FLOAT_VALUE))
        asm.jump("jmp", self._store)
        asm.bind(lacking)
        self._lacking()
        asm.bind(number)
        self._number()

    def _lacking(self) -> None:
        """Jump to the store with the code of a word that is not in the dict."""
        asm = self._asm
        others, chosen = asm.label("others"), asm.label("chosen")
        asm.emit("mov", rsi, _CELL)
        self._jump_if_of(str, others)
        self._jump_unless_of(float, self._no)
        asm.emit("mov", rax, Memory(rsi, _FLOAT_VALUE))
        asm.emit("add", rax, rax)  # without the sign
        asm.emit("mov", rcx, _NAN_FROM)
        asm.emit("cmp", rax, rcx)
        asm.emit("mov", rax, Memory(r15, 8 * NAN))
        asm.jump("ja", chosen)
        asm.bind(others)
        asm.emit("mov", rax, Memory(r15, 8 * OTHERS))
        asm.bind(chosen)
        asm.emit("mov", rcx, REFUSED)
        asm.emit("cmp", rax, rcx)
        asm.jump("je", self._no)
        asm.jump("jmp", self._store)

    def _number(self) -> None:
        """Fall through to the store with the bits of a number, or jump to `no`."""
        asm = self._asm
        other, usual = asm.label("other"), asm.label("usual")
        self._jump_unless_of(float, other)
        asm.emit("mov", rax, Memory(rsi, _FLOAT_VALUE))
        asm.jump("jmp", self._store)
        asm.bind(other)
        asm.emit("mov", rdi, rsi)
        emit_call(asm, python_function("PyFloat_AsDouble"))
        asm.emit("vmovsd", Memory(rbp), xmm(0))
        asm.emit("mov", rax, Memory(rbp))
        asm.emit("mov", rcx, _MINUS_ONE)
        asm.emit("cmp", rax, rcx)
        asm.jump("jne", self._store)
        emit_call(asm, python_function("PyErr_Occurred"))
        asm.emit("test", rax, rax)
        asm.jump("jz", usual)
        emit_call(asm, python_function("PyErr_Clear"))
        asm.jump("jmp", self._no)
        asm.bind(usual)
        asm.emit("mov", rax, Memory(rbp))

    def _jump_if_of(self, kind: type, label: Label) -> None:
        self._compare_type(kind)
        self._asm.jump("je", label)

    def _jump_unless_of(self, kind: type, label: Label) -> None:
        self._compare_type(kind)
        self._asm.jump("jne", label)

    def _compare_type(self, kind: type) -> None:
        self._asm.emit("mov", rdx, id(kind))
        self._asm.emit("cmp", rdx, Memory(rsi, TYPE))
