"""Picks the kernel for a layer and records why.

Every template that the target can run is priced from what the layer's zeros let expect. The most
promising is lowered and priced again from what was made, then the next, until none that is left
can win on counts alone; the cheapest lowered wins, and of equals the one with less code.
A strategy named by the caller overrides the price, not the record of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sparsejit.asm_templates.table import MATVEC_TEMPLATES, MatVecTemplate
from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import known_rates
from sparsejit.planner.cost import Cost, price
from sparsejit.x86.assembler import Assembler

AUTO = "auto"


class Template(Protocol):
    """A row of a table of kernels."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def isa(self) -> str: ...

    def expect(self, spec: Any, matrix: SparseMatrix, target: Target) -> Any: ...

    def lower(self, spec: Any, matrix: SparseMatrix, target: Target) -> Any: ...

    def emit(self, asm: Assembler, lowered: Any) -> None: ...

    def weight_change(self, matrix: SparseMatrix, target: Target) -> float: ...


@dataclass(frozen=True)
class Candidate:
    """A template, of whichever table, and its predicted cost.

    `is_lowered`: the cost is of what was made, not of what was expected.
    """

    template: Template
    cost: Cost
    is_lowered: bool = False


@dataclass(frozen=True)
class Plan:
    """The chosen template, all candidates from cheapest to dearest, and the reason in words.

    `measured_ns` holds the times of those candidates that were measured, by template name.
    `lowered` is the layer as the chosen template emits it; None once it has been emitted.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    measured_ns: Mapping[str, float] = field(default_factory=dict)
    lowered: Any = field(default=None, repr=False, compare=False)

    def emit(self, asm: Assembler) -> None:
        """Append the chosen kernel, without a return."""
        self.chosen.template.emit(asm, self.lowered)

    def record(self) -> "Plan":
        """The plan without what was lowered, which takes as much memory as the weights."""
        return replace(self, lowered=None)


def strategies() -> tuple[str, ...]:
    """The names `strategy=` accepts."""
    return (AUTO, *dict.fromkeys(template.family for template in MATVEC_TEMPLATES))


def plan(
    spec: MatVec,
    matrix: SparseMatrix,
    target: Target,
    strategy: str = AUTO,
    exact: bool = False,
) -> Plan:
    """Choose and lower a template for a product; if `exact`, one that changes no weight.

    Raises InvalidInput for a strategy that does not exist, or not for this dtype and target.
    """
    rates = known_rates(target)

    def lower(template: MatVecTemplate) -> tuple[Any, Cost]:
        lowered = template.lower(spec, matrix, target)
        return lowered, price(lowered.counts, rates)

    expected = [
        Candidate(template, price(template.expect(spec, matrix, target), rates))
        for template in MATVEC_TEMPLATES
        if template.dtype is spec.dtype
        and template.made_for(target)
        and not (exact and template.weight_change(matrix, target))
    ]
    case = f"{spec.dtype.value}{' with exact=True' if exact else ''} on this {target.isa} target"
    return choose(expected, lower, strategy, strategies(), case)


def choose(
    expected: Iterable[Candidate],
    lower: Callable[[Any], tuple[Any, Cost]],
    strategy: str,
    strategies: tuple[str, ...],
    case: str,
) -> Plan:
    """The cheapest candidate once lowered, or that of the family which `strategy` names.

    `expected` are templates with the cost to be expected; `lower` makes a layer ready for one and
    says what that costs. Raises InvalidInput for a strategy that is not among `strategies`, or has
    no candidate; `case` says in words what the candidates are for.
    """
    if strategy not in strategies:
        raise InvalidInput(f"strategy {strategy!r} is unknown; use one of {', '.join(strategies)}")
    candidates = sorted(expected, key=_rank)
    if not candidates:
        raise InvalidInput(f"there is no kernel for {case}; use dtype='float32'")
    considered = [c for c in candidates if strategy in (AUTO, c.template.family)]
    if not considered:
        known = ", ".join(dict.fromkeys((AUTO, *(c.template.family for c in candidates))))
        raise InvalidInput(f"strategy {strategy!r} has no kernel for {case}; use one of {known}")
    made, lowered = _lowered_while_they_may_win(considered, lower)
    known_costs = {candidate.template.name: candidate for candidate in made}
    candidates = [known_costs.get(c.template.name, c) for c in candidates]
    ranked = tuple(sorted(candidates, key=_rank))
    chosen = min(made, key=_rank)
    asked = f"strategy={strategy!r} was asked for"
    return Plan(chosen, ranked, _comparison(ranked) if strategy == AUTO else asked, lowered=lowered)


def _rank(candidate: Candidate) -> tuple[float, int]:
    return candidate.cost.ns, candidate.cost.code_bytes


def _lowered_while_they_may_win(
    considered: list[Candidate], lower: Callable[[Any], tuple[Any, Cost]]
) -> tuple[list[Candidate], Any]:
    """Candidates, the most promising first, at what they cost once lowered; the best as lowered."""
    made: list[Candidate] = []
    best = None
    for candidate in considered:
        cheapest = min((other.cost.ns for other in made), default=math.inf)
        if candidate.cost.ns >= cheapest:
            break
        lowered, cost = lower(candidate.template)
        made.append(Candidate(candidate.template, cost, is_lowered=True))
        if min(made, key=_rank) is made[-1]:
            best = lowered
    return made, best


def _comparison(candidates: tuple[Candidate, ...]) -> str:
    best = candidates[0]
    reason = (
        f"{best.template.family} is predicted cheapest: {best.cost.steps} steps, "
        f"{best.cost.ns:.0f} ns, bound by {best.cost.bound}"
    )
    if len(candidates) == 1:
        return reason
    second = candidates[1]
    ratio = second.cost.ns / max(best.cost.ns, 1e-9)
    return f"{reason}; next is {second.template.family} at {ratio:.2f} times that"
