"""Every activation of torch in every place of a model where it is compiled, at hostile numbers.

Behind products, convolutions and sums, alone, between layers, and in recurrent cells: with inputs
that are huge, infinite or NaN, against torch in float64, or in float32, whose sums overflow as ours
do. All of x is one number and weights are positive, so that no infinities cancel.
"""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from runnable import ISAS
from torch import nn

import sparsejit

EDGES = [0.0, 1e-41, 1e-3, -0.5, 4.0, -9.0, 21.0, -90.0, 1e4, -1e4, 1e10, 1e30, -1e30]
EDGES += [3e38, -3e38, np.inf, -np.inf, np.nan]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh),
        *(nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU),
        *(nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink),
    )
}
ACTIVATIONS["GELU tanh"] = lambda: nn.GELU("tanh")
ACTIVATIONS["Threshold"] = lambda: nn.Threshold(0.1, 20.0)


class Residual(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(8, 8), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.layer(x) + x)


class Alone(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


def sequence(*layers: nn.Module) -> Callable[[nn.Module], nn.Module]:
    """The given layers with the activation behind each."""
    return lambda act: nn.Sequential(*(part for layer in layers for part in (layer, act)))


# From a name to the shape of x, and the model with that activation.
PLACES: dict[str, tuple[tuple[int, ...], Callable[[nn.Module], nn.Module]]] = {
    "alone": ((1, 40), Alone),
    "linear": ((1, 8), sequence(nn.Linear(8, 20))),
    "two layers": ((1, 8), sequence(nn.Linear(8, 20), nn.Linear(20, 3))),
    "batch": ((16, 8), sequence(nn.Linear(8, 20))),
    "residual": ((2, 8), Residual),
    "conv1d": ((1, 4, 9), sequence(nn.Conv1d(4, 6, 3))),
    "conv2d 3x3": ((1, 4, 8, 8), sequence(nn.Conv2d(4, 8, 3))),
    "conv2d 1x1": ((1, 8, 5, 5), sequence(nn.Conv2d(8, 8, 1))),
    "depthwise": ((1, 8, 6, 6), sequence(nn.Conv2d(8, 8, 3, groups=8))),
    "transposed": ((1, 3, 4, 4), sequence(nn.ConvTranspose2d(3, 4, 2, stride=2))),
}
CELLS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.RNN(4, 8, batch_first=True),
    "relu": lambda: nn.RNN(4, 8, nonlinearity="relu", batch_first=True),
    "gru": lambda: nn.GRU(4, 8, batch_first=True),
    "lstm": lambda: nn.LSTM(4, 8, batch_first=True),
}


def positive(model: nn.Module) -> nn.Module:
    """With weights from 0.5 to 1.5, and a slope of 0.25 below zero."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        low, high = (0.5, 1.5) if parameter.numel() > 1 else (0.25, 0.25)
        nn.init.uniform_(parameter, low, high)
    return model.eval()


def results(model: Callable[..., object], x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        found = model(x)
    return np.asarray(found if isinstance(found, torch.Tensor) else found[0])


def is_near(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.isclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def complaints(model: nn.Module, shape: tuple[int, ...], isa: str) -> list[str]:
    """The places that differ from torch in float64, by the number that x is."""
    fast = sparsejit.compile(model, (torch.ones(shape),), target=isa)
    wide = deepcopy(model).double()
    found = []
    for value in EDGES:
        x = torch.full(shape, value, dtype=torch.float32)
        with np.errstate(over="ignore"):
            wanted = results(wide, x.double()).astype(np.float32)
        got, like = results(fast, x), results(model, x)
        bad = ~(is_near(got, wanted) | is_near(got, like))
        if bad.any():
            found.append(f"x = {value}: {got[bad][:3]} instead of {wanted[bad][:3]}")
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("place", PLACES)
def test_of_layers(place: str, activation: str, isa: str) -> None:
    shape, build = PLACES[place]
    found = complaints(positive(build(ACTIVATIONS[activation]())), shape, isa)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", CELLS)
def test_of_recurrent_cells(cell: str, isa: str) -> None:
    found = complaints(positive(CELLS[cell]()), (1, 3, 4), isa)
    assert not found, "\n".join(found)
