"""Look-up of an instruction's form by its operands: in the table of forms, or learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    """Whether an xmm or ymm needs EVEX. A zmm always has it, so all 32 share a form."""
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
