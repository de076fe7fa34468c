"""The user's model and data that a recipe runs on, and functions that load them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.files import read_torch_file
from sparsejit.frontends.model_source import call_factory
from sparsejit.prune.calibration import call


@dataclass(frozen=True)
class Workload:
    """A model, and the data and functions that the recipe needs.

    Attributes:
        model: a torch module
        batches: anything that can be iterated again and again, such as a DataLoader or a list
        loss: a function of the model and one of the batches, a scalar to minimise. Without it the
            batches are the model's inputs, a tensor or a tuple of arguments: enough to calibrate,
            not to train.
        evaluate: a function of the model that gives figures of merit by name, such as {"accuracy":
            0.97}, for the report
    """

    model: nn.Module
    batches: Iterable[Any] | None = None
    loss: Callable[[nn.Module, Any], Tensor] | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None

    def run(self, model: nn.Module, batch: Any) -> Any:
        """Call a model like this one on one of the batches.

        Args:
            model: a copy of `model`, or one whose weights were changed
            batch: one of `batches`
        """
        return call(model, batch) if self.loss is None else self.loss(model, batch)

    def first_batch(self) -> Any:
        """The first batch; None where there is none."""
        return None if self.batches is None else next(iter(self.batches), None)


def load_workload(reference: str) -> Workload:
    """Call "path/to/file.py:factory" or "package.module:factory", which imports and runs it.

    The factory takes nothing and returns a Workload, or a bare module where no data is needed.

    Raises:
        InvalidInput: where file, module or factory do not exist, and for a factory of another
            kind; errors of its own code pass through
    """
    made = call_factory(reference)
    if isinstance(made, nn.Module):
        return Workload(made)
    if not isinstance(made, Workload):
        raise InvalidInput(
            f"{reference} returned {type(made).__name__}: return a sparsejit.prune.Workload, or "
            "a torch.nn.Module where the recipe needs no data"
        )
    return made


def load_weights(model: nn.Module, path: str | PathLike[str]) -> None:
    """Load a .safetensors file, or a file that `torch.save(model.state_dict())` wrote.

    Nothing in the file is executed.

    Raises:
        DamagedFile: a file of another kind
        InvalidInput: where names or shapes are not the model's
    """
    try:
        if Path(path).suffix == ".safetensors":
            load_model(model, path)
        else:
            remedy = "write it with torch.save(model.state_dict(), path)"
            model.load_state_dict(read_torch_file(path, remedy))
    except SafetensorError as error:
        raise DamagedFile(f"{path} is not a .safetensors file ({error}); save it again") from error
    except (RuntimeError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInput(f"{path}: {problem}; give this model's own state_dict") from error
