"""Recurrent layers: the input product of all steps, then the recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    lengths: Operand = None,
) -> tuple[Value, ...]:
    """One layer in one direction of a sequence (time, batch, in).

    Samples may have `lengths`, int64 (batch,): h is zero from there on, and the last state of a
    sample is that at its end.
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
