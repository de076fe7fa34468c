"""An instruction with its operands: its form, and the numbers that go into it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.x86.encoder import form_for, is_vector
from sparsejit.x86.forms import Form
from sparsejit.x86.operands import Here, Literal, Memory, Operand, Register, Relative

Operands = Sequence[Operand]
_IntArray = npt.NDArray[np.int64]


class Encoded(NamedTuple):
    """An instruction without arrays: its form, and its bytes.

    `reads_pool`: it has a literal, whose place is zeros in the bytes.
    """

    form: Form
    code: bytes
    reads_pool: bool


# Cache of single instructions: models repeat the same few thousand.
_ENCODED: dict[tuple[str, Operands], Encoded] = {}
_MOST_ENCODED = 1 << 16


def form_of(mnemonic: str, operands: Operands) -> Form:
    """Return the form with the shortest displacement that fits, in all rows of an array."""
    memory = _memory_of(operands)
    if memory is None:
        elsewhere = any(isinstance(o, Literal | Here | Relative) for o in operands)
        return form_for(mnemonic, operands, 4 if elsewhere else 0)
    short = form_for(mnemonic, operands, 1)
    hole = short.displacement
    assert hole is not None
    displacement = memory.displacement
    if isinstance(displacement, np.ndarray):
        fits = hole.fits(displacement)
    else:
        fits = hole.fits_one(displacement)
    return short if fits else form_for(mnemonic, operands, 4)


def encoded(mnemonic: str, operands: tuple[Operand, ...]) -> Encoded:
    """Return the encoded instruction; no operand may contain an array."""
    known = _ENCODED.get((mnemonic, operands))
    if known is None:
        known = _encoded_anew(mnemonic, operands)
    return known


def _encoded_anew(mnemonic: str, operands: tuple[Operand, ...]) -> Encoded:
    alike = tuple(Literal(0, o.broadcast) if isinstance(o, Literal) else o for o in operands)
    known = _ENCODED.get((mnemonic, alike))
    if known is None:
        form = form_of(mnemonic, alike)
        if len(_ENCODED) >= _MOST_ENCODED:
            _ENCODED.clear()
        reads_pool = any(isinstance(o, Literal) for o in alike)
        known = Encoded(form, form.encode(*_numbers_of(alike)), reads_pool)
        _ENCODED[mnemonic, alike] = known
    _ENCODED[mnemonic, operands] = known
    return known


def _memory_of(operands: Operands) -> Memory | None:
    return next((o for o in operands if isinstance(o, Memory)), None)


def _distance(operands: Operands) -> int:
    """Return the distance of a `Here` operand from the end of the instruction, or 0."""
    return next((o.distance for o in operands if isinstance(o, Here)), 0)


def fields_of(
    operands: Operands,
) -> tuple[list[_IntArray | int], _IntArray | int, _IntArray | int]:
    """Return vector register numbers, displacement and immediate, as numbers or arrays of rows."""
    registers = [
        _number(o.number)
        for o in operands
        if isinstance(o, Register) and is_vector(o)
    ]
    memory = _memory_of(operands)
    displacement = _distance(operands) if memory is None else _number(memory.displacement)
    immediates = [o for o in operands if isinstance(o, int | np.ndarray | np.integer)]
    return registers, displacement, _number(immediates[0]) if immediates else 0


def _number(number: Any) -> _IntArray | int:
    return number if isinstance(number, np.ndarray) else int(number)


def _numbers_of(operands: Operands) -> tuple[list[int], int, int]:
    """Return vector register numbers, displacement and immediate of operands without arrays."""
    registers, displacement, immediate = [], 0, 0
    for operand in operands:
        if isinstance(operand, Register):
            if is_vector(operand):
                registers.append(int(operand.number))
        elif isinstance(operand, Memory):
            displacement = int(operand.displacement)
        elif isinstance(operand, int | np.integer):
            immediate = int(operand)
    return registers, displacement, immediate


def column(number: Any, rows: _IntArray) -> _IntArray | int:
    """Return the numbers of these rows, or the one number of all rows."""
    return number[rows] if isinstance(number, np.ndarray) else int(number)
