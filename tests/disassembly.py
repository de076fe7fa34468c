"""Holds machine code to the instructions it was meant to be, by iced-x86's decoder."""

import numpy as np
from iced_x86 import (
    Decoder,
    DecoderOptions,
    Formatter,
    FormatterSyntax,
    Instruction,
    Mnemonic,
    OpKind,
)
from iced_x86 import Register as Iced

from sparsejit.x86.operands import Literal, Memory, Operand, Register, Relative, pick

_MNEMONICS = {value: name.lower() for name, value in vars(Mnemonic).items() if name.isupper()}
_ADDRESS = 1 << 40  # so that no displacement wraps around address 0
_gnu_syntax = Formatter(FormatterSyntax.GAS)
_SYNONYMS = {"jnz": "jne", "jz": "je", "jnc": "jae", "jc": "jb", "{vex} vpdpbusd": "vpdpbusd"}
_FIRST_OF_KIND = {
    "xmm": Iced.XMM0, "ymm": Iced.YMM0, "zmm": Iced.ZMM0,
    "r16": Iced.AX, "r32": Iced.EAX, "r64": Iced.RAX, "k": Iced.K0, "tmm": Iced.TMM0,
}  # fmt: skip


def decode(code: bytes) -> list[Instruction]:
    """The instructions that make up `code`, all of it."""
    # Unchecked, as a gather into its own index, which random numbers may make, is no instruction.
    decoded = list(Decoder(64, code, options=DecoderOptions.NO_INVALID_CHECK, ip=_ADDRESS))
    assert decoded[-1].next_ip == _ADDRESS + len(code), "the last instruction is cut off"
    return decoded


def assert_instruction(
    found: Instruction, mnemonic: str, operands: tuple[Operand, ...], row: int = 0
) -> None:
    """Assert that `found` is that instruction, with the `row`-th number of operand arrays.

    A Literal's offset and a Relative's name are taken for their values here: a displacement
    from the end of the instruction, and anything.
    """
    shown = str(found)
    assert _MNEMONICS[found.mnemonic] == _SYNONYMS.get(mnemonic, mnemonic), shown
    assert found.op_count == len(operands), shown
    mask, zeroing = 0, False
    for position, operand in enumerate(operands):
        if isinstance(operand, Register | Memory) and operand.mask:
            mask, zeroing = operand.mask, getattr(operand, "zeroing", False)
        _assert_operand(found, position, operand, row, shown)
    assert found.op_mask == (Iced.K0 + mask if mask else Iced.NONE), shown
    assert found.zeroing_masking == zeroing, shown


def _assert_operand(
    found: Instruction, position: int, operand: Operand, row: int, shown: str
) -> None:
    kind = found.op_kind(position)
    if isinstance(operand, Register):
        assert kind == OpKind.REGISTER, shown
        expected = _FIRST_OF_KIND[operand.kind] + pick(operand.number, row)
        assert found.op_register(position) == expected, shown
    elif isinstance(operand, Memory):
        assert kind == OpKind.MEMORY, shown
        _assert_memory(found, operand, row, shown)
    elif isinstance(operand, Literal):
        assert kind == OpKind.MEMORY and found.memory_base == Iced.RIP, shown
        distance = found.memory_displacement - found.next_ip
        assert _same(distance, pick(operand.offset, row), 64), shown
        _assert_copies(found, operand.broadcast, shown)
    elif isinstance(operand, Relative):
        assert kind == OpKind.NEAR_BRANCH64, shown
    else:
        bits = 8 if kind == OpKind.IMMEDIATE8 else 32 if kind == OpKind.IMMEDIATE32 else 64
        assert _same(found.immediate(position), pick(operand, row), bits), shown


def _assert_memory(found: Instruction, operand: Memory, row: int, shown: str) -> None:
    assert found.memory_base == Iced.RAX + int(operand.base.number), shown
    if operand.index is None:
        assert found.memory_index == Iced.NONE, shown
    else:
        index = _FIRST_OF_KIND[operand.index.kind] + int(operand.index.number)
        assert found.memory_index == index, shown
        assert found.memory_index_scale == operand.scale, shown
    assert _same(found.memory_displacement, pick(operand.displacement, row), 64), shown
    _assert_copies(found, operand.broadcast, shown)


def _assert_copies(found: Instruction, copies: int, shown: str) -> None:
    assert found.is_broadcast == bool(copies), shown
    if copies:
        assert f"{{1to{copies}}}" in _gnu_syntax.format(found), shown


def _same(first: int, second: int, bits: int) -> bool:
    return (first - second) % (1 << bits) == 0


def random_numbers(
    generator: np.random.Generator, operand: Operand, count: int, displacements: np.ndarray
) -> Operand:
    """The operand with `count` random numbers that keep it in the same instruction form."""
    if isinstance(operand, Register) and operand.kind in ("xmm", "ymm", "zmm"):
        low, high = (0, 32) if operand.kind == "zmm" else (0, 16)
        if np.any(np.asarray(operand.number) >= high):
            low, high = 16, 32
        numbers = generator.integers(low, high, count)
        return Register(operand.kind, numbers, operand.mask, operand.zeroing)
    if isinstance(operand, Memory):
        return Memory(
            operand.base, displacements, operand.index, operand.scale,
            operand.broadcast, operand.mask,
        )  # fmt: skip
    if isinstance(operand, Literal):
        return Literal(displacements, operand.broadcast)
    return operand
