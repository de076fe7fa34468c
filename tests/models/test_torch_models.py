"""Whole torch models as graphs, against torch in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_models import MODELS, checked

from sparsejit.frontends.torch_export import export
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_torch_does_at_any_batch(name: str) -> None:
    model, inputs = MODELS[name]()
    exported = checked(model, *inputs)
    assert exported.batch_is_free, exported.why_not_free


def test_recurrent_layers_stay_whole() -> None:
    model, inputs = MODELS["tagger"]()
    ops = [type(node.op) for node in export(model, inputs, {}, True).graph().nodes]
    assert ops.count(Recurrence) == 4 and ops.count(Linear) == 5


@settings(max_examples=5, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 7, 8, 9, 15, 16, 17, 31, 33]), min_size=2, max_size=4),
    batch=st.sampled_from([1, 2, 7, 16]),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU]),
    normal=st.booleans(),
)
def test_perceptrons_of_any_size(
    sizes: list[int], batch: int, activation: type[nn.Module], normal: bool
) -> None:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
        layers += [nn.LayerNorm(outputs)] if normal else []
    checked(nn.Sequential(*layers), torch.randn(batch, sizes[0]), tolerance=1e-5)
