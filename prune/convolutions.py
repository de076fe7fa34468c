"""Convolutions as a model calls them: the shapes of their images, and each compiled alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsejit.api.models.predicted_times import convolution_graph
from sparsejit.api.models.variant import Variant, make_variant
from sparsejit.api.options import ModelSettings
from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.values import Array, TensorType
from sparsejit.prune.calibration import evaluating
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.image import Image

# Channels and spatial sizes of one sample.
ImageShape = tuple[int, ...]
_DIRECT, _TRANSPOSED = (nn.Conv1d, nn.Conv2d), (nn.ConvTranspose1d, nn.ConvTranspose2d)
_NOT_COMPILED = (nn.Conv3d, nn.ConvTranspose3d)
_AnyConvolution = nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d


class CompiledConvolution:
    """One convolution as a native function: `int run(inputs, outputs, workspace, tiles)`."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    @property
    def image(self) -> Image:
        """The code and its literals, position-independent, starting with the function."""
        return self.variant.program.image

    @property
    def x_size(self) -> int:
        """Number of floats in the image that it reads."""
        return self.variant.graph.inputs[0].type.size

    @property
    def y_size(self) -> int:
        """Number of floats in the image that it writes."""
        return self.variant.graph.outputs[0].type.size

    @property
    def op(self) -> Convolution:
        """The convolution in its graph."""
        op = self._node.op
        assert isinstance(op, Convolution)
        return op

    @property
    def _node(self) -> Node:
        (node,) = (n for n in self.variant.graph.nodes if isinstance(n.op, Convolution))
        return node

    @property
    def weights(self) -> Array:
        """The weights, (out, in / groups, *kernel).

        A transposed convolution's are (in, out / groups, *kernel).
        """
        (weights,) = self.variant.graph.constants.values()
        return weights

    @property
    def uses(self) -> int:
        """Number of products that each weight is in: positions of y, of x if transposed."""
        image = self._node.inputs[0] if self.op.transposed else self._node.output
        return prod(image.shape[2:])

    @property
    def workspace_floats(self) -> int:
        """Size of its workspace, in floats."""
        return ceil_div(self.variant.workspace_bytes, 4)

    @property
    def strategy(self) -> str:
        """Names of the kernels that it runs."""
        return ", ".join(dict.fromkeys(step.kernel for step in self.variant.steps))

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Number of nonzero weights, each counted once, no matter how many kernels read it."""
        return {"nnz": int(np.count_nonzero(self.weights))}

    @property
    def price(self) -> tuple[str, float]:
        """Kernels and predicted nanoseconds, which are equal where zeros do not change the code."""
        return self.strategy, sum(step.facts.predicted_ns or 0.0 for step in self.variant.steps)


@dataclass(frozen=True)
class ConvolutionInModel:
    """A convolution of weights (out, in / groups, *kernel), and the image's sizes in each call."""

    op: Convolution
    weight_shape: tuple[int, ...]
    images: tuple[ImageShape, ...]

    def compiled(self, weight: Tensor, dtype: str) -> list[CompiledConvolution]:
        """A function for each call; calls with equal sizes share one.

        `weight` is (out, everything else).
        """
        filters = weight.detach().cpu().numpy().reshape(self.weight_shape)
        made: dict[ImageShape, CompiledConvolution] = {}
        for image in self.images:
            if image not in made:
                graph = convolution_graph(self.op, TensorType((1, *image)), filters)
                options = ModelSettings("native", 1, tune=False, exact=False).resolved()
                variant = make_variant(graph, options, dtype, None, "convolution")
                made[image] = CompiledConvolution(variant)
        return [made[image] for image in self.images]


def convolutions_in_model(
    model: nn.Module,
    names: Iterable[str],
    example_inputs: Any,
    run: Callable[[nn.Module, Any], Any],
) -> dict[str, ConvolutionInModel]:
    """The convolutions among the named weights, each with the sizes of its images, by name.

    A weight is a convolution if its module is one. `run(model, example_inputs)` runs the model, in
    evaluation mode, only to note the size of each image that reaches a convolution.

    Raises InvalidInput for a convolution where example_inputs is None or no image reaches it, and
    for a convolution over more than two spatial axes.
    """
    found = {name: model.get_submodule(name.rpartition(".")[0]) for name in names}
    modules = {
        name: module
        for name, module in found.items()
        if isinstance(module, _DIRECT + _TRANSPOSED + _NOT_COMPILED)
        and name.rpartition(".")[2] == "weight"
    }
    for name, module in modules.items():
        _check_known(name, module, example_inputs)
    if not modules:
        return {}
    met: dict[nn.Module, list[ImageShape]] = {module: [] for module in modules.values()}
    with _noting(met), evaluating(model), torch.no_grad():
        run(model, example_inputs)
    return {name: _in_model(name, module, met[module]) for name, module in modules.items()}


def _check_known(name: str, module: nn.Module, example_inputs: Any) -> None:
    if isinstance(module, _NOT_COMPILED):
        raise InvalidInput(
            f"{name} belongs to a {type(module).__name__}, which sparsejit does not compile: leave "
            "it out of the targets"
        )
    if example_inputs is None:
        raise InvalidInput(
            f"{name} belongs to a {type(module).__name__}, whose time depends on the size of its "
            "images: give example_inputs, the arguments of a call, such as "
            "torch.zeros(1, 3, 224, 224), or a recipe's Workload batches"
        )


@contextmanager
def _noting(met: dict[nn.Module, list[ImageShape]]) -> Iterator[None]:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, _DIRECT + _TRANSPOSED)
        shape = (args[0] if args else kwargs["input"]).shape
        met[module].append(tuple(shape[-1 - len(module.kernel_size) :]))

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in met]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_model(name: str, module: nn.Module, images: Sequence[ImageShape]) -> ConvolutionInModel:
    assert isinstance(module, _DIRECT + _TRANSPOSED)
    if not images:
        raise InvalidInput(
            f"{name} met no image: example_inputs never reach it; give others, or leave it out"
        )
    padding, grown = _padding(module)
    is_transposed = isinstance(module, _TRANSPOSED)
    op = Convolution(
        tuple(module.stride),
        padding,
        tuple(module.dilation),
        module.groups,
        is_transposed,
        tuple(module.output_padding) if is_transposed else (),
    )
    larger = (
        (image[0], *(size + more for size, more in zip(image[1:], grown, strict=True)))
        for image in images
    )
    return ConvolutionInModel(op, tuple(module.weight.shape), tuple(larger))


def _padding(module: _AnyConvolution) -> tuple[ImageShape, ImageShape]:
    """The zeros at either end of each axis, and the number of other elements that padding adds.

    Other padding modes, and more padding at one end, are an operator before the convolution.
    """
    if isinstance(module, _TRANSPOSED):
        assert not isinstance(module.padding, str)
        return tuple(module.padding), (0,) * len(module.padding)
    ends = module._reversed_padding_repeated_twice[::-1]
    pairs = list(zip(ends[1::2], ends[::2], strict=True))
    if module.padding_mode != "zeros":
        return (0,) * len(pairs), tuple(map(sum, pairs))
    return tuple(map(min, pairs)), tuple(abs(after - before) for before, after in pairs)
