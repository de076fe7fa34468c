"""The one interface of all choices: of the rows of a table that apply, the cheapest is taken.

    choose("windows", WINDOW_KERNELS, work)  ->  Chosen: the row, its price, and the runner-up

While a `recording` runs, every choice is recorded as a `Decision` about the layer that was named
last. A choice that is made only to price a row of another choice is not recorded. While a
`preferring` runs, rows of some names are taken whatever they cost, as tests of kernels need.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from sparsejit.errors import CompileError
from sparsejit.ir.values import Decision

Work = TypeVar("Work")
Price = TypeVar("Price")
Item = TypeVar("Item")


def _always(work: Any) -> bool:
    return True


@dataclass(frozen=True)
class TableRow(Generic[Work, Price]):
    """A candidate: a kernel, a form, a layout, or a number of samples or threads.

    price: the predicted cost of the work: nanoseconds, or a record that has them as `ns`.
    applies: whether the candidate can do the work.
    emitter: the template or form that emits it; None where `name` is the key of lowering's table.
    margin: the multiple of its price that is compared with other rows.
    """

    name: str
    price: Callable[[Work], Price]
    applies: Callable[[Work], bool] = _always
    emitter: Any = None
    margin: float = 1.0


def priced(
    name: str, price: Price, emitter: Any = None, margin: float = 1.0
) -> TableRow[object, Price]:
    """Return the row of a candidate whose price is known, for any work."""
    return TableRow(name, lambda _: price, emitter=emitter, margin=margin)


@dataclass(frozen=True, eq=False)
class Chosen(Generic[Work, Price]):
    """The chosen row of a table for some work.

    prices: the prices of all rows that apply, by name; empty where no other row was compared.
    runner_up: the row that would be chosen without the first; None where no other was compared.
    """

    row: TableRow[Work, Price]
    work: Work
    prices: dict[str, Price]
    runner_up: TableRow[Work, Price] | None

    @property
    def name(self) -> str:
        """The name of the chosen row."""
        return self.row.name

    def record(self) -> "Chosen[Any, Price]":
        """The choice without its work, which may hold the weights of a whole model."""
        return Chosen(self.row, None, self.prices, self.runner_up)

    @cached_property
    def price(self) -> Price:
        """The price of the chosen row."""
        return self.prices[self.name] if self.prices else self.row.price(self.work)


def choose(
    question: str,
    rows: Iterable[TableRow[Work, Price]],
    work: Work,
    name: str = "",
    unit: str = "ns",
) -> Chosen[Work, Price]:
    """Choose the cheapest row that applies, of equals the first, and record the choice.

    The row `name` is taken whatever it costs. Raises CompileError where no row applies.
    """
    made = cheapest(rows, work, name)
    record(made, question, unit)
    return made


def cheapest(
    rows: Iterable[TableRow[Work, Price]], work: Work, name: str = ""
) -> Chosen[Work, Price]:
    """Choose as `choose` does, without recording it: for a step of a search, or a price."""
    fitting = [row for row in rows if (row.name == name if name else row.applies(work))]
    if not fitting:
        raise CompileError("no row of the table applies to this work")
    fitting = [row for row in fitting if row.name in preferred()] or fitting
    if len(fitting) == 1:
        return Chosen(fitting[0], work, {}, None)
    token = _RECORD.set(None)
    try:
        prices = {row.name: row.price(work) for row in fitting}
    finally:
        _RECORD.reset(token)
    best, other, *_ = sorted(fitting, key=lambda row: row.margin * _number(prices[row.name]))
    return Chosen(best, work, prices, other)


_PREFERRED: ContextVar[frozenset[str]] = ContextVar("names of rows to take", default=frozenset())


@contextmanager
def preferring(*names: str) -> Iterator[None]:
    """Take rows of these names where they apply, in this thread, while the context lasts."""
    token = _PREFERRED.set(frozenset(names))
    try:
        yield
    finally:
        _PREFERRED.reset(token)


def preferred() -> frozenset[str]:
    """Return the names of rows that are taken now whatever they cost."""
    return _PREFERRED.get()


def least(items: Iterable[Item], price: Callable[[Item], float]) -> Item:
    """Return the first of the items with the least price; nothing is recorded."""
    return min(items, key=price)


def _number(price: Any) -> float:
    ns: float = price if isinstance(price, int | float) else price.ns
    return ns


@dataclass
class Recording:
    """The decisions so far, each once, in order; `layer` is the layer that the next is about."""

    layer: str = ""
    made: dict[Decision, None] = field(default_factory=dict)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions."""
        return tuple(self.made)


_RECORD: ContextVar[Recording | None] = ContextVar("record of choices", default=None)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record the choices of this thread, and only here, while the context lasts."""
    made = Recording()
    token = _RECORD.set(made)
    try:
        yield made
    finally:
        _RECORD.reset(token)


def about(layer: str) -> None:
    """Name the layer that the next choices are about."""
    current = _RECORD.get()
    if current is not None:
        current.layer = layer


def record(choice: Chosen[Any, Any], question: str, unit: str = "ns") -> None:
    """Record a choice, made now or earlier for an equal layer, if it was between several rows."""
    current = _RECORD.get()
    if current is not None and choice.runner_up is not None:
        best, other = choice.name, choice.runner_up.name
        prices = [_number(choice.prices[name]) for name in (best, other)]
        made = Decision(current.layer, question, best, prices[0], other, prices[1], unit)
        current.made[made] = None


def record_all(decisions: Iterable[Decision]) -> None:
    """Record decisions that were made for this graph before, or inside a loop of it."""
    current = _RECORD.get()
    if current is not None:
        current.made.update(dict.fromkeys(decisions))
