"""What is exported: finished code, and how C calls it. Object files and headers are made of it."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.files import checked_path
from sparsejit.machine.target import Target
from sparsejit.x86.image import Image
from sparsejit.x86.operands import Register

# What `run` returns; the code itself may return positive numbers.
OK, UNSUPPORTED_CPU = 0, -1


class Macro(NamedTuple):
    """A number in the C header; the function's name stands before it there."""

    name: str
    value: int
    meaning: str


@dataclass(frozen=True)
class ExportedFunction:
    """`int NAME_run(parameters)` around an image, and what its header says.

    `image` begins with a System V function that takes `parameters` and then `fixed` numbers in
    registers, four in all at most, and returns an int, or nothing where `returns_status` is false.
    It keeps callee-saved registers and calls nothing outside itself.
    `target` is what it was emitted for. `about` describes it, line by line. Raises InvalidInput for
    code on several `threads`.
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

    def __post_init__(self) -> None:
        if self.threads > 1:
            raise InvalidInput(
                f"this was compiled for {self.threads} threads of this process; "
                "compile it with threads=1 to export it"
            )

    @property
    def symbol(self) -> str:
        """The function's name in C."""
        return f"{self.name}_run"

    @property
    def instruction_sets(self) -> frozenset[str]:
        """What a processor must have: all of the level, and what else the code uses."""
        return self.target.level_sets | self.image.instruction_sets


def c_name(path: str | os.PathLike[str]) -> str:
    """The name that the file's name gives to the function: `model` of folder/model.o.

    Raises InvalidInput for a name that C does not take.
    """
    stem = checked_path(path).stem
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", stem):
        raise InvalidInput(
            f"{stem!r} of {os.fspath(path)!r} becomes a name in C and cannot be one; "
            "use letters, digits and underscores, such as model.o"
        )
    return stem
