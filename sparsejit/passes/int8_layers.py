"""Lets convolutions of a quantised model return bytes, where all their readers read bytes.

    y = conv[int8](x, W, b)                     z = conv[int8, to steps](x, W, b)
    r = relu(y)                         ->
    z = rounded(r)

    p = conv[int8, to steps](x, W, b)           z = conv[int8, to steps](x, W, b, q)
    z = rounded(relu(add(p, q)))        ->      with p and q in steps too

    p = rounded(conv[int8](x, W, b))            z = conv[int8, to steps, by a table](x, W, b)
    z = rounded(gelu(p))                ->

    p = conv[int8, to steps](x, W, b)           z = conv[int8, to steps, by a table](x, W, b, q)
    s = rounded(add(p, q))              ->      with p, q and s in steps too
    z = rounded(relu(s))
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind, RoundedResult
from sparsejit.ir.ops.int8_columns import (
    ByteAttention,
    ChannelMeans,
    NormalisedColumns,
    ScaledChannels,
)
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Array, Value
from sparsejit.passes.int8_functions import ByteFunction, ByteFunctions
from sparsejit.passes.quantised_layers import steps_of
from sparsejit.passes.rewriter import Site, rewrite

_FUSED = {"relu": Activation.RELU}


class _End(NamedTuple):
    """The reading of a product's result: through `activation`, as `last`, rounded to `steps`.

    Steps are a scale and zero point (`Quantisation`). If more functions of the rounded value are to
    run inside the product, `own` are its steps before them: `late` is added by channel, and the sum
    rounded to `summed` if a table follows, or there is a table alone.
    """

    steps: Quantisation
    activation: Activation
    last: Value
    own: Quantisation | None = None
    table: tuple[int, ...] | None = None
    late: Array | None = None
    summed: Quantisation | None = None

    @property
    def rounding(self) -> RoundedResult:
        is_late = self.late is not None
        return RoundedResult(self.steps, self.own, None, is_late, self.summed, self.table)


def byte_layers(graph: Graph, wins: Callable[[Node], bool], has_tables: bool = True) -> Graph:
    """The graph in which convolutions return bytes where all readers read bytes and `wins` is true.

    `has_tables`: whether a convolution may apply a function of one byte as a table.
    """
    found = _Regions(graph, wins, has_tables)
    made: dict[Value, Value] = {}

    def rule(site: Site) -> Sequence[Value] | None:
        (output, *_), op = site.outputs, site.op
        if output in found.instead:
            return (made[found.instead[output]],)
        if output in found.dropped:
            return (site.inputs[0],)
        if output in found.ends and isinstance(op, Convolution):
            end = found.ends[output]
            op = replace(op, activation=end.activation, rounding=end.rounding)
            late = [] if end.late is None else [site.constant(end.late)]
            made[output] = site.one(op, *site.inputs, *late)
            return (made[output],)
        if output in found.scaled:
            return _scaled(site, *found.scaled[output])
        if output in found.means:
            return _mean(site, found.means[output])
        if output in found.sums:
            made[output] = _with_added(site, *found.sums[output])
            return (made[output],)
        return None

    return rewrite(graph, rule) if found.ends else graph


def _with_added(site: Site, place: int, added: Quantisation, end: _End) -> Value:
    """Replace a sum by the convolution that makes its operand `place`, and now adds the other one.

    `added` is the scale and zero point of the other operand; `end` rounds the sum, to its `own`
    before a table.
    """
    product = site.producer(site.inputs[place])
    assert product is not None and isinstance(product.op, Convolution)
    rounded = product.op.rounding
    own = None if rounded is None else rounded.result
    rounding = RoundedResult(end.steps, own, added, summed=end.own, table=end.table)
    x, weights, *bias = product.inputs
    if not bias:
        bias = [site.constant(np.zeros(weights.shape[0], np.float32), weights.origin)]
    made = replace(product.op, activation=end.activation, rounding=rounding)
    return site.one(made, x, weights, *bias, site.inputs[1 - place])


def _scaled(
    site: Site, place: int, steps: Quantisation, result: Quantisation
) -> Sequence[Value]:
    """Replace a product x * number by channel by `ScaledChannels`, from bytes to bytes.

    x is operand number `place`, in `steps`; the product is rounded to `result`.
    """
    x, by = site.inputs[place], site.inputs[1 - place]
    scale = site.one(Reshape(by.shape[:2]), by)
    return (site.one(ScaledChannels(steps, result), x, scale),)


def _mean(site: Site, steps: Quantisation) -> Sequence[Value]:
    """Replace the mean over an image's positions by `ChannelMeans` of bytes in `steps`."""
    source = site.producer(site.inputs[0])
    is_reshaped = source is not None and isinstance(source.op, Reshape)
    x = source.inputs[0] if source is not None and is_reshaped else site.inputs[0]
    return (site.one(Reshape(site.output.shape), site.one(ChannelMeans(steps), x)),)


class _Regions:
    """The parts of a graph to change, found in its constructor, by values of the old graph.

    Convolutions that return bytes, sums that move into them, roundings that become needless,
    channel means and scales of bytes.
    """

    def __init__(self, graph: Graph, wins: Callable[[Node], bool], has_tables: bool) -> None:
        self.graph, self.readers, self.producers = graph, graph.consumers(), graph.producers()
        self.has_tables, self.functions = has_tables, ByteFunctions(graph, self.readers)
        self.wins = wins
        self.instead: dict[Value, Value] = {}
        self.in_bytes: set[Value] = set()
        self.rounded = {
            node.output: found
            for node in graph.nodes
            if len(node.outputs) == 1 and (found := steps_of(node, self._number)) is not None
        }
        self.steps = {value: steps for value, (_, steps) in self.rounded.items()}
        self.ends: dict[Value, _End] = {}
        self.sums: dict[Value, tuple[int, Quantisation, _End]] = {}
        self.scaled: dict[Value, tuple[int, Quantisation, Quantisation]] = {}
        self.means: dict[Value, Quantisation] = {}
        self.dropped: set[Value] = set()
        for node in graph.nodes:
            if len(node.outputs) == 1:
                self._look_at(node)

    def _look_at(self, node: Node) -> None:
        op, output = node.op, node.output
        if output in self.rounded:
            source, steps = self.rounded[output]
            is_last = output in self.instead
            if self._are_bytes(source) and self.steps.get(source) == steps and not is_last:
                self.dropped.add(output)
        elif isinstance(op, Pooling) and op.kind is PoolingKind.MAX:
            if node.inputs[0] in self.steps:
                self.steps[output] = self.steps[node.inputs[0]]
        elif isinstance(op, Convolution) and _takes_bytes(op):
            end = self._end(output)
            if end is not None and self.wins(node):
                if len(node.inputs) == 2 and end.activation is Activation.NONE:
                    end = self._with_late_bias(end) or end
                self._ends_in(output, self._with_function(end))
        elif isinstance(op, ByteAttention):
            self.steps[output] = op.result
        elif isinstance(op, Pointwise) and op.kind == "add":
            self._sum(node)
        elif isinstance(op, Pointwise) and op.kind == "mul":
            self._scale(node)
        elif isinstance(op, Chain):
            self._mean(node)

    def _are_bytes(self, value: Value) -> bool:
        """Whether a value's producer makes it as bytes; a chain that rounds floats does not."""
        return value in self.in_bytes or (value in self.steps and value not in self.rounded)

    def _ends_in(self, output: Value, end: _End) -> None:
        self.ends[output] = end
        made = {end.last} if end.own is not None else {output, end.last}
        self.steps.update(dict.fromkeys(made, end.steps))
        self.in_bytes |= made
        if end.own is not None:
            self.instead[end.last] = output
        elif end.last is not output:
            self.dropped.add(end.last)

    def _with_function(self, end: _End) -> _End:
        """The `_End` with the functions that follow its rounding and can run inside the product."""
        return self._with_table(end) or self._with_activation(end) or end

    def _with_activation(self, end: _End) -> _End | None:
        """The `_End` with a ReLU behind its rounding: zero has steps, so that the order is free."""
        readers = self.readers[end.last]
        if end.own is not None or end.activation is not Activation.NONE or len(readers) != 1:
            return None
        (rounding,) = readers
        after = self.readers[rounding.outputs[0]] if rounding.outputs[0] in self.rounded else []
        if len(after) != 1 or rounding.output in self.graph.outputs:
            return None
        op = after[0].op
        if not isinstance(op, Pointwise) or op.kind not in _FUSED:
            return None
        return end._replace(activation=_FUSED[op.kind], last=after[0].output)

    def _functions(self, end: _End) -> Iterator[tuple[ByteFunction, _End]]:
        """Yield functions that follow a convolution's rounded result, with the `_End` of theirs."""
        readers = self.readers[end.last]
        if len(readers) != 1 or readers[0].outputs[0] not in self.rounded:
            return
        for function in self.functions.behind(readers[0].output):
            last = self._end(function.last)
            if last is not None and last.activation is Activation.NONE:
                yield function, last

    def _with_late_bias(self, end: _End) -> _End | None:
        for function, last in self._functions(end):
            late = function.added_by_channel(self.graph.constants)
            if late is not None:
                return last._replace(own=end.steps, late=late)
        return None

    def _with_table(self, end: _End) -> _End | None:
        for function, last in self._functions(end) if self.has_tables else ():
            table = function.table(end.steps, last.steps, self._number)
            if table is not None:
                made = end._replace(steps=last.steps, last=last.last, table=table)
                if end.own is None:
                    return made._replace(own=end.steps)
                return made._replace(summed=end.steps)
        return None

    def _sum(self, node: Node) -> None:
        """Note a sum that one operand's convolution can add, so that its result is bytes.

        The other operand must be rounded, all readers of the sum must read bytes, and nothing else
        may read the convolution's result, rounded or not.
        """
        end = self._end(node.output)
        if end is None:
            return
        for place in (1, 0):
            value, other = node.inputs[place], node.inputs[1 - place]
            source = self.rounded[value][0] if value in self.rounded else value
            alone = all(len(self.readers[each]) == 1 for each in {value, source})
            same = value.shape == other.shape == node.output.shape
            if alone and same and other in self.steps and self._can_add(source, value):
                end = self._with_function(end)
                self.sums[node.output] = place, self.steps[other], end
                self._ends_in(node.output, end)
                del self.ends[node.output]
                return

    def _can_add(self, source: Value, value: Value) -> bool:
        """Whether a convolution with the result `source`, read as `value`, can add an operand."""
        node = self.producers.get(source)
        if node is None or not isinstance(node.op, Convolution) or node.op.groups > 1:
            return False
        if source in self.graph.outputs or source in self.sums:
            return False
        if value not in self.steps:
            return _takes_bytes(node.op) and self.wins(node)
        made = self.ends.get(source)
        return made is not None and made.activation is Activation.NONE and made.own is None

    def _scale(self, node: Node) -> None:
        """Note a product of bytes and a number by channel that all readers round alike."""
        end, shape = self._end(node.output), node.output.shape
        if end is None or end.activation is not Activation.NONE or len(shape) not in (3, 4):
            return
        for place in (0, 1):
            x, by = node.inputs[place], node.inputs[1 - place]
            is_by_channel = by.shape == (*shape[:2], *(1,) * (len(shape) - 2))
            if x.shape == shape and is_by_channel and self._come_as_bytes(x):
                self.scaled[node.output] = place, self.steps[x], end.steps
                self.steps[node.output] = end.steps
                return

    def _mean(self, node: Node) -> None:
        """Note a mean over each channel's positions of a value in bytes."""
        x = node.inputs[0]
        source = self.producers.get(x)
        if source is not None and isinstance(source.op, Reshape):
            (x,) = source.inputs
        count = prod(x.shape[2:])
        is_mean = node.op == row_chains.mean((*x.shape[:2], count)) and len(x.shape) in (3, 4)
        is_whole = is_mean and self._number(node.inputs[1]) == np.float32(1 / count)
        if is_whole and self._come_as_bytes(x):
            self.means[node.output] = self.steps[x]

    def _come_as_bytes(self, value: Value) -> bool:
        """Whether a value is made as bytes, or rounds bytes to their own scale and zero point."""
        source, steps = self.rounded.get(value, (value, self.steps.get(value)))
        return self._are_bytes(value) or (self._are_bytes(source) and self.steps[source] == steps)

    def _end(self, value: Value) -> _End | None:
        """The `_End` of a result if all readers read it in one scale and zero point, else None.

        An activation that alone reads the result is passed over.
        """
        readers = self.readers[value]
        if value in self.graph.outputs or not readers:
            return None
        (first, *others) = readers
        if not others and isinstance(first.op, Pointwise) and first.op.kind in _FUSED:
            end = self._end(first.output)
            is_plain = end is not None and end.activation is Activation.NONE
            return end._replace(activation=_FUSED[first.op.kind]) if end and is_plain else None
        wanted = {self._read_in(reader, value) for reader in readers}
        if len(wanted) != 1 or None in wanted:
            return None
        (steps,) = wanted
        assert steps is not None
        return _End(steps, Activation.NONE, value)

    def _read_in(self, reader: Node, value: Value) -> Quantisation | None:
        """The scale and zero point in which a node reads a value as bytes; None if not as bytes."""
        if len(reader.outputs) == 1 and reader.output in self.rounded:
            return self.rounded[reader.output][1]
        op = reader.op
        if isinstance(op, Pooling) and op.kind is PoolingKind.MAX:
            end = self._end(reader.output)
            return end.steps if end and end.activation is Activation.NONE else None
        if isinstance(op, NormalisedColumns | ByteAttention):
            places = zip(reader.inputs, op.steps, strict=False)
            wanted = {steps for each, steps in places if each is value}
            return wanted.pop() if len(wanted) == 1 else None
        if not isinstance(op, Convolution) or op.dtype is not DType.INT8:
            return None
        if op.x_steps is None or value in reader.inputs[1:]:
            return None
        return op.x_steps

    def _number(self, value: Value) -> float | None:
        array = self.graph.constants.get(value)
        if array is None or not array.size:
            return None
        first = array.flat[0]
        return float(first) if (array == first).all() else None


def _takes_bytes(op: Convolution) -> bool:
    is_int8 = op.dtype is DType.INT8 and op.x_steps is not None
    return is_int8 and op.rounding is None and op.activation is Activation.NONE
