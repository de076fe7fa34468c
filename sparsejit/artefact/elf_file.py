"""A relocatable ELF object for x86-64 Linux: code, one word of state, no libc.

    .text             the image, code and its literals, then the entry points
    .data             the state, in a cache line of its own, which nothing else writes
    .rela.text        relocations: the places in .text that address the state
    .note.GNU-stack   empty: the linker needs make no stack executable
    .symtab, .strtab  the names of the state, of functions, and of sections

Tables are as in the System V ABI's "Object Files", and little-endian.
"""

from struct import pack
from typing import NamedTuple

from sparsejit.artefact.exported import STATE_BYTES, ObjectCode

_HEADER_BYTES = 64
_SYMBOL_BYTES = 24
# Types of sections, and their flags.
_PROGBITS, _SYMTAB, _STRTAB, _RELA = 1, 2, 3, 4
_WRITE, _ALLOCATE, _EXECUTE, _LINK_INFO = 1, 2, 4, 64
# Symbols: binding in the upper four bits, type in the lower.
_LOCAL_OBJECT, _LOCAL_FUNCTION, _GLOBAL_FUNCTION = 0x01, 0x02, 0x12
_PC32 = 2
_TEXT, _DATA, _SYMBOLS, _NAMES = 1, 2, 5, 6
_STATE = 1


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    content: bytes
    alignment: int
    link: int = 0
    info: int = 0
    entry_bytes: int = 0


class _Names:
    """A string table: zero-terminated strings, one after the other."""

    def __init__(self) -> None:
        self.content = b"\0"

    def add(self, name: str) -> int:
        place = len(self.content)
        self.content += name.encode() + b"\0"
        return place


def elf_file(code: ObjectCode) -> bytes:
    """Return the contents of the .o file."""
    names = _Names()
    symbols = bytes(_SYMBOL_BYTES)  # number 0 is no symbol
    symbols += pack("<IBBHQQ", names.add(code.state), _LOCAL_OBJECT, 0, _DATA, 0, STATE_BYTES)
    for each in sorted(code.symbols, key=lambda symbol: symbol.is_global):  # local ones come first
        kind = _GLOBAL_FUNCTION if each.is_global else _LOCAL_FUNCTION
        symbols += pack("<IBBHQQ", names.add(each.name), kind, 0, _TEXT, each.start, each.size)
    first_global = 2 + sum(not each.is_global for each in code.symbols)
    # A rip-relative offset counts from the end of its four bytes, hence the addend -4.
    places = b"".join(pack("<QQq", at, _STATE << 32 | _PC32, -4) for at in code.state_fields)
    sections = [
        _Section("", 0, 0, b"", 0),
        _Section(".text", _PROGBITS, _ALLOCATE | _EXECUTE, code.text, STATE_BYTES),
        _Section(".data", _PROGBITS, _ALLOCATE | _WRITE, bytes(STATE_BYTES), STATE_BYTES),
        _Section(".rela.text", _RELA, _LINK_INFO, places, 8, _SYMBOLS, _TEXT, 24),
        _Section(".note.GNU-stack", _PROGBITS, 0, b"", 1),
        _Section(".symtab", _SYMTAB, 0, symbols, 8, _NAMES, first_global, _SYMBOL_BYTES),
    ]
    return _assembled(sections, names)


def _assembled(sections: list[_Section], names: _Names) -> bytes:
    """Return the file: its header, the contents of the sections, the table of sections."""
    titles = [names.add(section.name) for section in sections]
    titles.append(names.add(".strtab"))
    sections = [*sections, _Section(".strtab", _STRTAB, 0, names.content, 1)]
    content, table = bytes(_HEADER_BYTES), b""
    for title, each in zip(titles, sections, strict=True):
        content += bytes(-len(content) % max(each.alignment, 1))
        place = len(content) if each.kind else 0
        content += each.content
        table += pack("<IIQQQQ", title, each.kind, each.flags, 0, place, len(each.content))
        table += pack("<IIQQ", each.link, each.info, each.alignment, each.entry_bytes)
    content += bytes(-len(content) % 8)
    # 64 bits, little-endian, version 1, System V; a relocatable file for x86-64.
    header = pack("<4s5B7x", b"\x7fELF", 2, 1, 1, 0, 0) + pack("<HHI", 1, 62, 1)
    header += pack("<QQQI", 0, 0, len(content), 0)
    header += pack("<6H", _HEADER_BYTES, 0, 0, 64, len(sections), _NAMES)
    return header + content[_HEADER_BYTES:] + table
