"""Calls of a model, from the data of `quantise` and `accuracy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparsejit.errors import InvalidInput


class ExampleCall(NamedTuple):
    """Arguments of a model by position and by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def calls_of(data: Iterable[Any]) -> list[ExampleCall]:
    """Return the elements of data as calls.

    Raises InvalidInput for empty data, for a single tensor, and for an input without elements.
    """
    if hasattr(data, "shape") or isinstance(data, str | Mapping) or not _is_iterable(data):
        raise InvalidInput(
            f"data is a {type(data).__name__}; give a list of example inputs, such as [x], with a "
            "tuple for several arguments or a dict for those by name"
        )
    calls = [_call(each) for each in data]
    for number, call in enumerate(calls):
        for leaf in (*call.args, *call.kwargs.values()):
            if 0 in getattr(leaf, "shape", ()):
                raise InvalidInput(
                    f"data[{number}] has an input of shape {tuple(leaf.shape)}, without elements; "
                    "give examples with at least one row"
                )
    if not calls:
        raise InvalidInput("data is empty; give at least one example of the model's inputs")
    return calls


def _is_iterable(data: Any) -> bool:
    return hasattr(data, "__iter__")


def _call(element: Any) -> ExampleCall:
    if isinstance(element, tuple | list):
        return ExampleCall(tuple(element), {})
    if isinstance(element, Mapping):
        return ExampleCall((), dict(element))
    return ExampleCall((element,), {})
