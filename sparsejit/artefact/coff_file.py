"""A COFF object for x86-64 Windows: code, one word of state, no libc.

    .text             the image, code and its literals, then the entry points
    .data             the state, in a cache line of its own, which nothing else writes
    .xdata, .pdata    how to undo the frames of entry points, and where these lie
    symbols, strings  the names of functions, of the state, and of the frames' records

The image's own functions have no such records: a debugger or handler sees their callers only where
an entry point itself is on top. Tables are as in Microsoft's "PE Format", and little-endian.
"""

from struct import pack
from typing import NamedTuple

from sparsejit.artefact.exported import STATE_BYTES, Frame, ObjectCode, Symbol

_MACHINE = 0x8664
_HEADER_BYTES, _SECTION_BYTES = 20, 40
# Flags of sections: contents, alignment (the power of two, plus 1), and permissions.
_CODE, _DATA, _EXECUTE, _READ, _WRITE = 0x20, 0x40, 1 << 29, 1 << 30, 1 << 31
_ALIGN_4, _ALIGN_64 = 3 << 20, 7 << 20
_STATIC, _EXTERNAL, _FUNCTION = 3, 2, 0x20
# Relocations: an address from the start of the program; one from the end of the field.
_FROM_START, _FROM_FIELD = 3, 4
_UNWIND_VERSION = 1


class _CoffSection(NamedTuple):
    name: str
    content: bytes
    flags: int
    relocations: tuple[tuple[int, int, int], ...] = ()  # place, number of the symbol, type


def coff_file(code: ObjectCode) -> bytes:
    """Return the contents of the .obj file."""
    unwinding, starts = b"", []
    for frame in code.frames:
        starts.append(len(unwinding))
        unwinding += _unwinding(frame)
    table = b"".join(
        pack("<III", frame.start, frame.end, start)
        for frame, start in zip(code.frames, starts, strict=True)
    )
    # The first three symbols are the places that relocations name.
    text, state, records = range(3)
    symbols = [
        (Symbol(f"{code.state}_text", 0, 0, is_global=False), 1),
        (Symbol(code.state, 0, 0, is_global=False), 2),
        (Symbol(f"{code.state}_unwinding", 0, 0, is_global=False), 3),
        *((symbol, 1) for symbol in code.symbols),
    ]
    fields = [
        (12 * number + 4 * place, record, _FROM_START)
        for number in range(len(code.frames))
        for place, record in enumerate((text, text, records))
    ]
    places = tuple((at, state, _FROM_FIELD) for at in code.state_fields)
    sections = [
        _CoffSection(".text", code.text, _CODE | _EXECUTE | _READ | _ALIGN_64, places),
        _CoffSection(".data", bytes(STATE_BYTES), _DATA | _READ | _WRITE | _ALIGN_64),
        _CoffSection(".xdata", unwinding, _DATA | _READ | _ALIGN_4),
        _CoffSection(".pdata", table, _DATA | _READ | _ALIGN_4, tuple(fields)),
    ]
    return _assembled(sections, symbols)


def _unwinding(frame: Frame) -> bytes:
    """Return the record of a frame: its codes, to a multiple of four bytes."""
    codes = frame.unwinding
    head = pack("<BBBB", _UNWIND_VERSION, frame.prologue, len(codes) // 2, 0)
    return head + codes + bytes(-len(codes) % 4)


def _assembled(sections: list[_CoffSection], symbols: list[tuple[Symbol, int]]) -> bytes:
    """Return the file: headers, contents and relocations of sections, symbols, long names."""
    place = _HEADER_BYTES + _SECTION_BYTES * len(sections)
    headers, contents = b"", b""
    for each in sections:
        start = place + len(contents)
        moved = b"".join(pack("<IIH", *relocation) for relocation in each.relocations)
        behind = start + len(each.content) if moved else 0
        headers += pack("<8sIIIIII", each.name.encode(), 0, 0, len(each.content), start, behind, 0)
        headers += pack("<HHI", len(each.relocations), 0, each.flags)
        contents += each.content + moved
    table, names = b"", b""
    for symbol, section in symbols:
        kind = _EXTERNAL if symbol.is_global else _STATIC
        table += pack("<II", 0, 4 + len(names))  # four bytes hold the length of all names
        table += pack("<IhHBB", symbol.start, section, _FUNCTION * (section == 1), kind, 0)
        names += symbol.name.encode() + b"\0"
    header = pack("<HHIIIHH", _MACHINE, len(sections), 0, place + len(contents), len(symbols), 0, 0)
    return header + headers + contents + table + pack("<I", 4 + len(names)) + names
