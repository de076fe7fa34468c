"""int8 for blocks of sixteen outputs: inputs are brought together once, then only broadcast.

    staged_groups   groups of block rows, and the inputs that each of their steps multiplies
    lower, emit     the layer as groups, and the kernel

A group's slots are its block rows or, if these are few, chains of them that are added at the end.
In a trip every slot takes up to four of its inputs, in ascending order, so that all slots read few
registers of x: none beyond the registers that the slot with the most inputs left needs.

    trip 0: inputs   3  17  60  61 |  9  20  88 101 | ...      registers 0, 1 of x
    trip 1:        118 130 170 190 | 95 140 141 142 | ...      registers 1, 2

`int8_permute` picks the four inputs of every step anew and fills a register with sixteen copies of
them. Here a permutation picks for sixteen steps at once, into a row on the stack:

    vmovups  zmm1, [r8+64*n]               six bits of index, two that select a register of x
    vpmovb2m k1, zmm1                      bit 7; bit 6 in k2, both in k3
    vpermb   zmm0, zmm1, [r9+64*a]         bytes of x, out of register a
    vpermb   zmm0{k2}, zmm1, [r9+64*b]     ... b; c by k1, d by k3
    vmovups  [r10+64*trip], zmm0           sixteen steps' inputs

and a loop over such rows only loads and multiplies:

    vpbroadcastd zmm0, [rdx+4*slot]        four inputs in all lanes
    vpdpbusd zmm16, zmm0, [rcx+64*slot]    lane += its four products; zmm17, ... in the next slots

A slot is a block row: the weights of the same sixteen outputs. Sums are as in `int8_permute`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_boundary import (
    LANES,
    OFFSET,
    SCALE_SCRATCH,
    emit_integers,
    emit_scale,
    finish_block_rows,
    output_scales,
    quantised_rows,
    start_sums,
)
from sparsejit.asm_templates.gather.int8_layout import REGISTER_INPUTS, byte_of_input
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS
from sparsejit.asm_templates.shared.int8_inputs import pack_to_bytes
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.asm_templates.shared.storage import Stream
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    dword,
    k,
    r8,
    r9,
    r10,
    rcx,
    rdx,
    rsp,
    zmm,
)
from sparsejit.x86.routines import reserve

SLOTS = 16  # of four bytes each in a register
_FIRST_ROUND, _FURTHER_ROUND = 4, 3  # registers of x that one vector of indices tells apart
_SELECTOR = REGISTER_INPUTS  # unit of the bits that select one of them, above the index

_Numbers = npt.NDArray[np.integer]
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PickRound:
    """A permutation that picks some of the 64 bytes of a trip out of registers of x.

    The first round of a trip picks from up to four registers. Each further round picks from up to
    three, and merges its bytes into the bytes picked before.
    """

    trip: int
    is_first: bool
    is_last: bool
    registers: tuple[int, ...]
    indices: _Bytes

    def register(self, selector: int) -> int:
        """Return the register of x for lanes with that selector; -1 for none."""
        position = selector if self.is_first else selector - 1
        return self.registers[position] if 0 <= position < len(self.registers) else -1


@dataclass(frozen=True, eq=False)
class StagedGroup:
    """Block rows (16 outputs each) that one loop sums, and the inputs of all its steps.

    Each block row is summed in `chains` chains. `columns` (trips, slots, 4): the inputs that each
    slot takes in each trip, -1 for none.
    """

    block_rows: _Numbers
    chains: int
    columns: _Numbers

    @property
    def slots(self) -> int:
        return self.chains * len(self.block_rows)

    def weights(self, block_rows: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        """Return this group's weights (trips, slots, 16, 4), in order of use.

        `block_rows` are the layer's weights, (block rows, 16, inputs).
        """
        own = np.tile(self.block_rows, self.chains)
        picked = block_rows[own[None, :, None], :, np.maximum(self.columns, 0)]
        picked[self.columns < 0] = 0
        return np.ascontiguousarray(picked.swapaxes(2, 3))

    def rounds(self) -> Iterator[PickRound]:
        """Yield the permutations that pick the inputs of each trip, trip after trip."""
        for trip, columns in enumerate(self.columns):
            flat = np.full(SLOTS * PRODUCTS, -1)
            flat[: columns.size] = columns.reshape(-1)
            yield from _rounds_of_trip(trip, flat)


def _rounds_of_trip(trip: int, columns: _Numbers) -> Iterator[PickRound]:
    source = columns // REGISTER_INPUTS
    left: list[int] = np.unique(source[columns >= 0]).tolist()
    place = byte_of_input()[columns % REGISTER_INPUTS]
    is_first = True
    while left or is_first:
        count = _FIRST_ROUND if is_first else _FURTHER_ROUND
        own, left = left[:count], left[count:]
        indices = place.copy()
        for position, register in enumerate(own):
            selector = position + (not is_first)
            indices[source == register] += selector * _SELECTOR
        yield PickRound(trip, is_first, not left, tuple(own), indices.astype(np.uint8))
        is_first = False


def group_sizes(matrix: SparseMatrix) -> list[tuple[_Numbers, int, int]]:
    """Return the block rows of each group, with its number of chains and its number of trips.

    The fullest block rows come first.
    """
    counts = matrix.block_mask(LANES).sum(axis=1)
    order = np.argsort(-counts, kind="stable")
    groups: list[tuple[_Numbers, int, int]] = []
    for first in range(0, len(order), SLOTS):
        own = order[first : first + SLOTS]
        chains = SLOTS // len(own)
        longest = ceil_div(int(counts[own[0]]), chains)
        groups.append((own, chains, ceil_div(longest, PRODUCTS)))
    return groups


def staged_groups(matrix: SparseMatrix) -> list[StagedGroup]:
    """Return the groups of a matrix with the columns of all their steps."""
    used = [np.flatnonzero(row) for row in matrix.block_mask(LANES)]
    return [
        StagedGroup(own, chains, _columns([used[row] for row in own], chains, trips))
        for own, chains, trips in group_sizes(matrix)
    ]


def _columns(used: list[_Numbers], chains: int, trips: int) -> _Numbers:
    """Return the inputs that each slot takes in each trip, (trips, slots, 4), -1 for none."""
    left = [row[chain::chains] for chain in range(chains) for row in used]
    columns = np.full((trips, len(left), PRODUCTS), -1)
    for trip in range(trips):
        later = PRODUCTS * (trips - 1 - trip)
        needed = [row[len(row) - later - 1] for row in left if len(row) > later]
        first = [row[0] for row in left if len(row)]
        last = max([*needed, min(first, default=0)]) // REGISTER_INPUTS
        for slot, row in enumerate(left):
            taken = row[:PRODUCTS]
            taken = taken[taken // REGISTER_INPUTS <= last]
            columns[trip, slot, : len(taken)] = taken
            left[slot] = row[len(taken) :]
    return columns


KIND = "int8-staged"
MOST_INPUTS = 1 << 15  # if all are used they take half a megabyte of stack
_TRIP_VECTORS = 1.6  # vectors of indices that a trip reads

_PICKED, _INDEX, _DOUBLED = zmm(0), zmm(1), zmm(2)
_RECIPROCAL, _SCALE, _FIRST_SUM = zmm(14), zmm(15), 16
_FREE = [zmm(number) for number in range(14)]
_X, _STAGED, _INDICES, _WEIGHTS, _AT = r9, r10, r8, rcx, rdx
_HIGH, _LOW, _BOTH = k(1), k(2), k(3)


@dataclass(frozen=True, eq=False)
class Staged:
    """A layer for the staged kernel: groups, weights as int8, and the factors of sums.

    `weights` are (block rows, 16, inputs).
    """

    spec: MatVec
    groups: list[StagedGroup]
    weights: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the expected counts; the trips of a group follow from its fullest block row."""
    sizes, prices = group_sizes(matrix), target.core.layouts
    trips = sum(number for _, _, number in sizes)
    steps = sum(len(own) * chains * number for own, chains, number in sizes)
    rest = 20 + matrix.in_features // LANES
    rest += prices.staged_group * len(sizes) + prices.staged_trip * trips
    vectors = steps + _TRIP_VECTORS * trips
    pool_bytes = vectors * CACHE_LINE_BYTES + 12 * matrix.out_features
    return Counts.of(matrix, target, DType.INT8, Work(KIND, steps + rest), int(pool_bytes))


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Staged:
    """Quantise the weights, and give every step its inputs."""
    weights, scales = quantised_rows(matrix)
    missing = -matrix.out_features % LANES
    padded = np.pad(weights, ((0, missing), (0, 0))).reshape(-1, LANES, matrix.in_features)
    factors = np.pad(output_scales(spec, scales), (0, missing))
    return Staged(spec, staged_groups(matrix), padded, factors, expect(spec, matrix, target))


def emit(asm: Assembler, lowered: Staged) -> None:
    """Append the kernel; needs VBMI and VNNI. x and y must not overlap; see `families`."""
    spec = lowered.spec
    x_bytes = round_up(spec.in_features, REGISTER_INPUTS)
    trips = max((len(group.columns) for group in lowered.groups), default=0)
    room = x_bytes + CACHE_LINE_BYTES * (trips + 1)
    asm.count(steps=sum(len(group.columns) * group.slots for group in lowered.groups))
    reserve(asm, room)
    asm.emit("lea", _X, Memory(rsp, CACHE_LINE_BYTES - 1))
    asm.emit("and", _X, -CACHE_LINE_BYTES)
    asm.emit("lea", _STAGED, Memory(_X, x_bytes))
    _store_inputs(asm, spec)
    weights = np.concatenate(
        [group.weights(lowered.weights).reshape(-1) for group in lowered.groups]
    )
    asm.emit("lea", _WEIGHTS, Literal(asm.literal(weights)))
    for group in lowered.groups:
        _stage(asm, list(group.rounds()))
        _sum(asm, group, lowered.weights)
        finish_block_rows(
            asm, spec, lowered.scales, group.block_rows, group.chains, _FIRST_SUM, _SCALE, _FREE
        )
    asm.emit("add", rsp, room)


def _store_inputs(asm: Assembler, spec: MatVec) -> None:
    """Write x as unsigned bytes on the stack, each 64 in the order of `byte_of_input`."""
    emit_scale(asm, spec, _RECIPROCAL, _SCALE, _FREE[:SCALE_SCRATCH])
    sign = asm.constant(int.from_bytes([OFFSET] * 4, "little", signed=True))
    lowest = asm.literal(np.full(REGISTER_INPUTS, OFFSET + spec.least_integer, np.uint8))
    for first in range(0, spec.in_features, REGISTER_INPUTS):
        parts = _FREE[:4]
        for number, register in enumerate(parts):
            emit_integers(asm, spec, register, first + number * LANES, _RECIPROCAL)
        pack_to_bytes(asm, parts)
        asm.emit("vpxord", parts[0], parts[0], sign)
        if spec.x_steps is not None:
            asm.emit("vpmaxub", parts[0], parts[0], Literal(lowest))
        asm.emit("vmovups", Memory(_X, first), parts[0])


def _stage(asm: Assembler, rounds: list[PickRound]) -> None:
    """Append code that writes the inputs of each turn of a group's loop to the stack.

    A turn (a trip) has 64 bytes: four inputs for each of sixteen slots.
    """
    if not rounds:
        return
    stream = Stream(asm, _INDICES, CACHE_LINE_BYTES)
    stream.point(asm.literal(np.stack([each.indices for each in rounds])))
    number = np.arange(len(rounds))
    sources = np.array([[each.register(s) for s in range(4)] for each in rounds])
    first, low, high, both = (sources >= 0).T
    trip = np.array([each.trip for each in rounds])
    last = np.array([each.is_last for each in rounds])
    place = CACHE_LINE_BYTES * np.maximum(sources, 0)
    asm.stamp(
        len(rounds),
        [
            stream.move(number),
            line("vmovups", _INDEX, stream.at(number)),
            line("vpmovb2m", _HIGH, _INDEX, when=high),
            line("vpaddb", _DOUBLED, _INDEX, _INDEX, when=low),
            line("vpmovb2m", _LOW, _DOUBLED, when=low),
            line("kandq", _BOTH, _HIGH, _LOW, when=both),
            line("vpermb", _PICKED, _INDEX, Memory(_X, place[:, 0]), when=first),
            line("vpermb", _PICKED.masked(_LOW), _INDEX, Memory(_X, place[:, 1]), when=low),
            line("vpermb", _PICKED.masked(_HIGH), _INDEX, Memory(_X, place[:, 2]), when=high),
            line("vpermb", _PICKED.masked(_BOTH), _INDEX, Memory(_X, place[:, 3]), when=both),
            line("vmovups", Memory(_STAGED, CACHE_LINE_BYTES * trip), _PICKED, when=last),
        ],
    )


def _sum(asm: Assembler, group: StagedGroup, weights: npt.NDArray[np.int8]) -> None:
    """Compute the sums of all slots, from start values that cancel the offset of x."""
    start_sums(asm, weights[group.block_rows], group.chains, _FIRST_SUM)
    if not len(group.columns):
        return
    slots = np.arange(group.slots)
    asm.emit("mov", _AT, _STAGED)
    with counted_down(asm, dword(r8), len(group.columns)):
        asm.stamp(
            group.slots,
            [
                line("vpbroadcastd", _PICKED, Memory(_AT, 4 * slots)),
                line("vpdpbusd", zmm(_FIRST_SUM + slots), _PICKED, Memory(_WEIGHTS, 64 * slots)),
            ],
        )
        asm.emit("add", _AT, CACHE_LINE_BYTES)
        asm.emit("add", _WEIGHTS, CACHE_LINE_BYTES * group.slots)
