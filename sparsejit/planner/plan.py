"""Picks the kernel for a layer and records why.

Every template that the target can run is priced by the cost model (`cost.py`); the cheapest wins,
and of equals the one with less code.
A strategy named by the caller overrides the price, not the record of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sparsejit.asm_templates.table import MATVEC_TEMPLATES
from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import known_rates
from sparsejit.planner.cost import Cost, predict
from sparsejit.x86.assembler import Assembler

AUTO = "auto"

# From here on a weight would round to infinity: halfway from a dtype's largest value to the next.
OVERFLOWS_AT = {DType.FLOAT16: 65520.0, DType.BFLOAT16: 2.0**128 - 2.0**119}


class Template(Protocol):
    """A row of a table of kernels."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def isa(self) -> str: ...

    @property
    def emit(self) -> Callable[[Assembler, Any, SparseMatrix], None]: ...


@dataclass(frozen=True)
class Candidate:
    """A template, of whichever table, and its predicted cost."""

    template: Template
    cost: Cost


@dataclass(frozen=True)
class Plan:
    """The chosen template, all candidates from cheapest to dearest, and the reason in words.

    `measured_ns` holds the times of those candidates that were measured, by template name.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    measured_ns: Mapping[str, float] = field(default_factory=dict)


def strategies() -> tuple[str, ...]:
    """The names `strategy=` accepts."""
    return (AUTO, *dict.fromkeys(template.family for template in MATVEC_TEMPLATES))


def plan(
    matrix: SparseMatrix,
    target: Target,
    strategy: str = AUTO,
    dtype: DType = DType.FLOAT32,
) -> Plan:
    """Choose a template for a matrix-vector product.

    Raises InvalidInput for a strategy that does not exist, or not for this dtype and target, and
    for weights that the dtype cannot hold.
    """
    _check_range(matrix, dtype)
    usable = [t for t in MATVEC_TEMPLATES if t.dtype is dtype and t.made_for(target)]
    rates = known_rates(target)
    priced = [Candidate(t, predict(t.family, matrix, target, rates, dtype)) for t in usable]
    return choose(priced, strategy, strategies(), f"{dtype.value} on this {target.isa} target")


def _check_range(matrix: SparseMatrix, dtype: DType) -> None:
    largest = float(np.abs(matrix.dense).max())
    if largest >= OVERFLOWS_AT.get(dtype, math.inf):
        raise InvalidInput(
            f"a weight of magnitude {largest:.4g} is more than {dtype.value} can hold; "
            "use dtype='float32'"
        )


def choose(
    priced: Iterable[Candidate], strategy: str, strategies: tuple[str, ...], case: str
) -> Plan:
    """The cheapest candidate, or the one of the family that `strategy` names.

    Raises InvalidInput for a strategy that is not among `strategies`, or has no candidate; `case`
    says in words what the candidates are for.
    """
    if strategy not in strategies:
        raise InvalidInput(f"strategy {strategy!r} is unknown; use one of {', '.join(strategies)}")
    candidates = tuple(sorted(priced, key=lambda c: (c.cost.ns, c.cost.code_bytes)))
    if not candidates:
        raise InvalidInput(
            f"there is no kernel for {case}; use dtype='float32'"
        )
    if strategy == AUTO:
        return Plan(candidates[0], candidates, _comparison(candidates))
    chosen = next((c for c in candidates if c.template.family == strategy), None)
    if chosen is None:
        known = ", ".join(dict.fromkeys((AUTO, *(c.template.family for c in candidates))))
        raise InvalidInput(
            f"strategy {strategy!r} has no kernel for {case}; use one of {known}"
        )
    return Plan(chosen, candidates, f"strategy={strategy!r} was asked for")


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
