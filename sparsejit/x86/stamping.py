"""Encoding of rows of lines by a native routine: 0.02 us an instruction.

A line is a record: its bytes with zeros in the holes, and a field for each operand that is an
array. The routine goes through the rows, and in each through the lines that are present:

    instruction = template ^ table[register number] ^ (number >> unit, moved to its hole) ...
    *out = instruction (16 bytes);  out += length

The routine checks each number that goes into a field; rows that are left out may hold any numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.forms import Form, Hole, too_wide
from sparsejit.x86.instructions import encoded, form_for
from sparsejit.x86.operands import (
    Memory,
    Relative,
    dword,
    r8,
    r9,
    r10,
    r11,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_WORD = 8
_STORED = 16  # bytes at once; an instruction has at most 15

# The routine's arguments, in words: where it writes, the lines, their number, the number of rows.
_OUT, _LINES, _COUNT, _ROWS = (_WORD * n for n in range(4))
# A line: its template (16 bytes), its length, flags of the rows that have it, where to write the
# starts of its instructions, the number of register fields, of number fields, its size in bytes.
_LENGTH, _WHEN, _STARTS, _REGISTERS, _NUMBERS, _SIZE = (_WORD * n for n in range(2, 8))
_LINE_WORDS = 8
# A register field: addresses of the registers' numbers and of the operand's XOR table. A number
# field: address of the numbers, the least and the most that fit, the bits that must be 0, the
# shift, and the control of `vpshufb` that moves them to the hole.
_VALUES, _LEAST, _MOST, _ZEROS, _SHIFT, _CONTROL = (_WORD * n for n in (0, 1, 2, 3, 4, 6))
_TABLE = _SHIFT
_FIELD_WORDS = 8

# Instructions, and names of the destinations of jumps. Returns 0; or, if a number did not fit, the
# number of lines that were left in its row.
ROUTINE: tuple[str | tuple[Any, ...], ...] = (
    ("mov", r10, Memory(rdi, _OUT)),
    ("mov", r9, Memory(rdi, _ROWS)),
    ("xor", dword(r8), dword(r8)),
    "row",
    ("mov", r11, Memory(rdi, _LINES)),
    ("mov", rsi, Memory(rdi, _COUNT)),
    "line",
    ("mov", rax, Memory(r11, _WHEN)),
    ("test", rax, rax),
    ("jz", Relative("present")),
    ("movzx", dword(rax), Memory(rax, 0, r8)),
    ("test", dword(rax), dword(rax)),
    ("jz", Relative("next line")),
    "present",
    ("vmovdqu", xmm(0), Memory(r11)),
    ("lea", rdx, Memory(r11, _WORD * _LINE_WORDS)),
    ("mov", rcx, Memory(r11, _REGISTERS)),
    ("test", rcx, rcx),
    ("jz", Relative("numbers")),
    "register",
    ("mov", rax, Memory(rdx, _VALUES)),
    ("mov", rax, Memory(rax, 0, r8, 8)),
    ("cmp", rax, 31),
    ("ja", Relative("wrong")),
    ("shl", rax, 4),
    ("add", rax, Memory(rdx, _TABLE)),
    ("vpxor", xmm(0), xmm(0), Memory(rax)),
    ("add", rdx, _WORD * _FIELD_WORDS),
    ("sub", rcx, 1),
    ("jnz", Relative("register")),
    "numbers",
    ("mov", rcx, Memory(r11, _NUMBERS)),
    ("test", rcx, rcx),
    ("jz", Relative("store")),
    "number",
    ("mov", rax, Memory(rdx, _VALUES)),
    ("mov", rax, Memory(rax, 0, r8, 8)),
    ("cmp", rax, Memory(rdx, _LEAST)),
    ("jl", Relative("wrong")),
    ("cmp", rax, Memory(rdx, _MOST)),
    ("jg", Relative("wrong")),
    ("test", Memory(rdx, _ZEROS), rax),
    ("jnz", Relative("wrong")),
    ("vmovq", xmm(1), rax),
    ("vpsrlq", xmm(1), xmm(1), Memory(rdx, _SHIFT)),
    ("vpshufb", xmm(1), xmm(1), Memory(rdx, _CONTROL)),
    ("vpxor", xmm(0), xmm(0), xmm(1)),
    ("add", rdx, _WORD * _FIELD_WORDS),
    ("sub", rcx, 1),
    ("jnz", Relative("number")),
    "store",
    ("mov", rax, Memory(r11, _STARTS)),
    ("test", rax, rax),
    ("jz", Relative("no start")),
    ("mov", Memory(rax), r10),
    ("add", rax, _WORD),
    ("mov", Memory(r11, _STARTS), rax),
    "no start",
    ("vmovdqu", Memory(r10), xmm(0)),
    ("add", r10, Memory(r11, _LENGTH)),
    "next line",
    ("add", r11, Memory(r11, _SIZE)),
    ("sub", rsi, 1),
    ("jnz", Relative("line")),
    ("add", r8, 1),
    ("cmp", r8, r9),
    ("jb", Relative("row")),
    ("mov", Memory(rdi, _OUT), r10),
    ("xor", dword(rax), dword(rax)),
    ("ret",),
    "wrong",
    ("mov", rax, rsi),
    ("ret",),
)


class StampedLine(NamedTuple):
    """A line as its form, flags of the rows that have it (None: all), and its fields' numbers.

    `has_starts`: whether the starts of its instructions are returned.
    """

    form: Form
    present: _Flags | None
    registers: Sequence[_Numbers | int]
    displacement: _Numbers | int
    immediate: _Numbers | int
    has_starts: bool

    def fields(self) -> Iterator[tuple[Hole, _Numbers]]:
        """The displacement and the immediate, where they are arrays."""
        holes = self.form.displacement, self.form.immediate
        for hole, values in zip(holes, (self.displacement, self.immediate), strict=True):
            if hole is not None and isinstance(values, np.ndarray):
                yield hole, values


def stamped(
    count: int, lines: Sequence[StampedLine]
) -> tuple[npt.NDArray[np.uint8], list[_Numbers]]:
    """Return the bytes of `count` rows of lines, and by line the starts of its instructions.

    A line without `has_starts` has no starts. Raises CompileError for a number that does not fit,
    and for an array that has not one element a row.
    """
    code = np.empty(count * sum(each.form.length for each in lines) + _STORED, np.uint8)
    starts = [np.empty(count if each.has_starts else 0, np.int64) for each in lines]
    held: list[object] = []
    records = [
        _record(each, count, place, held) for each, place in zip(lines, starts, strict=True)
    ]
    words = np.array([word for record in records for word in record], np.uint64)
    block = np.array([_address(code), _address(words), len(lines), count], np.uint64)
    left = _routine()(_address(block))
    if left:
        raise _misfit(lines[len(lines) - left])
    begin, first = _address(code), 0
    for number, record in enumerate(records):
        end = int(words[first + _STARTS // _WORD]) or _address(starts[number])
        starts[number] = starts[number][: (end - _address(starts[number])) // _WORD] - begin
        first += len(record)
    return code[: int(block[0]) - begin], starts


def _record(each: StampedLine, count: int, starts: _Numbers, held: list[object]) -> list[int]:
    """Return a line as words for the native routine; `held` gets the arrays they point to."""
    form, registers, numbers = each.form, list[int](), list[int]()
    for table, values in zip(form.wide_tables, each.registers, strict=True):
        if isinstance(values, np.ndarray):
            registers += [_values(values, count, held), 0, 0, 0, _address(table), 0, 0, 0]
    for hole, values in each.fields():
        numbers += [_values(values, count, held), *_hole_words(hole)]
    fields = len(registers) // _FIELD_WORDS, len(numbers) // _FIELD_WORDS
    size = _WORD * (_LINE_WORDS + len(registers) + len(numbers))
    present = 0 if each.present is None else _values(each.present, count, held, np.bool_)
    place = _address(starts) if each.has_starts else 0
    return [*_template(each), form.length, present, place, *fields, size, *registers, *numbers]


def _template(each: StampedLine) -> tuple[int, int]:
    """Return the two words of the instruction, with the numbers that are the same in all rows."""
    common = [0 if isinstance(number, np.ndarray) else number for number in each.registers]
    rest = [
        0 if isinstance(number, np.ndarray) else number
        for number in (each.displacement, each.immediate)
    ]
    whole = int.from_bytes(each.form.encode(common, *rest), "little")
    return whole & 2**64 - 1, whole >> 64


def _values(values: npt.NDArray[Any], count: int, held: list[object], dtype: Any = np.int64) -> int:
    """Return the address of an operand's numbers, one for each row; `held` keeps them alive."""
    if values.shape != (count,):
        raise CompileError(f"an operand has shape {values.shape}, expected ({count},)")
    row = np.ascontiguousarray(values, dtype)
    held.append(row)
    return _address(row)


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


@cache
def _hole_words(hole: Hole) -> list[int]:
    """Return the words that tell the native routine a field's limits, unit and place."""
    least, most = hole.bounds
    control = [(n - hole.at) if 0 <= n - hole.at < hole.size else 0x80 for n in range(16)]
    halves = (int.from_bytes(bytes(control[n : n + 8]), "little") for n in (0, 8))
    limits = (number & 2**64 - 1 for number in (least, most))
    return [*limits, hole.unit - 1, hole.unit.bit_length() - 1, 0, *halves]


def _misfit(each: StampedLine) -> CompileError:
    """Return the error for a line with a number that does not fit."""
    own = slice(None) if each.present is None else each.present
    for hole, values in each.fields():
        if not hole.fits(values[own]):
            return too_wide(hole, int(values[own].min()), int(values[own].max()))
    return CompileError(f"{each.form.key[0]}: a register number is not in 0..31")


@cache
def _routine() -> Callable[[int], int]:
    """Return the native routine: (address of the arguments from `_OUT` on) -> lines left, or 0."""
    routine: Callable[[int], int] = ExecutableMemory(assembled(ROUTINE)).function(
        1, with_status=True
    )
    return routine


def assembled(items: Sequence[str | tuple[Any, ...]]) -> bytes:
    """Return the code of the items: instructions, and names of the destinations of jumps."""
    code: list[bytes] = []
    places, jumps, position = dict[str, int](), [], 0
    for item in items:
        if isinstance(item, str):
            places[item] = position
            continue
        mnemonic, *operands = item
        if operands and isinstance(operands[0], Relative):
            form, target = form_for(mnemonic, operands, 4), operands[0].name
            jumps.append((len(code), position + form.length, form, target))
            code.append(form.encode([]))
        else:
            code.append(encoded(mnemonic, tuple(operands)).code)
        position += len(code[-1])
    for number, end, form, target in jumps:
        code[number] = form.encode([], places[target] - end)
    return b"".join(code)


def row_lengths(count: int, lengths: Sequence[int], present: Sequence[_Flags | None]) -> _Numbers:
    """Return the bytes of each of `count` rows, from lines' lengths and the rows that have them."""
    total = np.zeros(count, np.int64)
    for length, when in zip(lengths, present, strict=True):
        total += length if when is None else np.multiply(when, length, dtype=np.int64)
    return total


def with_gaps(
    code: npt.NDArray[np.uint8], gaps: _Numbers, lengths: _Numbers, filling: int
) -> npt.NDArray[np.uint8]:
    """Return code with `gaps` bytes of `filling` before its rows, which have these lengths."""
    starts = np.cumsum(gaps + lengths) - lengths
    is_code = np.ones(int(gaps.sum()) + len(code), bool)
    for row in np.flatnonzero(gaps):
        is_code[starts[row] - gaps[row] : starts[row]] = False
    spread = np.full(len(is_code), filling, np.uint8)
    spread[is_code] = code
    return spread
