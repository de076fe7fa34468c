"""Learning of instruction forms from the bytes that PeachPy encodes; only this module uses it.

    EXTENSIONS, VEX_EXTENSIONS, TILE_EXTENSIONS
                                  instructions that PeachPy lacks, with their encodings
    learned_form                  the form of a key, learned

PeachPy encodes an instruction a handful of times; from the bytes that change, the form learns the
place of each register number, displacement and immediate. In VEX (always the three-byte
prefix here, so that the length is fixed) and in EVEX every bit of a register number is stored in
one bit, plain or inverted. So flipping a bit of a number flips a fixed set of bits, whatever the
other operands are, and XOR of one mask per bit rebuilds the encoding. Each form is checked against
PeachPy on a number that it did not learn from. Other registers are part of the form's key.

PeachPy's traps, each dealt with here and tested in tests/machine/test_encoder.py:
  * an embedded broadcast gets the disp8 scale of the full vector: the scale is set to the element;
  * `VCMPPS(k2, ...)` encodes a write mask k2: a k destination is always written `k2(k0)`;
  * VNNI, BF16, VBMI2 and FP16 are missing: table EXTENSIONS, through PeachPy's own EVEX helper;
    AVX-VNNI, the same without EVEX: table VEX_EXTENSIONS, between registers;
    so is AMX: table TILE_EXTENSIONS, through its VEX helper.
"""

import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError, MissingDependency
from sparsejit.x86.forms import Form, Hole, Key, register_table
from sparsejit.x86.operands import VECTOR_BYTES, Register


class Extension(NamedTuple):
    """An instruction that PeachPy lacks: `name destination, [source1,] source2/memory`."""

    prefix: int  # 0: none, 1: 66, 2: F3, 3: F2
    opcode_map: int  # 2: 0F38; 5, 6: MAP5 and MAP6
    wide: int  # EVEX.W
    opcode: int
    sources: int
    needs: str  # its instruction set, named as in /proc/cpuinfo
    source: str  # section of Intel's Software Developer's Manual, volume 2


EXTENSIONS: dict[str, Extension] = {
    "vpdpbusd": Extension(1, 2, 0, 0x50, 2, "avx512_vnni", "SDM 2C VPDPBUSD"),
    "vpdpwssd": Extension(1, 2, 0, 0x52, 2, "avx512_vnni", "SDM 2C VPDPWSSD"),
    "vdpbf16ps": Extension(2, 2, 0, 0x52, 2, "avx512_bf16", "SDM 2C VDPBF16PS"),
    "vcvtne2ps2bf16": Extension(3, 2, 0, 0x72, 2, "avx512_bf16", "SDM 2C VCVTNE2PS2BF16"),
    "vcvtneps2bf16": Extension(2, 2, 0, 0x72, 1, "avx512_bf16", "SDM 2C VCVTNEPS2BF16"),
    "vpshrdvd": Extension(1, 2, 0, 0x73, 2, "avx512_vbmi2", "SDM 2C VPSHRDV"),
    "vpshldvd": Extension(1, 2, 0, 0x71, 2, "avx512_vbmi2", "SDM 2C VPSHLDV"),
    "vpexpandb": Extension(1, 2, 0, 0x62, 1, "avx512_vbmi2", "SDM 2C VPEXPAND"),
    "vaddph": Extension(0, 5, 0, 0x58, 2, "avx512_fp16", "SDM 2C VADDPH"),
    "vfmadd231ph": Extension(1, 6, 0, 0xB8, 2, "avx512_fp16", "SDM 2C VFMADD231PH"),
}


# Assemblers need the prefix where an instruction has an EVEX form too.
VEX_EXTENSIONS: dict[str, Extension] = {
    "{vex} vpdpbusd": Extension(1, 2, 0, 0x50, 2, "avx_vnni", "SDM 2C VPDPBUSD"),
}


class TileExtension(NamedTuple):
    """An instruction of AMX, which PeachPy lacks; all lie in opcode map 0F38, VEX.128, W0.

    `form` is the encoding of its operands: "memory" (ModRM.reg is 0), "load" and "store" (a tile
    in ModRM.reg; memory with an index, the stride of rows), "tile" (in ModRM.reg), "product"
    (ModRM.reg, ModRM.rm, VEX.vvvv) or "none".
    """

    prefix: int  # as of Extension
    opcode: int
    form: str
    needs: str
    source: str


TILE_EXTENSIONS: dict[str, TileExtension] = {
    "ldtilecfg": TileExtension(0, 0x49, "memory", "amx_tile", "SDM 2A LDTILECFG"),
    "sttilecfg": TileExtension(1, 0x49, "memory", "amx_tile", "SDM 2B STTILECFG"),
    "tilerelease": TileExtension(0, 0x49, "none", "amx_tile", "SDM 2B TILERELEASE"),
    "tilezero": TileExtension(3, 0x49, "tile", "amx_tile", "SDM 2B TILEZERO"),
    "tileloadd": TileExtension(3, 0x4B, "load", "amx_tile", "SDM 2B TILELOADD"),
    "tilestored": TileExtension(2, 0x4B, "store", "amx_tile", "SDM 2B TILESTORED"),
    "tdpbssd": TileExtension(3, 0x5E, "product", "amx_int8", "SDM 2B TDPBSSD"),
    "tdpbsud": TileExtension(2, 0x5E, "product", "amx_int8", "SDM 2B TDPBSUD"),
    "tdpbusd": TileExtension(1, 0x5E, "product", "amx_int8", "SDM 2B TDPBUSD"),
}


# Without PeachPy code can use the forms of `form_table` only.
try:
    from peachpy import x86_64
    from peachpy.x86_64 import encoding, registers
    from peachpy.x86_64.operand import MemoryAddress, MemoryOperand, RIPRelativeOffset
except (ImportError, SyntaxError) as problem:  # a SyntaxError from the release for Python 2
    _import_error: Exception | None = problem
else:
    _import_error = None


# Instruction sets by PeachPy's names, without SSE and others that every processor with AVX has.
_SETS = {
    "AVX": "avx",
    "AVX2": "avx2",
    "FMA3": "fma",
    "F16C": "f16c",
    "BMI": "bmi1",
    "BMI2": "bmi2",
    "AVX512F": "avx512f",
    "AVX512BW": "avx512bw",
    "AVX512DQ": "avx512dq",
    "AVX512VL": "avx512vl",
    "AVX512CD": "avx512cd",
    "AVX512IFMA": "avx512ifma",
    "AVX512VBMI": "avx512vbmi",
    "AVX512VPOPCNTDQ": "avx512_vpopcntdq",
}

# Instructions that write a k register under a write mask; see the second trap above.
_COMPARISONS = ("vcmp", "vpcmp", "vptest")
_DISPLACEMENTS = (0x11223344, 0x55667788)
_IMMEDIATES = {8: (0x1122334455667788, 0x2132435465768798), 4: _DISPLACEMENTS, 1: (0x11, 0x62)}


def learned_form(key: Key) -> Form:
    """Return the form of a key. Raises CompileError where there is no such instruction."""
    mnemonic, signatures, _ = key
    immediate = _immediate_bytes(key)
    vectors = [i for i, s in enumerate(signatures) if s[0] in VECTOR_BYTES]
    base = _encode(key, {}, immediate=immediate)
    tables = tuple(_register_table(key, i, base, immediate) for i in vectors)
    displacement = _displacement_hole(key, base, immediate)
    immediate_hole = None
    if immediate:
        first, second = (_encode(key, {}, immediate, which=w) for w in (0, 1))
        # A 32-bit immediate of a 64-bit operation is sign-extended; any other is a bit pattern.
        extended = immediate == 4 and any(s[0] == "r64" for s in signatures)
        at = _changed_at(first, second, immediate, mnemonic)
        immediate_hole = Hole(at, immediate, signed=extended)
    return Form(key, base, tables, displacement, immediate_hole)


def _register_table(
    key: Key, operand: int, base: npt.NDArray[np.uint8], immediate: int
) -> npt.NDArray[np.uint8]:
    kind, upper = key[1][operand][:2]
    origin, bits = (16, 4) if upper else (0, 5 if kind == "zmm" else 4)
    masks = [base ^ _encode(key, {operand: origin | (1 << bit)}, immediate) for bit in range(bits)]
    table = register_table(masks)
    unseen = origin | ((1 << bits) - 1)
    if not np.array_equal(base ^ table[unseen], _encode(key, {operand: unseen}, immediate)):
        raise CompileError(f"{key[0]}: register bits of operand {operand} do not combine by XOR")
    return table


def _displacement_hole(key: Key, base: npt.NDArray[np.uint8], immediate: int) -> Hole | None:
    mnemonic, _, size = key
    if size == 4:
        first, second = (_encode(key, {}, immediate, displacement=d) for d in _DISPLACEMENTS)
        return Hole(_changed_at(first, second, 4, mnemonic), 4)
    if size == 1:
        unit = _disp8_unit(key, immediate)
        moved = _encode(key, {}, immediate, displacement=_peachpy_unit(key, immediate))
        return Hole(_changed_at(base, moved, 1, mnemonic), 1, unit)
    return None


def _disp8_unit(key: Key, immediate: int) -> int:
    """Return the bytes per unit of an 8-bit displacement (SDM 2A 2.7.5, compressed displacement).
    """
    broadcast = any(s[0] == "memory" and s[4] for s in key[1])
    return 4 if broadcast else _peachpy_unit(key, immediate)


@cache
def _peachpy_unit(key: Key, immediate: int) -> int:
    """Return the bytes per unit of an 8-bit displacement, by PeachPy's own encoding."""
    base = _encode(key, {}, immediate)
    for unit in (64, 32, 16, 8, 4, 2, 1):
        moved = _encode(key, {}, immediate, displacement=unit)
        if len(moved) == len(base) and np.sum(base ^ moved) == 1:
            return unit
    raise CompileError(f"{key[0]}: no 8-bit displacement in this form")


def _changed_at(
    first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8], size: int, mnemonic: str
) -> int:
    if len(first) == len(second):
        changed = np.flatnonzero(first != second)
        if len(changed) == size and changed[-1] - changed[0] == size - 1:
            return int(changed[0])
    raise CompileError(f"{mnemonic}: cannot locate a {size}-byte field in its encoding")


def _immediate_bytes(key: Key) -> int:
    """Return the size of the immediate in bytes: the widest that PeachPy accepts, or 0."""
    if ("immediate",) not in key[1]:
        return 0
    for size in _IMMEDIATES:
        try:
            first, second = (_encode(key, {}, size, which=w) for w in (0, 1))
            _changed_at(first, second, size, key[0])
        except CompileError:
            continue
        return size
    raise CompileError(f"{key[0]}: no encoding with an immediate for operands {key[1]}")


def _encode(
    key: Key,
    numbers: dict[int, int],
    immediate: int,
    which: int = 0,
    displacement: int = 0,
) -> npt.NDArray[np.uint8]:
    """Return PeachPy's bytes for a key, with vector registers, immediate and displacement."""
    if key[0] in TILE_EXTENSIONS:
        return _encode_tile(key, displacement)
    values = _peachpy_operands(key, numbers, immediate, which, displacement)
    if key[0] in EXTENSIONS:
        return _encode_extension(EXTENSIONS[key[0]], values, key[2])
    if key[0] in VEX_EXTENSIONS:
        return _encode_vex_extension(VEX_EXTENSIONS[key[0]], values)
    return _encode_known(key, values)


def _peachpy_operands(
    key: Key, numbers: dict[int, int], immediate: int, which: int = 0, displacement: int = 0
) -> list[Any]:
    _require_peachpy()
    mnemonic, signatures, _ = key
    values: list[Any] = []
    for position, signature in enumerate(signatures):
        if signature[0] == "immediate":
            values.append(_IMMEDIATES[immediate][which])
        else:
            values.append(_peachpy_operand(signature, numbers.get(position), displacement))
    if mnemonic.startswith(_COMPARISONS) and signatures[0][0] == "k":
        values[0] = values[0](getattr(x86_64, f"k{signatures[0][2]}"))
    return values


def _encode_known(key: Key, values: list[Any]) -> npt.NDArray[np.uint8]:
    mnemonic, signatures, displacement_bytes = key
    instruction = getattr(x86_64, mnemonic.upper(), None)
    if instruction is None:
        raise CompileError(f"PeachPy has no instruction {mnemonic!r}; add it to EXTENSIONS")
    try:
        candidates = instruction(*values)._filter_encodings()
        operands = instruction(*values).operands
    except (SyntaxError, ValueError, AssertionError) as problem:
        raise CompileError(f"{mnemonic} does not exist with {signatures}: {problem}") from problem
    choices = []
    for flags, encode in candidates:
        options: dict[str, Any] = {}
        if flags & encoding.Flags.ModRMSIBDisp:
            options["min_disp"] = displacement_bytes
        if flags & encoding.Flags.VEX2:
            options["vex3"] = True
        choices.append(encode(operands, **options))
    return np.frombuffer(bytes(min(choices, key=len)), np.uint8)


def _encode_extension(
    row: Extension, values: list[Any], displacement_bytes: int
) -> npt.NDArray[np.uint8]:
    destination, *first, last = values
    memory = hasattr(last, "address")
    # A narrowing conversion has the vector length of its source.
    vector_bytes = getattr(destination, "register", destination).size if memory else last.size
    prefix = encoding.evex(
        row.opcode_map & 3,
        row.wide << 7 | 0b100 | row.prefix,
        {16: 0, 32: 1, 64: 2}[vector_bytes],
        destination.ehcode,
        last.address if memory else last,
        first[0].code if first else 0,
        aaa=destination.kcode,
        z=destination.zcode,
        b=last.bcode if memory else 0,
    )
    prefix[1] |= row.opcode_map & 4  # PeachPy's helper knows two bits of the map
    code = prefix + bytearray([row.opcode])
    if memory:
        code += encoding.modrm_sib_disp(
            destination.lcode, last.address, min_disp=displacement_bytes, disp8xN=vector_bytes
        )
    else:
        code.append(0xC0 | destination.lcode << 3 | last.lcode)
    return np.frombuffer(bytes(code), np.uint8)


def _encode_vex_extension(row: Extension, values: list[Any]) -> npt.NDArray[np.uint8]:
    destination, first, last = values
    if hasattr(last, "address") or destination.size > 32:
        raise CompileError("an instruction of VEX_EXTENSIONS takes three xmm or ymm registers")
    wide = {16: 0, 32: 1}[destination.size] << 2
    outer = 0xE0 ^ destination.hcode << 7 ^ last.hcode << 5 ^ row.opcode_map
    inner = 0x78 ^ first.code << 3 ^ (row.wide << 7 | wide | row.prefix)
    code = [0xC4, outer, inner, row.opcode, 0xC0 | destination.lcode << 3 | last.lcode]
    return np.array(code, np.uint8)


# Kinds of operands that each form of a TileExtension takes.
_TILE_FORMS = {
    "memory": ("memory",),
    "none": (),
    "tile": ("tmm",),
    "load": ("tmm", "memory"),
    "store": ("memory", "tmm"),
    "product": ("tmm", "tmm", "tmm"),
}


def _encode_tile(key: Key, displacement: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of an instruction of AMX, whose tile numbers are part of the key."""
    _require_peachpy()
    mnemonic, signatures, displacement_bytes = key
    row = TILE_EXTENSIONS[mnemonic]
    if tuple(signature[0] for signature in signatures) != _TILE_FORMS[row.form]:
        raise CompileError(f"{mnemonic} does not exist with {signatures}")
    tiles = [signature[1] for signature in signatures if signature[0] == "tmm"]
    memory = next((s for s in signatures if s[0] == "memory"), None)
    if memory is None:
        first, second, third = (*tiles, 0, 0, 0)[:3]
        prefix = encoding.vex3(0xC4, 2, row.prefix, 0, RIPRelativeOffset(0), third)
        code = prefix + bytearray([row.opcode, 0xC0 | first << 3 | second])
    else:
        if row.form != "memory" and memory[2] is None:
            raise CompileError(f"{mnemonic} needs an index register for the distance between rows")
        address = _peachpy_operand(memory, None, displacement).address
        prefix = encoding.vex3(0xC4, 2, row.prefix, 0, address)
        place = encoding.modrm_sib_disp((*tiles, 0)[0], address, min_disp=displacement_bytes)
        code = prefix + bytearray([row.opcode]) + place
    return np.frombuffer(bytes(code), np.uint8)


def _peachpy_operand(signature: tuple[Any, ...], number: int | None, displacement: int) -> Any:
    kind = signature[0]
    if kind in VECTOR_BYTES:
        _, upper, mask, zeroing = signature
        register = getattr(x86_64, f"{kind}{(16 if upper else 0) if number is None else number}")
        return _with_mask(register, mask, zeroing)
    if kind == "k":
        return getattr(x86_64, f"k{signature[1]}")
    if kind in ("r16", "r32", "r64"):
        return _general_register(kind, signature[1])
    if kind == "relative":  # never 0, for which PeachPy would choose the 8-bit jump
        return RIPRelativeOffset(displacement or _DISPLACEMENTS[0])
    if kind == "literal":
        copies = signature[1] or None
        address = RIPRelativeOffset(displacement)
        return MemoryOperand(address, size=4 if copies else None, broadcast=copies)
    _, base, index, scale, copies, mask = signature
    address = MemoryAddress(
        _general_register("r64", base),
        None if index is None else _index_register(*index),
        None if index is None else scale,
        displacement,
    )
    memory = MemoryOperand(address, size=4 if copies else None, broadcast=copies or None)
    return _with_mask(memory, mask, False)


def _general_register(kind: str, number: int) -> Any:
    return getattr(registers, Register(kind, number).text(0))


def _index_register(kind: str, number: int) -> Any:
    """Return the index register of an address: a general one, or a vector of them for a gather."""
    vector = kind in VECTOR_BYTES
    return getattr(x86_64, f"{kind}{number}") if vector else _general_register(kind, number)


def _with_mask(masked: Any, mask: int, zeroing: bool) -> Any:
    if not mask:
        return masked
    register = getattr(x86_64, f"k{mask}")
    return masked(register.z if zeroing else register)


def learned_sets(key: Key) -> frozenset[str]:
    """Return the instruction sets of a form that not every x86-64 processor with AVX has."""
    if key[0] in EXTENSIONS:
        return frozenset({EXTENSIONS[key[0]].needs})
    if key[0] in VEX_EXTENSIONS:
        return frozenset({VEX_EXTENSIONS[key[0]].needs})
    if key[0] in TILE_EXTENSIONS:
        return frozenset({TILE_EXTENSIONS[key[0]].needs})
    values = _peachpy_operands(key, {}, _immediate_bytes(key))
    names = map(str, getattr(x86_64, key[0].upper())(*values).isa_extensions)
    return frozenset(_SETS[name] for name in names if name in _SETS)


def _require_peachpy() -> None:
    if _import_error is not None:
        raise MissingDependency(
            f"PeachPy 0.2.0 cannot be imported ({_import_error}); "
            f"run: {sys.executable} -m sparsejit.install_peachpy"
        ) from _import_error
