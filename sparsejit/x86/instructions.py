"""An instruction with its operands: its form, and the numbers that go into it.

    form_for    look-up of a form by the operands: in the table of forms, or learned
    encoded     an instruction without arrays, as bytes
    fields_of   the numbers that go into a form
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError
from sparsejit.x86 import form_table
from sparsejit.x86.forms import Form, Key
from sparsejit.x86.operands import VECTOR_BYTES, Here, Literal, Memory, Operand, Register, Relative


def form_for(mnemonic: str, operands: Sequence[Operand], displacement_bytes: int) -> Form:
    """Return the form of an instruction; numbers of vector registers and in fields do not matter.

    Raises CompileError where the instruction does not exist with such operands.
    """
    return _form((mnemonic, tuple(map(_signature, operands)), displacement_bytes))


def instruction_sets(key: Key) -> frozenset[str]:
    """Return the instruction sets of a form that not every x86-64 processor with AVX has.

    Names are as in `machine.target.INSTRUCTION_SETS`.
    """
    mnemonic, signatures, _ = key
    if mnemonic == "lea":  # PeachPy does not take a label as the address
        return frozenset()
    kept = form_table.kept(key)
    if kept is not None:
        return kept.sets
    from sparsejit.x86.learning import learned_sets  # imports PeachPy

    return learned_sets((mnemonic, signatures, 4))


def is_vector(operand: Operand) -> bool:
    return isinstance(operand, Register) and operand.kind in VECTOR_BYTES


def _signature(operand: Operand) -> tuple[Any, ...]:
    if isinstance(operand, Register):
        if operand.kind in VECTOR_BYTES:
            return (operand.kind, _upper_half(operand), operand.mask, operand.zeroing)
        return (operand.kind, int(operand.number), operand.mask)
    if isinstance(operand, Memory):
        index = None if operand.index is None else (operand.index.kind, int(operand.index.number))
        base = int(operand.base.number)
        return ("memory", base, index, operand.scale, operand.broadcast, operand.mask)
    if isinstance(operand, Relative):
        return ("relative",)
    if isinstance(operand, Literal):
        return ("literal", operand.broadcast)
    if isinstance(operand, Here):
        return ("literal", 0)
    return ("immediate",)


def _upper_half(register: Register) -> bool:
    """Whether an xmm or ymm has a number from 16 on, which needs EVEX. False for a zmm.

    A zmm always has EVEX, so all 32 share a form. Raises CompileError for an array of both halves.
    """
    if register.kind == "zmm":
        return False
    if not isinstance(register.number, np.ndarray):
        return int(register.number) >= 16
    high = register.number >= 16
    if high.any() != high.all():
        raise CompileError(
            f"{register.kind} numbers {register.number} mix 0-15 (VEX) with 16-31 (EVEX); "
            "stamp them apart"
        )
    return bool(high.any())


def forms_used() -> list[Form]:
    """Return all forms that this process has used."""
    return list(_FORMS.values())


_FORMS: dict[Key, Form] = {}


def _form(key: Key) -> Form:
    form = _FORMS.get(key)
    if form is None:
        kept = form_table.kept(key)
        form = _FORMS[key] = _learned(key) if kept is None else kept.form
    return form


def _learned(key: Key) -> Form:
    from sparsejit.x86.learning import learned_form  # imports PeachPy

    return learned_form(key)


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
    """Return the distance of a `Here` operand behind the end of the instruction; 0 without one."""
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
    """Return an operand's numbers in these rows, or its one number, the same in all rows."""
    return number[rows] if isinstance(number, np.ndarray) else int(number)
