"""Object files of exported code: writers, and the systems that they are for, a row for each.

    elf_file      a relocatable ELF object for x86-64 Linux
    coff_file     a COFF object for x86-64 Windows
    mach_o_file   a Mach-O object for macOS on Intel processors
    SYSTEMS       the systems, each with its writer

Each file holds code, one word of state, and no library:

    ELF            COFF               Mach-O
    .text          .text              __TEXT,__text      the image, code and its literals, then the
                                                         entry points
    .data          .data              __DATA,__data      the state, in a cache line of its own,
                                                         which nothing else writes
    .rela.text     in .text           relocations        the places in the text that address it
    .symtab,       symbols, strings   symbols, strings   the names of functions and of the state
    .strtab

ELF has an empty .note.GNU-stack besides: the linker needs make no stack executable. COFF has
.xdata and .pdata: how to undo the frames of entry points, and where these lie. The image's own
functions have no such records: a debugger or handler sees their callers only where an entry point
itself is on top. Names in Mach-O stand after an underscore.

Tables are little-endian, and as in the System V ABI's "Object Files", Microsoft's "PE Format", and
Apple's <mach-o/loader.h>, <mach-o/nlist.h> and <mach-o/reloc.h>.
"""

from collections.abc import Callable
from struct import pack
from typing import NamedTuple

from sparsejit.artefact.exported import STATE_BYTES, Frame, ObjectCode, Symbol
from sparsejit.errors import InvalidInput

# Mach-O: the header, load commands, and flags.
_MAGIC, _X86_64, _ALL_PROCESSORS, _OBJECT = 0xFEEDFACF, 0x01000007, 3, 1
_SEGMENT, _MACH_O_SYMBOLS, _SYMBOL_RANGES, _BUILD_VERSION = 0x19, 0x02, 0x0B, 0x32
_MACH_O_HEADER_BYTES, _SEGMENT_BYTES, _MACH_O_SECTION_BYTES = 32, 72, 80
_COMMAND_BYTES = _SEGMENT_BYTES + 2 * _MACH_O_SECTION_BYTES + 24 + 24 + 80
_INSTRUCTIONS = 0x80000400  # the section has only these, as far as linkers care
_MACOS, _OLDEST = 1, 10 << 16 | 13 << 8  # 10.13
_ALIGNMENT = 6  # a power of two
_ALL = 7  # permissions
# A field of four bytes, relative to its end, of a symbol by number: X86_64_RELOC_SIGNED.
_MACH_O_FROM_FIELD = 1 << 24 | 2 << 25 | 1 << 27 | 1 << 28
_IN_SECTION, _MACH_O_EXTERNAL = 0x0E, 0x01


def mach_o_file(code: ObjectCode) -> bytes:
    """Return the contents of the .o file."""
    text = code.text.ljust(len(code.text) + -len(code.text) % STATE_BYTES, b"\0")
    data = bytes(STATE_BYTES)
    own = [each for each in code.symbols if not each.is_global]
    others = sorted(each for each in code.symbols if each.is_global)
    entries, names = b"", b"\0"
    # The state is symbol 0; a place is an address, and the data lie behind the text.
    places = [(code.state, _IN_SECTION, 2, len(text))]
    places += [(each.name, _IN_SECTION, 1, each.start) for each in own]
    places += [(each.name, _IN_SECTION | _MACH_O_EXTERNAL, 1, each.start) for each in others]
    for name, kind, section, address in places:
        entries += pack("<IBBHQ", len(names), kind, section, 0, address)
        names += f"_{name}".encode() + b"\0"
    names += bytes(-len(names) % 8)
    fields = b"".join(pack("<iI", at, _MACH_O_FROM_FIELD) for at in code.state_fields)
    start = _MACH_O_HEADER_BYTES + _COMMAND_BYTES
    start += -start % STATE_BYTES
    moved = start + len(text) + len(data)
    table = moved + len(fields)
    sections = (
        _mach_o_section("__text", "__TEXT", 0, len(text), start, moved, len(code.state_fields)),
        _mach_o_section("__data", "__DATA", len(text), len(data), start + len(text), 0, 0),
    )
    size = len(text) + len(data)
    commands = pack("<II16sQQQQ", _SEGMENT, _SEGMENT_BYTES + 160, b"", 0, size, start, size)
    commands += pack("<IIII", _ALL, _ALL, len(sections), 0) + b"".join(sections)
    commands += pack("<IIIIII", _BUILD_VERSION, 24, _MACOS, _OLDEST, 0, 0)
    ends = len(places), table + len(entries), len(names)
    commands += pack("<IIIIII", _MACH_O_SYMBOLS, 24, table, *ends)
    ranges = 0, 1 + len(own), 1 + len(own), len(others), len(places), 0
    commands += pack("<II6I", _SYMBOL_RANGES, 80, *ranges) + bytes(48)
    header = pack("<IIIIIIII", _MAGIC, _X86_64, _ALL_PROCESSORS, _OBJECT, 4, len(commands), 0, 0)
    head = (header + commands).ljust(start, b"\0")
    return head + text + data + fields + entries + names


def _mach_o_section(
    name: str, segment: str, address: int, size: int, start: int, moved: int, count: int
) -> bytes:
    """Return the header of a section, with the place and number of its relocations."""
    named = pack("<16s16sQQ", name.encode(), segment.encode(), address, size)
    flags = _INSTRUCTIONS if segment == "__TEXT" else 0
    return named + pack("<IIIIIIII", start, _ALIGNMENT, moved, count, flags, 0, 0, 0)


# COFF.
_MACHINE = 0x8664
_COFF_HEADER_BYTES, _COFF_SECTION_BYTES = 20, 40
# Flags of sections: contents, alignment (the power of two, plus 1), and permissions.
_CODE, _COFF_DATA, _COFF_EXECUTE, _READ, _COFF_WRITE = 0x20, 0x40, 1 << 29, 1 << 30, 1 << 31
_ALIGN_4, _ALIGN_64 = 3 << 20, 7 << 20
_STATIC, _COFF_EXTERNAL, _FUNCTION = 3, 2, 0x20
# Relocations: an address from the start of the program; one from the end of the field.
_FROM_START, _COFF_FROM_FIELD = 3, 4
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
    places = tuple((at, state, _COFF_FROM_FIELD) for at in code.state_fields)
    sections = [
        _CoffSection(".text", code.text, _CODE | _COFF_EXECUTE | _READ | _ALIGN_64, places),
        _CoffSection(".data", bytes(STATE_BYTES), _COFF_DATA | _READ | _COFF_WRITE | _ALIGN_64),
        _CoffSection(".xdata", unwinding, _COFF_DATA | _READ | _ALIGN_4),
        _CoffSection(".pdata", table, _COFF_DATA | _READ | _ALIGN_4, tuple(fields)),
    ]
    return _coff_assembled(sections, symbols)


def _unwinding(frame: Frame) -> bytes:
    """Return the record of a frame: its codes, to a multiple of four bytes."""
    codes = frame.unwinding
    head = pack("<BBBB", _UNWIND_VERSION, frame.prologue, len(codes) // 2, 0)
    return head + codes + bytes(-len(codes) % 4)


def _coff_assembled(sections: list[_CoffSection], symbols: list[tuple[Symbol, int]]) -> bytes:
    """Return the file: headers, contents and relocations of sections, symbols, long names."""
    place = _COFF_HEADER_BYTES + _COFF_SECTION_BYTES * len(sections)
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
        kind = _COFF_EXTERNAL if symbol.is_global else _STATIC
        table += pack("<II", 0, 4 + len(names))  # four bytes hold the length of all names
        table += pack("<IhHBB", symbol.start, section, _FUNCTION * (section == 1), kind, 0)
        names += symbol.name.encode() + b"\0"
    header = pack("<HHIIIHH", _MACHINE, len(sections), 0, place + len(contents), len(symbols), 0, 0)
    return header + headers + contents + table + pack("<I", 4 + len(names)) + names


# ELF.
_ELF_HEADER_BYTES = 64
_SYMBOL_BYTES = 24
# Types of sections, and their flags.
_PROGBITS, _SYMTAB, _STRTAB, _RELA = 1, 2, 3, 4
_ELF_WRITE, _ALLOCATE, _ELF_EXECUTE, _LINK_INFO = 1, 2, 4, 64
# Symbols: binding in the upper four bits, type in the lower.
_LOCAL_OBJECT, _LOCAL_FUNCTION, _GLOBAL_FUNCTION = 0x01, 0x02, 0x12
_PC32 = 2
_TEXT, _ELF_DATA, _ELF_SYMBOLS, _NAMES = 1, 2, 5, 6
_STATE = 1


class _ElfSection(NamedTuple):
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
    symbols += pack("<IBBHQQ", names.add(code.state), _LOCAL_OBJECT, 0, _ELF_DATA, 0, STATE_BYTES)
    for each in sorted(code.symbols, key=lambda symbol: symbol.is_global):  # local ones come first
        kind = _GLOBAL_FUNCTION if each.is_global else _LOCAL_FUNCTION
        symbols += pack("<IBBHQQ", names.add(each.name), kind, 0, _TEXT, each.start, each.size)
    first_global = 2 + sum(not each.is_global for each in code.symbols)
    # A rip-relative offset counts from the end of its four bytes, hence the addend -4.
    places = b"".join(pack("<QQq", at, _STATE << 32 | _PC32, -4) for at in code.state_fields)
    sections = [
        _ElfSection("", 0, 0, b"", 0),
        _ElfSection(".text", _PROGBITS, _ALLOCATE | _ELF_EXECUTE, code.text, STATE_BYTES),
        _ElfSection(".data", _PROGBITS, _ALLOCATE | _ELF_WRITE, bytes(STATE_BYTES), STATE_BYTES),
        _ElfSection(".rela.text", _RELA, _LINK_INFO, places, 8, _ELF_SYMBOLS, _TEXT, 24),
        _ElfSection(".note.GNU-stack", _PROGBITS, 0, b"", 1),
        _ElfSection(".symtab", _SYMTAB, 0, symbols, 8, _NAMES, first_global, _SYMBOL_BYTES),
    ]
    return _elf_assembled(sections, names)


def _elf_assembled(sections: list[_ElfSection], names: _Names) -> bytes:
    """Return the file: its header, the contents of the sections, the table of sections."""
    titles = [names.add(section.name) for section in sections]
    titles.append(names.add(".strtab"))
    sections = [*sections, _ElfSection(".strtab", _STRTAB, 0, names.content, 1)]
    content, table = bytes(_ELF_HEADER_BYTES), b""
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
    header += pack("<6H", _ELF_HEADER_BYTES, 0, 0, 64, len(sections), _NAMES)
    return header + content[_ELF_HEADER_BYTES:] + table


class System(NamedTuple):
    """An operating system on x86-64.

    name: the name by which users choose it; `cmake_name` is CMake's.
    suffixes: the suffixes of files for it, the usual one first.
    write: the writer of its object files.
    is_microsoft: whether its functions have Microsoft's calling convention; else System V's.
    asks_for_tiles: whether exported code can ask it for AMX tiles.
    saves_on_demand: whether XCR0 lacks the state of AVX-512 until a thread uses it, as on macOS.
    """

    name: str
    cmake_name: str
    suffixes: tuple[str, ...]
    write: Callable[[ObjectCode], bytes]
    is_microsoft: bool = False
    asks_for_tiles: bool = False
    saves_on_demand: bool = False


LINUX = System("linux", "Linux", (".o", ".so"), elf_file, asks_for_tiles=True)
SYSTEMS = {
    system.name: system
    for system in (
        LINUX,
        System("windows", "Windows", (".obj",), coff_file, is_microsoft=True),
        System("macos", "Darwin", (".o",), mach_o_file, saves_on_demand=True),
    )
}


def system_named(name: str) -> System:
    """Return the system of this name. Raises InvalidInput for other names."""
    if not isinstance(name, str) or name not in SYSTEMS:
        raise InvalidInput(f"system is {name!r}; choose one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
