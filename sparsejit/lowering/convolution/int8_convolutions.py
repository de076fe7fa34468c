"""Which convolutions of a quantised model are int8, by price.

int8 gathers columns; what is by channel or reads a padded image is often faster in float32, on the
values that the integers of x stand for:

    y = conv[int8](x, W, b)      ->      q = (clip(round(x / scale) + shift) - shift) * scale
                                         y = conv(q, W, b)
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from sparsejit.ir.graph import Graph, Node, Origin, Value
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import Lowering, ModelOptions
from sparsejit.lowering.convolution.depthwise import is_depthwise
from sparsejit.lowering.convolution.filters import filter_matrix
from sparsejit.lowering.convolution.windows import window_image
from sparsejit.passes.quantised_values import rounded_to_steps
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.planner.convolution_plan import FilterProduct, int8_is_cheaper


def with_cheapest_convolutions(graph: Graph, options: ModelOptions) -> Graph:
    """The graph with those convolutions in int8 that are faster so, all others in float32.

    It leaves alone those whose x has no fixed scale: the user asked for int8.
    """
    low = Lowering(graph, options)

    def rule(site: Site) -> Sequence[Value] | None:
        op = site.op
        if not isinstance(op, Convolution) or op.dtype is not DType.INT8 or op.input_scale is None:
            return None
        known = all(map(site.is_constant, site.inputs[1:]))
        if known and _is_cheaper(low, Node(op, site.inputs, site.outputs)):
            return None
        return _in_floats(site, op)

    return rewrite(graph, rule)


def with_rounded_inputs(graph: Graph) -> Graph:
    """The graph with a chain for the rounding of x before layers whose kernel does not do it."""

    def rule(site: Site) -> Sequence[Value] | None:
        op = site.op
        if not isinstance(op, Linear | Convolution) or op.dtype is DType.INT8:
            return None
        return None if op.input_shift is None else _in_floats(site, op)

    return rewrite(graph, rule)


def _in_floats(site: Site, op: Linear | Convolution) -> Sequence[Value]:
    """The layer, of float32 if it was int8, of x as its integers say it."""
    x, *others = site.inputs
    assert op.input_scale is not None
    chain, numbers = rounded_to_steps(x.shape, op.input_scale, op.input_shift or 0)
    operands = [site.constant(number, Origin("step")) for number in numbers]
    origin = replace(x.origin, module=site.output.origin.module)
    rounded = site.one(chain, x, *operands, origin=origin)
    dtype = DType.FLOAT32 if op.dtype is DType.INT8 else op.dtype
    plain = replace(op, dtype=dtype, input_scale=None, input_shift=None)
    return (site.one(plain, rounded, *others),)


def _is_cheaper(low: Lowering, node: Node) -> bool:
    """Whether int8 is expected to be faster than float32 and the rounding of x."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Convolution)
    plain = replace(node, op=replace(op, dtype=DType.FLOAT32, input_scale=None, input_shift=None))
    if op.transposed or is_depthwise(plain):
        return False
    int8, floats, image = _product(low, node), _product(low, plain), window_image(low, plain)
    return int8_is_cheaper(int8, floats, image, x.shape, low.options.planner)


def _product(low: Lowering, node: Node) -> FilterProduct:
    """The convolution as a product, of gathered columns where they are not x itself."""
    op = node.op
    assert isinstance(op, Convolution)
    whole = prod(node.inputs[1].shape[2:]) == 1 and max(op.stride) == 1 and not any(op.padding)
    positions = prod(node.output.shape[2:])
    return FilterProduct(*filter_matrix(low, node), positions, not whole, op.stride[-1] > 1)
