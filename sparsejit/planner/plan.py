"""Picks the kernel for a layer and records why.

Every template that the target can run is priced from what the layer's zeros let expect. The most
promising is lowered and priced again from what was made, then the next, until none that is left is
expected to win; the cheapest lowered wins, and of equals the one with less code.
A strategy named by the caller overrides the price, not the record of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.cost import Cost, price

AUTO = "auto"
# Times the least cost: up to there kernels whose weights serve all lengths are taken. Others take
# seconds, and have all weights once more, for each length. BERT-base loses 3 to 6 % by them.
HARDLY_MORE = 1.25
MANY_INPUTS = 1 << 17  # so many may be why there is no kernel


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
    `lowered` is the layer as the chosen template emits it; None in a record.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    measured_ns: Mapping[str, float] = field(default_factory=dict)
    lowered: Any = field(default=None, repr=False, compare=False)

    def record(self) -> "Plan":
        """The plan without what was lowered, which takes as much memory as the weights."""
        return Plan(self.chosen, self.candidates, self.reason, self.measured_ns)


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
    job = Job(spec, matrix, target, price)
    return choose(job, MATVEC_TEMPLATES, strategy, strategies(), exact)


def expected_ns(spec: MatVec, matrix: SparseMatrix, target: Target, exact: bool) -> float:
    """What `plan` would choose, as its zeros let expect it: nothing is lowered."""
    job = Job(spec, matrix, target, price)
    return min((one.cost.ns for one in job.candidates(MATVEC_TEMPLATES, exact)), default=math.inf)


@dataclass(frozen=True, eq=False)
class Job:
    """A layer for a target, and what makes a cost of its counts."""

    spec: Layer
    matrix: SparseMatrix
    target: Target
    price: Callable[[Any], Cost]
    _expected: dict[str, tuple[Any, Cost]] = field(default_factory=dict, repr=False)

    def expected(self, template: Template) -> Candidate:
        """The template at the cost that the layer's zeros let expect."""
        counts = template.expect(self.spec, self.matrix, self.target)
        cost = self.price(counts)
        self._expected[template.name] = counts, cost
        return Candidate(template, cost)

    def candidates(self, templates: Iterable[Template], exact: bool) -> list[Candidate]:
        """Those that fit, at what they are expected to cost, the cheapest first."""
        fitting = (template for template in templates if self.fits(template, exact))
        return sorted(map(self.expected, fitting), key=_rank)

    def lowered(self, template: Template) -> tuple[Candidate, Any]:
        """The template at the cost of what it makes of the layer, and what it makes."""
        lowered = template.lower(self.spec, self.matrix, self.target)
        counts, cost = self._expected.get(template.name, (None, None))
        if cost is None or counts != lowered.counts:
            cost = self.price(lowered.counts)
        return Candidate(template, cost, is_lowered=True), lowered

    def case(self, exact: bool) -> str:
        """What kernels are wanted for, in words."""
        batch = f" and batch {self.spec.batch}" if isinstance(self.spec, MatMul) else ""
        exactly = " with exact=True" if exact else ""
        many = self.matrix.in_features > MANY_INPUTS
        inputs = f" and {self.matrix.in_features} inputs" if many else ""
        few = f" and {self.matrix.density:.2g} of weights not zero" if self.matrix.is_vast else ""
        layer = f"{self.spec.dtype.value}{batch}{inputs}{few}{exactly}"
        return f"{layer} on this {self.target.isa} target"

    def fits(self, template: Template, exact: bool) -> bool:
        """Whether the template is for this layer and target, and changes no weight if `exact`."""
        return (
            template.dtype is self.spec.dtype
            and template.made_for(self.target)
            and self.matrix.in_features <= template.most_inputs
            and (template.takes_vast or not self.matrix.is_vast)
            and not (exact and template.weight_change(self.matrix, self.target))
        )


def choose(
    job: Job,
    templates: Iterable[Template],
    strategy: str,
    strategies: tuple[str, ...],
    exact: bool,
    preferred: frozenset[str] = frozenset(),
) -> Plan:
    """The cheapest template once lowered, or that of the family which `strategy` names.

    One of the `preferred` families may cost a little more.
    Raises InvalidInput for a strategy that is not among `strategies`, or has no template here.
    """
    if strategy not in strategies:
        raise InvalidInput(f"strategy {strategy!r} is unknown; use one of {', '.join(strategies)}")
    candidates = job.candidates(templates, exact)
    if not candidates:
        raise InvalidInput(f"there is no kernel for {job.case(exact)}; use dtype='float32'")
    considered = [c for c in candidates if strategy in (AUTO, c.template.family)]
    if not considered:
        case = job.case(exact)
        known = ", ".join(dict.fromkeys((AUTO, *(c.template.family for c in candidates))))
        raise InvalidInput(f"strategy {strategy!r} has no kernel for {case}; use one of {known}")
    shared = _as_good(preferred, considered) if strategy == AUTO else None
    made, lowered = _lowered_while_they_may_win(job, [shared] if shared else considered)
    known_costs = {candidate.template.name: candidate for candidate in made}
    candidates = [known_costs.get(c.template.name, c) for c in candidates]
    ranked = tuple(sorted(candidates, key=_rank))
    chosen = min(made, key=_rank)
    reason = _comparison(ranked) if strategy == AUTO else f"strategy={strategy!r} was asked for"
    if shared:
        family = chosen.template.family
        reason = f"{family} reads weights that serve all lengths; {reason}"
    return Plan(chosen, ranked, reason, lowered=lowered)


def _as_good(families: frozenset[str], candidates: list[Candidate]) -> Candidate | None:
    """The best of these families, if it costs hardly more than a better one of none of them."""
    best, *others = candidates
    if best.template.family in families:
        return None
    fitting = (one for one in others if one.template.family in families)
    return next((one for one in fitting if one.cost.ns <= HARDLY_MORE * best.cost.ns), None)


def _rank(candidate: Candidate) -> tuple[float, int]:
    return candidate.cost.ns, candidate.cost.code_bytes


def _lowered_while_they_may_win(
    job: Job, considered: list[Candidate]
) -> tuple[list[Candidate], Any]:
    """Candidates, the most promising first, at what they cost once lowered; the best as lowered."""
    made: list[Candidate] = []
    best = None
    for candidate in considered:
        if made and _rank(candidate) >= min(map(_rank, made)):
            break
        cost, lowered = job.lowered(candidate.template)
        made.append(cost)
        if min(made, key=_rank) is cost:
            best = lowered
    return made, best


def _comparison(candidates: tuple[Candidate, ...]) -> str:
    best, *others = candidates
    same = bool(others) and others[0].template.family == best.template.family
    names = [c.template.name if same else c.template.family for c in candidates[:2]]
    reason = (
        f"{names[0]} is predicted cheapest: {best.cost.steps} steps, "
        f"{best.cost.ns:.0f} ns, bound by {best.cost.bound}"
    )
    if not others:
        return reason
    ratio = others[0].cost.ns / max(best.cost.ns, 1e-9)
    return f"{reason}; next is {names[1]} at {ratio:.2f} times that"
