"""The backend of `torch.compile(model, backend="sparsejit")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsejit.api.models.variant import make_variant
from sparsejit.errors import InvalidInput, check_flags, suggest
from sparsejit.frontends.dynamo import PartCall, compiled_by_parts
from sparsejit.ir.graph import Graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.planner.split import parse_threads

_DEFAULTS = {"dtype": "float32", "target": "native", "threads": 1, "tune": False, "exact": False}


def dynamo_backend(
    module: Any,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a module that dynamo captured, in parts; torch runs the rest.

    options: dtype, target, threads, tune and exact, as in `compile_model`. Patterns that match no
        layer of a graph are ignored, because a model may be captured as several graphs.

    Raises InvalidInput for other options, and for a mode, which only torch's own backend has.
    """
    if mode is not None:
        raise InvalidInput(f"mode={mode!r} is not known to sparsejit; give options instead")
    for name in options or {}:
        if name not in _DEFAULTS:
            raise InvalidInput(f"option {name!r} is not known; {suggest(name, _DEFAULTS)}")
    given = {**_DEFAULTS, **(options or {})}
    check_flags(tune=given["tune"], exact=given["exact"])
    kept = ModelOptions(
        calibrated(Target.resolve(given["target"])),
        threads=parse_threads(given["threads"]),
        tune=given["tune"],
        exact=given["exact"],
    )

    def compile_part(graph: Graph, tile: int | None) -> PartCall:
        return make_variant(graph, kept, given["dtype"], tile, is_part=True).call

    return compiled_by_parts(module, inputs, compile_part)
