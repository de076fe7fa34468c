"""Register allocation by a linear scan over the items of a block.

A value has a register for each vector of the block, or for each row. If values do not fit, the one
whose next use is furthest goes to the stack; it is stored once and loaded where it is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparsejit.errors import CompileError

NEVER = 1 << 30


@dataclass(frozen=True)
class Item:
    """An operation of a block: compute `value` (-1: no value) from `arguments`.

    `kind` is a value's kind, or "store" of a result `array`, "accumulate" into a reduction, "keep"
    in scratch, "fetch" from there. `reuse`: the result may take the registers of an argument that
    is not used again.
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
    """Allocates a block. `pinned` values stay where they are; `slots` are values on the stack."""

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
