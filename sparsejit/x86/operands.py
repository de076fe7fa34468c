"""Operands of an instruction: registers, memory, literals.

A number inside an operand (register number, displacement, immediate) may be an integer array.
An instruction with array operands stands for an instruction for each element of the arrays;
`assembler.Assembler.stamp` writes them all at once.

Operands without arrays compare by value, so that they serve as keys of encoded instructions.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Number: TypeAlias = int | npt.NDArray[np.integer]

VECTOR_BYTES = {"xmm": 16, "ymm": 32, "zmm": 64}
_GPR64 = (
    "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()
)
_GPR16 = (
    "ax cx dx bx sp bp si di r8w r9w r10w r11w r12w r13w r14w r15w".split()
)
_GPR32 = (
    "eax ecx edx ebx esp ebp esi edi r8d r9d r10d r11d r12d r13d r14d r15d".split()
)


class Register(NamedTuple):
    """One register, or an array of vector registers of the same kind.

    `kind` is r16, r32, r64, k, tmm, xmm, ymm or zmm. `mask` is the number of the k register that
    predicates a destination (0: none), `zeroing` clears the lanes it leaves out.
    """

    kind: str
    number: Number
    mask: int = 0
    zeroing: bool = False

    def masked(self, mask: "Register", zeroing: bool = False) -> "Register":
        """Return the same register as a destination predicated by a k register."""
        return self._replace(mask=int(mask.number), zeroing=zeroing)

    def text(self, row: int) -> str:
        number = pick(self.number, row)
        if self.kind == "r64":
            return _GPR64[number]
        if self.kind == "r32":
            return _GPR32[number]
        if self.kind == "r16":
            return _GPR16[number]
        suffix = f"{{k{self.mask}}}" if self.mask else ""
        return f"{self.kind}{number}{suffix}" + ("{z}" if self.zeroing else "")


class Memory(NamedTuple):
    """A place in memory as an operand: `[base + index * scale + displacement]`.

    `broadcast` is the number of copies of one 32-bit element (0: none); `mask` predicates a store.
    """

    base: Register
    displacement: Number = 0
    index: Register | None = None  # type: ignore[assignment]  # a tuple's method elsewhere
    scale: int = 1
    broadcast: int = 0
    mask: int = 0

    def masked(self, mask: Register) -> "Memory":
        """Return the same memory as a store destination predicated by a k register."""
        return self._replace(mask=int(mask.number))

    def text(self, row: int) -> str:
        parts = self.base.text(row)
        if self.index is not None:
            parts += f"+{self.index.text(row)}*{self.scale}"
        displacement = pick(self.displacement, row)
        if displacement:
            parts += f"{displacement:+d}"
        copies = f"{{1to{self.broadcast}}}" if self.broadcast else ""
        return f"[{parts}]{copies}" + (f"{{k{self.mask}}}" if self.mask else "")


class Literal(NamedTuple):
    """A place in the literal pool, addressed relative to the instruction pointer.

    `offset` is in bytes from the start of the pool, as `Assembler.literal` returned it.
    """

    offset: Number
    broadcast: int = 0

    def text(self, row: int) -> str:
        copies = f"{{1to{self.broadcast}}}" if self.broadcast else ""
        return f"[pool+{pick(self.offset, row)}]{copies}"


class Here(NamedTuple):
    """A place `distance` bytes behind the end of the instruction itself."""

    distance: int

    def text(self, row: int) -> str:
        return f"[rip+{self.distance}]"


class Relative(NamedTuple):
    """The destination of a jump, filled in when its label is placed."""

    name: str

    def text(self, row: int) -> str:
        return self.name


Operand: TypeAlias = Register | Memory | Literal | Here | Relative | int | npt.NDArray[np.integer]


def pick(number: Number, row: int) -> int:
    """Return the `row`-th element of an array, or the number itself."""
    return int(number[row]) if isinstance(number, np.ndarray) else int(number)


def operand_text(operand: Operand, row: int) -> str:
    """Return an operand as text for a listing."""
    if isinstance(operand, Register | Memory | Literal | Here | Relative):
        return operand.text(row)
    return hex(pick(operand, row))


def xmm(number: Number) -> Register:
    return Register("xmm", number)


def ymm(number: Number) -> Register:
    return Register("ymm", number)


def zmm(number: Number) -> Register:
    return Register("zmm", number)


def k(number: int) -> Register:
    return Register("k", number)


def tmm(number: int) -> Register:
    """Return a tile of AMX: up to 16 rows of 64 bytes."""
    return Register("tmm", number)


def word(register: Register) -> Register:
    """Return the low 16 bits of a 64-bit register."""
    return Register("r16", register.number)


def dword(register: Register) -> Register:
    """Return the low 32 bits of a 64-bit register."""
    return Register("r32", register.number)


rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15 = (
    Register("r64", number) for number in range(16)
)
