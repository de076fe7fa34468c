"""numpy's functions of whole arrays, for arrays that record them: choices, sums over rows, joins.

Each registers itself in `FUNCTIONS` under numpy's names. All give each row of the result from the
same row of X; what reads several rows, such as a mean over axis 0, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sparsejit.estimators.traced_arrays import (
    FUNCTIONS,
    FunctionTrace,
    RowCount,
    TracedArray,
    Untraced,
    common,
)
from sparsejit.frontends.writing.arranging import expanded, joined
from sparsejit.ir.ops.columns import DoubleProduct
from sparsejit.ir.values import Element, Value

_OF_TRACED: Any = np  # numpy, of arrays that record it
_Own = TypeVar("_Own", bound=Callable[..., Any])
_SHORT, _LONG, _WHOLE, _TRUTH = (
    np.dtype(name) for name in ("float32", "float64", "int64", "bool")
)
_FEW = 32  # columns that are summed one after another
_IN_ORDER = 8  # fewer columns than numpy sums by halves


def _named(*names: str) -> Callable[[_Own], _Own]:
    def register(function: _Own) -> _Own:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _trace_of(*arrays: Any) -> FunctionTrace:
    return next(x.trace for x in arrays if isinstance(x, TracedArray))


def _plain(options: dict[str, Any]) -> None:
    """Raise Untraced for options that are given."""
    odd = [name for name, given in options.items() if given not in (None, np._NoValue, True)]
    if odd:
        raise Untraced(f"gives numpy the options {', '.join(odd)}")


def _across(x: Any, axis: Any) -> TracedArray:
    """An array whose columns are reduced. Raises Untraced for sums over rows."""
    if not isinstance(x, TracedArray) or x.ndim != 2 or axis not in (1, -1):
        raise Untraced("reads several rows at once; give axis=1")
    return x


def _each(x: TracedArray) -> list[TracedArray]:
    """The columns, (rows,) each."""
    return [x.take_columns([number], 1) for number in range(x.columns)]


def _kept(x: TracedArray, keepdims: Any) -> TracedArray:
    x.ndim = 2 if keepdims is True else 1
    return x


@_named("where")
def _where(condition: Any, *choices: Any) -> TracedArray:
    if len(choices) != 2:
        raise Untraced("asks for the rows where something is so")
    trace = _trace_of(condition, *choices)
    dtype = common(*choices)
    values = [trace.stored(condition, _TRUTH), *(trace.stored(x, dtype) for x in choices)]
    inputs = [condition, *choices]
    axes = {x.ndim for x in inputs if isinstance(x, TracedArray)}
    wide = any(np.ndim(x) and np.size(x) > 1 for x in inputs if not isinstance(x, TracedArray))
    if len(axes) > 1 or (axes == {1} and wide):
        raise Untraced("combines a column (rows,) with rows (rows, columns); take X[:, [0]]")
    f = trace.writer.at("where").formula("where", values[1].type.element)
    value = (
        _chosen_truths(trace, *values) if dtype == _TRUTH else f.finish(f("where", *values))
    )
    is_exact = all(x.is_exact for x in inputs if isinstance(x, TracedArray))
    if not isinstance(condition, TracedArray):
        value = expanded(trace.writer, value, (trace.rows, value.shape[-1]))
    return trace.array(value, dtype, axes.pop(), is_exact)


def _chosen_truths(trace: FunctionTrace, condition: Value, one: Value, other: Value) -> Value:
    f = trace.writer.formula("where")
    first = f("logical_and", condition, one)
    return f.finish(f("logical_or", first, f("logical_and", f("logical_not", condition), other)))


@_named("select")
def _select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Any:
    made = default
    for condition, choice in reversed([*zip(conditions, choices, strict=True)]):
        made = _where(condition, choice, made)
    return made


@_named("clip")
def _clip(
    x: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **options: Any
) -> Any:
    low, high = options.pop("min", a_min), options.pop("max", a_max)
    _plain({**options, "out": out})
    for function, bound in ((_OF_TRACED.maximum, low), (_OF_TRACED.minimum, high)):
        x = x if bound is None or bound is np._NoValue else function(x, bound)
    return x


@_named("nan_to_num")
def _nan_to_num(
    x: TracedArray, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> TracedArray:
    if not copy or x.dtype.kind != "f":
        raise Untraced("changes X in place; let it change a copy, X.copy()")
    limits = np.finfo(x.dtype)
    high = float(limits.max) if posinf is None else float(posinf)
    low = float(limits.min) if neginf is None else float(neginf)
    found = _where(_OF_TRACED.isnan(x), nan, x)
    found = _where(_OF_TRACED.equal(x, np.inf), high, found)
    return _where(_OF_TRACED.equal(x, -np.inf), low, found)


@_named("round", "around")
def _round(x: TracedArray, decimals: int = 0, out: Any = None) -> Any:
    _plain({"out": out})
    if x.dtype == _WHOLE or not decimals:
        return x if x.dtype == _WHOLE else _OF_TRACED.rint(x)
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return _OF_TRACED.multiply(_OF_TRACED.rint(_OF_TRACED.divide(x, scale)), scale)
    return _OF_TRACED.divide(_OF_TRACED.rint(_OF_TRACED.multiply(x, scale)), scale)


@_named("fix")
def _fix(x: TracedArray, out: Any = None) -> Any:
    return _OF_TRACED.trunc(x)


@_named("astype")
def _astype(x: TracedArray, dtype: Any = float, copy: bool = True, **options: Any) -> TracedArray:
    wanted = np.dtype(dtype)
    if wanted not in (_SHORT, _LONG, _WHOLE, _TRUTH):
        raise Untraced(f"casts to {wanted}")
    if wanted == _TRUTH and x.dtype != _TRUTH:
        return _OF_TRACED.not_equal(x, 0)
    if wanted == _WHOLE and x.dtype.kind == "f":
        x = _OF_TRACED.trunc(x)
    found = x.trace.array(x.trace.stored(x, wanted), wanted, x.ndim, x.is_exact)
    found.is_size = x.is_size
    return found


@_named("copy")
def _copy(x: TracedArray, *given: Any, **options: Any) -> TracedArray:
    return x.trace.array(x.value, x.dtype, x.ndim, x.is_exact)


@_named("sum")
def _sum(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
         **options: Any) -> TracedArray:
    _plain({"dtype": dtype, "out": out, **options})
    x = _across(x, axis)
    x = _astype(x, _WHOLE) if x.dtype == _TRUTH else x
    if x.columns > _FEW:
        value = _reduced(x, "row_sum")
        return _kept(x.trace.array(value, x.dtype, 1, x.dtype == _WHOLE), keepdims)
    first, *others = _each(x)
    total: Any = first
    for other in others:
        total = _OF_TRACED.add(total, other)
    total = _copy(total)
    total.is_exact = x.is_exact and (total.is_exact or x.dtype == _WHOLE)
    total.is_exact &= x.dtype == _WHOLE or x.columns < _IN_ORDER
    total.is_size = x.is_size
    return _kept(total, keepdims)


def _reduced(x: TracedArray, kind: str) -> Value:
    f = x.trace.writer.at(kind).formula(kind, x.value.type.element)
    return f.finish(f("add", f(kind, x.value), 0.0), shape=(x.trace.rows, 1))


@_named("nansum")
def _nansum(x: Any, axis: Any = None, keepdims: Any = False, **options: Any) -> TracedArray:
    _plain(options)
    return _sum(_where(_OF_TRACED.isnan(_across(x, axis)), 0.0, x), axis, keepdims=keepdims)


@_named("mean")
def _mean(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
          **options: Any) -> TracedArray:
    _plain({"dtype": dtype, "out": out, **options})
    x = _across(x, axis)
    total = _sum(x if x.dtype.kind == "f" else _astype(x, _LONG), axis)
    return _kept(_OF_TRACED.divide(total, x.columns), keepdims)


@_named("nanmean")
def _nanmean(x: Any, axis: Any = None, keepdims: Any = False, **options: Any) -> TracedArray:
    _plain(options)
    counts = _sum(~_OF_TRACED.isnan(_across(x, axis)), axis)
    return _kept(_OF_TRACED.divide(_nansum(x, axis), _astype(counts, x.dtype)), keepdims)


@_named("var")
def _var(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0,
         keepdims: Any = False, **options: Any) -> TracedArray:
    _plain({"dtype": dtype, "out": out, **options})
    x = _across(x, axis)
    x = x if x.dtype.kind == "f" else _astype(x, _LONG)
    spread = _OF_TRACED.square(_OF_TRACED.subtract(x, _mean(x, axis, keepdims=True)))
    found = _OF_TRACED.divide(_sum(spread, axis), max(x.columns - ddof, 0))
    found.is_size = True
    return _kept(found, keepdims)


@_named("std")
def _std(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0,
         keepdims: Any = False, **options: Any) -> Any:
    return _OF_TRACED.sqrt(_var(x, axis, dtype, out, ddof, keepdims, **options))


def _folding(function: Any) -> Callable[..., TracedArray]:
    """A reduction by a function of two columns, one after another."""

    def reduce(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False,
               **options: Any) -> TracedArray:
        _plain({"out": out, **options})
        x = _across(x, axis)
        if x.columns > _FEW:
            raise Untraced(f"reduces {x.columns} columns by numpy's {function.__name__}")
        first, *others = _each(x)
        found: Any = first
        for other in others:
            found = function(found, other)
        return _kept(_copy(found), keepdims)

    return reduce


_largest, _least = _folding(_OF_TRACED.maximum), _folding(_OF_TRACED.minimum)
FUNCTIONS |= {
    **dict.fromkeys(("max", "amax"), _largest),
    **dict.fromkeys(("min", "amin"), _least),
    "nanmax": _folding(_OF_TRACED.fmax),
    "nanmin": _folding(_OF_TRACED.fmin),
    "all": _folding(_OF_TRACED.logical_and),
    "any": _folding(_OF_TRACED.logical_or),
    "prod": _folding(_OF_TRACED.multiply),
}


@_named("ptp")
def _ptp(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> TracedArray:
    return _kept(_OF_TRACED.subtract(_largest(x, axis), _least(x, axis)), keepdims)


@_named("norm")
def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
    kinds: dict[Any, Callable[[], Any]] = {
        1: lambda: _sum(_OF_TRACED.absolute(x), axis),
        2: lambda: _OF_TRACED.sqrt(_sum(_OF_TRACED.square(x), axis)),
        np.inf: lambda: _largest(_OF_TRACED.absolute(x), axis),
    }
    if ord not in (None, *kinds):
        raise Untraced(f"takes a norm of order {ord!r}")
    return _kept(kinds[2 if ord is None else ord](), keepdims)


@_named("diff")
def _diff(x: Any, n: int = 1, axis: Any = -1, **options: Any) -> Any:
    _plain(options)
    x = _across(x, axis)
    for _ in range(n):
        x = _OF_TRACED.subtract(x[:, 1:], x[:, :-1])
    return x


@_named("cumsum")
def _cumsum(x: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> TracedArray:
    _plain({"dtype": dtype, "out": out})
    totals: list[Any] = []
    for column in _each(_across(x, axis)):
        totals.append(_OF_TRACED.add(totals[-1], column) if totals else column)
    return _column_stack(totals)


@_named("column_stack")
def _column_stack(tup: Sequence[Any]) -> TracedArray:
    return _joined([_as_rows(x) for x in tup])


def _as_rows(x: Any) -> Any:
    if isinstance(x, TracedArray):
        found = _copy(x)
        found.ndim = 2
        return found
    raise Untraced("joins X with an array that has rows of its own")


def _joined(arrays: Sequence[Any]) -> TracedArray:
    if any(not isinstance(x, TracedArray) or x.ndim != 2 for x in arrays):
        raise Untraced("joins arrays that are not (rows, columns)")
    trace, dtype = _trace_of(*arrays), common(*arrays)
    value = joined(trace.writer.at("join"), [trace.stored(x, dtype) for x in arrays], 1)
    return trace.array(value, dtype, 2, all(x.is_exact for x in arrays))


@_named("concatenate", "concat", "append")
def _concatenate(arrays: Any, *more: Any, axis: Any = 0, **options: Any) -> TracedArray:
    """concatenate(arrays, axis) and append(one, other, axis)"""
    _plain(options)
    if isinstance(arrays, TracedArray):
        arrays, more = [arrays, more[0]], more[1:]
    if (more[0] if more else axis) not in (1, -1):
        raise Untraced("joins rows; give axis=1")
    return _joined(arrays)


@_named("hstack")
def _hstack(tup: Sequence[Any], **options: Any) -> TracedArray:
    _plain(options)
    return _joined(tup)


@_named("stack")
def _stack(arrays: Sequence[Any], axis: int = 0, **options: Any) -> TracedArray:
    _plain(options)
    if axis not in (1, -1) or any(np.ndim(x) != 1 for x in arrays):
        raise Untraced("stacks rows; give columns (rows,) and axis=1")
    return _column_stack(arrays)


@_named("reshape")
def _reshape(x: TracedArray, *shape: Any, **options: Any) -> TracedArray:
    _plain(options)
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    first, *rest = sizes
    is_row = isinstance(first, RowCount) or (isinstance(first, int) and first == -1)
    if not (is_row and rest in ([], [x.columns], *([[-1]] if isinstance(first, RowCount) else []))):
        raise Untraced(f"reshapes rows of {x.columns} columns to {len(sizes)} axes")
    if not rest and x.columns > 1:
        raise Untraced("puts all numbers of all rows along one axis")
    found = _copy(x)
    found.ndim = 1 + len(rest)
    return found


@_named("ravel", "squeeze")
def _ravel(x: TracedArray, *given: Any, **options: Any) -> TracedArray:
    if x.columns > 1:
        raise Untraced("puts all numbers of all rows along one axis")
    return _kept(_copy(x), False)


@_named("atleast_2d", "expand_dims")
def _expand(x: TracedArray, axis: Any = None) -> TracedArray:
    if x.ndim == 1 and axis not in (1, -1):
        raise Untraced("turns a column into a row")
    if x.ndim == 2 and axis is not None:
        raise Untraced("adds a third axis")
    return _kept(_copy(x), True)


@_named("take")
def _take(x: TracedArray, indices: Any, axis: Any = None, **options: Any) -> TracedArray:
    _plain(options)
    return _across(x, axis)[:, indices]


@_named("delete")
def _delete(x: TracedArray, obj: Any, axis: Any = None) -> TracedArray:
    return _across(x, axis).take_columns(np.delete(np.arange(x.columns), obj).tolist())


@_named("fliplr", "flip")
def _flip(x: TracedArray, axis: Any = 1) -> TracedArray:
    return _across(x, axis).take_columns(range(x.columns)[::-1])


@_named("full_like")
def _full_like(x: TracedArray, fill_value: Any, dtype: Any = None, **options: Any) -> TracedArray:
    wanted = x.dtype if dtype is None else np.dtype(dtype)
    value = x.trace.stored(np.full((1, x.columns), fill_value), wanted)
    whole = expanded(x.trace.writer, value, (x.trace.rows, x.columns))
    return x.trace.array(whole, wanted, x.ndim)


@_named("zeros_like")
def _zeros_like(x: TracedArray, dtype: Any = None, **options: Any) -> TracedArray:
    return _full_like(x, 0, dtype)


@_named("ones_like")
def _ones_like(x: TracedArray, dtype: Any = None, **options: Any) -> TracedArray:
    return _full_like(x, 1, dtype)


@_named("matmul", "dot")
def _matmul(x: Any, weights: Any, out: Any = None) -> TracedArray:
    _plain({"out": out})
    if not isinstance(x, TracedArray) or x.ndim != 2 or isinstance(weights, TracedArray):
        raise Untraced("multiplies matrices other than X by one that is known")
    known = np.asarray(weights)
    dtype = common(x, known)
    if dtype.kind != "f" or known.ndim not in (1, 2) or len(known) != x.columns:
        raise Untraced(f"multiplies X by an array of {known.dtype} and shape {known.shape}")
    columns = known.astype(np.float64).reshape(len(known), -1).T
    writer, value = x.trace.writer.at("product"), x.trace.stored(x, dtype)
    element = value.type.element
    operands = [
        writer.constant(array, name, Element.FLOAT64)
        for array, name in ((columns, "weights"), (np.zeros(len(columns)), "bias"))
    ]
    made = writer.one(DoubleProduct(element, element), value, *operands)
    return x.trace.array(made, dtype, known.ndim, False)


@_named("fillna")
def _fillna(x: TracedArray, value: float) -> TracedArray:
    return _where(_OF_TRACED.isnan(x), value, x)


FUNCTIONS |= {
    "abs": _OF_TRACED.absolute,
    **dict.fromkeys(("isna", "isnull"), _OF_TRACED.isnan),
    "to_numpy": _copy,
    "ndim": lambda a: a.ndim,
    "shape": lambda a: a.shape,
}


@_named("isin")
def _isin(x: TracedArray, test_elements: Any, **options: Any) -> Any:
    _plain(options)
    known = np.asarray(test_elements)
    if isinstance(x, TracedArray) and known.dtype.kind in "biuf" and 0 < known.size <= _FEW:
        found: Any = _OF_TRACED.equal(x, known.flat[0])
        for number in known.ravel()[1:]:
            found = _OF_TRACED.logical_or(found, _OF_TRACED.equal(x, number))
        return found
    raise Untraced(f"looks numbers up in {known.size} of {known.dtype}")


@_named("digitize")
def _digitize(x: TracedArray, bins: Any, right: bool = False) -> TracedArray:
    return _search(bins, x, "left" if right else "right")


@_named("searchsorted")
def _search(a: Any, v: Any, side: str = "left", sorter: Any = None) -> TracedArray:
    """The number of bounds below each number: a step at each bound."""
    if not isinstance(v, TracedArray) or isinstance(a, TracedArray) or sorter is not None:
        raise Untraced("searches in numbers of X")
    bounds = np.asarray(a)
    if bounds.dtype.kind not in "iuf" or bounds.ndim != 1 or np.any(np.diff(bounds) < 0):
        raise Untraced("searches in bounds that do not rise")
    v.trace.jump("searchsorted", v.is_exact)
    dtype = common(v, bounds)
    own = bounds.astype(dtype).astype(np.float64)
    known = np.unique(own)
    places = np.searchsorted(own, known, "right").astype(np.float64)
    ends = known if side == "left" else np.nextafter(known, -np.inf)
    pieces = np.concatenate([[0.0], places])[:, None]
    count, x = v.columns, v.trace.stored(v, dtype)
    value = v.trace.writer.at("bins").pieces(
        x, range(count), [ends] * count, [pieces] * count, [float(len(bounds))] * count
    )
    return v.trace.array(value, _WHOLE, v.ndim)
