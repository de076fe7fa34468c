"""Frozen records as plain JSON data and back: {"record": name of the class, field: value, ...}.

Fields are numbers, strings, choices, other records, tuples and sets of these, or None where their
type allows it; a microarchitecture is stored by its key. Reading accepts only known classes, with
every field (except fields newer than the file) present and of its type. Each record is made by its
constructor, which checks ranges. No code of a file is run.
"""

import math
import types
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops import OPERATORS
from sparsejit.ir.ops.turns import Turns
from sparsejit.ir.spec import Choice
from sparsejit.machine.core import Core
from sparsejit.machine.microarchitecture import MICROARCHITECTURES, core_named

# Infinity is no JSON number; a float field may hold these.
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


# Classes of files of version 1.0.0 that have another name now, and their renamed fields; classes
# that had the scale and the zero point of x as fields of their own.
_RENAMED = {"QuantisedSteps": ("Quantisation", {"shift": "zero_point"})}
_HAD_SCALES = ("Linear", "Convolution", "LayerScales")


class RecordCodec:
    """Writes and reads records of the given classes, and of the classes of their fields only."""

    def __init__(self, classes: Iterable[type[Any]]) -> None:
        self._classes = {record.__name__: record for record in classes}

    def encode(self, record: Any) -> dict[str, Any]:
        """Return a record as data that JSON can hold.

        Raises InvalidInput for a class that is not known, NaN, and a value not of its field's type.
        """
        name = type(record).__name__
        if self._classes.get(name) is not type(record):
            known = ", ".join(self._classes)
            raise InvalidInput(f"a {name} cannot be saved; use only {known}")
        try:
            return _record_to_data(record)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{record} cannot be saved: {error}") from error

    def decode(self, data: Any) -> Any:
        """Return the record that `encode` wrote. Raises DamagedFile for anything else."""
        data = _by_present_names(data)
        name = data.get("record") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in self._classes:
            raise DamagedFile(f"has {_shown(data)} where a record belongs")
        return _record_from_data(data, self._classes[name])


def _record_to_data(record: Any) -> dict[str, Any]:
    kind: Any = type(record)
    hints = _hints(kind).items()
    values = {field: _to_data(getattr(record, field), hint) for field, hint in hints}
    return {"record": kind.__name__, **values}


def _record_from_data(data: Any, kind: Any) -> Any:
    """Return the record of class `kind` that JSON data describe, made by its constructor.

    Raises DamagedFile for any other data.
    """
    name, hints = kind.__name__, _hints(kind)
    data = _by_present_names(data)
    if not isinstance(data, dict) or data.get("record") != name:
        raise DamagedFile(f"has {_shown(data)} where a {name} belongs")
    known = {"record", *hints}
    if not known - _newer(kind) <= data.keys() <= known:
        wrong = ", ".join(sorted(data.keys() ^ known))
        raise DamagedFile(f"has a {name} with unknown or missing fields: {wrong}")
    try:
        given = {field: hint for field, hint in hints.items() if field in data}
        return kind(**{field: _from_data(data[field], hint) for field, hint in given.items()})
    except (TypeError, ValueError) as error:  # InvalidInput is a ValueError
        raise DamagedFile(f"has a {name} that is not valid: {error}") from error


def _by_present_names(data: Any) -> Any:
    """Rename a record's class and fields in its data, where an older version wrote other names."""
    name = data.get("record") if isinstance(data, dict) else None
    if name in _HAD_SCALES:
        return _with_steps(data)
    if not isinstance(name, str) or name not in _RENAMED:
        return data
    present, renamed = _RENAMED[name]
    return {renamed.get(field, field): value for field, value in data.items()} | {"record": present}


def _with_steps(data: dict[str, Any]) -> dict[str, Any]:
    """Return a record's data with `x_steps` for `input_scale` and `input_shift` of old files."""
    if not {"input_scale", "input_shift"} <= data.keys():
        return data
    scale, shift = data["input_scale"], data["input_shift"]
    if scale is None and shift is not None:
        return data  # no version wrote that
    others = {name: value for name, value in data.items() if not name.startswith("input_")}
    if scale is None:
        return others | {"x_steps": None}
    zero = {"zero_point": 0 if shift is None else shift, "symmetric": shift is None}
    return others | {"x_steps": {"record": "Quantisation", "scale": scale, **zero}}


def _to_data(value: Any, hint: Any) -> Any:
    """Return a field's value as JSON data.

    Raises TypeError or ValueError where the value is not of the hint's type.
    """
    if _is_union(hint):
        return _first_that_fits(value, hint, _to_data)
    if get_origin(hint) in (tuple, frozenset):
        items = sorted(value) if get_origin(hint) is frozenset else list(value)
        return [_to_data(item, kind) for item, kind in _paired(items, hint)]
    if hint is Core:
        return _exactly(value, Core).key
    if hint is Operator:
        return _record_to_data(_within(value))
    if is_dataclass(hint):
        return _record_to_data(_exactly(value, hint))
    if _is_choice(hint):
        return hint(value).value
    plain = value.item() if hasattr(value, "item") else value
    if hint is float:
        return _float_to_data(plain)
    return _exactly(plain, hint)


def _from_data(data: Any, hint: Any) -> Any:
    """Return a field's value from JSON data.

    Raises TypeError or ValueError (such as DamagedFile) for data that `_to_data` never makes.
    """
    if _is_union(hint):
        return _first_that_fits(data, hint, _from_data)
    origin = get_origin(hint)
    if origin in (tuple, frozenset):
        paired = _paired(_exactly(data, list), hint)
        return origin(_from_data(item, kind) for item, kind in paired)
    if hint is Core:
        return _core(data)
    if hint is Operator:
        return _operator_from_data(data)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record_from_data(data, hint)
    if _is_choice(hint):
        return hint(_exactly(data, str))
    if hint is float:
        infinite = _INFINITIES.get(data) if isinstance(data, str) else None
        return _finite(_exactly(data, float)) if infinite is None else infinite
    return _exactly(data, hint)


def fields_of(data: Any, **wanted: type) -> list[Any]:
    """Return the values of the `wanted` fields of a JSON object, in this order.

    Raises DamagedFile unless the object has exactly these fields, of these types.
    """
    fields_found = data if isinstance(data, dict) else {}
    if {name: type(value) for name, value in fields_found.items()} != wanted:
        raise DamagedFile(f"has {_shown(data)} where only {', '.join(wanted)} belong")
    return [data[name] for name in wanted]


def _core(key: Any) -> Core:
    if key not in MICROARCHITECTURES:
        raise ValueError(f"{_shown(key)} is not a microarchitecture")
    return core_named(key)


def _within(op: Any) -> Operator:
    """Return the operator, if it may stand in the body of a loop: any but a loop itself.

    Raises TypeError for others.
    """
    if OPERATORS.get(type(op).__name__) is not type(op) or isinstance(op, Turns):
        raise TypeError(f"{_shown(op)} is not an operator of a body")
    return op


def _operator_from_data(data: Any) -> Operator:
    name = data.get("record") if isinstance(data, dict) else None
    kind = OPERATORS.get(name) if isinstance(name, str) else None
    if kind is None or kind is Turns:
        raise DamagedFile(f"has {_shown(data)} where an operator of a body belongs")
    return _within(_record_from_data(data, kind))


def _newer(record: type[Any]) -> set[str]:
    """Return the fields that files of older versions lack: marked "newer", with a default."""
    return {field.name for field in fields(record) if "newer" in field.metadata}


@cache
def _hints(record: Any) -> dict[str, Any]:
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
    """Pair each item with its type; tuple[X, ...] and frozenset[X] have one type for all."""
    kinds = get_args(hint)
    if get_origin(hint) is frozenset or kinds[-1] is Ellipsis:
        return [(item, kinds[0]) for item in items]
    return zip(items, kinds, strict=True)


def _exactly(value: Any, kind: Any) -> Any:
    """Return the value if its type is exactly `kind`, not derived: True is no whole number."""
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
        raise ValueError(f"{number} is not a finite number")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."

