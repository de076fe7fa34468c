"""Training with the rounding that stored layers will have, so that the others make up for it.

    y = x W^T + b      ->      y = rounded(x; scale, shift) rounded(W; a scale a row)^T + b
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.api.scales import Scales
from sparsejit.errors import InvalidInput
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE, DType

_SHORT_FLOATS = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}
_WHOLE = nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase


class FakeQuantisation:
    """Has a model train as it will be stored, by torch's fake quantisation, until `finalize`.

    Gradients pass the rounding as if it were not there, and stop where x is cut. Weights stay plain
    parameters in float32, so optimizers, `Pruner.step` and `state_dict` go on as before. Linear
    layers and convolutions round x and weights, recurrent layers their weights. Weights keep zeros.

    Attributes:
        layers: the names of layers that train so
        left: the names of layers that are stored short, but train in float32
    """

    def __init__(self, model: nn.Module, scales: Scales) -> None:
        """Start.

        Args:
            model: a torch module, whose layers' `forward` is replaced for a while
            scales: what `sparsejit.quantise` returned for it

        Raises:
            InvalidInput: scales that are none, or of another model
        """
        if not isinstance(scales, Scales):
            raise InvalidInput(
                f"scales is a {type(scales).__name__}; give what sparsejit.quantise returned"
            )
        self._scales = scales
        short = [each for each in scales.layers if each.dtype is not DType.FLOAT32]
        found: dict[nn.Module, list[LayerScales]] = defaultdict(list)
        self.left: list[str] = []
        for each in short:
            module = _owner(model, each)
            if module is None:
                self.left.append(each.layer)
            else:
                found[module].append(each)
        self.layers = list(dict.fromkeys(one.layer for group in found.values() for one in group))
        self._modules = list(found)
        for module, group in found.items():
            module.forward = _forward(module, group)

    def finalize(self) -> Scales:
        """Stop, and leave the weights as they were trained.

        Returns:
            The scales for `compile(model, ..., dtype=scales)`; biases were trained, so nothing is
            added to them.
        """
        for module in self._modules:
            module.__dict__.pop("forward", None)
        self._modules = []
        layers = tuple(replace(each, correction=None) for each in self._scales.layers)
        return replace(self._scales, layers=layers)


def _owner(model: nn.Module, layer: LayerScales) -> nn.Module | None:
    """The module of a layer; None for one whose product is computed elsewhere.

    Raises InvalidInput where the model has no such weights.
    """
    owner, _, name = layer.weights.rpartition(".")
    try:
        model.get_parameter(layer.weights)
        module = model.get_submodule(owner)
    except AttributeError:
        raise InvalidInput(
            f"scales name {layer.weights}, which the model lacks; give those of this very model"
        ) from None
    if not isinstance(module, _WHOLE) or (name != "weight" and not isinstance(module, nn.RNNBase)):
        return None
    return module


def _forward(module: nn.Module, layers: Sequence[LayerScales]) -> Callable[..., Any]:
    """What takes the place of the module's own; one that is called several times takes turns."""
    if isinstance(module, nn.RNNBase):
        return _recurrent(module, {each.weights.rpartition(".")[2]: each for each in layers})
    turns = cycle(layers)

    def linear(x: Tensor) -> Tensor:
        assert isinstance(module, nn.Linear)
        return functional.linear(*_rounded(next(turns), x, module.weight), module.bias)

    def convolution(x: Tensor) -> Tensor:
        assert isinstance(module, nn.Conv1d | nn.Conv2d)
        return module._conv_forward(*_rounded(next(turns), x, module.weight), module.bias)

    return linear if isinstance(module, nn.Linear) else convolution


def _recurrent(module: nn.RNNBase, layers: dict[str, LayerScales]) -> Callable[..., Any]:
    own = type(module).forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        before: list[Any] = list(module._flat_weights)
        module._flat_weights = [
            _weight(layers[name], weight) if name in layers else weight
            for name, weight in zip(module._flat_weights_names, before, strict=True)
        ]
        try:
            return own(module, *args, **kwargs)
        finally:
            module._flat_weights = before

    return forward


def _rounded(layer: LayerScales, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What takes the place of x and weights, their channels equalised before they are rounded."""
    if layer.factors is not None:
        factors = torch.from_numpy(layer.factors).to(weight)
        around = (1,) * (weight.ndim - 2)
        x, weight = x / factors.view(-1, *around), weight * factors.view(-1, *around)
    return _input(layer, x), _weight(layer, weight)


def _weight(layer: LayerScales, weight: Tensor) -> Tensor:
    """Weights as they are stored: int8 with a scale for each output, or short floats."""
    if layer.dtype in _SHORT_FLOATS:
        short = weight.to(_SHORT_FLOATS[layer.dtype]).to(weight.dtype)
        return weight + (short - weight).detach()
    largest = weight.detach().flatten(1).abs().amax(dim=1)
    return _by_rows(weight, largest)


def _input(layer: LayerScales, x: Tensor) -> Tensor:
    if layer.dtype is not DType.INT8:
        return x
    if layer.input_scale is not None and layer.input_shift is not None:
        return torch.fake_quantize_per_tensor_affine(
            x, layer.input_scale, layer.input_shift, -LARGEST_INT8 - 1, LARGEST_INT8
        )
    rows = x.reshape(-1, x.shape[-1])
    return _by_rows(rows, rows.detach().abs().amax(dim=1)).reshape(x.shape)


def _by_rows(values: Tensor, largest: Tensor) -> Tensor:
    scale = largest.clamp(min=SMALLEST_SCALE * LARGEST_INT8) / LARGEST_INT8
    zeros = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(
        values, scale, zeros, 0, -LARGEST_INT8, LARGEST_INT8
    )
