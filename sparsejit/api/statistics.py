"""Sizes of a model's native function, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsejit.api.shown import counted
from sparsejit.lowering.step import Step


def sizes_of(steps: Sequence[Step]) -> dict[str, int]:
    """Return counts of layers, kernels, weights, nnz and flops of the steps of a model."""
    facts = [step.facts for step in steps]
    # Weights count once for an operator that runs band by band, or sample by sample.
    layers = {
        (step.origin, step.facts.zeros): step.facts for step in steps if step.facts.weights
    }.values()
    return {
        "layers": len(layers),
        "kernels": len(facts),
        "weights": sum(int(fact.weights) for fact in layers),
        "nnz": sum(int(fact.nnz) for fact in layers),
        "effective_flops": sum(int(fact.effective_flops) for fact in facts),
        "flops": sum(int(fact.flops) for fact in facts),
    }


def sizes_text(stats: Mapping[str, Any]) -> str:
    """Return the counts of layers, weights and kernels in words."""
    kernels = counted(stats["kernels"], "kernel")
    if not stats["weights"]:
        return f"no weights, {kernels}"
    return (
        f"{counted(stats['layers'], 'layer')}, {stats['nnz']:,} of {stats['weights']:,} weights "
        f"nonzero ({stats['nnz'] / stats['weights']:.1%}), {kernels}"
    )
