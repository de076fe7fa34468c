"""A Mach-O object for macOS on Intel processors: code, one word of state, no library.

    __TEXT,__text     the image, code and its literals, then the entry points
    __DATA,__data     the state, in a cache line of its own, which nothing else writes
    relocations       the places in the text that address the state
    symbols, strings  the names of the state and of functions, each after an underscore

Tables are as in Apple's <mach-o/loader.h>, <mach-o/nlist.h> and <mach-o/reloc.h>.
"""

from struct import pack

from sparsejit.artefact.exported import STATE_BYTES, ObjectCode

_MAGIC, _X86_64, _ALL_PROCESSORS, _OBJECT = 0xFEEDFACF, 0x01000007, 3, 1
_SEGMENT, _SYMBOLS, _SYMBOL_RANGES, _BUILD_VERSION = 0x19, 0x02, 0x0B, 0x32
_HEADER_BYTES, _SEGMENT_BYTES, _SECTION_BYTES, _RELOCATION_BYTES = 32, 72, 80, 8
_COMMAND_BYTES = _SEGMENT_BYTES + 2 * _SECTION_BYTES + 24 + 24 + 80
_INSTRUCTIONS = 0x80000400  # the section has only these, as far as linkers care
_MACOS, _OLDEST = 1, 10 << 16 | 13 << 8  # 10.13
_ALIGNMENT = 6  # a power of two
_ALL = 7  # permissions
# A field of four bytes, relative to its end, of a symbol by number: X86_64_RELOC_SIGNED.
_FROM_FIELD = 1 << 24 | 2 << 25 | 1 << 27 | 1 << 28
_IN_SECTION, _EXTERNAL = 0x0E, 0x01


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
    places += [(each.name, _IN_SECTION | _EXTERNAL, 1, each.start) for each in others]
    for name, kind, section, address in places:
        entries += pack("<IBBHQ", len(names), kind, section, 0, address)
        names += f"_{name}".encode() + b"\0"
    names += bytes(-len(names) % 8)
    fields = b"".join(pack("<iI", at, _FROM_FIELD) for at in code.state_fields)
    start = _HEADER_BYTES + _COMMAND_BYTES
    start += -start % STATE_BYTES
    moved = start + len(text) + len(data)
    table = moved + len(fields)
    sections = (
        _section("__text", "__TEXT", 0, len(text), start, moved, len(code.state_fields)),
        _section("__data", "__DATA", len(text), len(data), start + len(text), 0, 0),
    )
    size = len(text) + len(data)
    commands = pack("<II16sQQQQ", _SEGMENT, _SEGMENT_BYTES + 160, b"", 0, size, start, size)
    commands += pack("<IIII", _ALL, _ALL, len(sections), 0) + b"".join(sections)
    commands += pack("<IIIIII", _BUILD_VERSION, 24, _MACOS, _OLDEST, 0, 0)
    ends = len(places), table + len(entries), len(names)
    commands += pack("<IIIIII", _SYMBOLS, 24, table, *ends)
    ranges = 0, 1 + len(own), 1 + len(own), len(others), len(places), 0
    commands += pack("<II6I", _SYMBOL_RANGES, 80, *ranges) + bytes(48)
    header = pack("<IIIIIIII", _MAGIC, _X86_64, _ALL_PROCESSORS, _OBJECT, 4, len(commands), 0, 0)
    head = (header + commands).ljust(start, b"\0")
    return head + text + data + fields + entries + names


def _section(
    name: str, segment: str, address: int, size: int, start: int, moved: int, count: int
) -> bytes:
    """Return the header of a section, with the place and number of its relocations."""
    named = pack("<16s16sQQ", name.encode(), segment.encode(), address, size)
    flags = _INSTRUCTIONS if segment == "__TEXT" else 0
    return named + pack("<IIIIIIII", start, _ALIGNMENT, moved, count, flags, 0, 0, 0)
