"""Plan of a chain: blocks of vectors with their registers, and loops of them.

    Scan         register allocation by a linear scan over the items of a block
    Block        vectors of a few rows
    PassPlan     a loop over blocks of a long row
    ChainPlan    all rows of a chain

A value has a register for each vector of the block, or for each row. If values do not fit, the one
whose next use is furthest goes to the stack; it is stored once and loaded where it is used again.

A short row is one block, all its vectors in registers, several rows at a time where they fit. A
long row takes passes; each is a loop over a few vectors at a time and a block for the rest.

If vectors lie across rows, each lane holds an element of another row, and per-row values differ
from lane to lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparsejit.asm_templates.pointwise.row_chain.integers import PairFunction
from sparsejit.asm_templates.pointwise.row_chain.layout import IterationSpace
from sparsejit.asm_templates.pointwise.row_chain.row_passes import Passes, RowPass
from sparsejit.asm_templates.pointwise.row_chain.typed import (
    REDUCTIONS,
    ChainValue,
    Strided,
    function_of,
    registers_of,
)
from sparsejit.errors import CompileError
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div

NEVER = 1 << 30


@dataclass(frozen=True)
class Item:
    """An operation of a block before registers are allocated.

    It computes `value` (-1: no value) from `arguments`. `kind` is a value's kind, or "store" of a
    result `array`, "accumulate" into a reduction, "keep" in scratch, "fetch" from there. `reuse`:
    the result may take the registers of an argument that is not used again.
    """

    kind: str
    value: int
    arguments: tuple[int, ...] = ()
    array: int = -1
    width: int = 0
    reuse: bool = False
    least_scratch: int = 0
    most_scratch: int = 0


@dataclass(frozen=True)
class Action:
    """An item with its registers; or "spill" and "reload" of `value` at a slot of the stack."""

    item: Item
    out: tuple[int, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    scratch: tuple[int, ...] = ()
    slot: int = -1


@dataclass
class Allocation:
    """Actions in order, final registers of values, and the number of spills and reloads."""

    actions: list[Action] = field(default_factory=list)
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    spills: int = 0


class TooFewRegisters(CompileError):
    """A block needs more registers at once than there are."""


class Scan:
    """Register allocation for the items of one block, by a linear scan.

    `pinned` values stay in their registers; `slots` are values on the stack.
    """

    def __init__(
        self,
        items: Sequence[Item],
        pool: Sequence[int],
        pinned: dict[int, tuple[int, ...]],
        slots: dict[int, int],
        new_slot: Callable[[int], int],
        widths: Callable[[int], int],
        live_out: frozenset[int] = frozenset(),
    ) -> None:
        self.items, self.free = items, sorted(pool, reverse=True)
        self.pinned, self.slots, self.new_slot = pinned, slots, new_slot
        self.widths = widths
        self.held: dict[int, tuple[int, ...]] = {}
        self.result = Allocation()
        self.uses: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            for value in item.arguments:
                self.uses.setdefault(value, []).append(place)
        for value in live_out:
            self.uses.setdefault(value, []).append(NEVER - 1)
        self.constants: set[int] = set()

    def run(self, constants: set[int]) -> Allocation:
        """Allocate registers for all items; `constants` are values that need none."""
        self.constants = constants
        for place, item in enumerate(self.items):
            self._place(place, item)
        self.result.held = dict(self.held)
        return self.result

    def _next_use(self, value: int, place: int) -> int:
        return next((use for use in self.uses.get(value, ()) if use >= place), NEVER)

    def _place(self, place: int, item: Item) -> None:
        wanted = {a for a in item.arguments if a not in self.constants}
        for value in sorted(wanted):
            self._bring(value, place, wanted)
        inputs = tuple(
            () if a in self.constants else self.pinned.get(a) or self.held[a]
            for a in item.arguments
        )
        dying = [a for a in wanted if a in self.held and self._next_use(a, place + 1) == NEVER]
        out: tuple[int, ...] = ()
        if item.reuse:
            for value in dying:
                if len(self.held[value]) == item.width and not out:
                    out = self.held.pop(value)
        protect = set(wanted)
        if not out and item.width:
            out = self._take(item.width, place, protect)
        scratch = self._scratch(item, place, protect)
        self.result.actions.append(Action(item, out, inputs, scratch))
        self.free.extend(scratch)
        for value in dying:
            self.free.extend(self.held.pop(value, ()))
        if item.value >= 0 and item.width:
            self.held[item.value] = out
            if self._next_use(item.value, place + 1) == NEVER:
                self.free.extend(self.held.pop(item.value))
        self.free.sort(reverse=True)

    def _scratch(self, item: Item, place: int, protect: set[int]) -> tuple[int, ...]:
        count = max(item.least_scratch, min(item.most_scratch, len(self.free)))
        return self._take(count, place, protect)

    def _bring(self, value: int, place: int, protect: set[int]) -> None:
        """Reload a value from the stack if it is not in registers."""
        if value in self.pinned or value in self.held:
            return
        registers = self._take(self.widths(value), place, protect)
        self.held[value] = registers
        reload = Item("reload", value, width=len(registers))
        self.result.actions.append(Action(reload, registers, slot=self.slots[value]))
        self.result.spills += 1

    def _take(self, count: int, place: int, protect: set[int]) -> tuple[int, ...]:
        while len(self.free) < count:
            victims = [value for value in self.held if value not in protect]
            if not victims:
                raise TooFewRegisters(
                    f"a step needs {count} more registers than the {len(self.free)} that are left; "
                    "split the chain"
                )
            self._evict(max(victims, key=lambda value: (self._next_use(value, place), value)))
        return tuple(self.free.pop() for _ in range(count))

    def _evict(self, value: int) -> None:
        registers = self.held.pop(value)
        if value not in self.slots:
            self.slots[value] = self.new_slot(len(registers))
            spill = Item("spill", value, width=len(registers))
            spilled = Action(spill, inputs=(registers,), slot=self.slots[value])
            self.result.actions.append(spilled)
        self.result.spills += 1
        self.free.extend(registers)
        self.free.sort(reverse=True)


_VECTORS_IN_STEP = (4, 2, 1)
_MOST_IN_REGISTERS = 16  # vectors of a short row
_ROWS_IN_STEP = (8, 4, 2, 1)
_MOST_SLOTS = 8  # vectors of a block of several rows


@dataclass(frozen=True)
class Block:
    """Straight-line code for `vectors` vectors of each of `rows` rows, from element `first` on.

    The last vector has `tail` elements, if not 0. `accumulators` are the registers of reductions.
    """

    rows: int
    vectors: int
    first: int
    tail: int
    allocation: Allocation
    accumulators: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PassPlan:
    """A walk along a row: the block `loop`, run `trips` times, then the block `rest`.

    Values in `pinned` are loaded from the stack before the walk. `finished` has each reduction that
    ends with the walk, and its slot.
    """

    loop: Block | None
    trips: int
    rest: Block | None
    pinned: dict[int, tuple[int, ...]]
    finished: tuple[tuple[int, int], ...]
    accumulators: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class StepOfRows:
    """The code for `rows` rows: blocks and passes in order."""

    rows: int
    segments: tuple[Block | PassPlan, ...]


class ChainPlan:
    """The plan of a chain: `body` repeats over its rows, `rest` computes the rows left over.

    `kept` maps values to their offsets in scratch, `slots` per-row values to offsets on the stack.
    """

    def __init__(
        self,
        values: list[ChainValue],
        ends: list[int],
        space: IterationSpace,
        operands: int,
        target: Target,
    ) -> None:
        self.values, self.ends, self.space, self.target = values, ends, space, target
        self.operands = operands
        length = space.row.length
        self.row_stores = [
            values[end].per_row and (length == 1 or space.row.strides[operands + n] == 0)
            for n, end in enumerate(ends)
        ]
        self.passes = Passes(values, ends, self.row_stores)
        self.constants = {n for n, value in enumerate(values) if value.kind == "constant"}
        self.across = space.together > 1
        self.lanes = 1 if self.across else target.lanes  # elements of a row in a vector
        self.vectors, self.tail = ceil_div(length, self.lanes), length % self.lanes
        self.slot_count = 0
        self.slots: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.scratch_bytes = 0
        self.rest: StepOfRows | None = None
        self.body = self._short() or self._long()

    def is_dense(self, array: int, arrays: Sequence[Strided]) -> bool:
        """Whether vectors of an array follow each other in memory along a row."""
        step = self.space.row.strides[array]
        return not self.across and step == arrays[array].element.bytes

    def new_slot(self, registers: int) -> int:
        """Reserve room for `registers` vectors on the stack, and return its offset in bytes."""
        slot = self.slot_count * self.target.vector_bytes
        self.slot_count += registers
        return slot

    def width(self, value: int, rows: int, vectors: int) -> int:
        """Return the number of registers that a value takes in a block."""
        of = self.values[value]
        return registers_of(of.element) * (rows if of.per_row else rows * vectors)

    def _short(self) -> StepOfRows | None:
        """Return the step for short rows, held in registers as a whole; None if they do not fit."""
        if self.across or self.vectors > _MOST_IN_REGISTERS:
            return None
        count = self.space.loops[-1].length if self.space.loops else 1
        for rows in _ROWS_IN_STEP:
            if rows > count or (rows > 1 and rows * self.vectors > _MOST_SLOTS):
                continue
            block = self._whole_rows(rows)
            if block is None:
                continue
            left = count % rows
            if left:
                rest = self._whole_rows(left)
                if rest is None:
                    continue
                self.rest = StepOfRows(left, (rest,))
            return StepOfRows(rows, (block,))
        return None

    def _whole_rows(self, rows: int) -> Block | None:
        order = [v for v in self.passes.needed if v not in self.constants]
        items = [self._item(v, rows, self.vectors) for v in order]
        items += [self._store(n) for n in range(len(self.ends))]
        taken = self.slot_count
        try:
            allocation = self._scan(items, rows, self.vectors, {}, {})
        except TooFewRegisters:
            allocation = None
        if allocation is None or allocation.spills:
            self.slot_count = taken
            return None
        return Block(rows, self.vectors, 0, self.tail, allocation)

    def _scan(
        self,
        items: Sequence[Item],
        rows: int,
        vectors: int,
        pinned: dict[int, tuple[int, ...]],
        accumulators: dict[int, tuple[int, ...]],
    ) -> Allocation:
        used = {r for group in (pinned, accumulators) for held in group.values() for r in held}
        pool = [r for r in range(self.target.vector_registers) if r not in used]
        scan = Scan(
            items,
            pool,
            pinned,
            dict(self.slots),
            self.new_slot,
            lambda value: self.width(value, rows, vectors),
        )
        return scan.run(self.constants)

    def _item(self, value: int, rows: int, vectors: int) -> Item:
        of = self.values[value]
        width = self.width(value, rows, vectors)
        if of.kind == "load":
            return Item("load", value, (), of.array, width, least_scratch=1)
        if of.kind in REDUCTIONS:
            return Item(
                of.kind, value, of.arguments, width=width, least_scratch=4, most_scratch=rows + 3
            )
        function = function_of(of)
        if isinstance(function, PairFunction):
            least = most = function.scratch
            reuse, memory = False, -1
        else:
            least = function.scratch + function.per_vector
            most = function.scratch + function.per_vector * width
            reuse, memory = True, function.memory
        moved = sum(a in self.constants and n != memory for n, a in enumerate(of.arguments))
        return Item(
            of.kind, value, of.arguments, -1, width, reuse, least + moved, most + moved
        )

    def _store(self, result: int) -> Item:
        return Item("store", -1, (self.ends[result],), result, least_scratch=3)

    def _long(self) -> StepOfRows:
        """Return the step for long rows, which are walked in passes.

        It takes one row at a time, or the rows of a vector if vectors lie across.
        """
        segments: list[Block | PassPlan] = []
        for stage in range(len(self.passes.row_values)):
            block = self._row_block(stage)
            if block is not None:
                segments.append(block)
            if stage < len(self.passes.passes):
                segments.append(self._pass(self.passes.passes[stage]))
        return StepOfRows(self.space.together, tuple(segments))

    def _row_block(self, stage: int) -> Block | None:
        """Return the block of a stage's values of one element a row; None if it has nothing to do.

        It puts these values on the stack; the block of the last stage also stores results.
        """
        items = []
        for value in self.passes.row_values[stage]:
            width = self.width(value, 1, 1)
            self.slots[value] = self.new_slot(width)
            items.append(self._item(value, 1, 1))
            items.append(Item("put", -1, (value,), self.slots[value]))
        if stage == len(self.passes.row_values) - 1:
            items += [self._store(n) for n in self.passes.row_results]
        return Block(1, 1, 0, 0, self._scan(items, 1, 1, {}, {})) if items else None

    def _pass(self, row_pass: RowPass) -> PassPlan:
        for value in row_pass.kept:
            self.kept[value] = self.scratch_bytes
            each = self.width(value, 1, 1) * self.target.vector_bytes
            self.scratch_bytes += each * self.vectors
        for reduction in row_pass.reductions:
            self.slots[reduction] = self.new_slot(self.width(reduction, 1, 1))
        used = self._row_inputs(row_pass)
        attempts = [(vectors, used, False) for vectors in _VECTORS_IN_STEP]
        for vectors, pinned, may_spill in [*attempts, (1, used, True), (1, [], True)]:
            taken = self.slot_count
            try:
                plan = self._pass_of(row_pass, vectors, pinned)
            except TooFewRegisters:
                self.slot_count = taken
                continue
            blocks = [b for b in (plan.loop, plan.rest) if b is not None]
            if may_spill or not any(b.allocation.spills for b in blocks):
                return plan
            self.slot_count = taken
        raise TooFewRegisters(
            f"{len(row_pass.reductions)} reductions of one row at a time need more registers "
            "than the processor has; split the chain"
        )

    def _row_inputs(self, row_pass: RowPass) -> list[int]:
        """Per-row values that a pass reads."""
        computed = [v for v in row_pass.order if v not in row_pass.fetched]
        arguments = [a for v in computed for a in self.values[v].arguments]
        arguments += [a for r in row_pass.reductions for a in self.values[r].arguments]
        arguments += [self.ends[n] for n in row_pass.stored]
        return sorted(
            {a for a in arguments if self.values[a].per_row and a not in self.constants}
        )

    def _pass_of(self, row_pass: RowPass, vectors: int, pinned_values: list[int]) -> PassPlan:
        whole = self.space.row.length // self.lanes
        trips = whole // vectors
        free = iter(range(self.target.vector_registers))
        most = self.target.vector_registers

        def take(count: int) -> tuple[int, ...]:
            taken = tuple(next(free, most) for _ in range(count))
            if most in taken:
                raise TooFewRegisters(
                    "accumulators and values of a row need more registers than the processor has"
                )
            return taken

        accumulators = {r: take(vectors) for r in row_pass.reductions}
        pinned = {v: take(self.width(v, 1, 1)) for v in pinned_values}
        loop = rest = None
        if trips:
            loop = self._block(row_pass, vectors, 0, 0, pinned, accumulators)
        left = self.vectors - trips * vectors
        if left:
            first = trips * vectors * self.lanes
            rest = self._block(row_pass, left, first, self.tail, pinned, accumulators)
        finished = tuple((reduction, self.slots[reduction]) for reduction in row_pass.reductions)
        return PassPlan(loop, trips, rest, pinned, finished, accumulators)

    def _block(
        self,
        row_pass: RowPass,
        vectors: int,
        first: int,
        tail: int,
        pinned: dict[int, tuple[int, ...]],
        accumulators: dict[int, tuple[int, ...]],
    ) -> Block:
        items: list[Item] = []
        waiting = list(row_pass.reductions)
        for place, value in enumerate(row_pass.order):
            if value in row_pass.fetched:
                width = self.width(value, 1, vectors)
                items.append(Item("fetch", value, (), self.kept[value], width))
            else:
                items.append(self._item(value, 1, vectors))
            if value in row_pass.kept:
                items.append(Item("keep", -1, (value,), self.kept[value]))
            done = row_pass.order[: place + 1]
            ready = [r for r in waiting if self._vector_arguments(r) <= set(done)]
            items += [self._accumulate(r) for r in ready]
            waiting = [r for r in waiting if r not in ready]
        items += [self._accumulate(r) for r in waiting]  # reductions of per-row values
        items += [self._store(n) for n in row_pass.stored]
        allocation = self._scan(items, 1, vectors, pinned, accumulators)
        return Block(1, vectors, first, tail, allocation, accumulators)

    def _vector_arguments(self, value: int) -> set[int]:
        return {a for a in self.values[value].arguments if not self.values[a].per_row}

    def _accumulate(self, reduction: int) -> Item:
        arguments = self.values[reduction].arguments
        return Item("accumulate", -1, arguments, reduction, least_scratch=4)
