"""Frozen records as plain JSON data and back: {"record": name of the class, field: value, ...}.

Fields are numbers, strings, choices, other records, tuples and sets of these, or None where their
type says so; of a microarchitecture its key. Reading takes only what writing makes: classes that
are known, every field there, but for those newer than the file, and of its type, and it makes each
record through its constructor, which checks ranges. Nothing is run.
"""

import math
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.ops import (
    attention,
    casts,
    columns,
    convolution,
    forest,
    pointwise,
    products,
    recurrent,
    sampling,
    selection,
    tree_draw,
    views,
)
from sparsejit.ir.spec import Choice
from sparsejit.machine.core import Core
from sparsejit.machine.microarchitecture import MICROARCHITECTURES, core_named

# Infinity is no JSON number; a float field may hold these.
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


class RecordCodec:
    """Writes and reads records of the given classes and of no other."""

    def __init__(self, classes: Sequence[type[Any]]) -> None:
        self._classes = {record.__name__: record for record in classes}
        self._hints = {name: _hints(record) for name, record in self._classes.items()}

    def encode(self, record: Any) -> dict[str, Any]:
        """A record as data that JSON can hold.

        Raises InvalidInput for a class that is not known, NaN, and a value not of its field's type.
        """
        name = type(record).__name__
        if self._classes.get(name) is not type(record):
            known = ", ".join(self._classes)
            raise InvalidInput(f"a {name} cannot be saved; use only {known}")
        try:
            data = {
                field: self._to_data(getattr(record, field), hint)
                for field, hint in self._hints[name].items()
            }
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{record} cannot be saved: {error}") from error
        return {"record": name, **data}

    def decode(self, data: Any) -> Any:
        """The record that `encode` wrote. Raises DamagedFile for anything else."""
        name = data.get("record") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in self._classes:
            raise DamagedFile(f"has {_shown(data)} where a record belongs")
        hints = self._hints[name]
        known = {"record", *hints}
        optional = _newer(self._classes[name])
        if not known - optional <= data.keys() <= known:
            wrong = ", ".join(sorted(data.keys() ^ known))
            raise DamagedFile(f"has a {name} with fields too many or missing: {wrong}")
        try:
            given = {field: hint for field, hint in hints.items() if field in data}
            values = {field: self._from_data(data[field], hint) for field, hint in given.items()}
            return self._classes[name](**values)
        except (TypeError, ValueError) as error:  # InvalidInput is a ValueError
            raise DamagedFile(f"has a {name} that cannot be: {error}") from error

    def _to_data(self, value: Any, hint: Any) -> Any:
        """Raises TypeError or ValueError where a value is not of the hint's type."""
        if _is_union(hint):
            return _first_that_fits(value, hint, self._to_data)
        if get_origin(hint) in (tuple, frozenset):
            items = sorted(value) if get_origin(hint) is frozenset else list(value)
            return [self._to_data(item, kind) for item, kind in _paired(items, hint)]
        if hint is Core:
            return _exactly(value, Core).key
        if is_dataclass(hint):
            return self.encode(value)
        if _is_choice(hint):
            return hint(value).value
        plain = value.item() if hasattr(value, "item") else value
        if hint is float:
            return _float_to_data(plain)
        return _exactly(plain, hint)

    def _from_data(self, data: Any, hint: Any) -> Any:
        """Raises TypeError or ValueError (such as DamagedFile) for what `_to_data` never makes."""
        if _is_union(hint):
            return _first_that_fits(data, hint, self._from_data)
        origin = get_origin(hint)
        if origin in (tuple, frozenset):
            paired = _paired(_exactly(data, list), hint)
            return origin(self._from_data(item, kind) for item, kind in paired)
        if hint is Core:
            return _core(data)
        if is_dataclass(hint):
            return _exactly(self.decode(data), hint)
        if _is_choice(hint):
            return hint(_exactly(data, str))
        if hint is float:
            infinite = _INFINITIES.get(data) if isinstance(data, str) else None
            return _finite(_exactly(data, float)) if infinite is None else infinite
        return _exactly(data, hint)


def fields_of(data: Any, **wanted: type) -> list[Any]:
    """The fields of an object that has these, of these types, and no other, in this order.

    Raises DamagedFile for anything else.
    """
    fields_found = data if isinstance(data, dict) else {}
    if {name: type(value) for name, value in fields_found.items()} != wanted:
        raise DamagedFile(f"has {_shown(data)} where only {', '.join(wanted)} belong")
    return [data[name] for name in wanted]


def _core(key: Any) -> Core:
    if key not in MICROARCHITECTURES:
        raise ValueError(f"{_shown(key)} is no microarchitecture")
    return core_named(key)


def _newer(record: type[Any]) -> set[str]:
    """The fields that files of older versions lack: those marked so, which have a default."""
    return {field.name for field in fields(record) if "newer" in field.metadata}


def _hints(record: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_choice(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Choice)


def _first_that_fits(value: Any, hint: Any, convert: Callable[[Any, Any], Any]) -> Any:
    for member in get_args(hint):
        try:
            return convert(value, member)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{_shown(value)} is none of {hint}")


def _paired(items: list[Any], hint: Any) -> Iterable[tuple[Any, Any]]:
    """Each item with its type: tuple[X, ...] and frozenset[X] have one for all."""
    kinds = get_args(hint)
    if get_origin(hint) is frozenset or kinds[-1] is Ellipsis:
        return [(item, kinds[0]) for item in items]
    return zip(items, kinds, strict=True)


def _exactly(value: Any, kind: Any) -> Any:
    """The value if it is of that kind and of no derived one: True is no whole number."""
    if type(value) is not kind:
        raise TypeError(f"{_shown(value)} is no {kind.__name__}")
    return value


def _float_to_data(value: Any) -> float | str:
    number = float(value)
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return _finite(number)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number that can be saved")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# Of graphs: every operator of ir/ops.
OPERATORS = RecordCodec(
    (
        *(pointwise.Pointwise, pointwise.Chain, pointwise.ChainStep),
        casts.Cast,
        *(products.Linear, products.Bmm, attention.Attention),
        *(convolution.Convolution, convolution.Pooling),
        recurrent.Recurrence,
        *(forest.Forest, columns.ScaledColumns, columns.DoubleProduct),
        *(sampling.Uniform, sampling.Draw, sampling.Quantise, sampling.SumOfRows),
        *(sampling.GruStep, sampling.Predict, sampling.Reconstruct),
        *(tree_draw.UniformRow, tree_draw.TreeDraw),
        *(selection.Embedding, selection.EmbeddingBag, selection.ArgMax, selection.TopK),
        *(views.Reshape, views.Permute, views.Slice, views.Expand, views.Concat, views.Pad),
    )
)
