"""One layer of a recurrent network in one direction, over all time steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sparsejit.ir.operator import BatchPlace, Node, Operator
from sparsejit.ir.reference import on_own_steps, sigmoid
from sparsejit.ir.signature import Signature, signature
from sparsejit.ir.spec import Choice, DType
from sparsejit.ir.time_rules import Apart, Carried, TimeRule, Whole
from sparsejit.ir.values import Array


class RecurrentCell(Choice):
    """The kind of a recurrent step, by torch's formulas.

    GRU_RESET_FIRST resets the state before its product, as in the first paper on GRUs (Cho et
    al. 2014, arXiv:1406.1078): n = tanh(x_n + W_n (r h) + b_n).
    """

    GRU = "gru"
    GRU_RESET_FIRST = "gru_reset_first"
    LSTM = "lstm"
    RNN_TANH = "rnn_tanh"
    RNN_RELU = "rnn_relu"

    @property
    def gates(self) -> int:
        """Rows of its weight matrices for each hidden unit: GRU in order r-z-n, LSTM i-f-g-o."""
        return {"gru": 3, "gru_reset_first": 3, "lstm": 4}.get(self.value, 1)

    @property
    def states(self) -> int:
        """Number of state vectors: 2 for LSTM, h and c, else 1."""
        return 2 if self is RecurrentCell.LSTM else 1


@dataclass(frozen=True)
class Recurrence(Operator):
    """h[t] = cell(gates[t], h[t - 1]): all of a recurrent layer but its input product.

    Operands: gates (time, batch, gates * hidden), which are W_ih x + b_ih; the initial state h
    (batch, hidden), and for LSTM c; W_hh (gates * hidden, hidden) and b_hh (gates * hidden,).
    Results: h of all steps (time, batch, hidden), and the last states, one for each initial state.
    `reverse` runs from the last step to the first and leaves each h at its step.
    `dtype` is how W_hh is stored. `with_lengths`: an operand before W_hh, int64 (batch,), has each
    sample's number of steps. Beyond them its h is zero, and its state stays unchanged.
    `rounds_state`: the product reads h in 255 steps of each sample's own range (`on_own_steps`).
    """

    cell: RecurrentCell
    reverse: bool = False
    dtype: DType = DType.FLOAT32
    with_lengths: bool = field(default=False, metadata={"newer": "than files of 1.0"})
    rounds_state: bool = field(default=False, metadata={"newer": "than files of 1.0"})

    mixes: ClassVar[tuple[str, ...]] = ("time", "hidden")
    mixing: ClassVar[str] = "runs over the batch as over time"

    @property
    def gates(self) -> int:
        """Rows of W_hh for each hidden unit."""
        return self.cell.gates

    def signature(self, operands: int) -> Signature:
        states = range(self.cell.states)
        initial = ", ".join(f"state{n} float32 [batch, hidden]" for n in states)
        last = ", float32 [batch, hidden]" * self.cell.states
        lengths = ", lengths int64 [batch]" * self.with_lengths
        return signature(
            f"gates float32 [time, batch, gates*hidden], {initial}{lengths}, "
            "weights float32 [gates*hidden, hidden], bias float32 [gates*hidden] "
            f"-> float32 [time, batch, hidden]{last}"
        )

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        if places[0] is None or places[0].axis != 0:
            return Apart()
        if self.reverse:
            return Whole("runs from the last frame to the first", "make it unidirectional")
        if self.with_lengths:
            return Whole("runs for a given number of frames", "leave out the lengths")
        return Carried(tuple((n, n) for n in range(1, 1 + self.cell.states)))

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        gates, *given, weights, bias = operands
        states, lengths = given[: self.cell.states], given[self.cell.states :]
        time, batch, _ = gates.shape
        ends = lengths[0] if lengths else np.full(batch, time)
        every = np.zeros((time, batch, weights.shape[1]))
        for step in reversed(range(time)) if self.reverse else range(time):
            read = on_own_steps(states[0]) if self.rounds_state else states[0]
            recurrent = read @ weights.T + bias
            if self.cell is RecurrentCell.GRU_RESET_FIRST:
                recurrent = _with_reset(gates[step], recurrent, states[0], weights, bias)
            made = _STEPS[self.cell](gates[step], recurrent, states)
            runs = (step < ends)[:, None]
            states = [np.where(runs, *pair) for pair in zip(made, states, strict=True)]
            every[step] = np.where(runs, states[0], 0)
        return (every, *states)


def _gru(given: Array, recurrent: Array, states: list[Array]) -> list[Array]:
    r_x, z_x, n_x = np.split(given, 3, axis=-1)
    r_h, z_h, n_h = np.split(recurrent, 3, axis=-1)
    reset, update = (sigmoid(x) for x in (r_x + r_h, z_x + z_h))
    new = np.tanh(n_x + reset * n_h)
    return [new + update * (states[0] - new)]


def _with_reset(
    given: Array, recurrent: Array, state: Array, weights: Array, bias: Array
) -> Array:
    """W_hh h + b_hh, its last third computed from the reset state r h, for GRU_RESET_FIRST."""
    hidden = state.shape[-1]
    reset = sigmoid(given[..., :hidden] + recurrent[..., :hidden]) * state
    last = reset @ weights[2 * hidden :].T + bias[2 * hidden :]
    return np.concatenate([recurrent[..., : 2 * hidden], last], axis=-1)


def _gru_reset_first(given: Array, recurrent: Array, states: list[Array]) -> list[Array]:
    _, z_x, n_x = np.split(given, 3, axis=-1)
    _, z_h, n_h = np.split(recurrent, 3, axis=-1)
    new = np.tanh(n_x + n_h)
    return [new + sigmoid(z_x + z_h) * (states[0] - new)]


def _lstm(given: Array, recurrent: Array, states: list[Array]) -> list[Array]:
    keep_in, forget, cell, out = np.split(given + recurrent, 4, axis=-1)
    keep_in, forget, out = (sigmoid(x) for x in (keep_in, forget, out))
    memory = forget * states[1] + keep_in * np.tanh(cell)
    return [out * np.tanh(memory), memory]


def _rnn_tanh(given: Array, recurrent: Array, states: list[Array]) -> list[Array]:
    return [np.tanh(given + recurrent)]


def _rnn_relu(given: Array, recurrent: Array, states: list[Array]) -> list[Array]:
    return [np.maximum(given + recurrent, 0)]


_STEPS = {
    RecurrentCell.GRU: _gru,
    RecurrentCell.GRU_RESET_FIRST: _gru_reset_first,
    RecurrentCell.LSTM: _lstm,
    RecurrentCell.RNN_TANH: _rnn_tanh,
    RecurrentCell.RNN_RELU: _rnn_relu,
}
