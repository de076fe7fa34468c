"""Choose the kernel of a layer and record the reason.

Every template that the target can run is priced from the counts that the layer's zeros predict. The
most promising is lowered and priced again from its actual counts, then the next, until no template
that is left is predicted to win. The cheapest lowered template wins, and of equals the one with
less code. A strategy named by the caller overrides the price, not the record of it.
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
from sparsejit.planner.cheapest_row import cheapest, priced
from sparsejit.planner.cost import Cost, price

AUTO = "auto"
# Kernels whose weights serve all lengths are chosen up to this multiple of the least cost. Others
# take seconds, and all weights once more, for each length. BERT-base loses 3 to 6 % by that choice.
HARDLY_MORE = 1.25
MANY_INPUTS = 1 << 17  # more inputs may be the reason that there is no kernel


@dataclass(frozen=True)
class Candidate:
    """A template (a family of kernels) that can compute the layer, and its predicted cost.

    `is_lowered`: the cost comes from the lowered layer, not from its zeros alone.
    """

    template: Template
    cost: Cost
    is_lowered: bool = False


@dataclass(frozen=True)
class Plan:
    """The chosen template, all candidates by rising cost, and the reason in words.

    `measured_ns` has the times of the candidates that were measured, by template name. `lowered` is
    the layer as the chosen template emits it; None in a record.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    measured_ns: Mapping[str, float] = field(default_factory=dict)
    lowered: Any = field(default=None, repr=False, compare=False)

    def record(self) -> "Plan":
        """The plan without its lowered layer, which takes as much memory as the weights."""
        return Plan(self.chosen, self.candidates, self.reason, self.measured_ns)


def strategies() -> tuple[str, ...]:
    """The names that `strategy=` accepts."""
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
    return choose_template(job, MATVEC_TEMPLATES, strategy, strategies(), exact)


def expected_ns(spec: MatVec, matrix: SparseMatrix, target: Target, exact: bool) -> float:
    """Predicted nanoseconds of the best kernel, from the zeros alone; nothing is lowered."""
    job = Job(spec, matrix, target, price)
    return min((one.cost.ns for one in job.candidates(MATVEC_TEMPLATES, exact)), default=math.inf)


@dataclass(frozen=True, eq=False)
class Job:
    """A layer to plan: its spec, matrix and target, and the function that prices its counts."""

    spec: Layer
    matrix: SparseMatrix
    target: Target
    price: Callable[[Any], Cost]
    _expected: dict[str, tuple[Any, Cost]] = field(default_factory=dict, repr=False)

    def expected(self, template: Template) -> Candidate:
        """The template with the cost that the layer's zeros predict."""
        counts = template.expect(self.spec, self.matrix, self.target)
        cost = self.price(counts)
        self._expected[template.name] = counts, cost
        return Candidate(template, cost)

    def candidates(self, templates: Iterable[Template], exact: bool) -> list[Candidate]:
        """Templates that can compute the layer, with their predicted costs, the cheapest first."""
        fitting = (template for template in templates if self.fits(template, exact))
        return sorted(map(self.expected, fitting), key=_rank)

    def lowered(self, template: Template) -> tuple[Candidate, Any]:
        """Lower the layer by a template; return the template with its cost, and the result."""
        lowered = template.lower(self.spec, self.matrix, self.target)
        counts, cost = self._expected.get(template.name, (None, None))
        if cost is None or counts != lowered.counts:
            cost = self.price(lowered.counts)
        return Candidate(template, cost, is_lowered=True), lowered

    def case(self, exact: bool) -> str:
        """Description of the required kernel, in words."""
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
            and (not exact or template.is_exact(self.matrix, self.target))
        )


def choose_template(
    job: Job,
    templates: Iterable[Template],
    strategy: str,
    strategies: tuple[str, ...],
    exact: bool,
    preferred: frozenset[str] = frozenset(),
) -> Plan:
    """Return the cheapest template once lowered, or the template of the family `strategy`.

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
    rows = [priced(c.template.name, c.cost, c) for c in sorted(made, key=_rank)]
    chosen: Candidate = cheapest(rows, job).row.emitter
    reason = _comparison(ranked) if strategy == AUTO else f"strategy={strategy!r} was asked for"
    if shared:
        family = chosen.template.family
        reason = f"{family} reads one copy of the weights for all lengths; {reason}"
    return Plan(chosen, ranked, reason, lowered=lowered)


def _as_good(families: frozenset[str], candidates: list[Candidate]) -> Candidate | None:
    """Best candidate of these families, if it costs hardly more than the best of all, else None.

    None too where the best of all is of one of these families.
    """
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
    """Lower candidates while one may win; return them with their costs, and the best as lowered."""
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
