"""Statistics of layers' inputs, for pruning without labels."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from sparsejit.errors import InvalidInput
from sparsejit.prune.layer_inputs import check_supported, layer_inputs
from sparsejit.prune.targets import Target, check_model, match_targets


@dataclass
class LayerCalibration:
    """A weight before pruning, as (out, everything else), and the second moment of its inputs.

    Attributes:
        weight: float64, (out_features, in_features)
        gram: float64, (in_features, in_features), the mean of x xT over `count` inputs x
        count: number of inputs
        written: float64, as `weight`: the values that pruning last wrote; None before
    """

    weight: Tensor
    gram: Tensor
    count: int = 0
    written: Tensor | None = None

    def add(self, inputs: Tensor) -> None:
        """Take in more inputs, shape (n, in_features)."""
        rows = inputs.detach().to(self.gram)
        total = self.count + len(rows)
        self.gram += (rows.T @ rows - len(rows) * self.gram) / max(total, 1)
        self.count = total

    def error(self, weight: Tensor) -> float:
        """Error of the outputs with other weights: mean square of the change over the outputs'."""
        change = weight.detach().reshape(self.weight.shape).to(self.weight) - self.weight
        outputs = _energy(self.weight, self.gram)
        return _energy(change, self.gram) / outputs if outputs > 0 else 0.0


# By the name of the parameter.
Calibration = dict[str, LayerCalibration]


def check_calibration(model: nn.Module, calibration: Calibration) -> None:
    """Raise InvalidInput unless the calibration describes the model's weights as they are.

    A weight may have become zero since, or have been written by pruning with this calibration. Any
    other change is training, which pruning would undo.
    """
    check_model(model)
    if not isinstance(calibration, Mapping):
        raise InvalidInput(f"calibration is {calibration!r:.80}: give the result of calibrate")
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, layer in calibration.items():
        if name not in weights:
            raise InvalidInput(f"the model lacks {name}: give a calibration of this model")
        weight = weights[name].detach().flatten(1).to(layer.weight)
        if weight.shape != layer.weight.shape:
            raise InvalidInput(
                f"{name} is {tuple(weight.shape)}, calibrated was {tuple(layer.weight.shape)}: "
                "give a calibration of this model"
            )
        known = [layer.weight] if layer.written is None else [layer.weight, layer.written]
        trained = ~torch.stack([weight == values for values in known]).any(0) & (weight != 0)
        if trained.any():
            raise InvalidInput(
                f"{name} has {int(trained.sum())} weights that changed after calibrate, which "
                "pruning would overwrite: calibrate again"
            )


def call(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch: a tensor, a tuple or list of arguments, or a dict of them.

    numpy arrays become tensors. Raises InvalidInput, with the model's own error as its cause, for a
    batch that the model does not take.
    """
    taken = tree_map_only(np.ndarray, torch.from_numpy, batch)
    try:
        if isinstance(taken, Mapping):
            return model(**taken)
        return model(*taken) if isinstance(taken, tuple | list) else model(taken)
    except InvalidInput:
        raise
    except Exception as error:  # a model raises any type
        reason = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
        raise InvalidInput(
            f"the model does not take a batch of {_described_batch(taken)} ({reason}): give its "
            "arguments alone, without labels, or run=, a function of the model and a batch"
        ) from error


def _described_batch(batch: Any) -> str:
    """Types and shapes of the arguments in a batch."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{key}={_described_batch(value)}" for key, value in batch.items())
    if isinstance(batch, tuple | list):
        return ", ".join(map(_described_batch, batch))
    return f"{type(batch).__name__}{list(getattr(batch, 'shape', ()))}"


@torch.no_grad()
def calibrate(
    model: nn.Module,
    targets: Target | Sequence[Target],
    batches: Iterable[Any],
    run: Callable[[nn.Module, Any], Any] = call,
) -> Calibration:
    """Run the model over `batches` and gather the inputs of the targets' layers.

    The model runs in eval mode, and all inputs are taken before any layer is pruned.

    Args:
        model: a torch module
        targets: as for `Pruner`
        batches: each a tensor, a tuple or list of the model's arguments, or a dict of arguments by
            name, numpy arrays included; no labels
        run: a function of model and batch that runs the model on a batch of another kind; its
            result is ignored

    Raises:
        InvalidInput: a layer of an unknown kind, one that never runs, NaN in its inputs, or a batch
            that the model does not take
    """
    if not callable(run):
        raise InvalidInput(f"run={run!r}: give a function of a model and a batch, or leave it out")
    if not isinstance(batches, Iterable) or isinstance(batches, str | Mapping):
        raise InvalidInput(f"batches is a {type(batches).__name__}: give a list or a DataLoader")
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
    """Set eval mode inside the block, and restore every module's mode after it."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


def _energy(weight: Tensor, gram: Tensor) -> float:
    return ((weight @ gram) * weight).sum().item()
