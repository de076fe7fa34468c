"""Code of a chain: loops over rows around the blocks and passes of its plan.

    ignore_nan     row maxima and minima that need not propagate NaN
    lower_chain    the plan of a chain over arrays that lie anywhere in memory
    emit_chain     the code

A maximum need not propagate NaN where NaN reaches all results of a row anyway:

    softmax    x has a NaN: exp(x - max) has it there for any max, so its sum is NaN, and so is
               every quotient by that sum
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isqrt

from sparsejit.asm_templates.pointwise.row_chain.block import BlockEmitter
from sparsejit.asm_templates.pointwise.row_chain.layout import lay_out
from sparsejit.asm_templates.pointwise.row_chain.memory import set_tail_masks
from sparsejit.asm_templates.pointwise.row_chain.plan import Block, ChainPlan, PassPlan, StepOfRows
from sparsejit.asm_templates.pointwise.row_chain.reductions import (
    across_lanes,
    combine,
    set_identity,
)
from sparsejit.asm_templates.pointwise.row_chain.transposed import (
    DESTINATION,
    SOURCE,
    TransposedCopy,
    emit_transposed_copy,
)
from sparsejit.asm_templates.pointwise.row_chain.typed import (
    REDUCTIONS,
    ChainValue,
    Strided,
    type_values,
)
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.loops import counted_down, counted_up
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.errors import CompileError
from sparsejit.ir.ops.pointwise import ROW_REDUCTIONS, Chain
from sparsejit.ir.values import Element
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
)
from sparsejit.x86.routines import reserve

_QUIET = {"row_max": "row_max_of_numbers", "row_min": "row_min_of_numbers"}
_STOPS = {  # functions that may turn NaN into something else
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "where"),
    *("logical_and", "logical_or", "logical_not", "to_float32", "to_int64", "to_float64"),
    *("load", "constant"),
}


def ignore_nan(values: Sequence[ChainValue], ends: Sequence[int]) -> list[ChainValue]:
    """Let row maxima and minima ignore NaN where that changes no result; return all values."""
    return [
        replace(value, kind=_QUIET[value.kind])
        if value.kind in _QUIET and _reaches_all(values, ends, value.arguments[0])
        else value
        for value in values
    ]


def _reaches_all(values: Sequence[ChainValue], ends: Sequence[int], source: int) -> bool:
    """Whether a NaN anywhere in a row of `source` makes that row of all results (`ends`) NaN.

    A sum of the row spreads it.
    """
    if values[source].per_row:
        return False
    in_place, in_row = {source}, set[int]()
    for number, value in enumerate(values):
        arguments = set(value.arguments)
        if value.kind in ("row_sum", "row_dot"):
            if arguments & (in_place | in_row):
                in_row.add(number)
        elif value.kind not in _STOPS and value.kind not in REDUCTIONS:
            if arguments & in_row:
                in_row.add(number)
            elif arguments & in_place:
                in_place.add(number)
    return all(end in in_row for end in ends)


MOST_OPERANDS = 8  # arrays that are read, without constants
MOST_ARRAYS = 12  # arrays that are read or written
_FREE = (rdi, rsi, rdx, rcx, r8, r9, r10, r11)
_SAVED = (rbx, r12, r13, r14, r15)
_INDEX = rax
_WORD = 8
# A sum over a row of at least 256 turns is one of sums over parts of it: the longest run of
# additions is as long as two square roots of the turns.
_MOST_TURNS = 256


@dataclass(frozen=True)
class LoweredChain:
    """A chain of elementwise functions and reductions, planned and ready to emit.

    `counts` are rough: vectors times steps, bytes read and written. `scratch_bytes` is the size of
    the scratch for `emit_chain`, of any alignment.
    """

    chain: Chain
    operands: tuple[Strided, ...]
    results: tuple[Strided, ...]
    plan: ChainPlan | TransposedCopy | None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def scratch_bytes(self) -> int:
        return self.plan.scratch_bytes if isinstance(self.plan, ChainPlan) else 0

    @property
    def is_across(self) -> bool:
        """Whether each lane of a vector reduces a row of its own.

        Vectors then lie along the axis before the last.
        """
        return isinstance(self.plan, ChainPlan) and self.plan.across


def lower_chain(
    chain: Chain, operands: Sequence[Strided], results: Sequence[Strided], target: Target
) -> LoweredChain:
    """Plan a chain, elementwise functions with row reductions, over arrays anywhere in memory.

    A result whose element differs from its value's is converted: int64 and bool to float32, all to
    bool. A result may lie where an operand with the same strides and element lies: all reads of a
    row, or of a few vectors without reductions, come before any write there. Raises CompileError
    for more arrays than MOST_OPERANDS and MOST_ARRAYS.
    """
    reads = sum(operand.constant is None for operand in operands)
    if reads > MOST_OPERANDS or reads + len(results) > MOST_ARRAYS:
        raise CompileError(
            f"chain {chain.title!r} reads {reads} arrays and writes {len(results)}; split it, "
            f"so that each part reads at most {MOST_OPERANDS} arrays and reads and writes at most "
            f"{MOST_ARRAYS} arrays"
        )
    ins, outs = tuple(operands), tuple(results)
    if not outs or 0 in chain.shape:
        return LoweredChain(chain, ins, outs, None)
    return LoweredChain(chain, ins, outs, *_planned(chain, ins, outs, target))


@lru_cache(maxsize=256)  # layers are alike
def _planned(
    chain: Chain, ins: tuple[Strided, ...], outs: tuple[Strided, ...], target: Target
) -> tuple[ChainPlan | TransposedCopy, Mapping[str, int]]:
    """The plan of a chain and its counts of work; chains that differ in their title share them."""
    reduces = any(step.kind in ROW_REDUCTIONS for step in chain.steps)
    space = lay_out(chain.shape, ins, outs, reduces, target.lanes)
    traffic = {
        "bytes_read": _touched(chain.shape, [o for o in ins if o.constant is None]),
        "bytes_written": _touched(chain.shape, outs),
    }
    if _is_float_copy(chain, ins, outs):
        copy = TransposedCopy.of(space)
        if copy is not None:
            return copy, {"vector_steps": 0, **traffic}
    row = space.row
    per_row = [row.length > 1 and step == 0 for step in row.strides[: len(ins)]]
    values, ends = type_values(chain, ins, outs, per_row)
    plan = ChainPlan(ignore_nan(values, ends), ends, space, len(ins), target)
    vectors = space.walks * plan.vectors
    steps = vectors * sum(not values[v].per_row for v in plan.passes.needed)
    return plan, {"vector_steps": steps, **traffic}


def _is_float_copy(chain: Chain, operands: Sequence[Strided], results: Sequence[Strided]) -> bool:
    """Whether one array of float32 is copied into another, and nothing else."""
    arrays = (*operands, *results)
    alone = len(operands) == 1 and len(results) == 1 and not chain.steps
    return alone and all(a.element is Element.FLOAT32 and a.constant is None for a in arrays)


def _touched(shape: Sequence[int], arrays: Sequence[Strided]) -> int:
    total = 0
    for array in arrays:
        size = array.element.bytes
        for length, stride in zip(shape, array.strides, strict=True):
            size *= length if stride else 1
        total += size
    return total


def emit_chain(
    asm: Assembler,
    lowered: LoweredChain,
    operands: Sequence[Location],
    results: Sequence[Location],
    scratch: Location,
) -> None:
    """Append the chain. Keeps rbp, rbx and r12-r15; clobbers all else. Uses the stack.

    The locations of constant operands are ignored; so is `scratch` if `scratch_bytes` is 0.
    """
    if isinstance(lowered.plan, TransposedCopy):
        operands[0].point(asm, SOURCE)
        results[0].point(asm, DESTINATION)
        emit_transposed_copy(asm, lowered.plan)
    elif lowered.plan is not None:
        _ChainEmitter(asm, lowered, lowered.plan).run([*operands, *results], scratch)


class _ChainEmitter:
    def __init__(self, asm: Assembler, lowered: LoweredChain, plan: ChainPlan) -> None:
        self.asm, self.plan = asm, plan
        self.arrays = [*lowered.operands, *lowered.results]
        self.moving = [n for n, array in enumerate(self.arrays) if array.constant is None]
        general = [*_FREE, *_SAVED]
        needed = len(self.moving) + (plan.scratch_bytes > 0)
        self.saved = general[len(_FREE) : needed]
        # A constant's pointer is never used.
        self.pointers = [general[0]] * len(self.arrays) + [general[needed - 1]]
        for register, array in zip(general, self.moving, strict=False):
            self.pointers[array] = register
        self.counters = _WORD * (1 + len(self.saved))
        self.turns = self.counters + _WORD * len(plan.space.loops)  # until sums are put away
        self.stack = round_up(self.turns + 2 * _WORD, 64)
        self.sums = self.stack + plan.slot_count * asm.target.vector_bytes

    def run(self, locations: Sequence[Location], scratch: Location) -> None:
        self._enter()
        for array in self.moving:
            locations[array].point(self.asm, self.pointers[array])
        if self.plan.scratch_bytes:
            scratch.point(self.asm, self.pointers[-1])
        set_tail_masks(self.asm, self.plan.tail)
        self._loops(0)
        self._leave()

    def _enter(self) -> None:
        """Set up a frame: old stack pointer, saved registers, counters, then slots of vectors."""
        asm = self.asm
        steps = [self.plan.body, *([] if self.plan.rest is None else [self.plan.rest])]
        passes = [each for rows in steps for each in rows.segments if isinstance(each, PassPlan)]
        sums = max((len(self._long_sums(each)) for each in passes), default=0)
        frame = self.sums + sums * asm.target.vector_bytes
        asm.emit("mov", rax, rsp)
        reserve(asm, frame)
        asm.emit("and", rsp, -64)
        asm.emit("mov", Memory(rsp), rax)
        for number, register in enumerate(self.saved, 1):
            asm.emit("mov", Memory(rsp, _WORD * number), register)

    def _leave(self) -> None:
        for number, register in enumerate(self.saved, 1):
            self.asm.emit("mov", register, Memory(rsp, _WORD * number))
        self.asm.emit("mov", rsp, Memory(rsp))

    def _loops(self, depth: int) -> None:
        """Append the loops from `depth` inwards; pointers end where they began."""
        loops = self.plan.space.loops
        if depth == len(loops):
            self._rows(self.plan.body)
            return
        axis, is_inner = loops[depth], depth == len(loops) - 1
        rows = self.plan.body.rows if is_inner else 1
        turns = axis.length // rows
        self._repeat(depth, turns, lambda: self._loops(depth + 1), rows)
        if is_inner and self.plan.rest is not None:
            self._rows(self.plan.rest)
        self._advance([-turns * rows * stride for stride in axis.strides])

    def _repeat(self, depth: int, turns: int, body: Callable[[], None], rows: int) -> None:
        asm, counter = self.asm, Memory(rsp, self.counters + _WORD * depth)
        strides = [rows * stride for stride in self.plan.space.loops[depth].strides]
        if turns == 1:
            body()
            self._advance(strides)
            return
        asm.emit("mov", dword(rax), turns)
        with counted_down(asm, rax):
            asm.emit("mov", counter, rax)
            body()
            self._advance(strides)
            asm.emit("mov", rax, counter)

    def _advance(self, distances: Sequence[int]) -> None:
        for array in self.moving:
            if distances[array]:
                self.asm.emit("add", self.pointers[array], distances[array])

    def _rows(self, plan: StepOfRows) -> None:
        for segment in plan.segments:
            if isinstance(segment, Block):
                self._block(segment, None)
            else:
                self._pass(segment)

    def _block(self, block: Block, index: Register | None) -> None:
        BlockEmitter(
            self.asm, self.plan, block, self.arrays, self.pointers, index, self.stack
        ).run()

    def _pass(self, plan: PassPlan) -> None:
        asm = self.asm
        for reduction, registers in plan.accumulators.items():
            for number in registers:
                set_identity(asm, self.plan.values[reduction].kind, vector(asm, number))
        for value, registers in plan.pinned.items():
            self._pin(value, registers)
        if plan.loop is not None:
            self._walk(plan, plan.loop)
        if plan.rest is not None:
            self._block(plan.rest, None)
        for reduction, slot in plan.finished:
            self._finish(reduction, plan.accumulators[reduction], slot)

    def _pin(self, value: int, numbers: Sequence[int]) -> None:
        asm = self.asm
        for number, register in enumerate(numbers):
            slot = self.plan.slots[value] + number * asm.target.vector_bytes
            asm.emit("vmovups", vector(asm, register), Memory(rsp, self.stack + slot))

    def _walk(self, plan: PassPlan, block: Block) -> None:
        """Append the loop over a row.

        Arrays that are dense along it are addressed by `_INDEX`, which counts lanes; the pointers
        of the others advance.
        """
        asm, axis, trips = self.asm, self.plan.space.row, plan.trips
        elements = block.vectors * asm.target.lanes
        strided = [
            0 if self.plan.is_dense(array, self.arrays) else step * block.vectors * self.plan.lanes
            for array, step in enumerate(axis.strides)
        ]
        sums = self._long_sums(plan)

        def turn() -> None:
            self._block(block, _INDEX)
            self._advance(strided)
            if sums:
                self._put_away(sums, isqrt(trips))

        asm.emit("xor", dword(_INDEX), dword(_INDEX))
        if sums:
            self._put_away(sums, isqrt(trips), is_first=True)
        if trips == 1:
            turn()
        else:
            with counted_up(asm, _INDEX, elements, trips * elements):
                turn()
        for place, number in sums.items():
            asm.emit("vaddps", vector(asm, number), vector(asm, number), Memory(rsp, place))
        self._advance([-trips * distance for distance in strided])

    def _long_sums(self, plan: PassPlan) -> dict[int, int]:
        """The accumulators of sums over a long row, by the place on the stack of their own sum."""
        kinds = {r: self.plan.values[r].kind for r in plan.accumulators}
        numbers = [
            number
            for reduction, registers in plan.accumulators.items()
            if kinds[reduction] in ("row_sum", "row_dot") and plan.trips >= _MOST_TURNS
            for number in registers
        ]
        size = self.asm.target.vector_bytes
        return {self.sums + place * size: number for place, number in enumerate(numbers)}

    def _put_away(self, sums: dict[int, int], turns: int, is_first: bool = False) -> None:
        """After each `turns` turns, add the accumulators to their places and begin again at 0."""
        asm, left = self.asm, self.asm.label("turns left")
        counter, index = Memory(rsp, self.turns), Memory(rsp, self.turns + _WORD)
        asm.emit("mov", index, _INDEX)
        if not is_first:
            asm.emit("mov", rax, counter)
            asm.emit("sub", rax, 1)
            asm.emit("mov", counter, rax)
            asm.emit("mov", _INDEX, index)
            asm.jump("jnz", left)
        for place, number in sums.items():
            register = vector(asm, number)
            if not is_first:
                asm.emit("vaddps", register, register, Memory(rsp, place))
            asm.emit("vmovups", Memory(rsp, place), register)
            zero(asm, register)
        asm.emit("mov", dword(rax), turns)
        asm.emit("mov", counter, rax)
        asm.emit("mov", _INDEX, index)
        asm.bind(left)

    def _finish(self, reduction: int, numbers: Sequence[int], slot: int) -> None:
        """Combine a reduction's accumulators and put the result on the stack."""
        asm, kind = self.asm, self.plan.values[reduction].kind
        total, *others = (vector(asm, number) for number in numbers)
        taken = set(numbers)
        spares = [n for n in range(asm.target.vector_registers) if n not in taken]
        raise_spares = [vector(asm, number) for number in spares[-2:]]
        for other in others:
            combine(asm, kind, total, total, other, raise_spares[0])
        if not self.plan.across:
            across_lanes(asm, kind, [total], raise_spares)
        for number in range(self.plan.width(reduction, 1, 1)):
            place = self.stack + slot + number * asm.target.vector_bytes
            asm.emit("vmovups", Memory(rsp, place), total)
