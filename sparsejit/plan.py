"""Picks the kernel for a layer and records why.

Every template that the target can run is priced by the cost model (`cost.py`); the cheapest wins,
and of equals the one with less code.
A strategy named by the caller overrides the price, not the record of it.
"""

from dataclasses import dataclass

from sparsejit.asm_templates.table import MATVEC_TEMPLATES, MatVecTemplate
from sparsejit.cost import Cost, predict
from sparsejit.errors import InvalidInput
from sparsejit.matrix import SparseMatrix
from sparsejit.target import Target

AUTO = "auto"


@dataclass(frozen=True)
class Candidate:
    """A template and its predicted cost."""

    template: MatVecTemplate
    cost: Cost


@dataclass(frozen=True)
class Plan:
    """The chosen template, all candidates from cheapest to dearest, and the reason in words."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    reason: str


def strategies() -> tuple[str, ...]:
    """The names `strategy=` accepts."""
    return (AUTO, *dict.fromkeys(template.family for template in MATVEC_TEMPLATES))


def plan(matrix: SparseMatrix, target: Target, strategy: str = AUTO) -> Plan:
    """Choose a template for a float32 matrix-vector product.

    Raises InvalidInput for a strategy that does not exist.
    """
    if strategy not in strategies():
        raise InvalidInput(
            f"strategy {strategy!r} is unknown; use one of {', '.join(strategies())}"
        )
    usable = [template for template in MATVEC_TEMPLATES if template.isa == target.isa]
    candidates = tuple(
        sorted(
            (Candidate(template, predict(template.family, matrix, target)) for template in usable),
            key=lambda candidate: (candidate.cost.cycles, candidate.cost.code_bytes),
        )
    )
    if strategy == AUTO:
        return Plan(candidates[0], candidates, _comparison(candidates))
    chosen = next(c for c in candidates if c.template.family == strategy)
    return Plan(chosen, candidates, f"strategy={strategy!r} was asked for")


def _comparison(candidates: tuple[Candidate, ...]) -> str:
    best = candidates[0]
    reason = (
        f"{best.template.family} is predicted cheapest: {best.cost.steps} steps, "
        f"{best.cost.cycles:.0f} cycles, bound by {best.cost.bound}"
    )
    if len(candidates) == 1:
        return reason
    second = candidates[1]
    ratio = second.cost.cycles / max(best.cost.cycles, 1e-9)
    return f"{reason}; next is {second.template.family} at {ratio:.2f} times that"
