"""Derivation of forms that differ only in general registers from one of them, so that few are kept.

Operands are named in one or two bytes, which stand right before the displacement or the immediate
(Intel's SDM, 2A 2.1.5):

    ModRM   mod | reg | rm          reg: a register; rm: another, or a base without an index
    SIB     scale | index | base    behind it where there is an index, or the base is rsp or r12

They hold the lowest three bits of each number; the other bits lie in prefixes, whose length may
depend on them. So one key stands for up to eight numbers in each place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from sparsejit.x86.forms import Form, Key
from sparsejit.x86.operands import VECTOR_BYTES

_GENERAL = ("r16", "r32", "r64")
_LOW, _SIB = 7, 4  # mask of the bits in the byte; their value where a SIB byte follows
Signature = tuple[Any, ...]


def representative(key: Key) -> Key:
    """Return the key of the form that the table has in place of this key's form, maybe itself."""
    mnemonic, signatures, displacement_bytes = key
    if _is_pair(signatures):
        first, second, *rest = signatures
        pair = _numbered(first, first[1] & ~_LOW), _numbered(second, second[1] & ~_LOW | 1)
        return mnemonic, (*pair, *rest), displacement_bytes
    if _address(signatures) is None:
        return key
    return mnemonic, tuple(map(_least, signatures)), displacement_bytes


def moved(kept: Form, key: Key) -> Form:
    """Return the form of a key, derived from `kept`, its representative's form."""
    signatures = key[1]
    template = kept.template.copy()
    if _is_pair(signatures):
        place = len(template) - 1 if kept.immediate is None else kept.immediate.at - 1
        first, second = signatures[0][1] & _LOW, signatures[1][1] & _LOW
        second_is_reg = template[place] >> 3 & _LOW == 1  # its lowest bits in the representative
        reg, rm = (second, first) if second_is_reg else (first, second)
        template[place] = 0xC0 | reg << 3 | rm
    address = _address(signatures)
    if address is not None and kept.displacement is not None:
        _, base, index, *_ = address
        last = kept.displacement.at - 1
        template[last] ^= 0 if _is_stack(address) else base & _LOW
        template[last] ^= 0 if index is None else (index[1] & _LOW) << 3
        has_sib = index is not None or _is_stack(address)
        for each in signatures:
            template[last - has_sib] ^= (each[1] & _LOW) << 3 if each[0] in _GENERAL else 0
    return replace(kept, key=key, template=template)


def family(key: Key) -> Iterator[Key]:
    """Yield the representatives of all keys that differ from this one in general registers alone.

    The bytes of the displacement may differ, too. A key with three general registers, as of `bzhi`,
    is its only representative.
    """
    mnemonic, signatures, displacement_bytes = key
    if _is_pair(signatures):
        first, second, *rest = signatures
        for one, other in product((0, 8), (1, 9)):
            yield mnemonic, (_numbered(first, one), _numbered(second, other), *rest), 0
        return
    if sum(each[0] in _GENERAL for each in signatures) > 2:
        yield key
        return
    has_address = _address(signatures) is not None
    choices = [list(_representatives(each, has_address)) for each in signatures]
    for each in product(*choices):
        for size in (1, 4) if has_address else (displacement_bytes,):
            yield mnemonic, each, size


def _representatives(signature: Signature, has_address: bool) -> Iterator[Signature]:
    if signature[0] in _GENERAL:
        numbers = (0, 8) if has_address else range(16)
        yield from (_numbered(signature, number) for number in numbers)
    elif signature[0] == "memory":
        _, _, index, *rest = signature
        bases = (0, 8) if index is not None else (0, 4, 8, 12)
        numbers = range(0, 32 if index and index[0] in VECTOR_BYTES else 16, 8)
        indices = [None] if index is None else [(index[0], number) for number in numbers]
        yield from (("memory", base, each, *rest) for base, each in product(bases, indices))
    else:
        yield signature


def _least(signature: Signature) -> Signature:
    """Return an operand's signature with the lowest three bits of its general registers at zero."""
    if signature[0] in _GENERAL:
        return _numbered(signature, signature[1] & ~_LOW)
    if signature[0] != "memory":
        return signature
    _, base, index, *rest = signature
    if index is not None:
        index = index[0], index[1] & ~_LOW
    return "memory", base if _is_stack(signature) else base & ~_LOW, index, *rest


def _address(signatures: tuple[Signature, ...]) -> Signature | None:
    return next((each for each in signatures if each[0] == "memory"), None)


def _is_stack(memory: Signature) -> bool:
    """Whether the base is rsp or r12, which take a SIB byte where there is no index."""
    return bool(memory[2] is None and memory[1] & _LOW == _SIB)


def _is_pair(signatures: tuple[Signature, ...]) -> bool:
    """Whether the operands are two general registers, and perhaps an immediate."""
    kinds = [each[0] for each in signatures]
    return len(kinds) >= 2 and set(kinds[:2]) <= set(_GENERAL) and kinds[2:] in ([], ["immediate"])


def _numbered(register: Signature, number: int) -> Signature:
    return register[0], number, *register[2:]
