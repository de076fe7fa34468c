"""Makes int8 layers from layers behind a model's own quantising and dequantising.

    rounded_to_steps   floats rounded to steps of a scale, as floats
    quantised_layers   the pass

Rounding:

    y = (clip(round(x / scale) + shift, -128, 127) - shift) * scale

The pass:

    q = clip(round(x / s) + z)            d = rounded(x; s, z)
    d = (q - z) * s                ->     y = linear[int8](x, W, b)
    y = linear(d, W, b)

    q = clip(round(x / s) + z)
    d = (max_pool(q) - z) * s      ->     d = rounded(max_pool(x); s, z)

where each row of W is whole steps of a scale. Other readers of d read x rounded in one chain. The
scale is one number, and values are bytes; padding of d with zeros is padding of x with zeros.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.pointwise import Chain, ChainStep, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Pad, Permute, Reshape
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, Quantisation, fits_quantisation
from sparsejit.ir.values import Array, Value
from sparsejit.passes.fuse_chains import as_chain
from sparsejit.passes.rewriter import Site, rewrite

_LEAST, _LARGEST = -128.0, 127.0


def rounded_to_steps(
    shape: tuple[int, ...], scale: float, shift: int
) -> tuple[Chain, tuple[Array, ...]]:
    """The chain that rounds x to a scale and zero point, as floats, and its operands after x.

    Like kernels, it multiplies by 1 / scale, which may round ties differently from a division.
    """
    functions = _functions(scale, shift)
    numbers = sorted({number for _, number in functions if number is not None})
    steps: list[ChainStep] = []
    last, first_step = 0, 1 + len(numbers)
    for kind, number in functions:
        others = () if number is None else (1 + numbers.index(number),)
        steps.append(ChainStep(kind, (last, *others)))
        last = first_step + len(steps) - 1
    chain = Chain(shape, first_step, tuple(steps), (last,), "quantised")
    return chain, tuple(np.array(number, np.float32) for number in numbers)


def _functions(scale: float, shift: int) -> list[tuple[str, float | None]]:
    step = np.float32(scale)
    return [
        ("mul", float(np.float32(1) / step)),
        ("round", None),
        *([("add", float(shift))] if shift else []),
        ("minimum", _LARGEST),
        ("maximum", _LEAST),
        *([("sub", float(shift))] if shift else []),
        ("mul", float(step)),
    ]


def steps_of(
    node: Node | None, number_of: Callable[[Value], float | None]
) -> tuple[Value, Quantisation] | None:
    """The operand of a chain of `rounded_to_steps`, and the scale and zero point, else None."""
    source, found = functions_of(node, number_of)
    if source is None or not found or found[-1][0] != "mul":
        return None
    shift = dict(found[:-1]).get("sub", 0.0)
    scale = found[-1][1]
    if not fits_quantisation(scale, int(shift)):
        return None
    functions = _functions(scale, int(shift))
    if found != [(kind, 0.0 if number is None else number) for kind, number in functions]:
        return None
    return source, Quantisation(scale, int(shift))


def functions_of(
    node: Node | None, number_of: Callable[[Value], float | None]
) -> tuple[Value | None, list[tuple[str, float]]]:
    """A value and the functions applied to it in a row, each with one number at most.

    Returns None and an empty list for any other node. `number_of` returns a constant's number.
    """
    if node is None or not isinstance(node.op, Pointwise | Chain) or len(node.outputs) != 1:
        return None, []
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    numbers = [number_of(value) for value in node.inputs]
    if numbers.count(None) != 1:
        return None, []
    last, found = numbers.index(None), []
    value = node.inputs[last]
    for place, step in enumerate(chain.steps, len(numbers)):
        first, *others = step.arguments
        if first != last or len(others) > 1 or max(others, default=0) >= len(numbers):
            return None, []
        number = numbers[others[0]] if others else 0.0
        if number is None:
            return None, []
        found.append((step.kind, number))
        last = place
    return value, found if chain.results == (last,) else []


# Most inputs of a sum of integers that int32 surely holds.
_MOST_INPUTS = 2**31 // (LARGEST_INT8 * (LARGEST_INT8 + 1))
_RANGES = ((-128.0, 127.0), (0.0, 255.0))


class _Rounding(NamedTuple):
    """A value: `source` rounded to multiples of `scale`; `shift`: the zero point, -128 to 127."""

    source: Value
    scale: float
    shift: int


def quantised_layers(graph: Graph) -> Graph:
    """The graph with int8 layers in place of layers whose x and weights the model quantises."""
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
    made = replace(op, dtype=DType.INT8, x_steps=Quantisation(steps.scale, steps.shift))
    return (site.one(made, source, weights, *others),)


def _fits(weights: Array) -> bool:
    """Whether int8 holds weights (out, ...) as they are, and int32 their sums."""
    rows = weights.reshape(len(weights), -1)
    return rows.shape[1] <= _MOST_INPUTS and SparseMatrix(rows).is_whole_steps


def _read_again(site: Site) -> _Rounding | None:
    """The rounding that a node completes if it dequantises integers that a node before it made.

    Views and max pooling between the two come before the rounding. None for other nodes, or if the
    scales or zero points of the two differ.
    """
    node = Node(site.op, site.inputs, site.outputs)
    value, back = functions_of(node, site.number)
    producer, between = None if value is None else site.producer(value), list[Node]()
    while producer is not None and _keeps_order(producer):
        between.append(producer)
        producer = site.producer(producer.inputs[0])
    source, made_by = functions_of(producer, site.number)
    numbers = dict(made_by)
    scale, zero = numbers.get("div"), numbers.get("add", 0.0)
    least, largest = numbers.get("maximum", 0.0), numbers.get("minimum", 0.0)
    add, sub = ([(kind, zero)] if zero else [] for kind in ("add", "sub"))
    clip = [("maximum", least), ("minimum", largest)]
    if made_by != [("div", scale), ("round", 0.0), *add, *clip] or back != [*sub, ("mul", scale)]:
        return None
    if source is None or scale is None or (least, largest) not in _RANGES:
        return None
    if source.type.element is not site.output.type.element:
        return None
    for each in reversed(between):
        source = site.one(each.op, source, origin=each.output.origin)
    shift = int(zero - (least + largest + 1) / 2)
    return _Rounding(source, scale, shift) if source.type == site.output.type else None


def _keeps_order(node: Node) -> bool:
    """Whether a node takes elements of its operand, or the largest of some."""
    op = node.op
    return isinstance(op, Reshape | Permute) or (
        isinstance(op, Pooling) and op.kind is PoolingKind.MAX
    )
