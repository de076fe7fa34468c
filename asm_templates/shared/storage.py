"""Vectors of weights in the pool: their places, their bytes, and the operand that reads one.

    Storage, Unpacking   the format of stored vectors, and the unpacking of short weights
    rounded              weights rounded to a dtype
    Stream               operands in order, by a base that advances and a one-byte displacement
    addresses            operands in any order, by a base that is loaded again

Unpacking of a vector of short weights to float32 in a register:

    float16   half a line a vector              vcvtph2ps zmm2, [ymmword]
    bfloat16  two vectors a, b share a line, lane by lane; each is the upper half of a float32:

              line    b15.a15 ... b1.a1 b0.a0    32 bits a lane
              a       vpslld zmm2, [line], 16    clears b
              b       vpandd zmm2, zmm3, [line]  clears a; zmm3 holds 0xFFFF0000

This takes one instruction more than float32, for half the bytes; sums are computed in float32.

A base register points to the middle of the range of a one-byte displacement:

    base - reach ... base ... base + reach - 1      in units of the operand (EVEX), bytes (VEX)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared import padding
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES, DENSE, StridePadding
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Unpacking:
    """Code that unpacks vectors of stored weights, of one dtype, to float32 in register `weight`.

    `upper_halves` is a register that holds 0xFFFF0000 in every lane.
    """

    asm: Assembler
    dtype: DType
    weight: Register
    upper_halves: Register

    def start(self) -> None:
        """Load the constant in `upper_halves`, for bfloat16."""
        if self.dtype is not DType.BFLOAT16:
            return
        upper = self.upper_halves
        if self._is_evex:
            self.asm.emit("vpternlogd", upper, upper, upper, 0xFF)
        else:
            self.asm.emit("vpcmpeqd", upper, upper, upper)
        self.asm.emit("vpslld", upper, upper, 16)

    def operand(self, place: Memory, odd: _Flags) -> tuple[list[Line], Register | Memory]:
        """Return lines that unpack the vector at `place`, and then the FMA's operand.

        `odd`: it is the second vector of a bfloat16 line. float32 is read by the FMA itself.
        """
        if self.dtype is DType.FLOAT32:
            return [], place
        if self.dtype is DType.FLOAT16:
            return [self._widened(place)], self.weight
        if self._is_evex:
            shift = [line("vpslld", self.weight, place, 16, when=~odd)]
        else:
            load = line("vmovups", self.weight, place, when=~odd)
            shift = [load, line("vpslld", self.weight, self.weight, 16, when=~odd)]
        return [*shift, self._clear_lower(place, odd)], self.weight

    def register(self, place: Memory, odd: _Flags, whole: Register) -> tuple[list[Line], Register]:
        """Return lines that load the vector of weights at `place` into a register, and that.

        `odd`: it is the second vector of a bfloat16 line. Consecutive vectors of bfloat16 share one
        load of their line, in register `whole`.
        """
        if self.dtype is DType.FLOAT32:
            return [line("vmovups", self.weight, place)], self.weight
        if self.dtype is DType.FLOAT16:
            return [self._widened(place)], self.weight
        return [
            line("vmovups", whole, place, when=~odd),
            line("vpslld", self.weight, whole, 16, when=~odd),
            self._clear_lower(whole, odd),
        ], self.weight

    @property
    def _is_evex(self) -> bool:
        return self.asm.target.isa == "avx512"

    def _widened(self, place: Memory) -> Line:
        return line("vcvtph2ps", self.weight, place)

    def _clear_lower(self, source: Register | Memory, odd: _Flags) -> Line:
        mnemonic = "vpandd" if self._is_evex else "vpand"
        return line(mnemonic, self.weight, self.upper_halves, source, when=odd)


FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]

LINE, WEIGHT, UPPER_HALVES = 1, 2, 3  # registers for unpacking
# Number of these registers in use, from `WEIGHT` on.
UNPACKING_REGISTERS = {DType.FLOAT32: 0, DType.FLOAT16: 1, DType.BFLOAT16: 2}


@dataclass(frozen=True)
class Storage:
    """Format of stored vectors of weights, numbered from 0, in one dtype.

    `padding` is the stride padding of their cache lines. Weights are rounded to `rounds_to` first.
    """

    target: Target
    dtype: DType
    padding: StridePadding = DENSE
    rounds_to: DType = DType.FLOAT32

    @property
    def weight_bytes(self) -> int:
        return 4 if self.dtype is DType.FLOAT32 else 2

    @property
    def registers(self) -> int:
        """Registers from `WEIGHT` on that unpacking needs."""
        return UNPACKING_REGISTERS[self.dtype]

    @property
    def whole(self) -> int:
        """Number of vectors that are stored together: two in bfloat16."""
        return 2 if self.dtype is DType.BFLOAT16 else 1

    @property
    def displacement_unit(self) -> int:
        """Unit of a one-byte displacement, in bytes: the operand's size in EVEX, 1 in VEX."""
        if self.target.isa != "avx512":
            return 1
        return self.target.vector_bytes // (2 if self.dtype is DType.FLOAT16 else 1)

    def place(self, number: IntArray) -> IntArray:
        """Return the byte offset of the memory operand that holds each vector."""
        row = number // self.whole * self.whole
        read, within = np.divmod(row * self.target.lanes * self.weight_bytes, CACHE_LINE_BYTES)
        return self.padding.place(read) * CACHE_LINE_BYTES + within

    def lines(self, vectors: FloatArray) -> ByteArray:
        """Return vectors (count, lanes), rounded to the dtype, as cache lines (lines, 64)."""
        values = rounded(vectors, self.rounds_to)
        packed = np.frombuffer(_packed(self.dtype, values).tobytes(), np.uint8)
        lines = np.pad(packed, (0, -len(packed) % CACHE_LINE_BYTES))
        return lines.reshape(-1, CACHE_LINE_BYTES)

    def literal(self, asm: Assembler, lines: ByteArray) -> int:
        """Put cache lines, as `lines` returns them, into the pool, and return their offset."""
        return padding.literal(asm, lines[None], self.padding)

    def start(self, asm: Assembler) -> None:
        """Load the constants that unpacking needs."""
        self._unpacking(asm).start()

    def in_trips(self, weights: FloatArray) -> FloatArray:
        """Flatten vectors of weights (trips of a loop, any, lanes) to (any, lanes).

        Zeros pad each trip to a multiple of `whole` vectors.
        """
        padded = np.pad(weights, ((0, 0), (0, -weights.shape[1] % self.whole), (0, 0)))
        return padded.reshape(-1, weights.shape[2])

    def trip_bytes(self, vectors: int) -> int:
        """Return the bytes from one trip of a loop to the next, if it reads `vectors` vectors.

        These are whole runs of lines.
        """
        return int(self.place(np.array(round_up(vectors, self.whole))))

    def operand(
        self, asm: Assembler, number: IntArray, place: Memory, consecutive: bool = False
    ) -> tuple[list[Line], Register | Memory]:
        """Return lines that unpack the vectors of those numbers, and then the FMA's operand.

        `consecutive`: the two vectors of a line follow each other, see `unpacked`.
        """
        if consecutive and self.dtype is DType.BFLOAT16:
            return self.unpacked(asm, number, place)
        return self._unpacking(asm).operand(place, number % 2 != 0)

    def unpacked(
        self, asm: Assembler, number: IntArray, place: Memory
    ) -> tuple[list[Line], Register]:
        """Return lines that load the vectors of those numbers into a register, and the register.

        Consecutive vectors of bfloat16 share one load of their line, in register LINE.
        """
        return self._unpacking(asm).register(place, number % 2 != 0, vector(asm, LINE))

    def _unpacking(self, asm: Assembler) -> Unpacking:
        weight, upper_halves = (vector(asm, number) for number in (WEIGHT, UPPER_HALVES))
        return Unpacking(asm, self.dtype, weight, upper_halves)


def stored_dtype(family: str, dtype: DType, float32_bytes: int, target: Target) -> DType:
    """Return the dtype in which a family stores weights of `dtype`.

    It is float32 instead if float32 weights fit a cache from which the core reads them faster.
    """
    nearest = target.core.widened.get((family, dtype.value))
    room = {None: -1, "L1": target.l1d_bytes, "L2": target.l2_bytes // 2}[nearest]
    return DType.FLOAT32 if float32_bytes <= room else dtype


def rounded(weights: FloatArray, dtype: DType) -> FloatArray:
    """Return the weights rounded to `dtype`, as float32."""
    if dtype is DType.FLOAT16:
        return weights.astype(np.float16).astype(np.float32)
    if dtype is DType.BFLOAT16:
        return (bfloat16_bits(weights).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return weights


def rounded_matrix(matrix: SparseMatrix, dtype: DType) -> SparseMatrix:
    """Return the weights rounded to `dtype`, without weights that become zero."""
    return matrix.with_values(lambda weights: rounded(weights, dtype))


def _packed(dtype: DType, vectors: FloatArray) -> npt.NDArray[np.generic]:
    if dtype is DType.FLOAT32:
        return vectors
    if dtype is DType.FLOAT16:
        return vectors.astype(np.float16)
    halves = bfloat16_bits(vectors)
    if len(halves) % 2:
        halves = np.concatenate([halves, np.zeros_like(halves[:1])])
    return np.stack([halves[0::2], halves[1::2]], axis=-1)


def bfloat16_bits(values: FloatArray) -> npt.NDArray[np.uint16]:
    """Round float32 values to bfloat16, ties to even; return the 16 bits of each."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    halfway = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return ((bits + halfway) >> np.uint32(16)).astype(np.uint16)


REACH = 128  # units to either side that a one-byte displacement reaches

_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Stream:
    """Operands of `unit` bytes that a run reads in order, numbered from its start.

    `reach` operands lie to either side of the base; `padding` is their stride padding.
    """

    asm: Assembler
    base: Register
    unit: int
    reach: int = REACH
    padding: StridePadding = DENSE

    @property
    def span(self) -> int:
        """Operands that one value of the base reaches."""
        return 2 * self.reach

    def point(self, offset: int) -> None:
        """Point at the operands that begin at `offset` in the pool."""
        self.asm.emit("lea", self.base, Literal(offset + self.reach * self.unit))

    def at(self, number: _Numbers) -> Memory:
        """Return the memory operands of these numbers, which must be in reach."""
        place = self.padding.place(number)
        return Memory(self.base, (place % self.span - self.reach) * self.unit)

    def move(self, number: _Numbers, when: _Flags | bool = True) -> Line:
        """Return the line that advances the base before operands that are out of reach."""
        moves = self._is_out_of_reach(number) & when
        return line("add", self.base, self.span * self.unit, when=moves)

    def next_at(self, number: int) -> Memory:
        """Return one operand of the run, advancing the base if needed; call in order."""
        if self._is_out_of_reach(np.array(number)):
            self.asm.emit("add", self.base, self.span * self.unit)
        return self.at(np.array(number))

    def leave(self, count: int) -> None:
        """Point at the operands of the next run, after `count` operands."""
        moved = self.padding.place(max(count - 1, 0)) // self.span * self.span
        room = self.padding.room(count)
        if room > moved:
            self.asm.emit("add", self.base, (room - moved) * self.unit)

    def _is_out_of_reach(self, number: _Numbers) -> _Flags:
        place = self.padding.place(number)
        out: _Flags = (place > 0) & (place % self.span == 0)
        return out


@dataclass(frozen=True, eq=False)
class Addresses:
    """Byte addresses in any order: a base, loaded where it `moves`, and a displacement."""

    base: _Numbers
    displacement: _Numbers
    moves: _Flags


def addresses(address: _Numbers, unit: int) -> Addresses:
    """Split byte addresses into bases and the displacements, in units of `unit` bytes, from these.

    A base changes only where the displacement would not reach.
    """
    span = 2 * REACH * unit
    window = address // span
    return Addresses(
        window * span + span // 2,
        address % span - span // 2,
        np.diff(window, prepend=-1) != 0,
    )
