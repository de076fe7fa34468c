"""Whether torch models keep the samples of a batch apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Written, checked, encoder

from sparsejit.errors import InvalidInput
from sparsejit.frontends.torch_export import export
from sparsejit.ir.values import TensorType

MIXING: dict[str, tuple[Callable[..., Any], str]] = {
    "mean": (lambda m, x: x - x.mean(0), "computes mean over the batch"),
    "size": (lambda m, x: x / x.shape[0], "computes with the size of the batch"),
    "product": (lambda m, x: (x @ x.T) @ x, "multiplies samples with each other"),
    "place": (lambda m, x: x + torch.arange(x.shape[0])[:, None], "by their place in the batch"),
    "choice": (lambda m, x: x[:2], "takes samples out of the batch"),
    "order": (lambda m, x: x.flip(0), "takes samples out of the batch"),
    "softmax": (lambda m, x: x.softmax(0), "computes softmax over the batch"),
    "place of the largest": (lambda m, x: x + x.argmax(0), "compares samples with each other"),
    "flat": (lambda m, x: x.reshape(-1, 2) + 1.0, "output 0, [202, 2], is the batch alone"),
    "joined": (lambda m, x: torch.cat([x, x]), "adds samples to the batch"),
    "column by size": (
        lambda m, x: x.narrow(1, x.shape[0] % 3, 2) + 1.0,
        "computes with the size of the batch",
    ),
    "crossed": (lambda m, x: x.t().reshape(-1, 4) * 2.0, "torch.export fixes it: Not all"),
    "fixed": (lambda m, x: x.view(3, 2, 2) + 1.0, "works for a batch of 3 only"),
}


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_samples_say_so(name: str) -> None:
    function, reason = MIXING[name]
    exported = checked(Written(function), torch.randn(3, 4))
    assert not exported.batch_is_free and reason in exported.why_not_free


def test_a_batch_may_move_and_merge_in_between() -> None:
    model = Written(
        lambda m, x: m.of(x.transpose(0, 1).reshape(-1, 8)).view(5, -1, 4).transpose(0, 1),
        of=nn.Linear(8, 4),
    )
    assert checked(model, torch.randn(3, 5, 8)).batch_is_free


def test_a_fixed_batch_refuses_another() -> None:
    exported = export(nn.Linear(4, 2), (torch.randn(3, 4),), {}, False)
    with pytest.raises(InvalidInput, match="batch=4, but the batch of this model is fixed"):
        exported.graph(4)
    assert exported.graph(3).inputs[0].shape == (3, 4)


# Squeezes that torch.export sees with a batch of two or more: none takes that away.
SQUEEZES: dict[str, Callable[..., Any]] = {
    "all": lambda m, x: (x * 2.0).squeeze(),
    "one": lambda m, x: (x * 2.0).squeeze(0),
    "several": lambda m, x: torch.squeeze(x * 2.0, (0, 2)),
}


@pytest.mark.parametrize("name", SQUEEZES)
def test_a_squeeze_keeps_the_batch_of_every_tile(name: str) -> None:
    exported = export(Written(SQUEEZES[name]).eval(), (torch.randn(3, 4, 1),))
    assert exported.batch_is_free
    wanted = exported.graph(101).outputs[0].shape[1:]
    for batch in (1, 4):
        assert exported.graph(batch).outputs[0].shape == (batch, *wanted)


def test_a_graph_unlike_the_probe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = export(nn.Linear(4, 2).eval(), (torch.randn(3, 4),))
    of_size = exported._graph

    def without_batch(size: int) -> Any:
        graph = of_size(size)
        (result,) = graph.outputs
        return replace(graph, outputs=(replace(result, type=TensorType((2,))),))

    monkeypatch.setattr(exported, "_graph", without_batch)
    with pytest.raises(InvalidInput, match=r"batch of 1: output 0 is \[2\] and not \[1, 2\]"):
        exported.graph(1)


# Refusals of models that look at the batch while they run.
BRANCHING: dict[str, Callable[..., Any]] = {
    "operators": lambda m, x: x.relu() if x.shape[0] == 1 else x.tanh(),
    "numbers": lambda m, x: x * (2.0 if x.shape[0] == 1 else 3.0),
    "shapes": lambda m, x: (x * 2.0).squeeze(),
    "order": lambda m, x: x.reshape(len(x), 2, 2).mT.reshape(-1, 4) if x.shape[0] == 1 else x * 1.5,
}


@pytest.mark.parametrize("name", BRANCHING)
def test_an_example_of_one_sample_is_as_torch_computes_it(name: str) -> None:
    exported = checked(Written(BRANCHING[name]), torch.randn(1, 4))
    assert exported.why_not_free == "the model takes another path for one sample"
    assert exported.graph().inputs[0].shape == (1, 4)


def test_one_sample_of_a_usual_model_leaves_the_batch_free() -> None:
    x = torch.randn(1, 3, 8, 8)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 2))
    assert checked(model, x).batch_is_free
    assert checked(encoder(), torch.randn(1, 5, 16)).batch_is_free
    recurrent = Written(lambda m, x: m.of(x)[0], of=nn.GRU(4, 8, batch_first=True))
    assert checked(recurrent, torch.randn(1, 5, 4)).batch_is_free
