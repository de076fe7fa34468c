"""Choose the convolutions of a quantised model that run in int8, by predicted time.

int8 gathers columns; a convolution by channel, or over a padded image, is often faster in float32,
on the values that the integers of x stand for:

    y = conv[int8](x, W, b)      ->      q = (clip(round(x / scale) + shift) - shift) * scale
                                         y = conv(q, W, b)

    y = conv[x / scale, zero](x, W)  ->  q = clip(round(x / scale) + zero) - zero
                                         y = conv(q, W)
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import (
    Convolution,
    DynamicConvolution,
    Pooling,
    PoolingKind,
)
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Origin, Value
from sparsejit.lowering.context import Lowering, ModelOptions
from sparsejit.lowering.convolution.depthwise import is_depthwise, sample_counts
from sparsejit.lowering.convolution.filters import filter_matrix
from sparsejit.lowering.convolution.int8_convolutions import (
    as_floats,
    byte_product_ns,
    takes_byte_columns,
)
from sparsejit.lowering.convolution.windows import window_image
from sparsejit.passes.common_subexpressions import merge_common_subexpressions
from sparsejit.passes.int8_columns import byte_columns
from sparsejit.passes.int8_layers import byte_layers
from sparsejit.passes.quantised_layers import rounded_to_steps
from sparsejit.passes.recognise_attention import recognise_norms
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.planner.cheapest_row import about
from sparsejit.planner.convolution_plan import (
    FilterProduct,
    QuantisedWork,
    takes_bytes,
    takes_int8,
    takes_sums,
)
from sparsejit.planner.int8_plan import fills_vectors, has_quads, price_copy
from sparsejit.planner.kernels import OTHER_KERNELS


def with_cheapest_convolutions(
    graph: Graph, options: ModelOptions, without_scale: bool = False
) -> Graph:
    """The graph with the convolutions in int8 that are faster in int8, and all others in float32.

    Convolutions whose x has no fixed scale change only `without_scale`: else the user named them.
    """
    low = Lowering(graph, options)

    def rule(site: Site) -> Sequence[Value] | None:
        op = site.op
        if isinstance(op, DynamicConvolution):
            about(site.output.origin.layer)
            if _takes_sums(low, Node(op, site.inputs, site.outputs)):
                return None
            return _dynamic_in_floats(site, op)
        if not isinstance(op, Convolution) or op.dtype is not DType.INT8:
            return None
        if op.rounding is not None:
            return None
        if op.x_steps is None and (op.transposed or not without_scale):
            return None
        about(site.output.origin.layer)
        known = all(map(site.is_constant, site.inputs[1:]))
        if known and _takes_int8(low, Node(op, site.inputs, site.outputs)):
            return None
        return _in_floats(site, op)

    return rewrite(graph, rule)


def with_byte_layers(graph: Graph, options: ModelOptions) -> Graph:
    """The graph in which quantised layers take and return bytes, where that is faster.

    Files may round a value again for each of its readers, which are one rounding here.
    """
    if not has_quads(options.target):
        return graph
    graph = recognise_norms(merge_common_subexpressions(graph))
    layers = Lowering(graph, options)

    def takes_columns(node: Node) -> bool:
        about(node.output.origin.layer)
        return takes_byte_columns(layers, node)

    graph = byte_columns(graph, takes_columns)
    low = Lowering(graph, options)

    def wins(node: Node) -> bool:
        about(node.output.origin.layer)
        known = all(value in graph.constants for value in node.inputs[1:])
        return known and _takes_bytes(low, node)

    has_tables = options.target.isa == "avx2" or options.target.has("avx512vbmi")
    return byte_layers(graph, wins, has_tables)


def with_rounded_inputs(graph: Graph) -> Graph:
    """The graph with a chain that rounds x before each layer whose kernel does not round x."""

    def rule(site: Site) -> Sequence[Value] | None:
        op = site.op
        if not isinstance(op, Linear | Convolution) or op.dtype is DType.INT8:
            return None
        return None if op.x_steps is None or op.x_steps.symmetric else _in_floats(site, op)

    return rewrite(graph, rule)


def _in_floats(site: Site, op: Linear | Convolution) -> Sequence[Value]:
    """The layer, in float32 if it was int8, of x rounded to its quantised values."""
    x, *others = site.inputs
    dtype = DType.FLOAT32 if op.dtype is DType.INT8 else op.dtype
    plain = replace(op, dtype=dtype, x_steps=None)
    if op.x_steps is None or _is_in_steps(site, x, op.x_steps):
        return (site.one(plain, x, *others),)
    chain, numbers = rounded_to_steps(x.shape, op.x_steps.scale, op.x_steps.zero_point)
    operands = [site.constant(number, Origin("step")) for number in numbers]
    origin = replace(x.origin, module=site.output.origin.module)
    rounded = site.one(chain, x, *operands, origin=origin)
    return (site.one(plain, rounded, *others),)


def _dynamic_in_floats(site: Site, op: DynamicConvolution) -> Sequence[Value]:
    """The convolution in float32 of x in steps of the call, minus their zero point."""
    x, scale, zero, weights = site.inputs
    bounds = [site.constant(np.array(number, np.float32), Origin("step")) for number in (0, 255)]
    origin = replace(x.origin, module=site.output.origin.module)

    def step(kind: str, *operands: Value) -> Value:
        return site.one(Pointwise(kind), *operands, origin=origin)

    steps = step("add", step("round", step("div", x, scale)), zero)
    kept = step("minimum", step("maximum", steps, bounds[0]), bounds[1])
    return (site.one(op.windows, step("sub", kept, zero), weights),)


def _is_in_steps(site: Site, x: Value, steps: Quantisation) -> bool:
    """Whether x is a convolution's result in these steps, or max pooling of such a result."""
    node = site.producer(x)
    if node is not None and isinstance(node.op, Pooling) and node.op.kind is PoolingKind.MAX:
        return _is_in_steps(site, node.inputs[0], steps)
    if node is None or not isinstance(node.op, Convolution) or node.op.rounding is None:
        return False
    return node.op.rounding.result == steps


def _takes_int8(low: Lowering, node: Node) -> bool:
    """Whether a convolution has code in int8 and is faster so."""
    op = node.op
    assert isinstance(op, Convolution)
    return not op.transposed and takes_int8(_work(low, node))


def _takes_sums(low: Lowering, node: Node) -> bool:
    """Whether a convolution by steps of the call has code from bytes to sums and is faster so."""
    op, plain = node.op, as_floats(node)
    assert isinstance(op, DynamicConvolution)
    if not OTHER_KERNELS["quads"].made_for(low.target, DType.INT8):
        return False
    rounding = price_copy(2 * node.inputs[0].type.bytes, low.target).ns
    bytes_ns = byte_product_ns(low, plain) + rounding
    return takes_sums(replace(_work(low, plain), bytes_ns=bytes_ns, rounds=True))


def _takes_bytes(low: Lowering, node: Node) -> bool:
    """Whether a convolution should run from bytes to bytes.

    A layer of one tap should, after `byte_columns`, if its positions fill vectors, and a layer by
    channel wherever there is code: float32 takes copies of both images as well.
    """
    shape = node.output.shape
    is_turned = shape[0] == 1 and node.inputs[1].shape[2:] == (1,)
    if is_turned and fills_vectors(shape[2]):
        return True
    bytes_ns = byte_product_ns(low, node)
    if is_depthwise(_plain(node)):
        return isfinite(bytes_ns)
    moved = 2 * node.output.type.bytes
    return takes_bytes(replace(_work(low, node), bytes_ns=bytes_ns, rounding_bytes=moved))


def _plain(node: Node) -> Node:
    op = node.op
    assert isinstance(op, Convolution)
    return replace(node, op=replace(op, dtype=DType.FLOAT32, x_steps=None))


def _work(low: Lowering, node: Node) -> QuantisedWork:
    """A convolution in int8 and in float32, as the planner compares them."""
    plain, op = _plain(node), node.op
    assert isinstance(op, Convolution)
    int8, floats, image = _product(low, node), _product(low, plain), window_image(low, plain)
    return QuantisedWork(
        int8,
        floats,
        image,
        node.inputs[0].shape,
        low.options.planner,
        channels=sample_counts(plain, low.target) if is_depthwise(plain) else None,
        rounds=op.x_steps is not None,
    )


def _product(low: Lowering, node: Node) -> FilterProduct:
    """The convolution as a product, of gathered columns unless x itself is the columns."""
    op = node.op
    assert isinstance(op, Convolution)
    whole = prod(node.inputs[1].shape[2:]) == 1 and max(op.stride) == 1 and not any(op.padding)
    positions = prod(node.output.shape[2:])
    return FilterProduct(*filter_matrix(low, node), positions, not whole, op.stride[-1] > 1)
