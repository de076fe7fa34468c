"""Sizes of a model's native function, as plain data."""

from typing import Any

from sparsejit.api.variant import Variant


def statistics_of(variant: Variant) -> dict[str, Any]:
    """Layers, kernels, weights, nnz, flops, bytes of code, literals and workspace; milliseconds."""
    facts = [step.facts for step in variant.steps]
    image = variant.program.image
    # An operator that runs band by band, or sample by sample, has its weights once.
    layers = {
        (step.origin, step.facts.zeros): step.facts for step in variant.steps if step.facts.weights
    }.values()
    return {
        "layers": len(layers),
        "kernels": len(facts),
        "weights": sum(fact.weights for fact in layers),
        "nnz": sum(fact.nnz for fact in layers),
        "effective_flops": sum(fact.effective_flops for fact in facts),
        "flops": sum(fact.flops for fact in facts),
        "code_bytes": image.code_bytes,
        "pool_bytes": image.pool_bytes,
        "workspace_bytes": variant.workspace_bytes,
        "buffer_bytes": variant.memory.sum_bytes,
        "isa": variant.options.target.isa,
        "tile": variant.tile,
        "compile_ms": variant.compile_ms,
    }
