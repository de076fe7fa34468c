"""Code of a block's actions: each item with its allocated registers."""

from __future__ import annotations

from collections.abc import Callable

from sparsejit.asm_templates.pointwise.row_chain import memory
from sparsejit.asm_templates.pointwise.row_chain.functions import NARROWED
from sparsejit.asm_templates.pointwise.row_chain.integers import PairFunction
from sparsejit.asm_templates.pointwise.row_chain.lanes import (
    bits,
    doubles,
    longs,
    move,
    narrowed,
)
from sparsejit.asm_templates.pointwise.row_chain.memory import Strip
from sparsejit.asm_templates.pointwise.row_chain.plan import Action, Block, ChainPlan
from sparsejit.asm_templates.pointwise.row_chain.reductions import (
    RowPart,
    across_lanes,
    combine,
    parts_of,
    start_row,
    take_in,
)
from sparsejit.asm_templates.pointwise.row_chain.typed import (
    REDUCTIONS,
    Strided,
    function_of,
    registers_of,
)
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.values import Element
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Operand, Register, rsp


class BlockEmitter:
    """Emits the code of a block, some vectors of some rows, from its register allocation.

    `index`, if in a loop, counts the elements before the block's first.
    """

    def __init__(
        self,
        asm: Assembler,
        plan: ChainPlan,
        block: Block,
        arrays: list[Strided],
        pointers: list[Register],
        index: Register | None,
        stack: int,
    ) -> None:
        self.asm, self.plan, self.block, self.arrays = asm, plan, block, arrays
        self.pointers, self.index, self.stack = pointers, index, stack

    def run(self) -> None:
        """Emit every action."""
        named: dict[str, Callable[[Action], None]] = {
            "load": self._load,
            "store": self._store,
            "spill": self._spill,
            "put": self._put,
            "reload": self._reload,
            "keep": self._keep,
            "fetch": self._fetch,
            "accumulate": self._accumulate,
        }
        for action in self.block.allocation.actions:
            kind = action.item.kind
            if kind in named:
                named[kind](action)
            elif kind in REDUCTIONS:
                self._reduce(action)
            else:
                self._function(action)

    def _registers(self, numbers: tuple[int, ...]) -> list[Register]:
        return [vector(self.asm, number) for number in numbers]

    def _count(self, position: int) -> int:
        """Return the number of elements in vector `position` of a row."""
        is_last = position == self.block.vectors - 1
        return self.block.tail if is_last and self.block.tail else self.asm.target.lanes

    def _strip(self, array: int, row: int, position: int) -> Strip:
        plan = self.plan
        step, element = plan.space.row.strides[array], self.arrays[array].element
        first = self.block.first + position * plan.lanes
        displacement = self._row(array, row) + first * step
        index = self.index if plan.is_dense(array, self.arrays) else None
        scale = element.bytes if index is not None else 1
        place = Memory(self.pointers[array], displacement, index, scale)
        if plan.across:
            step = plan.space.loops[-1].strides[array]
        return Strip(place, step, element, self._count(position), self.asm.target.lanes)

    def _row(self, array: int, row: int) -> int:
        return row * self.plan.space.loops[-1].strides[array] if row else 0

    def _load(self, action: Action) -> None:
        value = self.plan.values[action.item.value]
        array, out = value.array, self._registers(action.out)
        spare = vector(self.asm, action.scratch[0])
        each = registers_of(value.element)
        for number in range(len(out) // each):
            group = out[number * each : (number + 1) * each]
            if value.per_row and not self.plan.across:
                place = Memory(self.pointers[array], self._row(array, number))
                memory.load_one(self.asm, group, place, value.element, spare)
            else:
                row, position = divmod(number, self.block.vectors)
                strip = self._strip(array, row, position)
                if self.plan.across and strip.step == 0:
                    memory.load_one(self.asm, group, strip.place, value.element, spare)
                else:
                    memory.load(self.asm, group, strip, spare)

    def _argument(self, action: Action, number: int) -> list[Register]:
        """An argument's registers; a constant goes into the last scratch register."""
        if action.inputs[number]:
            return self._registers(action.inputs[number])
        value = self.plan.values[action.item.arguments[number]]
        holder = vector(self.asm, action.scratch[-1])
        move(self.asm, holder, self._constant(action.item.arguments[number]))
        return [holder] * registers_of(value.element)

    def _constant(self, value: int) -> Literal:
        of = self.plan.values[value]
        if of.element is Element.INT64:
            return longs(self.asm, of.number)
        if of.element is Element.FLOAT64:
            return doubles(self.asm, of.number)
        if of.element is Element.BOOL:
            return bits(self.asm, 0xFFFFFFFF if of.number else 0)
        return self.asm.constant(float(of.number))

    def _store(self, action: Action) -> None:
        result = action.item.array
        array = self.plan.operands + result
        value = self.plan.values[action.item.arguments[0]]
        held = self._argument(action, 0)
        spares = self._registers(action.scratch[:2])
        each = registers_of(value.element)
        groups = [held[n : n + each] for n in range(0, len(held), each)]
        for row in range(self.block.rows):
            mine = groups[row if len(groups) > row else 0]
            if self.plan.row_stores[result] and not self.plan.across:
                place = Memory(self.pointers[array], self._row(array, row))
                memory.store_one(self.asm, mine, place, value.element, spares[0])
                continue
            for position in range(self.block.vectors):
                if not value.per_row:
                    mine = groups[row * self.block.vectors + position]
                strip = self._strip(array, row, position)
                memory.store(self.asm, mine, strip, spares)

    def _function(self, action: Action) -> None:
        value = self.plan.values[action.item.value]
        function = function_of(value)
        if isinstance(function, PairFunction):
            self._pair_function(action, function)
            return
        out = self._registers(action.out)
        scratch = self._registers(action.scratch)
        columns: list[list[Operand]] = []
        for number, argument in enumerate(action.item.arguments):
            if action.inputs[number]:
                columns.append(self._spread(argument, action.inputs[number], len(out)))
            elif number == function.memory:
                columns.append([self._constant(argument)] * len(out))
            else:
                holder = scratch.pop()
                move(self.asm, holder, self._constant(argument))
                columns.append([holder] * len(out))
        if function.direct is not None:
            narrow = value.per_row and value.kind in NARROWED and not self.plan.across
            for position, register in enumerate(out):
                arguments = [column[position] for column in columns]
                if not narrow:
                    function.direct(self.asm, register, arguments, scratch)
                    continue
                low = narrowed(register)
                parts = [narrowed(a) for a in arguments]
                function.direct(self.asm, low, parts, [narrowed(s) for s in scratch])
                self.asm.emit("vbroadcastss", register, low)
            return
        assert function.in_place is not None
        for register, source in zip(out, columns[0], strict=True):
            move(self.asm, register, source)
        shared = function.scratch
        in_step = (len(scratch) - shared) // function.per_vector
        for start in range(0, len(out), in_step):
            function.in_place(self.asm, out[start : start + in_step], scratch)

    def _spread(self, argument: int, numbers: tuple[int, ...], count: int) -> list[Operand]:
        """Return a register for each of `count` vectors; a per-row value repeats its row's."""
        registers: list[Operand] = [*self._registers(numbers)]
        if not self.plan.values[argument].per_row or len(registers) == count:
            return registers
        return [registers[n * len(registers) // count] for n in range(count)]

    def _pair_function(self, action: Action, function: PairFunction) -> None:
        value = self.plan.values[action.item.value]
        scratch = self._registers(action.scratch)
        each = registers_of(value.element)
        out = self._registers(action.out)
        groups = [out[n : n + each] for n in range(0, len(out), each)]
        columns: list[list[list[Register]]] = []
        for number, argument in enumerate(action.item.arguments):
            pairs = registers_of(self.plan.values[argument].element)
            if action.inputs[number]:
                held = self._registers(action.inputs[number])
            else:
                holder = scratch.pop()
                move(self.asm, holder, self._constant(argument))
                held = [holder] * pairs
            mine = [held[n : n + pairs] for n in range(0, len(held), pairs)]
            columns.append([mine[n * len(mine) // len(groups)] for n in range(len(groups))])
        for number, group in enumerate(groups):
            function.emit(self.asm, group, [column[number] for column in columns], scratch)

    def _reduce(self, action: Action) -> None:
        """Reduce all vectors of each row to one that holds the result in every lane."""
        kind, registers = action.item.kind, self._registers(action.out)
        each = registers_of(self.plan.values[action.item.value].element)
        out = registers[::each]
        scratch = self._registers(action.scratch)
        of_row = self.block.vectors * each
        count = len(out) * of_row
        columns = [self._argument(action, n) for n in range(len(action.inputs))]
        every = [[held[n * len(held) // count] for held in columns] for n in range(count)]
        for turn, part in enumerate(self._parts(kind)):
            for row, register in enumerate(out):
                source = every[row * of_row + part.register]
                if turn:
                    take_in(self.asm, kind, register, source, scratch[0])
                else:
                    start_row(self.asm, kind, register, source, part, scratch[0])
        across_lanes(self.asm, kind, out, scratch)
        if each > 1:
            for lower, upper in zip(out, registers[1::each], strict=True):
                move(self.asm, upper, lower)

    def _parts(self, kind: str) -> list[RowPart]:
        return parts_of(kind, self.block.vectors, self.block.tail, self.asm.target.lanes)

    def _accumulate(self, action: Action) -> None:
        reduction = action.item.array
        kind = self.plan.values[reduction].kind
        each = registers_of(self.plan.values[reduction].element)
        spare, partial = self._registers(action.scratch[:2])
        columns = [self._argument(action, n) for n in range(len(action.inputs))]
        accumulators = self._registers(self.block.accumulators[reduction])
        for part in self._parts(kind):
            # A per-row value and a constant have one vector for all positions.
            source = [held[part.register % len(held)] for held in columns]
            into = accumulators[part.register // each]
            if not part.tail:
                take_in(self.asm, kind, into, source, spare)
                continue
            start_row(self.asm, kind, partial, source, part, spare)
            combine(self.asm, kind, into, into, partial, spare)

    def _slot(self, slot: int, number: int) -> Memory:
        return Memory(rsp, self.stack + slot + number * self.asm.target.vector_bytes)

    def _spill(self, action: Action) -> None:
        for number, register in enumerate(self._registers(action.inputs[0])):
            self.asm.emit("vmovups", self._slot(action.slot, number), register)

    def _put(self, action: Action) -> None:
        for number, register in enumerate(self._registers(action.inputs[0])):
            self.asm.emit("vmovups", self._slot(action.item.array, number), register)

    def _reload(self, action: Action) -> None:
        for number, register in enumerate(self._registers(action.out)):
            self.asm.emit("vmovups", register, self._slot(action.slot, number))

    def _scratch_place(self, offset: int, number: int, registers: int) -> Memory:
        """Return the scratch location of register `number` of a kept value: vectors in sequence."""
        each = registers // self.block.vectors
        first = (self.block.first // self.plan.lanes * each + number) * self.asm.target.vector_bytes
        scale = 4 * each if self.index is not None else 1
        return Memory(self.pointers[-1], offset + first, self.index, scale)

    def _keep(self, action: Action) -> None:
        registers = self._registers(action.inputs[0])
        for number, register in enumerate(registers):
            place = self._scratch_place(action.item.array, number, len(registers))
            self.asm.emit("vmovups", place, register)

    def _fetch(self, action: Action) -> None:
        registers = self._registers(action.out)
        for number, register in enumerate(registers):
            place = self._scratch_place(action.item.array, number, len(registers))
            self.asm.emit("vmovups", register, place)
