"""Training with the rounding of stored layers, so that the weights adapt to it.

    y = x W^T + b      ->      y = rounded(x; scale, shift) rounded(W; a scale a row)^T + b
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from math import prod
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.api.quantising.scales import Scales
from sparsejit.errors import InvalidInput, NotCopyable
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE, DType
from sparsejit.prune.targets import check_model

_SHORT_FLOATS = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}
_WHOLE = nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase


class FakeQuantisation:
    """Rounds a model in training as it will be stored, by torch's fake quantisation.

    Gradients pass through the rounding, and stop where x is clipped. Weights stay plain parameters
    in float32, so optimizers, `Pruner.step` and `state_dict` work as before. Linear layers and
    convolutions round x and weights, recurrent layers their weights. Weights keep zeros. Copies of
    the model (`copy.deepcopy`, `AveragedModel`) round their own weights. `finalize` stops it all.

    Attributes:
        layers: the names of layers that are rounded
        left: the names of layers that are stored in a short dtype, but train in float32
    """

    def __init__(self, model: nn.Module, scales: Scales) -> None:
        """Start rounding.

        Args:
            model: a torch module, whose layers' `forward` is replaced for a while
            scales: the result of `sparsejit.quantise` for it

        Raises:
            InvalidInput: no scales, scales of another model, or no torch module
        """
        check_model(model)
        if not isinstance(scales, Scales):
            raise InvalidInput(
                f"scales is a {type(scales).__name__}; give the result of sparsejit.quantise"
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
        # Modules with a replaced `forward`, copies of them included.
        self._patched: WeakSet[nn.Module] = WeakSet()
        for module, group in found.items():
            module.forward = _RoundedForward(module, group, self._patched)

    def finalize(self) -> Scales:
        """Stop rounding, in copies of the model too, and leave the weights as they were trained.

        Returns:
            The scales for `compile(model, ..., dtype=scales)`; biases were trained, so nothing is
            added to them.
        """
        for module in self._patched:
            module.__dict__.pop("forward", None)
        self._patched.clear()
        layers = tuple(replace(each, correction=None) for each in self._scales.layers)
        return replace(self._scales, layers=layers)


def _owner(model: nn.Module, layer: LayerScales) -> nn.Module | None:
    """The module of a layer; None for one whose product is computed elsewhere.

    Raises InvalidInput where the model has no such weights.
    """
    owner, _, name = layer.weights.rpartition(".")
    try:
        weight = model.get_parameter(layer.weights)
        module = model.get_submodule(owner)
    except AttributeError:
        raise InvalidInput(
            f"scales name {layer.weights}, which the model lacks; give the scales of this model"
        ) from None
    if layer.shape and prod(layer.shape) != weight.numel():
        raise InvalidInput(
            f"scales are for {layer.weights} of shape {layer.shape}, the model has "
            f"{tuple(weight.shape)}; give the scales that quantise chose for this model"
        )
    if not isinstance(module, _WHOLE) or (name != "weight" and not isinstance(module, nn.RNNBase)):
        return None
    return module


class _RoundedForward:
    """The `forward` of one module, with rounded weights, and in int8 with rounded inputs.

    A deep copy of the module gets one of its own, which reads the weights of the copy.
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[LayerScales], patched: WeakSet[nn.Module]
    ) -> None:
        self._module, self._layers, self._patched = module, layers, patched
        # The layers of a module that runs several times in a pass, one after another.
        self._turns = cycle(layers)
        patched.add(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> _RoundedForward:
        return _RoundedForward(deepcopy(self._module, memo), self._layers, self._patched)

    def __reduce__(self) -> Any:
        raise NotCopyable(
            "a model cannot be pickled while FakeQuantisation rounds its weights: save its "
            "state_dict(), or call finalize() first"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        if isinstance(module, nn.RNNBase):
            return self._recurrent(module, *args, **kwargs)
        return self._product(*args, **kwargs)

    def _product(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        module = self._module
        assert isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
        x, weight = _rounded(next(self._turns), input, module.weight)
        if isinstance(module, nn.Linear):
            return functional.linear(x, weight, module.bias)
        return module._conv_forward(x, weight, module.bias)

    def _recurrent(self, module: nn.RNNBase, *args: Any, **kwargs: Any) -> Any:
        layers = {each.weights.rpartition(".")[2]: each for each in self._layers}
        before: list[Any] = list(module._flat_weights)
        module._flat_weights = [
            _weight(layers[name], weight) if name in layers else weight
            for name, weight in zip(module._flat_weights_names, before, strict=True)
        ]
        try:
            return type(module).forward(module, *args, **kwargs)
        finally:
            module._flat_weights = before


def _rounded(layer: LayerScales, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x and weights with channels equalised by the layer's factors, then rounded as stored."""
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
    if layer.x_steps is not None:
        steps = layer.x_steps
        return torch.fake_quantize_per_tensor_affine(
            x, steps.scale, steps.zero_point, steps.least_integer, LARGEST_INT8
        )
    rows = x.reshape(-1, x.shape[-1])
    return _by_rows(rows, rows.detach().abs().amax(dim=1)).reshape(x.shape)


def _by_rows(values: Tensor, largest: Tensor) -> Tensor:
    scale = largest.clamp(min=SMALLEST_SCALE * LARGEST_INT8) / LARGEST_INT8
    zeros = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(
        values, scale, zeros, 0, -LARGEST_INT8, LARGEST_INT8
    )
