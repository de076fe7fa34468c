"""Recurrent layers: the input product of all steps, then the recurrence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.graph import Value
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence


def one_layer(
    write: Writer,
    recurrence: Recurrence,
    sequence: Value,
    states: Sequence[Operand],
    params: Sequence[Operand],
) -> tuple[Value, ...]:
    """One layer in one direction of a sequence (time, batch, in)."""
    w_input, w_state, *biases = params
    b_input, b_state = biases or (None, None)
    if b_state is None:
        b_state = np.zeros(write.shape(w_state)[0], np.float32)
    bias = () if b_input is None else (b_input,)
    gates = write.one(Linear(), sequence, w_input, *bias)
    return write.many(recurrence, gates, *states, w_state, b_state)
