"""The graph that is lowered: after all passes, with its layers in the dtypes of the options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparsejit.api.quantising.scales import Scales
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerScales, SumScales
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.channel_order import with_channel_order
from sparsejit.lowering.convolution.int8_choice import (
    with_byte_layers,
    with_cheapest_convolutions,
    with_rounded_inputs,
)
from sparsejit.passes.calibrated_layers import (
    keyed_layers,
    left_in_floats,
    with_rounded_sums,
    with_scales,
)
from sparsejit.passes.default import folded, run_passes
from sparsejit.passes.dtypes import parsed_dtypes, with_dtypes
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.passes.residual_taps import fold_residual_taps
from sparsejit.planner.cheapest_row import recording

NamedDtypes = str | Mapping[str, str]
Dtypes = NamedDtypes | Scales


def final_graph(
    graph: Graph, options: ModelOptions, dtypes: Dtypes, is_part: bool = False
) -> Graph:
    """Return the graph to lower: all passes run, layers in `dtypes`.

    Where the graph `is_part` of a model, `dtypes` may name layers that it lacks. Raises the errors
    of `with_dtypes`.
    """
    with recording() as record:
        final = with_rounded_inputs(_with_dtypes(graph, options, dtypes, is_part))
        ordered = with_channel_order(fold_residual_taps(final), options)
        final = final if ordered is final else run_passes(ordered)
    return replace(
        final,
        notes=graph.notes,
        batch_axes=graph.batch_axes,
        decisions=record.decisions,
    )


def _with_dtypes(graph: Graph, options: ModelOptions, dtypes: Dtypes, is_part: bool) -> Graph:
    layers = quantised_layers(graph)
    if isinstance(dtypes, Scales):
        return run_passes(_in_bytes(folded(layers), options, dtypes)[0])
    if not set(parsed_dtypes(dtypes).values()) - {DType.INT8}:
        layers = with_byte_layers(layers, options)
    passed = run_passes(with_cheapest_convolutions(layers, options))
    stored = with_dtypes(passed, dtypes, is_part)
    if dtypes != DType.INT8.value:
        return stored
    return with_cheapest_convolutions(stored, options, without_scale=True)


def kept_scales(graph: Graph, options: ModelOptions, scales: Scales) -> Scales:
    """Return the scales, with float32 for convolutions that int8 would make slower.

    The graph has scales and shifts inside its layers, and int8 layers made by `quantised_layers`.
    """
    _, kept = _in_bytes(graph, options, scales)
    places = {each.place for each in kept.layers}
    layers = (
        each
        if each.place in places
        else LayerScales(*each.key, DType.FLOAT32, shape=each.shape)
        for each in scales.layers
    )
    return replace(scales, layers=tuple(layers), sums=kept.sums)


def _is_made_in_steps(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Convolution) and node.op.rounding is not None


def _in_bytes(
    graph: Graph, options: ModelOptions, calibrated: Scales
) -> tuple[Graph, Scales]:
    """Return the graph with calibrated layers, without int8 for convolutions that it makes slower.

    The second result has the scales of the layers and sums that are still short.

    A calibrated convolution that is computed in float32 keeps its scales where a convolution with
    a byte output produces its x: the steps of that output are the steps of x. Where x would have to
    be rounded separately, int8 gains nothing, nor does rounding the operands of a sum in float32.
    """
    scales: Sequence[LayerScales] = calibrated.layers
    sums: Sequence[SumScales] = calibrated.sums
    while True:
        made = with_rounded_sums(folded(with_scales(graph, scales)), sums)
        made = with_cheapest_convolutions(with_byte_layers(made, options), options)
        producers = made.producers()
        lost = {
            key.place
            for key, node in keyed_layers(made).items()
            if isinstance(node.op, Convolution)
            and node.op.dtype is DType.FLOAT32
            and not _is_made_in_steps(producers.get(node.inputs[0]))
        }
        kept = [each for each in scales if each.dtype is not DType.INT8 or each.place not in lost]
        in_floats = left_in_floats(made)
        short = [each for each in sums if each.name not in in_floats]
        if (len(kept), len(short)) == (len(scales), len(sums)):
            return made, replace(calibrated, layers=tuple(kept), sums=tuple(short))
        scales, sums = kept, short
