"""An instruction with its operands: its form, and the numbers that go into it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.x86.encoder import form_for, is_vector
from sparsejit.x86.forms import Form
from sparsejit.x86.operands import Here, Literal, Memory, Operand, Register, Relative

Operands = Sequence[Operand]
_IntArray = npt.NDArray[np.int64]

# Single instructions as they were encoded before: models repeat the same few thousand.
_ENCODED: dict[tuple[Any, ...], tuple[Form, bytes]] = {}
_MOST_ENCODED = 1 << 16


def form_of(mnemonic: str, operands: Operands) -> Form:
    """The form of an instruction: the shortest displacement that fits, of arrays every row."""
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


def encoded(mnemonic: str, operands: Operands) -> tuple[Form, bytes]:
    """The form of operands without arrays, and the bytes, zeros where a literal's place goes."""
    key = (mnemonic, *map(_identity, operands))
    known = _ENCODED.get(key)
    if known is None:
        form = form_of(mnemonic, operands)
        if len(_ENCODED) >= _MOST_ENCODED:
            _ENCODED.clear()
        known = _ENCODED[key] = form, form.encode(*_numbers_of(operands))
    return known


def _identity(operand: Operand) -> Any:
    """All that the bytes of an operand depend on."""
    if isinstance(operand, Register):
        return operand.kind, int(operand.number), operand.mask, operand.zeroing
    if isinstance(operand, Memory):
        index = None if operand.index is None else (operand.index.kind, int(operand.index.number))
        place = int(operand.base.number), int(operand.displacement), index, operand.scale
        return (*place, operand.broadcast, operand.mask)
    if isinstance(operand, Literal):
        return Literal, operand.broadcast
    if isinstance(operand, Here):
        return Here, operand.distance
    return Relative if isinstance(operand, Relative) else int(operand)


def _memory_of(operands: Operands) -> Memory | None:
    return next((o for o in operands if isinstance(o, Memory)), None)


def _distance(operands: Operands) -> int:
    """From the end of an instruction to what it asks for."""
    return next((o.distance for o in operands if isinstance(o, Here)), 0)


def fields_of(
    operands: Operands,
) -> tuple[list[_IntArray | int], _IntArray | int, _IntArray | int]:
    """Vector register numbers, displacement and immediate of an instruction, or those of rows."""
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
    """Vector register numbers, displacement and immediate without arrays."""
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
    """The numbers of these rows, or the one number of all."""
    return number[rows] if isinstance(number, np.ndarray) else int(number)
