"""The statistics of layers' inputs that pruning without labels goes by."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsejit.errors import InvalidInput
from sparsejit.prune.layer_inputs import check_supported, layer_inputs
from sparsejit.prune.targets import Target, match_targets


@dataclass
class LayerCalibration:
    """A weight before pruning, as (out, everything else), and what it was multiplied with.

    Attributes:
        weight: float64, (out_features, in_features)
        gram: float64, (in_features, in_features), the mean of x xT over `count` inputs x
        count: how many inputs that is
    """

    weight: Tensor
    gram: Tensor
    count: int = 0

    def add(self, inputs: Tensor) -> None:
        """Take in more inputs, shape (n, in_features)."""
        rows = inputs.detach().to(self.gram)
        total = self.count + len(rows)
        self.gram += (rows.T @ rows - len(rows) * self.gram) / max(total, 1)
        self.count = total

    def error(self, weight: Tensor) -> float:
        """Mean square of the change in outputs over that of the outputs, for another weight."""
        change = weight.detach().reshape(self.weight.shape).to(self.weight) - self.weight
        outputs = _energy(self.weight, self.gram)
        return _energy(change, self.gram) / outputs if outputs > 0 else 0.0


# By the name of the parameter.
Calibration = dict[str, LayerCalibration]


def call(model: nn.Module, batch: Any) -> Any:
    """The model on a batch: a tensor, or a tuple of arguments."""
    return model(*batch) if isinstance(batch, tuple) else model(batch)


@torch.no_grad()
def calibrate(
    model: nn.Module,
    targets: Target | Sequence[Target],
    batches: Iterable[Any],
    run: Callable[[nn.Module, Any], Any] = call,
) -> Calibration:
    """Run the model over `batches` and gather the inputs of the targets' layers.

    The model runs in eval mode, layers with the inputs they have before anything is pruned.

    Args:
        model: a torch module
        targets: as for `Pruner`
        batches: a tensor each, or a tuple of the model's arguments; no labels
        run: a function of model and batch that runs the model on a batch of another kind; its
            result is ignored

    Raises:
        InvalidInput: a layer of an unknown kind, one that never runs, or NaN in its inputs
    """
    calibration = {}
    owners: dict[nn.Module, list[str]] = {}
    for name in match_targets(model, targets):
        module = model.get_submodule(name.rpartition(".")[0])
        check_supported(name, module)
        owners.setdefault(module, []).append(name)
        weight = model.get_parameter(name).detach().flatten(1).double()
        gram = weight.new_zeros(weight.shape[1], weight.shape[1])
        calibration[name] = LayerCalibration(weight, gram)
    with _capturing(owners, calibration), evaluating(model):
        for batch in batches:
            run(model, batch)
    for name, layer in calibration.items():
        if not layer.count:
            raise InvalidInput(f"{name} met no input: check the batches, or leave it out")
        if not layer.gram.isfinite().all():
            raise InvalidInput(f"{name} met NaN or infinite inputs: check the batches")
    return calibration


@contextmanager
def _capturing(owners: dict[nn.Module, list[str]], calibration: Calibration) -> Iterator[None]:
    def hook_for(module: nn.Module, names: list[str]) -> Any:
        by_parameter = {name.rpartition(".")[2]: calibration[name] for name in names}

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for parameter, inputs in layer_inputs(module, args, kwargs):
                if parameter in by_parameter:
                    by_parameter[parameter].add(inputs)

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    handles = [hook_for(module, names) for module, names in owners.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for a while; then every module is in the mode that it was in."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


def _energy(weight: Tensor, gram: Tensor) -> float:
    return ((weight @ gram) * weight).sum().item()
