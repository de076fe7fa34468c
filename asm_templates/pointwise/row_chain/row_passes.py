"""A chain over rows as passes: each walks a row once, up to the reductions that it can finish.

    softmax    pass 0: max(x)    pass 1: keep e = exp(x - max), sum(e)    pass 2: e * scale

A later pass computes cheap values again, and fetches costly ones from scratch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsejit.asm_templates.pointwise.row_chain.typed import REDUCTIONS, ChainValue

# Approximate number of instructions for a vector; functions that are not listed count 1.
COSTS = {
    **dict.fromkeys(("exp", "exp2", "expm1"), 14),
    **dict.fromkeys(("log", "erf", "sin", "cos", "tanh", "sigmoid"), 20),
    "log1p": 28,
    **dict.fromkeys(("div", "sqrt", "reciprocal", "maximum", "minimum", "where", "sign"), 4),
    "rsqrt": 8,
    "round_float16": 2,
    "round_bfloat16": 7,
    "constant": 0,
}
_DEAREST_RECOMPUTED = 5  # values that cost more are kept: a store and a load, from L1 or L2


@dataclass
class RowPass:
    """One walk along a row: the values it computes in `order`, the reductions it finishes.

    Values in `fetched` are loaded from scratch instead. `kept` are stored in scratch; `reductions`
    and `stored` results are computed from `order`.
    """

    order: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)  # numbers of results


class Passes:
    """The passes of a chain over a row, and the values of one element a row between them.

    `passes[n]` runs after `row_values[n]` are computed. `row_values` has one list more, for values
    that are computed after the last pass; then `row_results` are stored.
    """

    def __init__(
        self, values: Sequence[ChainValue], ends: Sequence[int], per_row_store: Sequence[bool]
    ) -> None:
        self.values = values
        self.stages = _stages(values)
        self.needed = _reached(values, ends)
        self.row_results = [n for n, per_row in enumerate(per_row_store) if per_row]
        reductions = [v for v in self.needed if values[v].kind in REDUCTIONS]
        self.vector_results = [n for n, per_row in enumerate(per_row_store) if not per_row]
        last = max([self.stages[end] for end in ends])
        count = last + 1 if self.vector_results else last
        self.passes = [RowPass() for _ in range(count)]
        for reduction in reductions:
            self.passes[self.stages[reduction] - 1].reductions.append(reduction)
        if self.vector_results:
            self.passes[-1].stored = self.vector_results
        self._first: dict[int, int] = {}
        for number, row_pass in enumerate(self.passes):
            targets = [a for r in row_pass.reductions for a in values[r].arguments]
            targets += [ends[n] for n in row_pass.stored]
            for target in targets:
                self._walk(target, number, row_pass)
        self.row_values: list[list[int]] = [
            [
                v
                for v in self.needed
                if values[v].per_row
                and values[v].kind not in REDUCTIONS
                and values[v].kind != "constant"
                and self.stages[v] == stage
            ]
            for stage in range(count + 1)
        ]

    def _walk(self, value: int, number: int, row_pass: RowPass) -> None:
        if self.values[value].per_row or value in row_pass.order:
            return
        first = self._first.get(value)
        if first is not None and self._cost(value) > _DEAREST_RECOMPUTED:
            row_pass.order.append(value)
            row_pass.fetched.append(value)
            if value not in self.passes[first].kept:
                self.passes[first].kept.append(value)
            return
        for argument in self.values[value].arguments:
            self._walk(argument, number, row_pass)
        row_pass.order.append(value)
        self._first.setdefault(value, number)

    def _cost(self, value: int) -> int:
        of = self.values[value]
        if of.per_row:
            return 0
        return COSTS.get(of.kind, 1) + sum(self._cost(a) for a in of.arguments)


def _stages(values: Sequence[ChainValue]) -> list[int]:
    """Return for each value the number of passes that must be done before it can be computed."""
    stages: list[int] = []
    for value in values:
        stage = max((stages[a] for a in value.arguments), default=0)
        stages.append(stage + (value.kind in REDUCTIONS))
    return stages


def _reached(values: Sequence[ChainValue], ends: Sequence[int]) -> list[int]:
    """Return the values that the results (`ends`) depend on, arguments before their uses.

    Each comes as late as its first use.
    """
    order: list[int] = []
    done: set[int] = set()

    def visit(value: int) -> None:
        if value in done:
            return
        done.add(value)
        for argument in values[value].arguments:
            visit(argument)
        order.append(value)

    for end in ends:
        visit(end)
    return order
