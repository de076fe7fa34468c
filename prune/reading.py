"""Check plain data, as of a YAML file, against the signature of the function that takes it.

pydantic was tried: its errors hold branches of unions among the keys, and neither the known names
nor the type of a missing parameter, so that rewording them cost the lines it saved.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from sparsejit.errors import InvalidInput, suggest

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}


@dataclass(frozen=True)
class Place:
    """The place of a value in a file, for messages: "recipe.yaml: train.steps"."""

    file: str
    keys: tuple[str, ...] = ()

    def __truediv__(self, key: str) -> "Place":
        return Place(self.file, (*self.keys, key))

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(self.keys)}" if self.keys else self.file


@dataclass(frozen=True)
class NamedChoice:
    """The name of a row in a table of functions, and the arguments to call it with."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, table: Mapping[str, Callable[..., Any]]) -> Any:
        return table[self.kind](**self.options)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.options}


# Makes a value from data that stands at a place in a file.
Reader = Callable[[Any, Place], Any]


def read_arguments(
    function: Callable[..., Any], data: Any, place: Place, readers: Mapping[str, Reader]
) -> dict[str, Any]:
    """`data`, a mapping, as keyword arguments of `function`.

    readers: functions that read parameters which are not plain data.
    Raises InvalidInput for an unknown or missing parameter and for a value of another type than
    the parameter's; the function itself checks ranges.
    """
    given = read_mapping(data, place)
    parameters = inspect.signature(function, eval_str=True).parameters
    for key in given:
        if key not in parameters:
            raise InvalidInput(f"{place / key} is unknown: {suggest(key, parameters)}")
    for name, parameter in parameters.items():
        if name not in given:
            if parameter.default is inspect.Parameter.empty:
                words = in_words(parameter.annotation)
                raise InvalidInput(f"{place / name} is missing: give {words}")
        elif name in readers:
            given[name] = readers[name](given[name], place / name)
        elif not fits(given[name], parameter.annotation):
            words = in_words(parameter.annotation)
            raise InvalidInput(f"{place / name} is {given[name]!r}: give {words}")
    return given


def read_choice(table: Mapping[str, Callable[..., Any]], data: Any, place: Place) -> NamedChoice:
    """A name in the table, or a mapping with that name under `kind` beside its arguments.

    Raises InvalidInput as `read_arguments` does, and where the function refuses its arguments.
    """
    options = {"kind": data} if isinstance(data, str) else read_mapping(data, place)
    if "kind" not in options:
        raise InvalidInput(f"{place}.kind is missing: use one of {', '.join(table)}")
    kind = options.pop("kind")
    if not isinstance(kind, str) or kind not in table:
        raise InvalidInput(f"{place}.kind is {kind!r}: {suggest(kind, table)}")
    choice = NamedChoice(kind, read_arguments(table[kind], options, place, {}))
    with refusals_at(place):
        choice.build(table)
    return choice


def read_mapping(data: Any, place: Place) -> dict[str, Any]:
    """A deep copy of a mapping whose keys are text."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise InvalidInput(f"{place} is {data!r}: give a mapping of names to values")
    copied: dict[str, Any] = _plain(data)
    return copied


@contextmanager
def refusals_at(place: Place) -> Iterator[None]:
    """Turn a ValueError, which InvalidInput is too, into InvalidInput that names the place."""
    try:
        yield
    except ValueError as error:
        raise InvalidInput(f"{place}: {error}") from error


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; a whole number is a number, but no bool is."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(parts)
            and all(map(fits, value, parts))
        )
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(fits(each, parts[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, parts[0]) and fits(each, parts[1]) for key, each in value.items()
        )
    if hint is Any:
        return True
    if origin is Callable:
        return callable(value)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint in _WORDS and isinstance(value, hint)


def in_words(hint: Any) -> str:
    """A type in the words of a file's author; types that no file can hold are left out."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(filter(None, dict.fromkeys(map(in_words, parts))))
    if origin is tuple:
        return f"[{', '.join(map(in_words, parts))}]"
    if origin is Sequence:
        return f"a list of {_grouped(parts[0])}"
    if origin is Mapping:
        return f"a mapping of {in_words(parts[0])} to {_grouped(parts[1])}"
    return _WORDS.get(hint, "")


def _grouped(hint: Any) -> str:
    words = in_words(hint)
    return f"({words})" if " or " in words else words


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data
