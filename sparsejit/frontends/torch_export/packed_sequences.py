"""Packed sequences for torch.export, which cannot trace them: a call decides their length.

    pack_padded_sequence(x, lengths)    x with the time first, and the lengths
    nn.LSTM, nn.GRU, nn.RNN of it       an operator of ours, with lengths
    pad_packed_sequence                 the padding value from each length on

Only these may read such a sequence; any other access to its data is refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from sparsejit.errors import InvalidInput

_STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
_READERS = ("torch.nn.modules.rnn", __name__)
_DATA = (
    "the model reads the data of a packed sequence itself; call pad_packed_sequence on it before"
)


class _Tracing(threading.local):
    """State of each thread: whether it traces a model now."""

    is_on = False


_TRACING = _Tracing()
# torch's own versions of the functions that are replaced while a thread traces.
_KEPT: dict[str, Callable[..., Any]] = {}


@contextmanager
def traceable_packing() -> Iterator[None]:
    """Context in which this thread packs and pads sequences so that torch.export can trace it."""
    from torch.nn.modules import rnn as layers
    from torch.nn.utils import rnn as packing

    sequence, functions = packing.PackedSequence, layers._VF
    replaced = {packing.pack_padded_sequence: _pack, packing.pad_packed_sequence: _pad}
    codes = {function: function.__code__ for function in replaced}
    checks = {cell: cell.check_forward_args for cell in (layers.RNNBase, layers.LSTM)}
    new = sequence.__new__
    _KEPT.update({each.__name__: _copied(each) for each in replaced})
    _TRACING.is_on = True

    def made(cls: Any, data: Any, sizes: Any = None, *indices: Any) -> Any:
        if isinstance(sizes, _Lengths):
            return _padded(data, sizes)
        return new(cls, data, sizes, *indices)

    layers._VF, sequence.__new__ = _LayersOfLengths(functions), made  # type: ignore[assignment]
    for cell, check in checks.items():
        cell.check_forward_args = _passing_lengths(check)  # type: ignore[method-assign]
    for function, other in replaced.items():
        function.__code__ = other.__code__
    try:
        yield
    finally:
        layers._VF, sequence.__new__ = functions, new  # type: ignore[method-assign]
        for cell, check in checks.items():
            cell.check_forward_args = check  # type: ignore[method-assign]
        for function, code in codes.items():
            function.__code__ = code
        _TRACING.is_on = False


def _passing_lengths(check: Callable[..., None]) -> Callable[..., None]:
    """A function for a layer's check of shapes, which skips `_Lengths` in place of sizes."""

    def checked(layer: Any, x: Any, states: Any, sizes: Any) -> None:
        if not isinstance(sizes, _Lengths):
            check(layer, x, states, sizes)

    return checked


def _copied(function: Any) -> Callable[..., Any]:
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )


# The code of both replaces the code of torch's functions, so it can use no names of this module.
def _pack(
    input: Any,  # noqa: A002  (a caller may name it)
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Any:
    from sparsejit.frontends.torch_export import packed_sequences

    return packed_sequences.packed(input, lengths, batch_first, enforce_sorted)


def _pad(
    sequence: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> Any:
    from sparsejit.frontends.torch_export import packed_sequences

    return packed_sequences.padded_again(sequence, batch_first, padding_value, total_length)


@dataclass(frozen=True)
class _Lengths:
    """Stands for the sizes of a packed sequence; `longest` is None where a call decides it."""

    lengths: Any
    batch: Any
    time: Any
    longest: int | None

    @property
    def device(self) -> Any:
        """The device on which torch expects sizes."""
        import torch

        return torch.device("cpu")

    def __getitem__(self, place: int) -> Any:
        """The number of samples with that step; known for the first only, which all have."""
        if place != 0:
            raise InvalidInput(_DATA)
        return self.batch


@cache
def _padded_type() -> Any:
    from torch.nn.utils.rnn import PackedSequence

    class PaddedSequence(PackedSequence):
        """A sequence that holds its padding, which recurrent layers alone may read."""

        @property
        def data(self) -> Any:
            raise InvalidInput(_DATA)

        def __iter__(self) -> Any:
            if sys._getframe(1).f_globals.get("__name__") not in _READERS:
                raise InvalidInput(_DATA)
            return super().__iter__()

        def __getitem__(self, place: Any) -> Any:
            raise InvalidInput(_DATA)

    return PaddedSequence


def _padded(data: Any, lengths: _Lengths) -> Any:
    return tuple.__new__(_padded_type(), (data, lengths, None, None))


def packed(x: Any, lengths: Any, batch_first: bool, enforce_sorted: bool) -> Any:
    """torch's `pack_padded_sequence`; while this thread traces, x itself with its lengths."""
    import torch

    if not _TRACING.is_on:
        return _KEPT["pack_padded_sequence"](x, lengths, batch_first, enforce_sorted)
    data = x.transpose(0, 1) if batch_first else x
    longest = None
    if not isinstance(lengths, torch.Tensor):
        numbers = [int(n) for n in lengths]
        longest = max(numbers, default=0)
        if min(numbers, default=0) < 1 or longest > data.shape[0]:
            raise InvalidInput(f"lengths are {numbers}; give 1 to {data.shape[0]} for each sample")
        lengths = torch.tensor(numbers)
    whole = lengths.to(torch.int64)
    return _padded(data, _Lengths(whole, data.shape[1], data.shape[0], longest))


def padded_again(
    sequence: Any, batch_first: bool, padding_value: float, total_length: int | None
) -> Any:
    """torch's `pad_packed_sequence`; for a traced sequence, x with the padding value filled in."""
    import torch

    if not isinstance(sequence, _padded_type()):
        return _KEPT["pad_packed_sequence"](sequence, batch_first, padding_value, total_length)
    data, sizes, *_ = sequence
    longest = sizes.longest
    if total_length is None and longest is None:
        raise InvalidInput(
            "pad_packed_sequence returns as many steps as the longest sample has, which a call "
            "decides; give it total_length, such as x.shape[1]"
        )
    total = longest if total_length is None else total_length
    if total < (sizes.time if longest is None else longest):
        raise InvalidInput(
            f"pad_packed_sequence has total_length={total}; give at least the steps of the input"
        )
    steps = torch.arange(sizes.time)
    runs = steps[:, None] < sizes.lengths
    runs = runs.reshape(*runs.shape, *(1,) * (data.dim() - 2))
    whole = torch.where(runs, data, padding_value)
    if total < sizes.time:
        whole = whole[:total]
    elif total > sizes.time:
        more = whole.new_full((total - sizes.time, *whole.shape[1:]), padding_value)
        whole = torch.cat([whole, more])
    return whole.transpose(0, 1) if batch_first else whole, sizes.lengths


class _LayersOfLengths:
    """torch's functions; the recurrent layers among them take `_Lengths` as well."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._functions, name)
        return _of_lengths(name, function) if name in _STATES else function


def _of_lengths(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function of a recurrent layer, extended to `_Lengths` in place of sizes."""

    def layer(x: Any, sizes: Any, *rest: Any) -> Any:
        if not isinstance(sizes, _Lengths):
            return function(x, sizes, *rest)
        states, params, biases, layers, _, _, both_ways = rest
        initial = [states] if _STATES[name] == 1 else list(states)
        op = recurrent_of_lengths()
        return tuple(
            op(name, x, sizes.lengths, initial, list(params), biases, layers, both_ways)
        )

    return layer


@cache
def recurrent_of_lengths() -> Any:
    """The operator that is traced; it returns h of all steps and the last states, as a list."""
    import torch

    def computed(
        cell: str,
        x: torch.Tensor,
        lengths: torch.Tensor,
        states: Sequence[torch.Tensor],
        params: Sequence[torch.Tensor],
        has_biases: bool,
        layers: int,
        both_ways: bool,
    ) -> list[torch.Tensor]:
        raise NotImplementedError("a recurrent layer of lengths is compiled, not run by torch")

    def shapes(
        cell: str, x: Any, lengths: Any, states: Any, params: Any, has_biases: bool, *rest: Any
    ) -> Any:
        _, both_ways = rest
        width = states[0].shape[-1] * (1 + both_ways)
        every = x.new_empty((*x.shape[:2], width))
        return [every, *(state.new_empty(state.shape) for state in states)]

    annotations = {
        "x": torch.Tensor,
        "lengths": torch.Tensor,
        "states": Sequence[torch.Tensor],
        "params": Sequence[torch.Tensor],
    }
    plain = {"cell": str, "has_biases": bool, "layers": int, "both_ways": bool}
    computed.__annotations__ = {**annotations, **plain, "return": list[torch.Tensor]}
    made = torch.library.custom_op(
        "sparsejit::recurrent_of_lengths", computed, mutates_args=()
    )
    made.register_fake(shapes)
    return torch.ops.sparsejit.recurrent_of_lengths.default
