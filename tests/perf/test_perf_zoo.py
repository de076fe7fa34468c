"""The zoo: every model runs in torch, has the shapes it states, and is pruned as its row says."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.perf.zoo import SMALL_ZOO, ZOO, ZooModel, models_named, pruned
from sparsejit.prune.targets import count_gates, match_targets

BATCH = 3
SHAPES = {
    "mlp": [(3, 10)],
    "deep-and-wide": [(3, 1)],
    "gru-tagger": [(3, 100, 32)],
    "lstm-tagger": [(3, 100, 32)],
    "gru-tagger-both-ways": [(3, 100, 32)],
    "lstm-tagger-both-ways": [(3, 100, 32)],
    "temporal-convolutions": [(3, 16, 128)],
    "mobilenet-like": [(3, 10)],
    "resnet-like": [(3, 10)],
    "transformer-encoder": [(3, 32, 256)],
    "autoencoder": [(3, 784)],
    "recommendation": [(3, 1)],
    "lpcnet-like": [(3, 40, 256), (1, 3, 384), (1, 3, 16)],
}


def outputs_of(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        outputs = module(*inputs)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


@pytest.mark.parametrize("model", SMALL_ZOO.values(), ids=SMALL_ZOO)
def test_a_model_runs_and_its_outputs_are_worth_comparing(model: ZooModel) -> None:
    """Every output differs within the batch and by input, and float32 comes close to float64."""
    module, inputs = pruned(model, 0.1), model.inputs(BATCH)
    outputs = outputs_of(module, inputs)
    assert [tuple(one.shape) for one in outputs] == SHAPES[model.name]
    doubled = [one.double() if one.is_floating_point() else one for one in inputs]
    exact = outputs_of(module.double(), tuple(doubled))
    for one, in_double in zip(outputs, exact, strict=True):
        np.testing.assert_allclose(one, in_double, rtol=0, atol=1e-5 * float(in_double.abs().max()))
        rows = one if one.shape[0] == BATCH else one[0]
        assert float((rows[0] - rows[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("model", SMALL_ZOO.values(), ids=SMALL_ZOO)
def test_a_model_and_its_inputs_are_the_same_every_time(model: ZooModel) -> None:
    """Whatever random numbers a program drew before, and these are drawn as if nothing was."""
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        made.append([*model.build().state_dict().values(), *model.inputs(BATCH)])
        assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    assert all(one.shape[0] == 1 or one.shape[1] == 1 for one in model.inputs(1))


@pytest.mark.parametrize(
    "model", [model for model in ZOO.values() if not model.quantises], ids=lambda model: model.name
)
def test_just_the_targets_are_pruned_gate_by_gate(model: ZooModel) -> None:
    dense, sparse = model.build(), pruned(model, 0.25)
    targets = match_targets(dense, model.targets) if model.targets else []
    for name, before in dense.named_parameters():
        after = sparse.get_parameter(name)
        if name not in targets:
            assert torch.equal(before, after), name
            continue
        for gate, full in zip(
            after.chunk(count_gates(dense, name, True)),
            before.chunk(count_gates(dense, name, True)),
            strict=True,
        ):
            kept = gate != 0
            assert int(kept.sum()) == gate.numel() - round(0.75 * gate.numel()), name
            assert full[kept].abs().min() >= full[~kept].abs().max(), name


def test_density_one_is_the_dense_model() -> None:
    one, other = ZOO["mlp"].build().state_dict(), pruned(ZOO["mlp"], 1).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_sigmoid_of_deep_and_wide_does_not_saturate() -> None:
    (scores,) = outputs_of(ZOO["deep-and-wide"].build(), ZOO["deep-and-wide"].inputs(256))
    assert float(scores.min()) > 0.05 and float(scores.max()) < 0.95


@pytest.mark.parametrize("density", [0, -0.1, 1.5, float("nan")])
def test_a_density_out_of_range_is_refused(density: float) -> None:
    with pytest.raises(InvalidInput, match="use 0 < density <= 1"):
        pruned(ZOO["mlp"], density)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'alexnet' is unknown; use one of mlp, deep-and-wide"):
        models_named(["mlp", "alexnet"])
