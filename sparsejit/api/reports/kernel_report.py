"""A kernel's report: its options, its code, and the candidates that it was chosen from."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

from sparsejit.api.reports.report import Report, layer_report
from sparsejit.ir.spec import Layer, MatMul
from sparsejit.ir.values import Origin
from sparsejit.lowering.step import Facts
from sparsejit.machine.target import Target
from sparsejit.planner.split import Split

_LAYER = Origin("matrix")


def kernel_report(
    spec: Layer,
    facts: Facts,
    division: Split,
    target: Target,
    title: str,
    stats: Mapping[str, Any],
    measured_ns: float | None = None,
) -> Report:
    """Return the report of a kernel, a single layer; `measured_ns` is the time of a run."""
    about = {**stats, **_described(spec, facts, division, target)}
    names = [part.plan.chosen.template.name for part in division.parts]
    ns = measured_ns
    layer = layer_report(_LAYER, names, [facts], target, ns=ns, total=ns or 0.0)
    lines = (*_lines(about), *division.lines(), f"rates: {about['rates']}")
    return Report(title, lines, (layer,), about, ns, about["batch"])


def _described(spec: Layer, facts: Facts, division: Split, target: Target) -> dict[str, Any]:
    """Return the options and the kernels that run them, as plain data; times in ns."""
    each = spec.each if isinstance(spec, MatMul) else spec
    assert facts.plan is not None
    return {
        "dtype": spec.dtype.value,
        "activation": each.activation.value,
        "bias": spec.bias is not None,
        "input_scale": None if each.x_steps is None else float(each.x_steps.scale),
        "batch": spec.batch if isinstance(spec, MatMul) else 1,
        "layout": spec.layout.value if isinstance(spec, MatMul) else None,
        "pitch": spec.padded_to if isinstance(spec, MatMul) else None,
        "case": spec.case,
        "kernel": facts.plan.chosen.template.name,
        "reason": facts.reason,
        "weights_change_by": _weight_change(division, target),
        "rounding": max(part.plan.chosen.template.rounding for part in division.parts),
        "threads_reason": division.reason,
        "parts": [
            {
                "first_column": part.first_column,
                "columns": part.columns,
                "first_row": part.first_row,
                "end_row": part.end_row,
                "kernel": part.plan.chosen.template.name,
                "nnz": part.matrix.nnz,
                "predicted_ns": part.plan.chosen.cost.ns,
            }
            for part in division.parts
        ],
        "target": target.model,
        "rates": target.core.origin,
    }


def _weight_change(division: Split, target: Target) -> float:
    """Largest difference of a weight from its value in its dtype, as a share of the value."""
    parts = division.parts
    return max(part.plan.chosen.template.weight_change(part.matrix, target) for part in parts)


def _lines(about: Mapping[str, Any]) -> list[str]:
    return [
        f"{about['out_features']} x {about['in_features']}, {about['case']}, "
        f"{about['nnz']} nonzeros ({about['density']:.2%}), "
        f"1x8 blocks {about['fill_1x8']:.0%} full",
        f"built: {about['code_bytes']} bytes of code, {about['pool_bytes']} of literals, "
        f"in {about['compile_ms']:.1f} ms",
        *_grouping(about),
        _exactness(about),
    ]


def _grouping(about: Mapping[str, Any]) -> list[str]:
    """Return a line about steps and lane use, if they are counted."""
    if "lane_use" not in about:
        return []
    steps, ungrouped = about["steps"], about.get("least_steps_ungrouped", about["steps"])
    line = f"steps: {steps}, {about['lane_use']:.0%} of their lanes in use"
    return [f"{line}; at least {ungrouped} with rows as they come" if ungrouped > steps else line]


def _exactness(about: Mapping[str, Any]) -> str:
    change, rounding = about["weights_change_by"], about["rounding"]
    kernels = ", ".join(dict.fromkeys(part["kernel"] for part in about["parts"]))
    if rounding:
        return (
            f"weights: as {about['dtype']} holds them; {kernels} rounds x, and sums are wrong by "
            f"at most 2^{log2(rounding):.0f} of the magnitudes of their products; "
            "exact=True excludes such kernels"
        )
    if not change:
        return f"weights: exactly as {about['dtype']} holds them"
    return (
        f"weights: each changed by at most 2^{log2(change):.0f} of itself, and weights below "
        f"2^-125 become zero, since {kernels} keeps an index in their lowest bits; "
        "exact=True excludes such kernels"
    )
