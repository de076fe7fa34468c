"""Shapes of recurrent layers for torch.export, which otherwise runs all steps to find them.

With a batch of no fixed size, torch 2.13 takes a tenth of a second a step: 9 s for a GRU of 100
steps, and 0.06 s with the shapes of this file. torch keeps Python code for these operators
(`OpOverload.py_kernels`, from its decompositions); where a release keeps none, exporting is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def known_recurrent_shapes() -> Iterator[None]:
    """Context in which formulas give GRU, LSTM and RNN layers their shapes, without values."""
    import torch

    aten = torch.ops.aten
    one_state = (aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    rules = {**dict.fromkeys(one_state, _one_state), aten.lstm.input: _two_states}
    kept = {op: dict(getattr(op, "py_kernels", {})) for op in rules}
    for op, rule in rules.items():
        _replace(op, dict.fromkeys(kept[op], rule))
    try:
        yield
    finally:
        for op, kernels in kept.items():
            _replace(op, kernels)


def _replace(op: Any, kernels: dict[Any, Callable[..., Any]]) -> None:
    """Give an operator other Python code, where it has some."""
    if kernels:
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()


def _one_state(x: Any, state: Any, *rest: Any) -> tuple[Any, Any]:
    """aten.gru.input(x, hx, parameters, has_biases, layers, dropout, train, both ways, ...)."""
    return _sequence(x, state, rest), state.new_empty(state.shape)


def _two_states(x: Any, states: Any, *rest: Any) -> tuple[Any, Any, Any]:
    """aten.lstm.input, with the same arguments, except for two states."""
    hidden, cell = states
    return _sequence(x, hidden, rest), hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


def _sequence(x: Any, state: Any, rest: tuple[Any, ...]) -> Any:
    directions = 2 if rest[5] else 1
    return x.new_empty((*x.shape[:-1], directions * state.shape[-1]))
