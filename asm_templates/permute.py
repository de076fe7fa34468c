"""Unstructured sparsity: inputs held in registers, picked lane by lane."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates import rows
from sparsejit.asm_templates.schedule import (
    Demand,
    Schedule,
    demand,
    one_register_schedule,
    padded,
    two_register_schedule,
)
from sparsejit.assembler import Assembler, Line, line
from sparsejit.matrix import SparseMatrix
from sparsejit.operands import Literal, Memory, Register, rdi, rdx, rsi
from sparsejit.spec import Activation, MatVec

ACCUMULATORS = 4
_INDEX = ACCUMULATORS
_PICKED = ACCUMULATORS + 1
_FIRST_INPUT = ACCUMULATORS + 2
POOL = rdx
_REACH = 126  # vectors to either side of the pool's base register that disp8 * 64 spans


@dataclass(frozen=True)
class Shape:
    lanes: int
    sources: int  # registers a step picks from
    index_bits: int
    inputs: int  # registers that hold x

    @property
    def fields(self) -> int:
        """Steps served by one vector of packed indices."""
        return 32 // self.index_bits


@dataclass(frozen=True)
class Stream:
    """Steps in order of execution; all arrays but `taken` (steps, lanes) have shape (steps,)."""

    batch: npt.NDArray[np.int64]  # window * batches a window + batch of row groups
    window: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    accumulator: npt.NDArray[np.int64]
    first: npt.NDArray[np.int32]
    second: npt.NDArray[np.int32]
    taken: npt.NDArray[np.int32]


AVX512 = Shape(lanes=16, sources=2, index_bits=5, inputs=16)
AVX2 = Shape(lanes=8, sources=1, index_bits=3, inputs=10)


def emit_avx512(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    _emit(asm, spec, matrix, AVX512)


def emit_avx2(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    _emit(asm, spec, matrix, AVX2)


def _emit(asm: Assembler, spec: MatVec, matrix: SparseMatrix, shape: Shape) -> None:
    registers = -(-matrix.in_features // shape.lanes)
    windows = -(-registers // shape.inputs)
    window = -(-registers // windows)
    groups = -(-matrix.out_features // shape.lanes)
    wanted = demand(matrix, shape.lanes, window)
    cover = two_register_schedule if shape.sources == 2 else one_register_schedule
    stream = _arrange(cover(wanted), groups)
    base = asm.literal(_pool(matrix, stream, shape, window))
    asm.emit("lea", POOL, Literal(base + _REACH * 4 * shape.lanes))
    batches = -(-groups // ACCUMULATORS)
    bounds = np.searchsorted(stream.batch, np.arange(windows * batches + 1))
    for number in range(windows * batches):
        if number % batches == 0:
            _load_inputs(asm, matrix, shape, window, number // batches)
        _emit_batch(asm, spec, shape, stream, number, groups, slice(*bounds[number : number + 2]))
    if spec.activation is not Activation.NONE:
        _activate(asm, spec, shape)


def _arrange(schedule: Schedule, groups: int) -> Stream:
    """Batches of row groups abreast, so that consecutive steps feed different accumulators."""
    window, group = np.divmod(schedule.problem.astype(np.int64), groups)
    turn = np.arange(len(group)) - np.searchsorted(schedule.problem, schedule.problem)
    batches = -(-groups // ACCUMULATORS)
    batch = window * batches + group // ACCUMULATORS
    ways = _ways(groups, group)
    accumulator = group % ACCUMULATORS * ways + turn % ways
    order = np.lexsort((group, turn, batch))
    columns = (batch, window, group, accumulator, schedule.first, schedule.second, schedule.taken)
    return Stream(*(column[order] for column in columns))


def _ways(groups: int, group: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Accumulators for each row group: what its batch leaves to it."""
    abreast = np.minimum(ACCUMULATORS, groups - group // ACCUMULATORS * ACCUMULATORS)
    return ACCUMULATORS // abreast


def _pool(
    matrix: SparseMatrix, stream: Stream, shape: Shape, window: int
) -> npt.NDArray[np.uint32]:
    """Blocks of one vector of packed indices and the weights of the steps it serves."""
    lanes, fields = shape.lanes, shape.fields
    steps = len(stream.batch)
    blocks = -(-steps // fields)
    weights = np.zeros((blocks * fields, lanes), np.float32)
    indices = np.zeros((blocks * fields, lanes), np.uint32)
    weights[:steps], indices[:steps] = _weights_and_indices(matrix, stream, shape, window)
    pool = np.zeros((blocks, fields + 1, lanes), np.uint32)
    pool[:, 1:] = weights.view(np.uint32).reshape(blocks, fields, lanes)
    shifts = _shifts(shape)[:, None].astype(np.uint32)
    pool[:, 0] = np.bitwise_or.reduce(indices.reshape(blocks, fields, lanes) << shifts, axis=1)
    return pool


def _shifts(shape: Shape) -> npt.NDArray[np.int64]:
    """Bit position of each field; the last field lies at 0 and is used without a shift."""
    return np.roll(np.arange(shape.fields) * shape.index_bits, -1)


def _weights_and_indices(
    matrix: SparseMatrix, stream: Stream, shape: Shape, window: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    lanes = shape.lanes
    row, column = np.nonzero(matrix.dense)
    idle = stream.taken < 0
    weights = np.where(idle, 0, np.append(matrix.dense[row, column], 0)[stream.taken])
    used_column = np.append(column, 0)[stream.taken]
    register = used_column // lanes - window * stream.window[:, None]
    index = used_column % lanes + lanes * (register != stream.first[:, None])
    return weights.astype(np.float32), np.where(idle, _idle(matrix, stream, shape, window), index)


def _idle(
    matrix: SparseMatrix, stream: Stream, shape: Shape, window: int
) -> npt.NDArray[np.int64]:
    """Per step and lane, an input of the step that the lane's row has no weight for."""
    lanes = shape.lanes
    groups = -(-matrix.out_features // lanes)
    registers = -(-matrix.in_features // lanes)
    used = padded(matrix.dense != 0, groups * lanes, registers * lanes)
    unused = used.reshape(groups, lanes, registers, lanes).argmin(axis=3)
    at = stream.window * window + stream.first
    return unused[stream.group, :, at]


def _load_inputs(
    asm: Assembler, matrix: SparseMatrix, shape: Shape, window: int, number: int
) -> None:
    registers = -(-matrix.in_features // shape.lanes)
    begin = number * window
    for position in range(min(window, registers - begin)):
        target = rows.vector(asm, _FIRST_INPUT + position)
        scratch = rows.vector(asm, _PICKED)
        first = (begin + position) * shape.lanes
        rows.load(asm, target, rdi, first, matrix.in_features, scratch)


def _emit_batch(
    asm: Assembler,
    spec: MatVec,
    shape: Shape,
    stream: Stream,
    number: int,
    groups: int,
    span: slice,
) -> None:
    batches = -(-groups // ACCUMULATORS)
    first_group = number % batches * ACCUMULATORS
    abreast = min(ACCUMULATORS, groups - first_group)
    ways = ACCUMULATORS // abreast
    if number >= batches and span.start == span.stop:
        return
    scratch = rows.vector(asm, _PICKED)
    for position in range(abreast):
        begin = (first_group + position) * shape.lanes
        head, *rest = (rows.vector(asm, position * ways + way) for way in range(ways))
        if number < batches:
            rows.start_rows(asm, spec, head, begin)
        else:
            rows.load(asm, head, rsi, begin, spec.out_features, scratch)
        for register in rest:
            rows.zero(asm, register)
    asm.stamp(span.stop - span.start, _steps(asm, shape, stream, span))
    for position in range(abreast):
        begin = (first_group + position) * shape.lanes
        head, *rest = (rows.vector(asm, position * ways + way) for way in range(ways))
        for register in rest:
            asm.emit("vaddps", head, head, register)
        rows.store(asm, head, rsi, begin, spec.out_features, scratch)


def _steps(asm: Assembler, shape: Shape, stream: Stream, span: slice) -> list[Line]:
    """The stamped body: one step a row."""
    position = np.arange(span.start, span.stop)
    block, field = np.divmod(position, shape.fields)
    last = field == shape.fields - 1
    vectors = block * (shape.fields + 1)

    def vector(numbers: npt.NDArray[np.int64] | int) -> Register:
        return Register("zmm" if shape is AVX512 else "ymm", numbers)

    def pool(number: npt.NDArray[np.int64]) -> Memory:
        offset = number % (2 * _REACH) - _REACH if shape is AVX512 else number - _REACH
        return Memory(POOL, offset * 4 * shape.lanes)

    advance = (vectors % (2 * _REACH) == 0) & (field == 0) & (vectors > 0)
    picked = np.where(last, _INDEX, _PICKED)
    first = vector(_FIRST_INPUT + stream.first[span])
    second = vector(_FIRST_INPUT + stream.second[span])
    permute = (
        line("vpermi2ps", vector(picked), first, second)
        if shape.sources == 2
        else line("vpermps", vector(picked), vector(picked), first)
    )
    return [
        line("add", POOL, 2 * _REACH * 64, when=advance & (shape is AVX512)),
        line("vmovups", vector(_INDEX), pool(vectors), when=field == 0),
        line("vpsrld", vector(_PICKED), vector(_INDEX), _shifts(shape)[field], when=~last),
        permute,
        line(
            "vfmadd231ps",
            vector(stream.accumulator[span]),
            vector(picked),
            pool(vectors + 1 + field),
        ),
    ]


def _activate(asm: Assembler, spec: MatVec, shape: Shape) -> None:
    """The activation over y, where it has been left."""
    lanes = shape.lanes
    scratch = [rows.vector(asm, number) for number in range(4, 16)]
    for begin in range(0, spec.out_features, 4 * lanes):
        count = min(4, -(-(spec.out_features - begin) // lanes))
        registers = [rows.vector(asm, number) for number in range(count)]
        for position, register in enumerate(registers):
            first = begin + position * lanes
            rows.load(asm, register, rsi, first, spec.out_features, scratch[0])
        rows.finish_rows(asm, spec, registers, begin, rsi, scratch)
