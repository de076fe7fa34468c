"""Report of a model in parts: the layers of native functions, and the sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from sparsejit.api.models.parts import LeftPart, OwnPart, PartChain
from sparsejit.api.reports.advisor import LEAST_SHARE, Advice
from sparsejit.api.reports.report import LayerReport, Report
from sparsejit.api.reports.shown import counted
from sparsejit.errors import check_flags
from sparsejit.ir.values import Array
from sparsejit.runtime.native_timing import sample
from sparsejit.runtime.python_objects import ArrayType

_SAMPLES, _BUDGET_NS = 25, 200_000_000
# Sizes that add up over native functions.
_SUMS = (
    *("layers", "kernels", "weights", "nnz", "effective_flops", "flops", "code_bytes"),
    *("pool_bytes", "workspace_bytes", "buffer_bytes", "compile_ms"),
)


def parted_statistics(chain: PartChain) -> dict[str, Any]:
    """Return sums over native functions, and counts of parts and of nodes in ONNX Runtime."""
    own = [part.model.stats for part in chain.parts if isinstance(part, OwnPart)]
    sums = {name: sum(each[name] for each in own) for name in _SUMS}
    left = sum(part.nodes for part in chain.parts if isinstance(part, LeftPart))
    return {
        **sums,
        "isa": own[0]["isa"] if own else "",
        "tile": None,
        "parts": len(chain.parts),
        "onnxruntime_nodes": left,
        "onnxruntime_bytes": sum(len(x.onnx) for x in chain.parts if isinstance(x, LeftPart)),
    }


def parted_report(chain: PartChain, title: str, measure: bool) -> Report:
    """Return the report of all parts: the layers of native functions, a session as one layer."""
    check_flags(measure=measure)
    values = chain.values(_example_inputs(chain.inputs)) if measure else []
    layers: list[LayerReport] = []
    parts: list[dict[str, Any]] = []
    notes: list[str] = []
    for number, part in enumerate(chain.parts):
        name = f"part {number + 1}"
        if isinstance(part, OwnPart):
            report = part.model.explain(measure=measure)
            found, ns = list(report.layers), report.whole_ns
            notes += report.facts["notes"]
        else:
            operands = chain.operands(values, number) if measure else []
            ns = _ns_of(partial(part.run, operands)) if measure else None
            found = [_session_layer(name, part, ns)]
        layers += found
        parts.append(_described(part, found, ns))
    total = sum(each["measured_ns"] for each in parts) if measure else None
    if total:
        layers = [replace(x, share=(x.measured_ns or 0.0) / total) for x in layers]
    whole = _ns_of(partial(chain.run, values[: len(chain.inputs)])) if measure else None
    facts = {**parted_statistics(chain), "in_order": parts, "notes": notes}
    lines = [*_lines(chain, parts, whole, total), *notes]
    return Report(title, tuple(lines), tuple(layers), facts, whole)


def _described(part: OwnPart | LeftPart, layers: list[LayerReport], ns: float | None) -> Any:
    """Return a part as plain data."""
    predicted = None
    if isinstance(part, OwnPart):
        predicted = sum(layer.predicted_ns or 0.0 for layer in layers)
    left = part.left if isinstance(part, LeftPart) else ()
    return {
        "engine": part.engine,
        "nodes": part.nodes,
        "inputs": list(part.inputs),
        "outputs": list(part.outputs),
        "predicted_ns": predicted,
        "measured_ns": ns,
        "left": [asdict(node) for node in left],
    }


def _lines(
    chain: PartChain, parts: list[dict[str, Any]], whole: float | None, total: float | None
) -> list[str]:
    left = sum(part.nodes for part in chain.parts if isinstance(part, LeftPart))
    own = sum(part.nodes for part in chain.parts) - left
    lines = [
        f"{len(parts)} parts: {counted(own, 'node')} compiled, {left} in ONNX Runtime",
        "the batch is the example's, since ONNX Runtime's nodes may mix samples",
    ]
    for number, (part, found) in enumerate(zip(chain.parts, parts, strict=True)):
        name = "ONNX Runtime" if isinstance(part, LeftPart) else part.engine
        times = [
            f"{found[key]:,.0f} ns {key.partition('_')[0]}"
            for key in ("measured_ns", "predicted_ns")
            if found[key] is not None
        ]
        nodes = counted(part.nodes, "node")
        lines.append(", ".join([f"part {number + 1}: {name}, {nodes}", *times]))
    if whole is not None:
        lines.append(
            f"measured: {whole:,.0f} ns a call from Python; the parts add up to {total:,.0f}"
        )
    return lines


def _session_layer(name: str, part: LeftPart, ns: float | None) -> LayerReport:
    """Return the report of a session; its reason groups nodes by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in part.left:
        groups.setdefault((node.operator, node.reason), []).append(node.name)
    reasons = []
    for (operator, reason), names in groups.items():
        more = f" and {len(names) - 1} more" if names[1:] else ""
        reasons.append(f"{operator} (node {names[0]}{more}): {reason}")
    return LayerReport(name, "onnxruntime", reason="; ".join(reasons), measured_ns=ns)


def _example_inputs(kinds: tuple[ArrayType, ...]) -> list[Array]:
    """Return random floats and bools; zeros for whole numbers, which may be indices."""
    rng = np.random.default_rng(0)
    arrays = []
    for kind in kinds:
        dtype, shape = np.dtype(kind.dtype), tuple(n or 0 for n in kind.shape)
        floats = rng.standard_normal(shape)
        made = {"f": floats, "b": floats < 0, "O": np.full(shape, "")}
        arrays.append(np.asarray(made.get(dtype.kind, np.zeros(shape)), dtype))
    return arrays


def _ns_of(call: Callable[[], Any]) -> float:
    """Return the median nanoseconds of a call from Python."""

    def loop(count: int) -> None:
        for _ in range(count):
            call()

    return sample(loop, _SAMPLES, _BUDGET_NS).median_ns


def advice_of_parts(chain: PartChain) -> Advice:
    """Return the suggestions for native functions, with shares of the whole call's time."""
    advices = [part.model.advise() for part in chain.parts if isinstance(part, OwnPart)]
    whole = parted_report(chain, "", measure=True).whole_ns or 1.0
    found = [
        replace(each, share=each.saved_ns / whole) for one in advices for each in one.suggestions
    ]
    kept = sorted((x for x in found if x.share >= LEAST_SHARE), key=lambda each: -each.saved_ns)
    return Advice(tuple(kept), whole, 1, LEAST_SHARE)
