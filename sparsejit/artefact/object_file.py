"""A relocatable ELF object for x86-64 Linux, written by PeachPy: code, one word of state, no libc.

    .text             entry (`support_check`), then the image: code and its literals
    .data             the state, in a cache line of its own, which nothing else writes
    .rela.text        where .text names the state
    .note.GNU-stack   empty: the linker needs make no stack executable
"""

from typing import Any

from sparsejit.artefact.exported import ExportedFunction
from sparsejit.artefact.support_check import entry

_LINE_BYTES = 64
_SYMBOL_BYTES = 24


def object_file(function: ExportedFunction) -> bytes:
    """The contents of the .o file; its one global symbol is `function.symbol`."""
    # When something is exported: compiling needs no ELF.
    from peachpy.formats.elf.image import Image as ElfImage
    from peachpy.formats.elf.section import (
        DataSection,
        ProgramBitsSection,
        RelocationsWithAddendSection,
        TextSection,
    )
    from peachpy.formats.elf.symbol import RelocationType, RelocationWithAddend
    from peachpy.x86_64.abi import system_v_x86_64_abi

    start = entry(function)
    elf = ElfImage(system_v_x86_64_abi)
    text, data = TextSection(), DataSection()
    text.content += start.code + function.image.data
    data.content += bytes(_LINE_BYTES)
    state = _symbol(f"{function.name}_state", data, is_global=False)
    for symbol in (_null_symbol(), state, _symbol(function.symbol, text, is_global=True)):
        elf.symtab.add(symbol)
    relocations = RelocationsWithAddendSection(text, elf.symtab)
    for place in start.state_fields:
        # The processor counts from the end of the four bytes.
        relocations.add(RelocationWithAddend(RelocationType.x86_64_pc32, place, state, -4))
    text.alignment = data.alignment = _LINE_BYTES
    elf.symtab.alignment = relocations.alignment = 8
    no_stack = ProgramBitsSection(".note.GNU-stack", allocate=False)
    for section in (text, data, relocations, no_stack):
        elf.add_section(section)
    return bytes(elf.as_bytearray)


def _symbol(name: str, section: Any, is_global: bool) -> Any:
    """A function, or data where it is not global, that fills its section."""
    from peachpy.formats.elf.symbol import Symbol, SymbolBinding, SymbolType

    symbol = Symbol()
    symbol.name, symbol.section = name, section
    symbol.value, symbol.size = 0, len(section.content)
    symbol.binding = SymbolBinding.global_ if is_global else SymbolBinding.local
    symbol.type = SymbolType.function if is_global else SymbolType.data_object
    return symbol


def _null_symbol() -> Any:
    """Number 0 of every symbol table, all zeros, which PeachPy leaves out."""
    from peachpy.formats.elf.symbol import Symbol

    symbol = Symbol()
    symbol.encode = lambda *numbering: bytes(_SYMBOL_BYTES)
    return symbol
