"""Recurrent layers: ONNX's gates in torch's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators import recurrent_cells
from sparsejit.frontends.writing.arranging import at, joined, permuted, reshaped
from sparsejit.frontends.writing.recurrent import one_layer, one_layer_in_turns
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.values import Array, Element, Value

# For each of torch's gates in order, its place in ONNX's: z-r-h to r-z-n, i-o-f-c to i-f-g-o.
_GATES = {
    RecurrentCell.GRU: (1, 0, 2),
    RecurrentCell.GRU_RESET_FIRST: (1, 0, 2),
    RecurrentCell.LSTM: (0, 2, 3, 1),
    RecurrentCell.RNN_TANH: (0,),
    RecurrentCell.RNN_RELU: (0,),
}
# Which directions are backwards; the default first.
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def layer(
    write: Writer, call: Call, one: Callable[..., tuple[Value, ...]] = one_layer
) -> tuple[Value, ...]:
    """One layer in one or two directions: all h (time, directions, batch, H), and the last states.

    `one` writes a direction, as `one_layer` does.
    """
    cell = _cell(call)
    batch_first = call.flag("layout")
    x = call.value(write, 0)
    lengths = _lengths(write, call, *(x.shape[:2] if batch_first else x.shape[1::-1]))
    sequence = permuted(write, x, (1, 0, 2)) if batch_first else x
    reverses = _DIRECTIONS[call.choice("direction", list(_DIRECTIONS))]
    hidden = _hidden_size(call, cell, len(reverses))
    every, last = [], []
    functions = recurrent_cells.functions_of(call, len(reverses))
    is_usual = recurrent_cells.is_usual(call)
    for way, reverse in enumerate(reverses):
        places = range(5, 5 + cell.states)
        shape = sequence.shape[1], hidden
        states = [_state(write, call, place, way, batch_first, shape) for place in places]
        states = [_of_no_empty(write, state, lengths) for state in states]
        weights = _weights(write, call, cell, way)
        if is_usual:
            h, *final = one(write, Recurrence(cell, reverse), sequence, states, weights, lengths)
        elif one is one_layer:
            step = recurrent_cells.step_of(call, functions[way], way, hidden)
            h, *final = one_layer_in_turns(
                write, step, reverse, sequence, states, weights, lengths
            )
        else:
            raise Unmapped("has clipped gates, peepholes or other activations, of bytes")
        every.append(reshaped(write, h, (h.shape[0], 1, *h.shape[1:])))
        last.append([reshaped(write, state, (1, *state.shape)) for state in final])
    h = joined(write, every, 1)
    finals = [joined(write, list(states), 0) for states in zip(*last, strict=True)]
    if batch_first:
        h = permuted(write, h, (2, 0, 1, 3))
        finals = [permuted(write, state, (1, 0, 2)) for state in finals]
    return (h, *finals)


def _cell(call: Call) -> RecurrentCell:
    """The cell with these gates, as torch names it."""
    if call.operator == "RNN":
        is_relu = set(recurrent_cells.names_of(call)) == {"relu"}
        return RecurrentCell.RNN_RELU if is_relu else RecurrentCell.RNN_TANH
    if call.operator == "GRU":
        resets_first = not call.flag("linear_before_reset")
        return RecurrentCell.GRU_RESET_FIRST if resets_first else RecurrentCell.GRU
    return RecurrentCell.LSTM


def _lengths(write: Writer, call: Call, batch: int, time: int) -> Value | None:
    """The number of steps of each sample; None where all have every step."""
    known = call.operand(4)
    if known is None or (isinstance(known, np.ndarray) and np.all(known == time)):
        return None
    lengths = write.cast(call.value(write, 4), Element.INT64)
    if lengths.shape != (batch,):
        raise Unmapped(f"has sequence_lens {list(lengths.shape)} for {batch} samples")
    if isinstance(known, np.ndarray) and not np.all((known >= 0) & (known <= time)):
        raise Unmapped(f"has sequence_lens {known.tolist()}, not from 0 to {time}")
    return lengths


def _of_no_empty(write: Writer, state: Value, lengths: Value | None) -> Value:
    """The initial state, zero for samples of length 0, whose last state is zero in ONNX Runtime."""
    known = write.known(state)
    if lengths is None or (known is not None and not known.any()):
        return state
    has_steps = write.pointwise("greater", lengths, 0)
    column = reshaped(write, has_steps, (*lengths.shape, 1))
    return write.pointwise("where", column, state, 0.0)


def _hidden_size(call: Call, cell: RecurrentCell, directions: int) -> int:
    """The hidden size H. Raises Unmapped where shapes of weights and bias do not fit it."""
    w, r = call.known(1, "weights W"), call.known(2, "weights R")
    hidden = int(call.attribute("hidden_size", r.shape[-1] if r.ndim else 0))
    rows = cell.gates * hidden
    wanted = {1: (directions, rows, *w.shape[2:3]), 2: (directions, rows, hidden)}
    if call.has(3):
        wanted[3] = (directions, 2 * rows)
    for place, shape in wanted.items():
        found = call.known(place, "weights").shape
        if found != shape:
            raise Unmapped(f"operand {call.name(place)} has shape {found}, not {shape}")
    return hidden


def _weights(write: Writer, call: Call, cell: RecurrentCell, way: int) -> list[Value]:
    """W_ih, W_hh, b_ih and b_hh of one direction, in torch's order of gates."""

    def in_order(array: Array) -> Array:
        parts = np.split(array, cell.gates)
        return np.concatenate([parts[gate] for gate in _GATES[cell]])

    w, r = call.known(1, "weights W")[way], call.known(2, "weights R")[way]
    both = call.known(3, "bias")[way] if call.has(3) else np.zeros(2 * len(w), w.dtype)
    arrays = w, r, *np.split(both, 2)
    names = (call.name(place) for place in (1, 2, 3, 3))
    return [
        write.constant(in_order(array).astype(np.float32), name)
        for array, name in zip(arrays, names, strict=True)
    ]


def _state(
    write: Writer, call: Call, place: int, way: int, batch_first: bool, shape: tuple[int, int]
) -> Value:
    """The initial state (batch, H) of one direction; zeros if it is not given."""
    given = call.operand(place)
    if given is None or (isinstance(given, np.ndarray) and not given.any()):
        return write.zeros(shape)
    return at(write, call.value(write, place), 1 if batch_first else 0, way)


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = dict.fromkeys(("GRU", "LSTM", "RNN"), layer)
