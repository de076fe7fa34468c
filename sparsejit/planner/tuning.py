"""Replace prediction by measurement for the few candidates that matter, and store the times."""

import hashlib
from dataclasses import replace
from pathlib import Path

from sparsejit.errors import DamagedFile
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, MatMul
from sparsejit.machine.target import Target
from sparsejit.measuring.kernel_times import kernel_ns
from sparsejit.planner.batch_plan import price_batch
from sparsejit.planner.cost import price
from sparsejit.planner.kernel_choice import Candidate, Job, Plan
from sparsejit.planner.measurement_store import (
    cache_file,
    compiler_digest,
    is_number,
    recall,
    remember,
)

MEASURED_CANDIDATES = 3
_PLAUSIBLE_NS = (1e-3, 1e12)


def tuned(choice: Plan, spec: Layer, matrix: SparseMatrix, target: Target) -> Plan:
    """The plan with the fastest of the cheapest candidates, timed now or earlier.

    Times are kept in the user's cache directory under a key of weights, spec, instruction sets,
    processor model and the compiler's source, so that a change to any of them is measured again.
    """
    contenders = choice.candidates[:MEASURED_CANDIDATES]
    names = [candidate.template.name for candidate in contenders]
    file = cache_file("tuning", *_identity(spec, matrix, target), *sorted(names))
    job = Job(spec, matrix, target, price_batch if isinstance(spec, MatMul) else price)
    made = {choice.chosen.template.name: (choice.chosen, choice.lowered)}
    times, problem = _read(file, contenders), None
    if times is None:
        for candidate in contenders:
            made.setdefault(candidate.template.name, job.lowered(candidate.template))
        times = {
            name: kernel_ns(candidate.template, lowered, spec, target, candidate.cost.all_bytes)
            for name, (candidate, lowered) in ((name, made[name]) for name in names)
        }
        problem = remember(file, times)
    measured = {name: times[name] for name in sorted(names, key=lambda name: times[name])}
    fastest = next(c.template for c in contenders if c.template.name == next(iter(measured)))
    best, lowered = made.get(fastest.name) or job.lowered(fastest)
    priced = {name: candidate for name, (candidate, _) in made.items()} | {fastest.name: best}
    return replace(
        choice,
        chosen=best,
        candidates=tuple(priced.get(c.template.name, c) for c in choice.candidates),
        measured_ns=measured,
        reason=_comparison(measured, problem),
        lowered=lowered,
    )


def _identity(spec: Layer, matrix: SparseMatrix, target: Target) -> tuple[str, ...]:
    return (
        *(hashlib.sha256(part.tobytes()).hexdigest() for part in matrix.nonzeros.arrays),
        str(matrix.nonzeros.shape),
        spec.case,
        " ".join(sorted(target.instruction_sets)),
        target.model,
        compiler_digest(),
    )


def _read(file: Path, contenders: tuple[Candidate, ...]) -> dict[str, float] | None:
    """Earlier times of exactly these candidates; None if they are missing or damaged."""
    try:
        stored = recall(file)
    except DamagedFile:
        return None
    names = {c.template.name for c in contenders}
    if not isinstance(stored, dict) or stored.keys() != names:
        return None
    plausible = all(is_number(ns, *_PLAUSIBLE_NS) for ns in stored.values())
    return stored if plausible else None


def _comparison(measured: dict[str, float], problem: str | None) -> str:
    reason = "measured: " + ", ".join(f"{name} {ns:.0f} ns" for name, ns in measured.items())
    return reason if problem is None else f"{reason}; the times are not stored: {problem}"
