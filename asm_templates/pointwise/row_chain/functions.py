"""Tables of a chain's functions of float32 and bool: registers that each needs, and its code.

A *direct* function writes one vector from its arguments, and may write over any of them. An *in
place* one turns several vectors into their results in step.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_chain import transcendental
from sparsejit.asm_templates.pointwise.row_chain.doubles import OF_BOOL, OF_FLOAT
from sparsejit.asm_templates.pointwise.row_chain.integers import FROM_BOOL, FROM_FLOAT, PairFunction
from sparsejit.asm_templates.pointwise.row_chain.lanes import (
    FIRST_MASK,
    bits,
    compare,
    extreme,
    is_wide,
    low,
    move,
    same,
    select,
)
from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.errors import CompileError
from sparsejit.ir.spec import Activation
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Operand, Register

Direct = Callable[[Assembler, Register, list[Operand], list[Register]], None]
InPlace = Callable[[Assembler, list[Register], list[Register]], None]


@dataclass(frozen=True)
class VectorFunction:
    """A function of float32 or bool vectors: its code, direct or in place, and its registers.

    It needs `scratch` registers and, in place, `per_vector` more for each vector. `memory` is the
    number of the one argument that may be a constant in memory, or -1.
    """

    direct: Direct | None = None
    in_place: InPlace | None = None
    scratch: int = 0
    per_vector: int = 0
    memory: int = -1


def _binary(mnemonic: str) -> VectorFunction:
    def emit(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
        asm.emit(mnemonic, d, *args)

    return VectorFunction(emit, memory=1)


def _unary(mnemonic: str) -> VectorFunction:
    def emit(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
        asm.emit(mnemonic, d, args[0])

    return VectorFunction(emit, memory=0)


def _with_bits(mnemonic: str, pattern: int) -> VectorFunction:
    def emit(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
        asm.emit(mnemonic, d, args[0], bits(asm, pattern))

    return VectorFunction(emit)


def _extreme(mnemonic: str) -> VectorFunction:
    def emit(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
        extreme(asm, mnemonic, d, args, scratch[0])

    return VectorFunction(emit, scratch=1, memory=1)


def _rounded(control: int) -> VectorFunction:
    def emit(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
        asm.emit("vrndscaleps" if is_wide(asm) else "vroundps", d, args[0], control)

    return VectorFunction(emit)


def _compared(predicate: int) -> VectorFunction:
    def emit(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
        first, second = args
        assert isinstance(first, Register)
        compare(asm, d, first, second, predicate)

    return VectorFunction(emit, memory=1)


def _in_place(function: InPlace, per_vector: int, shared: int = 1) -> VectorFunction:
    return VectorFunction(in_place=function, scratch=shared, per_vector=per_vector)


def _activation(activation: Activation) -> InPlace:
    def emit(asm: Assembler, registers: list[Register], scratch: list[Register]) -> None:
        apply_activation(asm, activation, registers, scratch)

    return emit


def _sigmoid(asm: Assembler, registers: list[Register], scratch: list[Register]) -> None:
    """Append sigmoid in place: with AVX-512 from exp, accurate to the last places.

    That takes 10 % more time. AVX2, where it would take 1.8 times as long, uses the rational
    function of `activation`.
    """
    if is_wide(asm):
        transcendental.sigmoid(asm, registers, scratch)
    else:
        apply_activation(asm, Activation.SIGMOID, registers, scratch)


def _fma(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    a, b, c = args
    if same(d, b):
        a, b = b, a
    if same(d, a):
        asm.emit("vfmadd213ps", d, b, c)
    elif same(d, c):
        asm.emit("vfmadd231ps", d, a, b)
    else:
        move(asm, d, a)
        asm.emit("vfmadd213ps", d, b, c)


def _square(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    asm.emit("vmulps", d, args[0], args[0])


def _relu(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    zero(asm, scratch[0])
    # max returns its second source when either is NaN.
    asm.emit("vmaxps", d, scratch[0], args[0])


def _reciprocal(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    move(asm, scratch[0], asm.constant(1.0))
    asm.emit("vdivps", d, scratch[0], args[0])


def _rsqrt(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    asm.emit("vsqrtps", d, args[0])
    _reciprocal(asm, d, [d], scratch)


def _sign(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    """1 with the sign of x; 0 for zero, and for NaN as in torch."""
    x, truth = args[0], scratch[0]
    assert isinstance(x, Register)
    zero(asm, truth)
    if is_wide(asm):
        asm.emit("vcmpps", FIRST_MASK, x, truth, 12)  # not equal, neither NaN
        asm.emit("vandps", d.masked(FIRST_MASK, zeroing=True), x, bits(asm, 0x80000000))
        asm.emit("vorps", d.masked(FIRST_MASK), d, asm.constant(1.0))
        return
    asm.emit("vcmpps", truth, x, truth, 12)
    asm.emit("vandps", d, x, bits(asm, 0x80000000))
    asm.emit("vorps", d, d, asm.constant(1.0))
    asm.emit("vandps", d, d, truth)


def _copysign(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    """The magnitude of the first with the sign of the second, of zeros and NaN as well."""
    asm.emit("vandps", scratch[0], args[1], bits(asm, 0x80000000))
    asm.emit("vandps", d, args[0], bits(asm, 0x7FFFFFFF))
    asm.emit("vorps", d, d, scratch[0])


def _where(asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]) -> None:
    truth, then, otherwise = args
    assert isinstance(truth, Register) and isinstance(otherwise, Register)
    select(asm, d, truth, then, otherwise)


def _round_float16(
    asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]
) -> None:
    """Convert to float16 and back; immediate 0 rounds to the nearest, ties to even."""
    if not is_wide(asm) and not asm.target.has("f16c"):
        raise CompileError("rounding to float16 needs a processor with F16C; cast to bfloat16")
    asm.emit("vcvtps2ph", low(scratch[0]), args[0], 0)
    asm.emit("vcvtph2ps", d, low(scratch[0]))


def _round_bfloat16(
    asm: Assembler, d: Register, args: list[Operand], scratch: list[Register]
) -> None:
    """Append code that rounds float32 to bfloat16, kept as float32, to nearest, ties to even.

    It adds 0x7FFF and the lowest kept bit to the bits of x, and clears the lower 16. NaN is copied
    instead, since some NaN would become infinity or -0.
    """
    x, (sum_, truth) = args[0], scratch
    assert isinstance(x, Register)
    asm.emit("vpsrld", sum_, x, 16)
    asm.emit("vandps", sum_, sum_, bits(asm, 1))
    asm.emit("vpaddd", sum_, sum_, bits(asm, 0x7FFF))
    asm.emit("vpaddd", sum_, sum_, x)
    asm.emit("vandps", sum_, sum_, bits(asm, 0xFFFF0000))
    if is_wide(asm):
        asm.emit("vcmpps", FIRST_MASK, x, x, _UNORDERED)
        asm.emit("vblendmps", d.masked(FIRST_MASK), sum_, x)
    else:
        asm.emit("vcmpps", truth, x, x, _UNORDERED)
        asm.emit("vblendvps", d, sum_, x, truth)


_UNORDERED = 3  # predicate of vcmpps: x is NaN
_LOG_SCRATCH = 4  # registers for each vector on AVX2; AVX-512 uses 3

FLOAT_FUNCTIONS: dict[str, VectorFunction | PairFunction] = {
    "add": _binary("vaddps"),
    "sub": _binary("vsubps"),
    "mul": _binary("vmulps"),
    "div": _binary("vdivps"),
    "maximum": _extreme("vmaxps"),
    "minimum": _extreme("vminps"),
    "fma": VectorFunction(_fma),
    "neg": _with_bits("vxorps", 0x80000000),
    "abs": _with_bits("vandps", 0x7FFFFFFF),
    "sqrt": _unary("vsqrtps"),
    "rsqrt": VectorFunction(_rsqrt, scratch=1),
    "reciprocal": VectorFunction(_reciprocal, scratch=1),
    "square": VectorFunction(_square),
    "relu": VectorFunction(_relu, scratch=1, memory=0),
    "exp": _in_place(transcendental.exp, 2),
    "exp2": _in_place(transcendental.exp2, 2),
    "expm1": _in_place(transcendental.expm1, 2),
    "log": _in_place(transcendental.log, _LOG_SCRATCH),
    "log1p": _in_place(transcendental.log1p, _LOG_SCRATCH + 1),
    "tanh": _in_place(_activation(Activation.TANH), SCRATCH_PER_VECTOR),
    "sigmoid": _in_place(_sigmoid, SCRATCH_PER_VECTOR),
    "erf": _in_place(transcendental.erf, 3),
    "sin": _in_place(transcendental.sin, 3),
    "cos": _in_place(transcendental.cos, 3),
    "floor": _rounded(9),
    "ceil": _rounded(10),
    "round": _rounded(8),
    "trunc": _rounded(11),
    "sign": VectorFunction(_sign, scratch=1),
    "copysign": VectorFunction(_copysign, scratch=1),
    "equal": _compared(0),
    "not_equal": _compared(4),
    "less": _compared(17),
    "less_equal": _compared(18),
    "greater": _compared(30),
    "greater_equal": _compared(29),
    "where": VectorFunction(_where, memory=1),
    "round_float16": VectorFunction(_round_float16, scratch=1),
    "round_bfloat16": VectorFunction(_round_bfloat16, scratch=2),
    "to_int64": FROM_FLOAT,
    "to_float64": OF_FLOAT,
}
BOOL_FUNCTIONS: dict[str, VectorFunction | PairFunction] = {
    "logical_and": _binary("vandps"),
    "logical_or": _binary("vorps"),
    "logical_not": _with_bits("vxorps", 0xFFFFFFFF),
    "where": VectorFunction(_where, memory=1),
    "to_float32": _with_bits("vandps", 0x3F800000),
    "to_int64": FROM_BOOL,
    "to_float64": OF_BOOL,
}
# Functions that are slower on wider vectors: a value that all lanes share is computed in 128 bits.
NARROWED = {"div", "sqrt", "rsqrt", "reciprocal"}
# Functions whose arguments may be swapped, so that a constant comes last.
COMMUTATIVE = {
    *("add", "mul", "maximum", "minimum", "logical_and", "logical_or", "equal", "not_equal"),
}
