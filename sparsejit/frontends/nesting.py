"""Tensors in nests of tuples, lists and dicts: taken out in one order, and put back.

The description of a nest needs no torch, and can be JSON, so that a saved model has the form of its
arguments.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from itertools import count
from typing import Any, NamedTuple

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.dtypes import COMPLEX, NOTED, TEXT
from sparsejit.ir.graph import OpenAxis
from sparsejit.ir.spec import Choice


class NestKind(Choice):
    """The kind of object at one place of a nest."""

    TENSOR = "tensor"
    CONSTANT = "constant"
    TUPLE = "tuple"
    LIST = "list"
    DICT = "dict"
    NAMED_TUPLE = "namedtuple"
    MAPS = "maps"


@dataclass(frozen=True)
class Nest:
    """A place of a nest with its content: `items` in order, `keys` for a dict or a named tuple.

    A constant is None, a bool, a number or a string, and the same at every call. `name` is a named
    tuple's class, or a tensor's name in a file that names tensors. `dtype` is a tensor's dtype if
    graphs compute it in another: int64, float32, or pairs of float32. A tensor of strings has the
    dtype "object", and graphs compute places in `words`. Maps are a list of dicts of `keys`, one
    for each row of their only item. `open_axes` are a tensor's axes whose sizes a call decides.
    `rebuild` makes an object of the user's own class from items; a nest read from JSON has none,
    and gives a dict, a list or a named tuple of a new class.
    """

    kind: NestKind
    items: tuple[Nest, ...] = ()
    keys: tuple[Any, ...] = ()
    name: str = ""
    value: Any = None
    dtype: str = ""
    open_axes: tuple[OpenAxis, ...] = ()
    words: tuple[str, ...] = ()
    rebuild: Callable[..., Any] | None = field(default=None, compare=False, repr=False)


TENSOR = Nest(NestKind.TENSOR)


def tensor_of(dtype: str) -> Nest:
    """The form of a tensor; a dtype, by numpy's name, is noted only if graphs have another."""
    return Nest(NestKind.TENSOR, dtype=dtype) if dtype in NOTED | COMPLEX else TENSOR


class Opened(NamedTuple):
    """The items of a container of an unknown class, and the function that rebuilds it from items.

    `keys` are empty where items have no names.
    """

    items: Sequence[Any]
    keys: tuple[str, ...]
    rebuild: Callable[..., Any]


def texts_of(words: Iterable[str]) -> Nest:
    """The form of a tensor of strings, whose numbers in the graph are places in `words`."""
    return Nest(NestKind.TENSOR, dtype=TEXT.name, words=tuple(words))


def maps_of(keys: Iterable[Any], rows: Nest) -> Nest:
    """The form of a list of dicts, one for each row of a tensor (rows, keys)."""
    return Nest(NestKind.MAPS, (rows,), tuple(keys))


def describe(
    nest: Any,
    is_tensor: Callable[[Any], bool],
    where: str,
    opened: Callable[[Any], Opened | None] = lambda _: None,
) -> Nest:
    """Return the form of a nest; an object in place of a tensor may have a name as `dtype`.

    `opened` takes containers of classes that are unknown here, and returns None if it does not know
    them either. Raises InvalidInput then.
    """

    def each(items: Iterable[Any], keys: Sequence[Any]) -> tuple[Nest, ...]:
        named = zip(items, keys, strict=True)
        return tuple(describe(item, is_tensor, f"{where}[{k!r}]", opened) for item, k in named)

    if is_tensor(nest):
        return tensor_of(getattr(nest, "dtype", ""))
    if nest is None or isinstance(nest, bool | int | float | str):
        return Nest(NestKind.CONSTANT, value=nest)
    if isinstance(nest, tuple) and (fields := _fields(nest)):
        own: Any = type(nest)
        rebuild = own if hasattr(own, "_fields") else lambda *items: own(items)
        return Nest(NestKind.NAMED_TUPLE, each(nest, fields), fields, own.__name__, rebuild=rebuild)
    if type(nest) in (tuple, list):
        kind = NestKind.TUPLE if type(nest) is tuple else NestKind.LIST
        return Nest(kind, each(nest, range(len(nest))))
    if type(nest) is not dict and (known := opened(nest)) is not None:
        kind = NestKind.DICT if known.keys else NestKind.LIST
        items = each(known.items, known.keys or range(len(known.items)))
        return Nest(kind, items, known.keys, rebuild=known.rebuild)
    if isinstance(nest, Mapping):
        keys = tuple(nest)
        return Nest(NestKind.DICT, each(nest.values(), keys), keys)
    raise InvalidInput(
        f"{where} is a {type(nest).__name__}; give tensors in tuples, lists, dicts, named tuples "
        "or dataclasses registered with torch.export.register_dataclass"
    )


def _fields(nest: tuple[Any, ...]) -> tuple[str, ...]:
    """The field names of a named tuple, or of a tuple that torch's own functions return."""
    own: Any = type(nest)
    return tuple(getattr(own, "_fields", own.__match_args__ if hasattr(own, "n_fields") else ()))


def flatten(form: Nest, nest: Any, where: str) -> list[Any]:
    """The tensors of a nest of this form, in order; their own type is not checked further.

    Raises InvalidInput, naming the place, where the nest has another form.
    """
    return list(_tensors(form, nest, where))


def _tensors(form: Nest, nest: Any, where: str) -> Iterator[Any]:
    if form.kind is NestKind.TENSOR:
        if nest is None or isinstance(nest, tuple | dict | str):
            raise InvalidInput(f"{where} is a {type(nest).__name__}; give a tensor")
        yield nest
    elif form.kind is NestKind.CONSTANT:
        if not _is_same(nest, form.value):
            raise InvalidInput(
                f"{where} is {nest!r}, but the model was compiled for {form.value!r}; give it"
            )
    elif form.kind is NestKind.DICT:
        if form.rebuild and is_dataclass(nest) and not isinstance(nest, Mapping):
            nest = {key: getattr(nest, key, None) for key in form.keys}
        if not isinstance(nest, Mapping) or set(nest) != set(form.keys):
            found = list(nest) if isinstance(nest, Mapping) else type(nest).__name__
            raise InvalidInput(f"{where} is {found}; give a dict of {list(form.keys)}")
        for key, item in zip(form.keys, form.items, strict=True):
            yield from _tensors(item, nest[key], f"{where}[{key!r}]")
    else:
        if not isinstance(nest, tuple | list) or len(nest) != len(form.items):
            found = f"{len(nest)} items" if isinstance(nest, tuple | list) else type(nest).__name__
            raise InvalidInput(f"{where} is {found}; give a {form.kind.value} of {len(form.items)}")
        for place, (item, inner) in enumerate(zip(form.items, nest, strict=True)):
            yield from _tensors(item, inner, f"{where}[{place}]")


def _is_same(found: Any, wanted: Any) -> bool:
    """Whether a constant equals the constant at compile time; NaN equals NaN here."""
    if type(found) is not type(wanted):
        return False
    return bool(found == wanted or (found != found and wanted != wanted))


def dtypes(form: Nest) -> list[str]:
    """The noted dtype of each tensor, in order; empty for a tensor without one."""
    if form.kind is NestKind.TENSOR:
        return [form.dtype]
    return [dtype for item in form.items for dtype in dtypes(item)]


def words_of(form: Nest) -> tuple[str, ...]:
    """The table that all tensors of strings have; empty where there are none."""
    return form.words or next(filter(None, map(words_of, form.items)), ())


def paths(form: Nest) -> list[tuple[str, ...]]:
    """The keys and positions that lead to each tensor, in order; () for a tensor alone.

    A tensor that has a name in a file is called by it.
    """
    if form.kind is NestKind.TENSOR:
        return [(form.name,) if form.name else ()]
    if form.kind is NestKind.MAPS:
        return paths(form.items[0])
    keys = form.keys or range(len(form.items))
    pairs = zip(keys, form.items, strict=True)
    return [path for key, item in pairs for path in _inner_paths(str(key), item)]


def _inner_paths(key: str, item: Nest) -> list[tuple[str, ...]]:
    """The paths to tensors of an item; the names of its tensors take the place of its key."""
    return paths(item) if _has_names(item) else [(key, *rest) for rest in paths(item)]


def _has_names(form: Nest) -> bool:
    """Whether all tensors of a nest, one or more, have names in a file."""
    if form.kind is NestKind.TENSOR:
        return bool(form.name)
    return bool(form.items) and all(map(_has_names, form.items))


def named(form: Nest, name: str) -> Nest:
    """The nest of a file's value of that name: a tensor, maps, or a list of numbered tensors."""
    if form.kind is NestKind.TENSOR:
        return replace(form, name=name)
    is_list = form.kind is NestKind.LIST
    names = [f"{name}.{number}" if is_list else name for number in range(len(form.items))]
    return replace(form, items=tuple(map(named, form.items, names)))


def tensor_names(form: Nest) -> list[str]:
    """The name of each tensor, in order: in a file, or its keys; empty where all are positions."""
    found = paths(form)
    return ["" if all(map(str.isdigit, path)) else ".".join(path) for path in found]


def with_open_axes(form: Nest, axes: Iterable[OpenAxis]) -> Nest:
    """The nest whose tensors, in order, have these open axes."""
    by_output: dict[int, list[OpenAxis]] = {}
    for axis in axes:
        by_output.setdefault(axis.output, []).append(axis)
    numbers = count()

    def noted(nest: Nest) -> Nest:
        if nest.kind is NestKind.TENSOR:
            found = by_output.get(next(numbers))
            return replace(nest, open_axes=tuple(found)) if found else nest
        return replace(nest, items=tuple(map(noted, nest.items)))

    return noted(form) if by_output else form


def open_axes(form: Nest) -> list[OpenAxis]:
    """The open axes of all tensors, in order."""
    return [*form.open_axes, *(axis for item in form.items for axis in open_axes(item))]


def unflatten(form: Nest, tensors: Sequence[Any]) -> Any:
    """The nest of this form that holds these tensors, in order."""
    left = iter(tensors)
    nest = _filled(form, left)
    if next(left, None) is not None:
        raise InvalidInput(f"{len(tensors)} tensors are more than the nest holds; give fewer")
    return nest


def _filled(form: Nest, left: Iterator[Any]) -> Any:
    if form.kind is NestKind.TENSOR:
        try:
            return next(left)
        except StopIteration:
            raise InvalidInput("there are fewer tensors than the nest holds; give more") from None
    if form.kind is NestKind.CONSTANT:
        return form.value
    items = [_filled(item, left) for item in form.items]
    if form.kind is NestKind.MAPS:
        return _rows_as_dicts(form.keys, items[0])
    if form.rebuild is not None:
        return form.rebuild(*items)
    if form.kind is NestKind.DICT:
        return dict(zip(form.keys, items, strict=True))
    if form.kind is NestKind.NAMED_TUPLE:
        return _named_tuple(form.name, form.keys)(*items)
    return tuple(items) if form.kind is NestKind.TUPLE else items


def _rows_as_dicts(keys: Sequence[Any], rows: Any) -> list[dict[Any, float]]:
    return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]


def has_maps(form: Nest) -> bool:
    """Whether a nest holds lists of dicts in the place of rows."""
    return form.kind is NestKind.MAPS or any(map(has_maps, form.items))


def with_maps(form: Nest, tensors: Sequence[Any]) -> list[Any]:
    """The tensors in order, with a list of dicts in the place of each one that maps hold."""
    left = iter(tensors)

    def held(nest: Nest) -> Iterator[Any]:
        if nest.kind is NestKind.MAPS:
            yield _rows_as_dicts(nest.keys, next(left))
        elif nest.kind is NestKind.TENSOR:
            yield next(left)
        else:
            for item in nest.items:
                yield from held(item)

    return list(held(form))


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, fields)


def to_json(form: Nest) -> dict[str, Any]:
    """A form as a dict that json.dumps can write and `from_json` reads."""
    if form.kind is NestKind.TENSOR:
        noted = {
            "name": form.name,
            "dtype": form.dtype,
            "open_axes": list(map(list, form.open_axes)),
            "words": list(form.words),
        }
        return {"kind": form.kind.value, **{key: value for key, value in noted.items() if value}}
    if form.kind is NestKind.CONSTANT:
        return {"kind": form.kind.value, "value": form.value}
    described: dict[str, Any] = {"kind": form.kind.value}
    if form.kind in (NestKind.DICT, NestKind.NAMED_TUPLE, NestKind.MAPS):
        described["keys"] = list(form.keys)
    if form.name:
        described["name"] = form.name
    return {**described, "items": [to_json(item) for item in form.items]}


def from_json(described: Any, where: str) -> Nest:
    """Read a form from JSON. Raises DamagedFile, naming `where`, if it is malformed."""
    try:
        return _parsed(described)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{where} describes no nest of tensors; save the model again") from error


def _parsed(described: Any) -> Nest:
    kind = NestKind(described["kind"])
    if kind is NestKind.TENSOR:
        name = described.get("name", "")
        if not isinstance(name, str):
            raise ValueError("a name that is no text")
        if described.get("dtype") == TEXT.name:
            return named(texts_of(_words(described["words"])), name)
        if described.get("dtype", "int8") not in NOTED | COMPLEX:
            raise ValueError("numbers of no known dtype")
        axes = tuple(OpenAxis(*map(_natural, axis)) for axis in described.get("open_axes", []))
        return replace(tensor_of(described.get("dtype", "")), open_axes=axes, name=name)
    if kind is NestKind.CONSTANT:
        if not isinstance(described["value"], bool | int | float | str | None):
            raise ValueError("a constant that is a container")
        return Nest(kind, value=described["value"])
    items = tuple(_parsed(item) for item in described["items"])
    if kind in (NestKind.TUPLE, NestKind.LIST):
        return Nest(kind, items)
    keys, name = tuple(described["keys"]), str(described.get("name", ""))
    if kind is NestKind.MAPS:
        if len(items) != 1 or len(set(keys)) != len(keys):
            raise ValueError("dicts that do not fit their rows")
        return maps_of(keys, items[0])
    if len(set(keys)) != len(items) or len(keys) != len(items):
        raise ValueError("keys that do not fit the items")
    if kind is NestKind.NAMED_TUPLE:
        _named_tuple(name, keys)
    return Nest(kind, items, keys, name)


def _words(texts: list[Any]) -> list[str]:
    if len(set(texts)) != len(texts) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a table of strings that are none, or twice the same")
    return texts


def _natural(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError("an open axis that is no number")
    return number
