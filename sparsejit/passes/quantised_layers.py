"""Makes int8 layers from layers behind a model's own quantising and dequantising.

    q = clip(round(x / s) + z)            d = rounded(x; s, z)
    d = (q - z) * s                ->     y = linear[int8](x, W, b)
    y = linear(d, W, b)

where each row of W is whole steps of a scale. Other readers of d read x rounded in one chain. The
scale is one number, and values are bytes; padding of d with zeros is padding of x with zeros.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Pad
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType
from sparsejit.ir.values import Array, Value
from sparsejit.passes.quantised_values import functions_of, rounded_to_steps
from sparsejit.passes.rewriter import Site, rewrite

# Most inputs of a sum of integers that int32 surely holds.
_MOST_INPUTS = 2**31 // (LARGEST_INT8 * (LARGEST_INT8 + 1))
_RANGES = ((-128.0, 127.0), (0.0, 255.0))


class _Rounding(NamedTuple):
    """A value that is `source` in steps of `scale`; `shift` is the zero point in -128 .. 127."""

    source: Value
    scale: float
    shift: int


def quantised_layers(graph: Graph) -> Graph:
    """The graph with int8 layers in place of layers with both operands in steps."""
    known: dict[Value, _Rounding] = {}

    def rule(site: Site) -> Sequence[Value] | None:
        if isinstance(site.op, Linear | Convolution):
            return _int8_layer(site, site.op, known)
        steps = _read_again(site)
        if steps is None:
            return None
        chain, numbers = rounded_to_steps(steps.source.shape, steps.scale, steps.shift)
        rounded = site.one(chain, steps.source, *map(site.constant, numbers))
        known[rounded] = steps
        return (rounded,)

    return rewrite(graph, rule)


def _int8_layer(
    site: Site, op: Linear | Convolution, known: dict[Value, _Rounding]
) -> Sequence[Value] | None:
    """The int8 layer, or None; for convolutions lowering then compares its cost with float32."""
    x, weights, *others = site.inputs
    around = site.producer(x)
    has_zeros = around is not None and isinstance(around.op, Pad) and around.op.value == 0
    steps = known.get(around.inputs[0] if around is not None and has_zeros else x)
    rows = site.array(weights)
    if steps is None or rows is None or not _fits(rows):
        return None
    if op.dtype is not DType.FLOAT32 or (isinstance(op, Convolution) and op.transposed):
        return None
    source = steps.source
    if around is not None and has_zeros:
        source = site.one(around.op, source, origin=around.output.origin)
    made = replace(op, dtype=DType.INT8, input_scale=steps.scale, input_shift=steps.shift)
    return (site.one(made, source, weights, *others),)


def _fits(weights: Array) -> bool:
    """Whether int8 holds weights (out, ...) as they are, and int32 their sums."""
    rows = weights.reshape(len(weights), -1)
    return rows.shape[1] <= _MOST_INPUTS and SparseMatrix(rows).is_whole_steps


def _read_again(site: Site) -> _Rounding | None:
    """The rounding that quantises and dequantises by the same scale and zero point, else None."""
    node = Node(site.op, site.inputs, site.outputs)
    value, back = functions_of(node, site.number)
    source, made_by = functions_of(
        None if value is None else site.producer(value), site.number
    )
    numbers = dict(made_by)
    scale, zero = numbers.get("div"), numbers.get("add", 0.0)
    least, largest = numbers.get("maximum", 0.0), numbers.get("minimum", 0.0)
    add, sub = ([(kind, zero)] if zero else [] for kind in ("add", "sub"))
    clip = [("maximum", least), ("minimum", largest)]
    if made_by != [("div", scale), ("round", 0.0), *add, *clip] or back != [*sub, ("mul", scale)]:
        return None
    if source is None or scale is None or (least, largest) not in _RANGES:
        return None
    shift = int(zero - (least + largest + 1) / 2)
    return _Rounding(source, scale, shift) if source.type == site.output.type else None
