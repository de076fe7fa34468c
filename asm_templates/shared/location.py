"""Locations of arrays while a model's function runs."""

from dataclasses import dataclass
from typing import Protocol

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, rbp

WORKSPACE = rbp  # holds the address of the workspace throughout a model's function


class Location(Protocol):
    """An address that code can load."""

    def point(self, asm: Assembler, register: Register) -> None:
        """register = the address."""


@dataclass(frozen=True)
class InWorkspace:
    """An array in the workspace, `offset` bytes from its start."""

    offset: int

    def point(self, asm: Assembler, register: Register) -> None:
        asm.emit("lea", register, Memory(WORKSPACE, self.offset))


@dataclass(frozen=True)
class ByPointer:
    """An array whose address is stored in the workspace: `offset` bytes behind that address.

    The address lies `slot` bytes into the workspace.
    """

    slot: int
    offset: int = 0

    def point(self, asm: Assembler, register: Register) -> None:
        asm.emit("mov", register, Memory(WORKSPACE, self.slot))
        if self.offset:
            asm.emit("add", register, self.offset)


@dataclass(frozen=True)
class InRegister:
    """An array whose address a register holds."""

    held: Register

    def point(self, asm: Assembler, register: Register) -> None:
        asm.emit("mov", register, self.held)


@dataclass(frozen=True)
class InPool:
    """A constant array in the pool of literals, at its offset."""

    offset: int

    def point(self, asm: Assembler, register: Register) -> None:
        asm.emit("lea", register, Literal(self.offset))
