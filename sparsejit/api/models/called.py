"""Calls of a compiled model from Python, with arguments and results nested as in the model.

    CalledModel             a callable with the model's signature
    as_tensors, as_arrays   conversion between torch tensors and numpy arrays
    output_names            the names that reports and headers give to outputs
    cut                     outputs whose sizes depend on the inputs: arrays of the largest size,
                            cut to the actual size
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sparsejit.api.compiled import Explained
from sparsejit.api.reports.shown import counted
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.nesting import Nest, NestKind, dtypes, flatten, tensor_names, unflatten
from sparsejit.ir.dtypes import COMPLEX, NOTED, TEXT
from sparsejit.ir.graph import OpenAxis
from sparsejit.ir.values import Array, Element, TensorType, Value


class CalledModel(Explained):
    """A callable with the model's signature: torch tensors or numpy arrays in, the same out."""

    def __init__(self, input_nest: Nest, output_nest: Nest) -> None:
        self._input_nest, self._output_nest = input_nest, output_nest
        # Most models take a few tensors and return one: then nothing need be unpacked.
        self._plain_arguments = _plain_arguments(input_nest)
        self._is_plain_result = output_nest.kind is NestKind.TENSOR
        # Runs plain calls from the second on; None from it leaves a call to Python.
        self._direct: Callable[..., Any] = _left_to_python
        self._is_direct_for: bool | None = None  # whether `_direct` takes tensors, if it is made

    @property
    @abstractmethod
    def _input_names(self) -> list[str]:
        """Names of the flat list of inputs."""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> list[Array]:
        """Return the flat list of outputs, numpy arrays, for a flat list of inputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, and return its outputs in the model's dtypes.

        bfloat16 outputs are tensors, or, where all inputs are arrays, float32 arrays of bfloat16
        values.

        Args:
            *args: torch tensors or numpy arrays, in the order of the model's arguments
            **kwargs: arguments that the model takes by name

        Raises:
            InvalidInput: inputs that are nested, shaped or typed differently from the model's
        """
        if not kwargs and (results := self._direct(*args)) is not None:
            return results if self._is_plain_result else unflatten(self._output_nest, results)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call from Python; make the native function that takes further calls of its form."""
        plain = not kwargs and len(args) == self._plain_arguments
        leaves = args if plain else self._leaves(args, kwargs)
        results: list[Any] = self.run(leaves)
        has_tensors = not all(isinstance(leaf, np.ndarray) for leaf in leaves)
        if has_tensors:
            results = as_tensors(results, self._output_nest)
        if plain and (self._is_direct_for is None or has_tensors > self._is_direct_for):
            self._is_direct_for = has_tensors
            made = self._new_direct(sys.modules["torch"] if has_tensors else None)
            self._direct = made or _left_to_python
        return results[0] if self._is_plain_result else unflatten(self._output_nest, results)

    def _new_direct(self, torch: Any) -> Callable[..., Any] | None:
        """Return a native function for calls with plain arguments (`direct_stub`), or None.

        It returns None for each call that `run` refuses. It takes tensors if torch is given.
        """
        return None

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the flat list of inputs. Raises InvalidInput if the arguments do not fit."""
        by_place, by_name = self._input_nest.items
        if len(args) != len(by_place.items) or kwargs.keys() != set(by_name.keys):
            raise InvalidInput(
                f"the call gives {_arguments(len(args), kwargs)}, and the model was compiled for "
                f"{_arguments(len(by_place.items), by_name.keys)}; its inputs are "
                f"{', '.join(self._input_names)}"
            )
        return flatten(self._input_nest, (args, kwargs), "inputs")


# Names of dtypes that a call converts, so that no array of them is used in place.
_CONVERTED = {*NOTED, *COMPLEX, TEXT.name}


def _left_to_python(*args: Any) -> None:
    """Stand in for a native function that cannot be made: None lets Python run each call."""


def _arguments(count: int, names: Iterable[str]) -> str:
    """Describe the number of arguments by position, and the arguments by name."""
    words = [f"{counted(count, 'argument')} by position", *(f"{name}=" for name in names)]
    return " and ".join(words)


def _plain_arguments(nest: Nest) -> int:
    """Number of tensors that a call takes by position; -1 where it takes anything else."""
    args, kwargs = nest.items
    is_plain = not kwargs.items and all(item.kind is NestKind.TENSOR for item in args.items)
    return len(args.items) if is_plain else -1


def as_tensors(results: Sequence[Array], nest: Nest) -> list[Any]:
    """Return outputs as torch tensors of the nest's dtypes; float32 becomes bfloat16, too.

    Strings stay arrays.
    """
    torch = sys.modules["torch"]
    made, noted = list[Any](results), dtypes(nest)
    for place, result in enumerate(results):
        if place >= len(noted) or noted[place] != TEXT.name:
            made[place] = torch.from_numpy(result)
    for place, dtype in enumerate(noted):
        if dtype and dtype != TEXT.name:
            made[place] = made[place].to(getattr(torch, dtype))
    return made


def as_arrays(leaves: Sequence[Any]) -> list[Array]:
    """Return tensors as numpy arrays that share their memory; `NativeCall` checks them."""
    return [
        leaf if isinstance(leaf, np.ndarray) else _as_array(leaf, number)
        for number, leaf in enumerate(leaves)
    ]


def bound_arrays(leaves: Sequence[Any]) -> list[Array]:
    """Return the inputs of `bind`. Raises InvalidInput for inputs that are not usable in place."""
    if not isinstance(leaves, Sequence):
        raise InvalidInput(f"inputs is a {type(leaves).__name__}; bind a list of numpy arrays")
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.name in _CONVERTED:
            found = getattr(leaf, "dtype", None) or type(leaf).__name__
            raise InvalidInput(
                f"input {number} is {found}, which is not used in place; bind a numpy array of "
                "float32, int64 or bool"
            )
    return list(leaves)


def _as_array(leaf: Any, number: int) -> Array:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(leaf, torch.Tensor):
        raise InvalidInput(
            f"input {number} is a {type(leaf).__name__}; give a torch tensor or a numpy array"
        )
    try:
        array: Array = leaf.numpy()
    except (TypeError, RuntimeError):  # on another device, or needs a gradient
        if not leaf.is_cpu:
            raise InvalidInput(f"input {number} is on {leaf.device}; move it with .cpu()") from None
        try:
            array = leaf.detach().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError):
            raise InvalidInput(
                f"input {number} is {leaf.dtype}, {leaf.layout}; give a dense tensor of float32, "
                "int64 or bool"
            ) from None
    return array


def output_names(values: Sequence[Value], nest: Nest) -> list[str]:
    """Return the name of each output: a file's, or a key of the result, else the graph's own."""
    named = tensor_names(nest)
    named += [""] * (len(values) - len(named))
    return [name or value.origin.name for name, value in zip(named, values, strict=True)]


def cut(results: Sequence[Array], axes: Sequence[OpenAxis]) -> list[Array]:
    """Return the outputs, cut to their actual sizes, which are further results of the call.

    An output that has its largest size is returned without a copy.
    """
    first_count = min((axis.size for axis in axes), default=len(results))
    found = list(results[:first_count])
    for output, axis, inner, count in axes:
        whole, size = found[output], inner * int(results[count])
        if size < whole.shape[axis]:
            found[output] = whole[(slice(None),) * axis + (slice(0, size),)].copy()
    return found


def check_open_axes(axes: Sequence[OpenAxis], outputs: Sequence[Value]) -> None:
    """Raise DamagedFile, without the file's name, for axes that the outputs do not have."""
    for output, axis, inner, count in axes:
        fits = output < count < len(outputs) and axis < len(outputs[output].shape) and inner
        if not fits or outputs[count].type != TensorType((), Element.INT64):
            raise DamagedFile(f"has an open axis {axis} of output {output} that is none")
