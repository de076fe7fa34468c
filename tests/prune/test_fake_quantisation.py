"""Training with the rounding of stored layers: what it computes, and what it is good for."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

import sparsejit
from sparsejit.errors import InvalidInput, NotCopyable
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.prune import FakeQuantisation, OneShot, Pruner


def scales_of(*layers: LayerScales) -> sparsejit.Scales:
    return sparsejit.Scales(layers, 0.0, None, 1.0, 1.0)


def int8(name: str, scale: float | None = None, shift: int | None = None) -> LayerScales:
    how = "each row" if scale is None else "range"
    steps = None if scale is None else Quantisation(scale, shift)
    return LayerScales(name, f"{name}.weight", 0, DType.INT8, steps, how)


def perceptron() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(40, 70), nn.ReLU(), nn.Linear(70, 9)).eval()


def sparse_convolution(channels: int) -> nn.Module:
    """So large that int8 gains."""
    torch.manual_seed(2)
    layer = nn.Conv2d(channels, channels, 3, padding=1)
    layer.weight.data *= torch.rand_like(layer.weight) < 0.1
    return nn.Sequential(layer).eval()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(12, 24, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(x)[0]


def short_recurrent() -> sparsejit.Scales:
    names = ("rnn.weight_ih_l0", "rnn.weight_hh_l0")
    return scales_of(*(LayerScales("rnn", name, 0, DType.BFLOAT16) for name in names))


CASES = {
    "fixed": (perceptron, (3, 40), scales_of(int8("0", 0.03, 4), int8("2", 0.01, -128))),
    "by rows": (perceptron, (3, 40), scales_of(int8("0"), int8("2"))),
    "short floats": (
        perceptron,
        (3, 40),
        scales_of(
            LayerScales("0", "0.weight", 0, DType.FLOAT16),
            LayerScales("2", "2.weight", 0, DType.BFLOAT16),
        ),
    ),
    "convolution": (
        lambda: sparse_convolution(512),
        (1, 512, 7, 7),
        scales_of(int8("0", 0.03, -3)),
    ),
    "recurrent": (lambda: Recurrent().eval(), (2, 7, 12), short_recurrent()),
}


@pytest.mark.parametrize("name", CASES)
def test_training_sees_what_compiled_code_computes(name: str) -> None:
    make, shape, scales = CASES[name]
    model = make()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    plain = model(x).detach()
    fast = sparsejit.compile(model, (x,), dtype=scales)
    training = FakeQuantisation(model, scales)
    seen = model(x).detach()
    if {node.op.dtype for node in fast.graph.nodes if hasattr(node.op, "dtype")} == {DType.FLOAT32}:
        pytest.skip("compiled code stays in float32, which is faster here")
    assert not training.left and training.layers == list(scales.dtypes)
    assert (seen - plain).abs().max() > 1e-4 * plain.abs().max()
    # A number beside a tie may be rounded another way by a last bit.
    off = (fast(x) - seen).abs().numpy() / float(plain.abs().max())
    assert np.quantile(off, 0.9) < 1e-5 and off.max() < 0.02
    training.finalize()
    torch.testing.assert_close(model(x), plain)


def test_gradients_pass_the_rounding_and_stop_at_the_ends() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).eval()
    FakeQuantisation(model, scales_of(int8("0", 0.01, 0)))
    x = torch.tensor([[0.5, -0.3, 9.0]], requires_grad=True)
    model(x).sum().backward()
    assert (x.grad[0, :2] != 0).all() and x.grad[0, 2] == 0  # beyond 1.27
    assert (model[0].weight.grad != 0).all()


def test_parameters_and_zeros_stay_as_they_were() -> None:
    model = perceptron()
    pruner = Pruner(0.8, targets=["0.weight"], schedule=OneShot(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner.prepare(model, optimizer)
    names = list(model.state_dict())
    training = FakeQuantisation(model, scales_of(int8("0", 0.03, 0)))
    zeros = model[0].weight == 0
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 40)).square().sum().backward()
        optimizer.step()
        pruner.step()
    assert list(model.state_dict()) == names
    assert zeros.sum() == round(0.8 * 40 * 70) and (model[0].weight[zeros] == 0).all()
    training.finalize()
    assert "forward" not in vars(model[0])


def test_training_makes_up_for_coarse_steps() -> None:
    """A network that is to give what it gave, with x in steps of a quarter."""
    model = perceptron()
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 40, generator=random)
    wanted = model(inputs).detach()
    scales = scales_of(int8("0", 0.25, 0), int8("2", 0.25, 0))

    def loss() -> float:
        fast = sparsejit.compile(model, (inputs[:1],), dtype=scales)
        return float(functional.mse_loss(fast(inputs), wanted))

    before = loss()
    training = FakeQuantisation(model, scales)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(150):
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
    training.finalize()
    assert loss() < 0.7 * before


def test_corrections_of_biases_that_were_trained_are_dropped() -> None:
    off = np.ones(70, np.float32)
    layer = LayerScales("0", "0.weight", 0, DType.INT8, Quantisation(0.1, 0), correction=off)
    (left,) = FakeQuantisation(perceptron(), scales_of(layer)).finalize().layers
    assert left.correction is None and left.x_steps == Quantisation(0.1, 0)


def test_a_module_that_is_called_twice_has_both_steps() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            return self.one(self.one(x) * 50)

    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(4, 16)
    scales = scales_of(
        LayerScales("one", "one.weight", 0, DType.INT8, Quantisation(0.03, 0)),
        LayerScales("one", "one.weight", 1, DType.INT8, Quantisation(0.9, 0)),
    )
    fast = sparsejit.compile(model, (x,), dtype=scales)
    FakeQuantisation(model, scales)
    for _ in range(2):
        off = (fast(x) - model(x)).abs().max() / model(x).abs().max()
        assert off < 1e-2
        model(x)


def test_other_models_and_other_things_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"name 5\.weight, which the model lacks"):
        FakeQuantisation(perceptron(), scales_of(int8("5", 0.1, 0)))
    with pytest.raises(InvalidInput, match="scales is a str; give the result of"):
        FakeQuantisation(perceptron(), "int8")  # type: ignore[arg-type]


def test_layers_that_train_in_float32_are_named() -> None:
    attention = nn.MultiheadAttention(16, 2)
    layer = LayerScales("", "in_proj_weight", 0, DType.INT8, Quantisation(0.1, 0))
    assert FakeQuantisation(attention, scales_of(layer)).left == [""]


@pytest.mark.parametrize(
    ("make", "scales", "shape"),
    [
        (perceptron, scales_of(int8("0", 0.03, 4), int8("2")), (3, 40)),
        (lambda: Recurrent().eval(), short_recurrent(), (2, 7, 12)),
    ],
    ids=["linear", "recurrent"],
)
def test_a_copy_rounds_its_own_weights_until_the_end(
    make: Any, scales: sparsejit.Scales, shape: tuple[int, ...]
) -> None:
    model, x = make(), torch.randn(shape)
    training = FakeQuantisation(model, scales)
    twin, average = copy.deepcopy(model), AveragedModel(model)
    before = model(x).detach()
    for copied in (twin, average.module):
        with torch.no_grad():
            for weight in copied.parameters():
                weight.mul_(0.5)
        alone = make()
        alone.load_state_dict(copied.state_dict())
        ended = FakeQuantisation(alone, scales)
        torch.testing.assert_close(copied(x), alone(x), rtol=0, atol=0)
        ended.finalize()
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    training.finalize()
    for copied in (twin, average.module):
        alone = make()
        alone.load_state_dict(copied.state_dict())
        torch.testing.assert_close(copied(x), alone(x), rtol=0, atol=0)
        assert not any("forward" in vars(module) for module in copied.modules())


def test_a_model_is_not_pickled_while_its_weights_are_rounded() -> None:
    model = perceptron()
    training = FakeQuantisation(model, scales_of(int8("0")))
    with pytest.raises(NotCopyable, match=r"save its state_dict\(\), or call finalize\(\) first"):
        pickle.dumps(model)
    training.finalize()
    assert pickle.loads(pickle.dumps(model)) is not model


def test_scales_of_other_shapes_are_refused() -> None:
    layer = replace(int8("0"), shape=(70, 41))
    for use in (FakeQuantisation, compiled_with):
        with pytest.raises(InvalidInput, match=r"for 0\.weight of shape \(70, 41\), the model has"):
            use(perceptron(), scales_of(layer))
    with pytest.raises(InvalidInput, match=r"name 5\.weight, which no layer of the model mult"):
        compiled_with(perceptron(), scales_of(int8("5")))


def compiled_with(model: nn.Module, scales: sparsejit.Scales) -> sparsejit.CompiledModel:
    return sparsejit.compile(model, (torch.randn(1, 40),), dtype=scales)
