"""torch's packed sequences around recurrent layers, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runnable import ISAS
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

WIDTH, HIDDEN, TIME = 5, 9, 6


class Packing(nn.Module):
    """A recurrent layer of samples of several lengths: its outputs, last states, and lengths."""

    def __init__(self, layer: nn.RNNBase, padding_value: float = 0.0, whole: bool = True) -> None:
        super().__init__()
        self.layer, self.padding_value, self.whole = layer, padding_value, whole

    def forward(self, x: Any, lengths: Any, *states: Any) -> Any:
        first = self.layer.batch_first
        packed = pack_padded_sequence(x, lengths, first, enforce_sorted=False)
        out, last = self.layer(packed, *states)
        total = x.shape[1 if first else 0] if self.whole else None
        every, counts = pad_packed_sequence(out, first, self.padding_value, total)
        return every, last, counts


def inputs_of(batch: int, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (batch, TIME, WIDTH) if batch_first else (TIME, batch, WIDTH)
    lengths = torch.tensor(np.resize([3, 1, TIME, 4], batch))
    return torch.randn(shape), lengths


def compare(found: Any, wanted: Any) -> None:
    for result, exact in zip(found, wanted, strict=True):
        if isinstance(exact, tuple):
            compare(result, exact)
            continue
        assert tuple(result.shape) == tuple(exact.shape)
        np.testing.assert_allclose(np.asarray(result), exact.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_lengths_of_a_free_batch(isa: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    first = kind is not nn.GRU
    layer = kind(WIDTH, HIDDEN, 2, batch_first=first, bidirectional=kind is not nn.RNN)
    model = Packing(layer, -2.0).eval()
    x, lengths = inputs_of(2, first)
    compiled = sparsejit.compile(model, (x, lengths))
    assert compiled.batch_is_free
    for batch in (1, 2, 5):
        x, lengths = inputs_of(batch, first)
        with torch.no_grad():
            wanted = model.double()(x.double(), lengths)
        compare(compiled(x, lengths), wanted)
    lengths[1] = TIME + 1
    with pytest.raises(InvalidInput, match="index"):
        compiled(x, lengths)


def test_initial_states_are_taken() -> None:
    model = Packing(nn.LSTM(WIDTH, HIDDEN)).eval()
    x, lengths = inputs_of(3, False)
    states = torch.randn(1, 3, HIDDEN), torch.randn(1, 3, HIDDEN)
    compiled = sparsejit.compile(model, (x, lengths, states), free_batch=False)
    with torch.no_grad():
        compare(compiled(x, lengths, states), model(x, lengths, states))


class OfKnownLengths(Packing):
    """Lengths that are written in the model, so that it returns as many steps as the longest."""

    def forward(self, x: Any, *others: Any) -> Any:
        return super().forward(x, [4, 1, 2])


def test_lengths_that_the_model_has() -> None:
    model = OfKnownLengths(nn.GRU(WIDTH, HIDDEN), whole=False).eval()
    x, _ = inputs_of(3, False)
    with torch.no_grad():
        wanted = model(x)
    assert wanted[0].shape[0] == 4
    compare(sparsejit.compile(model, (x,), free_batch=False)(x), wanted)


def test_as_many_steps_as_the_longest_sample_has_are_refused() -> None:
    model = Packing(nn.GRU(WIDTH, HIDDEN), whole=False).eval()
    with pytest.raises(InvalidInput, match="give it total_length, such as"):
        sparsejit.compile(model, inputs_of(3, False))


class ReadsData(nn.Module):
    """A sum over what a packed sequence holds, before a layer or behind it."""

    def __init__(self, before: bool, how: str) -> None:
        super().__init__()
        self.layer, self.before, self.how = nn.GRU(WIDTH, HIDDEN), before, how

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        read = packed if self.before else self.layer(packed)[0]
        if self.how == "name":
            return read.data.sum(0, keepdim=True)
        data, *_ = read
        return data.sum(0, keepdim=True)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("how", ["name", "unpacking"])
def test_readers_of_packed_data_are_refused(before: bool, how: str) -> None:
    """Padding is among it, which torch does not have there."""
    with pytest.raises(InvalidInput, match="reads the data of a packed sequence itself"):
        sparsejit.compile(ReadsData(before, how).eval(), inputs_of(3, False))


def test_projections_are_refused() -> None:
    model = Packing(nn.LSTM(WIDTH, HIDDEN, proj_size=3)).eval()
    with pytest.raises(UnsupportedOperator, match="has projections"):
        sparsejit.compile(model, inputs_of(3, False))


def test_torch_packs_as_before_afterwards() -> None:
    model = Packing(nn.GRU(WIDTH, HIDDEN)).eval()
    x, lengths = inputs_of(3, False)
    with torch.no_grad():
        before = model(x, lengths)
        sparsejit.compile(model, (x, lengths))
        compare(model(x, lengths), before)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    assert type(packed) is PackedSequence and len(packed.data) == int(lengths.sum())


def test_a_quantised_layer_of_torch_is_refused_by_name() -> None:
    layers = nn.Sequential(nn.LSTM(WIDTH, HIDDEN)).eval()
    model = torch.ao.quantization.quantize_dynamic(layers, {nn.LSTM}, dtype=torch.qint8)
    with pytest.raises(InvalidInput, match="layer 0 is torch's quantised LSTM"):
        sparsejit.compile(model, (torch.randn(TIME, 2, WIDTH),))
