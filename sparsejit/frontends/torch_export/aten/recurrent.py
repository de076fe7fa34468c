"""ATen's recurrent layers, and single steps of their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparsejit.frontends.writing.arranging import at, joined, permuted, reshaped
from sparsejit.frontends.writing.recurrent import one_layer
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.values import Value


def layers(
    write: Writer,
    cell: RecurrentCell,
    x: Operand,
    initial: Sequence[Operand],
    params: Sequence[Operand],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    lengths: Operand = None,
) -> tuple[Value, ...]:
    """torch's recurrent layers: the last layer's h of all steps, and the last states."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != num_layers * directions * each:
        raise Unmapped("has projections")
    if train and dropout:
        raise Unmapped("drops out at random")
    sequence = write.floats(x)
    if batch_first:
        sequence = permuted(write, sequence, (1, 0, 2))
    last: list[list[Value]] = []
    for layer in range(num_layers):
        ways = []
        for way in range(directions):
            number = layer * directions + way
            weights = params[number * each : (number + 1) * each]
            states = [_state(write, state, number) for state in initial]
            recurrence = Recurrence(cell, reverse=way == 1)
            every, *final = one_layer(write, recurrence, sequence, states, weights, lengths)
            ways.append(every)
            last.append(final)
        sequence = joined(write, ways, 2)
    output = permuted(write, sequence, (1, 0, 2)) if batch_first else sequence
    return output, *(_stacked(write, states) for states in zip(*last, strict=True))


def _state(write: Writer, states: Operand, number: int) -> Operand:
    """One layer's initial state; a known one stays known."""
    known = write.known(states)
    if known is None:
        return at(write, states, 0, number)
    if not known.any():
        return write.zeros(known.shape[1:])
    return write.constant(known[number], "initial_state")


def _stacked(write: Writer, states: Sequence[Value]) -> Value:
    return joined(write, [reshaped(write, state, (1, *state.shape)) for state in states], 0)


def single(
    write: Writer, cell: RecurrentCell, x: Operand, hx: Operand, *rest: Any
) -> tuple[Value, ...]:
    """torch's layers of a GRU or a plain RNN, whose cells have one state: see `layers`."""
    return layers(write, cell, x, [hx], *rest)


def lstm(write: Writer, x: Operand, hx: Sequence[Operand], *rest: Any) -> tuple[Value, ...]:
    """torch.nn.LSTM: h of all steps, last h, last c."""
    return layers(write, RecurrentCell.LSTM, x, hx, *rest)


def of_lengths(
    write: Writer,
    cell: str,
    x: Operand,
    lengths: Operand,
    states: Sequence[Operand],
    params: Sequence[Operand],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
) -> tuple[Value, ...]:
    """Recurrent layers of a packed sequence, which `packed_sequences` traces with its padding."""
    rest = has_biases, num_layers, 0.0, False, bidirectional, False
    return layers(write, RecurrentCell(cell), x, states, params, *rest, lengths)


def step(
    write: Writer,
    cell: RecurrentCell,
    x: Operand,
    states: Sequence[Operand],
    w_ih: Operand,
    w_hh: Operand,
    b_ih: Operand = None,
    b_hh: Operand = None,
) -> tuple[Value, ...]:
    """One step of x (batch, in): the new states."""
    value = write.floats(x)
    sequence = reshaped(write, value, (1, *value.shape))
    weights = (w_ih, w_hh, b_ih, b_hh)
    _, *states = one_layer(write, Recurrence(cell), sequence, states, weights)
    return tuple(states)


def single_step(
    write: Writer, cell: RecurrentCell, x: Operand, hx: Operand, *weights: Operand
) -> Value:
    """One step of a GRU's or a plain RNN's cell: the new state."""
    return step(write, cell, x, [hx], *weights)[0]


def lstm_step(
    write: Writer, x: Operand, hx: Sequence[Operand], *weights: Operand
) -> tuple[Value, ...]:
    """torch.nn.LSTMCell: h and c."""
    return step(write, RecurrentCell.LSTM, x, hx, *weights)


def _with(cell: RecurrentCell, function: Callable[..., Any]) -> Callable[..., Any]:
    def mapping(write: Writer, *operands: Operand) -> Any:
        return function(write, cell, *operands)

    return mapping


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.gru.input": _with(RecurrentCell.GRU, single),
    "aten.rnn_tanh.input": _with(RecurrentCell.RNN_TANH, single),
    "aten.rnn_relu.input": _with(RecurrentCell.RNN_RELU, single),
    "aten.lstm.input": lstm,
    "aten.gru_cell.default": _with(RecurrentCell.GRU, single_step),
    "aten.rnn_tanh_cell.default": _with(RecurrentCell.RNN_TANH, single_step),
    "aten.rnn_relu_cell.default": _with(RecurrentCell.RNN_RELU, single_step),
    "aten.lstm_cell.default": lstm_step,
    "sparsejit.recurrent_of_lengths.default": of_lengths,
}
