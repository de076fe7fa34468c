"""A reader of Mach-O objects, and a loader that runs their code on Linux."""

import ctypes
import mmap
from struct import iter_unpack, pack_into, unpack_from
from typing import Any, NamedTuple

SEGMENT, SYMBOLS, SYMBOL_RANGES, BUILD_VERSION = 0x19, 0x02, 0x0B, 0x32


class Section(NamedTuple):
    name: str
    segment: str
    address: int
    size: int
    start: int
    alignment: int
    relocations: list[tuple[int, int]]
    flags: int


class Symbol(NamedTuple):
    name: str
    kind: int
    section: int
    address: int


class Object(NamedTuple):
    """The parts of a file; `commands` are load commands by number."""

    content: bytes
    header: tuple[int, ...]
    commands: dict[int, bytes]
    sections: list[Section]
    symbols: list[Symbol]


def read(content: bytes) -> Object:
    header = unpack_from("<8I", content)
    found = Object(content, header, {}, [], [])
    place = 32
    for _ in range(header[4]):
        number, size = unpack_from("<II", content, place)
        found.commands[number] = content[place : place + size]
        place += size
    assert place == 32 + header[5]
    segment = found.commands[SEGMENT]
    for number in range(unpack_from("<I", segment, 64)[0]):
        found.sections.append(_section(content, segment[72 + 80 * number :]))
    start, count, strings, length = unpack_from("<4I", found.commands[SYMBOLS], 8)
    assert strings + length == len(content)
    for name, kind, section, _, address in iter_unpack(
        "<IBBHQ", content[start : start + 16 * count]
    ):
        first = strings + name
        text = content[first : content.index(b"\0", first)].decode()
        found.symbols.append(Symbol(text, kind, section, address))
    return found


def _section(content: bytes, head: bytes) -> Section:
    name, segment, address, size = unpack_from("<16s16sQQ", head)
    start, alignment, moved, count, flags = unpack_from("<5I", head, 48)
    relocations = list(iter_unpack("<iI", content[moved : moved + 8 * count]))
    words = [each.rstrip(b"\0").decode() for each in (name, segment)]
    return Section(*words, address, size, start, 1 << alignment, relocations, flags)


class Loaded:
    """The linked code of an object. Linux and macOS have one calling convention."""

    def __init__(self, found: Object) -> None:
        self.places = {symbol.name: symbol.address for symbol in found.symbols}
        size = sum(found.sections[-1][2:4])
        protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        self.memory = mmap.mmap(-1, size, prot=protection)
        for section in found.sections:
            part = found.content[section.start : section.start + section.size]
            self.memory[section.address : section.address + section.size] = part
            for at, what in section.relocations:
                assert what >> 24 == 0b0001_1_10_1  # signed, external, four bytes, relative
                target = found.symbols[what & 0xFFFFFF].address
                pack_into("<i", self.memory, section.address + at, target - (at + 4))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def call(self, name: str, *arguments: int) -> int:
        kinds = [ctypes.c_void_p] * len(arguments)
        function: Any = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self.address + self.places[name])
        return int(function(*arguments))
