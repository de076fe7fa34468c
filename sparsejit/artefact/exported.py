"""Exported code: a finished function, its C signature, and the functions around it.

    Macro              a number in the C header
    EntryPoint         a function of C
    ExportedFunction   the image, and what the header says of it
    ObjectCode         the same as bytes and places, for a writer of object files
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.files import checked_path
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.image import Image
from sparsejit.x86.operands import Register

STATE_BYTES = 64  # of the cache line that holds the state; text is aligned so, too
# Status codes of functions; the image may return positive ones.
OK, UNSUPPORTED_CPU = 0, -1


class Macro(NamedTuple):
    """A `#define` of a number in the C header; the function's name is its prefix there."""

    name: str
    value: int
    meaning: str


class EntryPoint(NamedTuple):
    """`int NAME_name(parameters)`, of four parameters at most.

    `emit` appends a System V function that ends with its return, and may call the image at the
    label.
    """

    name: str
    parameters: str
    emit: Callable[[Assembler, Label], None]
    about: Sequence[str] = ()


@dataclass(frozen=True)
class ExportedFunction:
    """`int NAME_run(parameters)` around an image, and the contents of its header.

    `image` begins with a System V function that takes `parameters` and then `fixed` numbers in
    registers, four in all at most, and returns an int, or nothing where `returns_status` is false.
    It keeps callee-saved registers and calls nothing outside itself. `target` is the target of the
    code. `about` describes the function, line by line. `functions`, where there are any,
    take the place of `run`. `workspace_bytes` is 0 for a function without workspace. `types` are
    lines of C before the prototypes. Code on several `threads` has its host start them, by a table
    that its functions take (`by_host`). Raises InvalidInput for other code on several threads.
    """

    name: str
    image: Image
    target: Target
    parameters: str
    returns_status: bool
    fixed: tuple[tuple[Register, int], ...] = ()
    macros: Sequence[Macro] = ()
    about: Sequence[str] = ()
    threads: int = 1
    functions: Sequence[EntryPoint] = ()
    workspace_bytes: int = 0
    types: Sequence[str] = ()
    by_host: bool = False

    def __post_init__(self) -> None:
        if self.threads > 1 and not self.by_host:
            raise InvalidInput(
                f"this kernel or model was compiled for {self.threads} threads of this process; "
                "compile it with threads=1 to export it"
            )

    @property
    def symbol(self) -> str:
        """The function's name in C."""
        return f"{self.name}_run"

    @property
    def instruction_sets(self) -> frozenset[str]:
        """Instruction sets that a processor needs: all of the level, and others of the code."""
        return self.target.level_sets | self.image.instruction_sets


class Symbol(NamedTuple):
    """A name for the bytes of the text from `start` on; other objects see global ones."""

    name: str
    start: int
    size: int
    is_global: bool = True


class Frame(NamedTuple):
    """Text from `start` to `end` whose first `prologue` bytes save registers.

    `unwinding` are the codes of Windows that undo them, the last instruction first.
    """

    start: int
    end: int
    prologue: int
    unwinding: bytes


class ObjectCode(NamedTuple):
    """Contents of an object file.

    `text` holds code and literals. It addresses one word of data, the state: each of the 32-bit
    `state_fields` must hold `state - end of field`, and holds 0 here. `state` is that word's name.
    """

    text: bytes
    symbols: tuple[Symbol, ...]
    state: str
    state_fields: tuple[int, ...]
    frames: tuple[Frame, ...] = ()


def c_name(path: str | os.PathLike[str]) -> str:
    """Return the function's name in C, from the file's name: `model` for folder/model.o.

    Raises InvalidInput for a name that is no C identifier.
    """
    stem = checked_path(path).stem
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", stem):
        raise InvalidInput(
            f"{stem!r} of {os.fspath(path)!r} becomes a name in C and cannot be one; "
            "use letters, digits and underscores, such as model.o"
        )
    return stem
