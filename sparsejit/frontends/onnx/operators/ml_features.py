"""Operators of ai.onnx.ml that scale, impute, encode, select and name features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators.ml_scores import rows_of
from sparsejit.frontends.onnx.words import ML_DOMAIN, UNUSED, Texts, Zipped
from sparsejit.frontends.writing import arranging, columns, selection
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Array, Element, Value

_NORMS = ("MAX", "L1", "L2")
_MOST_KEYS = 4096  # compared with each element; a table of more would be slow


def scaler(write: Writer, call: Call) -> Value:
    """Scale each column: (x - offset) * scale."""
    x = call.double(write, 0)
    offset, scale = (
        np.asarray(call.attribute(name, default), np.float32)
        for name, default in (("offset", [0.0]), ("scale", [1.0]))
    )
    if x.type.element is Element.FLOAT64:
        return columns.scaled(write, x, offset.astype(np.float64), scale.astype(np.float64))
    f = write.formula("scaler")
    return f.finish(f("mul", f("sub", write.floats(x), offset), scale))


def normalizer(write: Writer, call: Call) -> Value:
    """Divide each row by its maximum, L1 norm or L2 norm; a row whose divisor is 0 stays."""
    kind = call.choice("norm", _NORMS)
    given = call.value(write, 0)
    x = write.floats(rows_of(write, given))
    f = write.formula("normalizer")
    if kind == "MAX":
        norm = f("row_max", x)
    elif kind == "L1":
        norm = f("row_sum", f("abs", x))
    else:
        norm = f("sqrt", f("row_sum", f("mul", x, x)))
    found = f("div", x, f("where", f("equal", norm, 0.0), 1.0, norm))
    return arranging.reshaped(write, f.finish(found, shape=x.shape), given.shape)


def binarizer(write: Writer, call: Call) -> Value:
    """1 where x is larger than a threshold, else 0."""
    x = call.value(write, 0)
    is_above = write.pointwise("greater", x, float(call.attribute("threshold", 0.0)))
    return write.converted(is_above, write.dtype(x))


def imputer(write: Writer, call: Call) -> Value:
    """Replace a given number, or NaN, in each column by the column's imputed value."""
    x = call.value(write, 0)
    is_float = write.dtype(x).kind == "f"
    suffix, kind = ("float", np.float32) if is_float else ("int64", np.int64)
    values = np.asarray(call.attribute(f"imputed_value_{suffix}s", ()), kind)
    replaced = call.attribute(f"replaced_value_{suffix}", 0)
    if not values.size:
        raise Unmapped(f"has no imputed_value_{suffix}s")
    if len(values) not in (1, x.shape[-1]):
        raise Unmapped(f"has {len(values)} numbers for {x.shape[-1]} columns")
    is_nan = isinstance(replaced, float) and np.isnan(replaced)
    is_missing = write.pointwise("not_equal" if is_nan else "equal", x, x if is_nan else replaced)
    return write.pointwise("where", is_missing, values, x)


def array_feature_extractor(write: Writer, call: Call) -> Value | Texts:
    """Select elements of the last axis by index."""
    x, places = call.value(write, 0), call.operand(1)
    if len(x.shape) == 1:
        x = arranging.reshaped(write, x, (1, *x.shape))
    if isinstance(places, np.ndarray):
        found = selection.taken(write, x, -1, places.reshape(-1))
    else:
        flat = arranging.reshaped(write, call.value(write, 1), (call.value(write, 1).type.size,))
        found = selection.looked_up(write, x, -1, flat)
    return Texts(found) if 0 in call.texts else found


def feature_vectorizer(write: Writer, call: Call) -> Value:
    """Join the columns of all operands, as floats."""
    parts = [write.floats(rows_of(write, x)) for x in call.values(write)]
    sizes = call.attribute("inputdimensions") or [part.shape[1] for part in parts]
    if list(sizes) != [part.shape[1] for part in parts]:
        found = [part.shape[1] for part in parts]
        raise Unmapped(f"its inputdimensions are {list(sizes)}, and its operands have {found}")
    return arranging.joined(write, parts, 1)


def _place_of(write: Writer, x: Value, keys: Array, missing: int) -> Value:
    """The index of the key that equals each element of x; `missing` where none does.

    NaN equals NaN.
    """
    _check_keys(keys)
    if len(keys) > _MOST_KEYS:
        raise Unmapped(f"has {len(keys):,} numbers to compare with, more than {_MOST_KEYS:,}")
    column = arranging.reshaped(write, x, (*x.shape, 1))
    f = write.formula("places")
    is_there = f("equal", column, write.constant(keys, "keys"))
    marks = np.array(np.arange(len(keys)) - missing, np.int64)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        of_nan = write.constant(np.isnan(keys), "of NaN")
        is_nan = f("logical_and", f("not_equal", column, column), of_nan)
        is_there = f("logical_or", is_there, is_nan)
    zero = write.number(0, Element.INT64)
    total = f("row_sum", f("where", is_there, write.constant(marks, "places"), zero))
    found = f.finish(total, shape=(*x.shape, len(keys)))
    return write.pointwise("add", arranging.reshaped(write, found, x.shape), missing)


def _check_keys(keys: Array) -> None:
    """Raise Unmapped for equal keys, of which runtimes take the first or the last."""
    kept, counts = np.unique(keys, return_counts=True)
    if (counts > 1).any():
        raise Unmapped(f"has the key {kept[counts > 1][0]} twice")


def _of_text(write: Writer, call: Call, x: Value, keys: Array, values: Array, other: Any) -> Value:
    """Replace strings, by a table of all strings, with the values of their keys, or `other`."""
    assert call.words is not None
    count = len(call.words.numbers)
    table = np.full(count + 1, other, values.dtype)
    _check_keys(keys)
    table[keys] = values
    known = write.pointwise("minimum", x, write.number(count, Element.INT64))
    return selection.looked_up(write, write.constant(table, "values"), 0, known)


def _mapped(
    write: Writer, call: Call, keys: Any, values: Any, other: Any, is_text: tuple[bool, bool]
) -> Value | Texts:
    """Replace each element with the value of the key that equals it, or with `other`.

    `is_text` tells whether keys are strings, and whether values are.
    """
    if len(keys) != len(values) or not len(keys):
        raise Unmapped(f"has {len(keys)} keys and {len(values)} values")
    if is_text[0] != (0 in call.texts):
        raise Unmapped("has keys of another type than its operand")
    x = call.value(write, 0)
    table = call.numbers_of(values) if is_text[1] else np.asarray(values)
    default = call.numbers_of([other])[0] if is_text[1] else other
    if is_text[0]:
        found = _of_text(write, call, x, call.numbers_of(keys), table, default)
    else:
        places = _place_of(write, x, np.asarray(keys), len(keys))
        both = np.append(table, np.asarray([default], table.dtype))
        found = selection.looked_up(write, write.constant(both, "values"), 0, places)
    return Texts(found) if is_text[1] else found


_TYPES = ("string", "int64", "float")
# The value for other keys, by type, where the file has none.
_DEFAULTS = {"string": UNUSED, "int64": -1, "float": -0.0}


def label_encoder(write: Writer, call: Call) -> Value | Texts:
    """Replace each element with the value of the key that equals it, or with a default."""
    if classes := call.attribute("classes_strings"):
        return _old_label_encoder(write, call, classes)
    keys, key_type = _side(call, "keys")
    values, value_type = _side(call, "values")
    other = call.attribute("default_tensor")
    if isinstance(other, np.ndarray) and other.size:
        other = other.reshape(-1)[0]
    else:
        other = call.attribute(f"default_{value_type}", _DEFAULTS[value_type])
    if value_type == "float" and not isinstance(other, bytes):
        values = np.asarray(values, np.float32)
    return _mapped(write, call, keys, values, other, (key_type == "string", value_type == "string"))


def _side(call: Call, side: str) -> tuple[Any, str]:
    """Return keys or values, and their type. Raises Unmapped for float64 keys."""
    for kind in _TYPES:
        if call.attribute(f"{side}_{kind}s"):
            given = call.attribute(f"{side}_{kind}s")
            return (np.asarray(given, np.float32) if kind == "float" else given), kind
    tensor = call.attribute(f"{side}_tensor")
    if not isinstance(tensor, np.ndarray):
        raise Unmapped(f"has no {side}")
    flat = tensor.reshape(-1)
    if flat.dtype == np.float64 and side == "keys":
        raise Unmapped("compares float64, which graphs round to float32; give float32 keys")
    kinds = {"f": "float", "i": "int64", "u": "int64", "b": "int64"}
    return flat, kinds.get(flat.dtype.kind, "string")


def _old_label_encoder(write: Writer, call: Call, classes: Any) -> Value | Texts:
    """Replace strings with their indices in `classes`, or indices with strings."""
    places = list(range(len(classes)))
    if 0 in call.texts:
        other = call.attribute("default_int64", -1)
        return _mapped(write, call, classes, places, other, (True, False))
    other = call.attribute("default_string", UNUSED)
    return _mapped(write, call, places, classes, other, (False, True))


def category_mapper(write: Writer, call: Call) -> Value | Texts:
    """Replace strings with whole numbers, or whole numbers with strings."""
    texts, numbers = call.attribute("cats_strings", ()), call.attribute("cats_int64s", ())
    if 0 in call.texts:
        other = call.attribute("default_int64", -1)
        return _mapped(write, call, texts, numbers, other, (True, False))
    other = call.attribute("default_string", UNUSED)
    return _mapped(write, call, numbers, texts, other, (False, True))


def one_hot_encoder(write: Writer, call: Call) -> Value:
    """Write 1 at the index of each element's category, else 0, along a new last axis.

    Without `zeros`, an element of no category makes an index out of range, which a call refuses.
    """
    x = call.value(write, 0)
    texts, numbers = call.attribute("cats_strings", ()), call.attribute("cats_int64s", ())
    count = len(texts) or len(numbers)
    if bool(texts) != (0 in call.texts) or not count:
        raise Unmapped("has categories of another type than its operand")
    if len(x.shape) > 2:
        raise Unmapped(f"reads {len(x.shape)} axes")
    missing = count if call.flag("zeros", True) else -1
    if texts:
        places = _of_text(write, call, x, call.numbers_of(texts), np.arange(count), missing)
    else:
        whole = write.converted(x, np.dtype(np.int64))
        places = _place_of(write, whole, np.array(numbers, np.int64), missing)
    if missing == count:
        column = arranging.reshaped(write, places, (*x.shape, 1))
        return write.floats(write.pointwise("equal", column, np.arange(count)))
    table = write.constant(np.eye(count, dtype=np.float32), "categories")
    return selection.looked_up(write, table, 0, places)


def zip_map(write: Writer, call: Call) -> Zipped:
    """Return rows that a call turns into dicts from class labels to numbers at its end.

    Raises Unmapped in a part of a model, which returns tensors alone.
    """
    if call.words is None:
        raise Unmapped("makes dicts")
    x = rows_of(write, call.value(write, 0))
    keys = call.attribute("classlabels_strings") or call.attribute("classlabels_int64s") or ()
    if len(set(keys)) != x.shape[1]:
        raise Unmapped(f"has {len(set(keys))} labels for {x.shape[1]} columns")
    return Zipped(write.floats(x))


OPERATORS: Mapping[str, Callable[[Writer, Call], Any]] = {
    f"{ML_DOMAIN}.ArrayFeatureExtractor": array_feature_extractor,
    f"{ML_DOMAIN}.Binarizer": binarizer,
    f"{ML_DOMAIN}.CategoryMapper": category_mapper,
    f"{ML_DOMAIN}.FeatureVectorizer": feature_vectorizer,
    f"{ML_DOMAIN}.Imputer": imputer,
    f"{ML_DOMAIN}.LabelEncoder": label_encoder,
    f"{ML_DOMAIN}.Normalizer": normalizer,
    f"{ML_DOMAIN}.OneHotEncoder": one_hot_encoder,
    f"{ML_DOMAIN}.Scaler": scaler,
    f"{ML_DOMAIN}.ZipMap": zip_map,
}
