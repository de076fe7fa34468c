"""Recurrent layers: the input product of all steps, then the recurrence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from sparsejit.frontends.writing.arranging import permuted, reshaped
from sparsejit.frontends.writing.products import product_and_sums
from sparsejit.frontends.writing.selection import flip
from sparsejit.frontends.writing.turns import write_turns
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import SMALLEST_SCALE, DType
from sparsejit.ir.values import Array, Element, TensorType, Value

# The recurrent gates (batch, gates * hidden) of a state.
Product: TypeAlias = Callable[[Value], Value]
# The next states from a writer, the input gates, the product and the states.
Step: TypeAlias = Callable[[Writer, Value, Product, Sequence[Value]], list[Value]]


def one_layer(
    write: Writer,
    recurrence: Recurrence,
    sequence: Value,
    states: Sequence[Operand],
    params: Sequence[Operand],
    lengths: Operand = None,
) -> tuple[Value, ...]:
    """One layer in one direction of a sequence (time, batch, in).

    Samples may have `lengths`, int64 (batch,): h is zero from a sample's length on, and its last
    state is the state at its end.
    """
    w_input, w_state, *biases = params
    b_input, b_state = biases or (None, None)
    if b_state is None:
        b_state = np.zeros(write.shape(w_state)[0], np.float32)
    bias = () if b_input is None else (b_input,)
    gates = write.one(Linear(), sequence, w_input, *bias)
    ends = () if lengths is None else (lengths,)
    op = replace(recurrence, with_lengths=lengths is not None)
    return write.many(op, gates, *states, *ends, w_state, b_state)


def one_layer_in_turns(
    write: Writer,
    step: Step,
    reverse: bool,
    sequence: Value,
    states: Sequence[Value],
    params: Sequence[Operand],
    lengths: Operand = None,
) -> tuple[Value, ...]:
    """`one_layer` with any `step`: a body that runs once for each step of time."""
    w_input, w_state, *biases = (np.asarray(write.known(each), np.float32) for each in params)
    gates = write.one(Linear(), sequence, w_input, biases[0])
    parts = flip(write, gates, [0]) if reverse else gates
    body, time = Writer(), gates.shape[0]
    turn, *before = (body.input(each.type, "state") for each in (write.value(0), *states))
    part = body.input(TensorType(gates.shape[1:]), "gates")

    def product(state: Value) -> Value:
        return body.one(Linear(), state, w_state, biases[1])

    after, h = step(body, part, product, before), None
    others = []
    if lengths is not None:
        others.append(write.cast(lengths, Element.INT64))
        ends = body.input(others[0].type, "lengths")
        place = body.pointwise("sub", time - 1, turn) if reverse else turn
        runs = reshaped(body, body.pointwise("less", place, ends), (*ends.shape, 1))
        pairs = zip(after, before, strict=True)
        after = [body.pointwise("where", runs, new, old) for new, old in pairs]
        h = body.pointwise("where", runs, after[0], 0.0)
    graph = body.finish(body.pointwise("add", turn, 1), *after, after[0] if h is None else h)
    initial = [write.value(0), *states]
    _, *last, every = write_turns(write, graph, time, initial, [parts], others)
    return (flip(write, every, [0]) if reverse else every, *last)


def one_layer_of_bytes(
    write: Writer,
    recurrence: Recurrence,
    sequence: Value,
    states: Sequence[Operand],
    params: Sequence[Operand],
    lengths: Operand = None,
) -> tuple[Value, ...]:
    """`one_layer` with x and h quantised to 255 steps of each sample's own range.

    The range of x covers all steps of time of a sample, the range of h one. Weights that are at
    most 127 whole steps stay bytes.
    """
    w_input, w_state, *biases = (np.asarray(write.known(each), np.float32) for each in params)
    bias = np.asarray(np.sum(biases, axis=0, dtype=np.float32))
    gates = _product_on_own_steps(write, sequence, w_input, bias, lengths)
    rounding = replace(recurrence, dtype=_dtype_of(w_state), rounds_state=True)
    ends = () if lengths is None else (lengths,)
    op = replace(rounding, with_lengths=lengths is not None)
    weights = write.constant(w_state, write.value(params[1]).origin.name)
    return write.many(op, gates, *states, *ends, weights, np.zeros(len(w_state), np.float32))


def _dtype_of(weights: Array) -> DType:
    return DType.INT8 if SparseMatrix(weights).is_whole_steps else DType.FLOAT32


def _product_on_own_steps(
    write: Writer, x: Value, weights: Array, bias: Array, lengths: Operand
) -> Value:
    """W x + bias, with x rounded to 255 steps of each sample's own range over all steps of time.

    It is scale (W q + (128 - zero) sum(W)) + bias, where q is x in steps of its range, minus 128.
    Sums with weights of bytes are exact. Steps of time of x (time, batch, in) from a sample's
    length on do not count in its range.
    """
    time, batch, width = x.shape
    if lengths is not None:
        steps = write.constant(np.arange(time)[:, None], "steps")
        runs = write.pointwise("less", steps, lengths)
        x = write.pointwise("where", reshaped(write, runs, (time, batch, 1)), x, 0.0)
    rows = reshaped(write, permuted(write, x, (1, 0, 2)), (batch, time * width))
    f = write.formula("range")
    high = f("maximum", f("row_max", rows), 0.0)
    low = f("minimum", f("row_min", rows), 0.0)
    scale = f("maximum", f("div", f("sub", high, low), 255.0), SMALLEST_SCALE)
    least = f("maximum", f("round", f("div", low, scale)), -255.0)
    lack = f("add", least, 128.0)
    found = f.all(scale, least, lack, f("mul", lack, scale), shape=rows.shape)
    scales, leasts, lacks, shifts = (reshaped(write, each, (1, batch, 1)) for each in found)
    f = write.formula("quantize")
    cut = f("maximum", f("round", f("div", x, scales)), leasts)
    cut = f("minimum", cut, f("add", leasts, 255.0))
    integers = f.finish(f("sub", cut, lacks))
    product, sums = product_and_sums(write, integers, weights, _dtype_of(weights))
    f = write.formula("dequantize")
    whole = f("add", f("mul", product, scales), f("mul", shifts, write.constant(sums, "sums")))
    return f.finish(f("add", whole, write.constant(bias, "bias")))
