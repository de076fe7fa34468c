"""Replaces prediction by measurement for the few candidates that matter, and remembers it."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsejit.errors import DamagedFile
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer
from sparsejit.machine.target import Target
from sparsejit.planner.cache import cache_file, compiler_digest, is_number, recall, remember
from sparsejit.planner.plan import Candidate, Plan
from sparsejit.runtime.native_timing import median_of_least, time_copies
from sparsejit.runtime.program import build

MEASURED_CANDIDATES = 3
_PLACES = 3
_PLAUSIBLE_NS = (1e-3, 1e12)


def tuned(choice: Plan, spec: Layer, matrix: SparseMatrix, target: Target) -> Plan:
    """The plan with the fastest of the cheapest-looking candidates, timed here or earlier.

    Times are kept in the user's cache directory under a key of weights, spec, instruction sets,
    processor model and the compiler's source, so that a change to any of them measures anew.
    """
    contenders = choice.candidates[:MEASURED_CANDIDATES]
    file = cache_file("tuning", *_identity(spec, matrix, target))
    times, problem = _read(file, contenders), None
    if times is None:
        times = {c.template.name: _time(c, spec, matrix, target) for c in contenders}
        problem = remember(file, times)
    measured = {name: times[name] for name in sorted(times, key=lambda name: times[name])}
    best = next(c for c in contenders if c.template.name == next(iter(measured)))
    lowered = choice.lowered
    if best.template.name != choice.chosen.template.name:
        lowered = best.template.lower(spec, matrix, target)
    reason = _comparison(measured)
    if problem is not None:
        reason += f"; not kept for the next time: {problem}"
    return replace(choice, chosen=best, measured_ns=measured, reason=reason, lowered=lowered)


def _time(candidate: Candidate, spec: Layer, matrix: SparseMatrix, target: Target) -> float:
    """Median over places in memory of the least nanoseconds a call."""
    template = candidate.template
    lowered = template.lower(spec, matrix, target)
    program = build(template.name, target, lambda asm: template.emit(asm, lowered))
    x = np.random.default_rng(0).standard_normal(spec.x_shape).astype(np.float32)
    times = time_copies(program.image.data, x, spec.y_shape, _PLACES, samples=40)
    return median_of_least(times)


def _identity(spec: Layer, matrix: SparseMatrix, target: Target) -> tuple[str, ...]:
    return (
        hashlib.sha256(matrix.dense.tobytes()).hexdigest(),
        str(matrix.dense.shape),
        spec.case,
        " ".join(sorted(target.instruction_sets)),
        target.model,
        compiler_digest(),
    )


def _read(file: Path, contenders: tuple[Candidate, ...]) -> dict[str, float] | None:
    """Earlier times of exactly these candidates; None where there are none or they are damaged."""
    try:
        stored = recall(file)
    except DamagedFile:
        return None
    names = {c.template.name for c in contenders}
    if not isinstance(stored, dict) or stored.keys() != names:
        return None
    plausible = all(is_number(ns, *_PLAUSIBLE_NS) for ns in stored.values())
    return stored if plausible else None


def _comparison(measured: dict[str, float]) -> str:
    return "measured: " + ", ".join(f"{name} {ns:.0f} ns" for name, ns in measured.items())
