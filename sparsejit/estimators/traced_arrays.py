"""Arrays of rows that record numpy's functions of them as operators of a graph.

    FunctionTrace         the graph, and how numpy's functions are written into it
    TracedArray           (rows, columns), or one column (rows,); numpy calls its `__array_ufunc__`
                          and `__array_function__` in place of its own code

Numbers have numpy's dtypes: float32, float64, bool, and int64 as float64 in the graph. A function
that asks for numbers, or for the count of rows, raises `Untraced`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsejit.estimators.numpy_functions import UFUNCS, is_whole_power, power
from sparsejit.estimators.piece_writer import PieceWriter
from sparsejit.frontends.writing.arranging import expanded, joined, sliced
from sparsejit.frontends.writing.writer import Operand
from sparsejit.ir.ops.columns import ScaledColumns
from sparsejit.ir.ops.pointwise import Cast
from sparsejit.ir.values import Element, Value

Dtype = np.dtype[Any]
_SHORT, _LONG, _WHOLE, _TRUTH = (
    np.dtype(name) for name in ("float32", "float64", "int64", "bool")
)
_ELEMENTS: dict[Dtype, Element] = {
    _SHORT: Element.FLOAT32,
    _LONG: Element.FLOAT64,
    _WHOLE: Element.FLOAT64,
    _TRUTH: Element.BOOL,
}
# Functions of truth values by their names among numbers.
_OF_TRUTHS = {
    **dict.fromkeys(("add", "maximum", "bitwise_or", "logical_or", "fmax"), "logical_or"),
    **dict.fromkeys(("multiply", "minimum", "bitwise_and", "logical_and", "fmin"), "logical_and"),
    **dict.fromkeys(("bitwise_xor", "logical_xor", "not_equal"), "not_equal"),
    **dict.fromkeys(("invert", "logical_not"), "logical_not"),
}
# Functions of whole numbers that float64 computes alike.
_OF_WHOLES = frozenset(
    "add subtract multiply negative absolute square maximum minimum fmax fmin sign".split()
)


class Untraced(Exception):
    """The reason why a function has no graph: a predicate that follows the function's name."""


class RowCount:
    """The number of rows, which no graph knows."""

    def refuse(self, *given: Any) -> Any:
        raise Untraced("asks for the number of rows; results may depend on their own row alone")

    __index__ = __int__ = __eq__ = __add__ = __sub__ = __mul__ = __lt__ = __gt__ = refuse
    __radd__ = __rmul__ = __rsub__ = __truediv__ = __rtruediv__ = __float__ = __bool__ = refuse
    __hash__ = object.__hash__


class FunctionTrace:
    """The writer of a graph of `rows` rows; `jumps`: a result jumps where numbers hardly differ."""

    def __init__(self, writer: PieceWriter, rows: int) -> None:
        self.writer, self.rows, self.jumps = writer, rows, False

    def array(
        self, value: Value, dtype: Dtype, axes: int = 2, is_exact: bool = True
    ) -> TracedArray:
        return TracedArray(self, value, dtype, axes, is_exact)

    def stored(self, x: Any, dtype: Dtype) -> Value:
        """A value for x, traced or known, in a dtype."""
        element, writer = _ELEMENTS[dtype], self.writer
        if not isinstance(x, TracedArray):
            known = np.asarray(x)
            if known.dtype.kind not in "biuf" or (known.ndim > 1 and len(known) != 1):
                raise Untraced(f"reads an array of dtype {known.dtype} and shape {known.shape}")
            cast = known.astype(dtype)
            if cast.size == 1:
                return writer.number(cast.item(), element)
            array = np.atleast_2d(cast).astype(element.value)
            return writer.constant(array, "known", element)
        given = x.value.type.element
        if given is element:
            return x.value
        if element is Element.BOOL:
            return self.formula(given, "not_equal", x.value, 0.0)
        if given is Element.BOOL:
            return self.formula(element, "where", x.value, 1.0, 0.0)
        if element is Element.FLOAT32:
            return writer.one(Cast(element), x.value)
        count = x.value.shape[1]
        numbers = np.tile([[0.0], [1.0], [0.0], [-np.inf], [np.inf], [0.0]], count)
        operands = (
            writer.constant(np.arange(count), "columns"),
            writer.constant(numbers, "numbers", Element.FLOAT64),
        )
        return writer.one(ScaledColumns(given, element), x.value, *operands)

    def formula(self, element: Element, kind: str, *operands: Operand) -> Value:
        f = self.writer.formula(kind, _floats(element))
        return f.finish(f(kind, *operands))

    def ufunc(self, name: str, inputs: Sequence[Any], dtype: Dtype) -> TracedArray:
        """A function of numpy whose result has this dtype."""
        axes, is_exact = _axes_of(inputs), all(x.is_exact for x in inputs if _is_traced(x))
        of_truths = all(np.asarray(_sample(x)).dtype == _TRUTH for x in inputs)
        if name in _OF_TRUTHS and (of_truths or name.startswith("logical")):
            truths = [self.stored(x, _TRUTH) for x in inputs]
            return self._made(name, _truths(self, name, truths), _TRUTH, axes, is_exact)
        if name == "power":
            return self._power(*inputs)
        if name == "positive":
            return self.array(self.stored(inputs[0], dtype), dtype, axes, is_exact)
        row = UFUNCS.get(name)
        if row is None or (dtype == _WHOLE and name not in _OF_WHOLES):
            raise Untraced(f"calls numpy's {name}{' of whole numbers' * (row is not None)}")
        computed = dtype
        if dtype == _TRUTH:
            computed = np.result_type(*map(_dtype_or_number, inputs))
            computed = _WHOLE if computed == _TRUTH else computed
        if row.jumps:
            self.jump(name, is_exact or (dtype == _TRUTH and not _is_near(inputs)))
        if name in ("floor_divide", "remainder"):
            values: list[Any] = [self.stored(inputs[0], computed), _whole_divisor(name, inputs)]
        else:
            values = [self.stored(x, computed) for x in inputs]
        f = self.writer.at(name).formula(name, _floats(_ELEMENTS[computed]))
        value = f.finish(row.write(f, _ELEMENTS[computed] is Element.FLOAT64, *values))
        fused = name == "add" and dtype == _SHORT and any(_is_product(x) for x in inputs)
        found = self._made(name, value, dtype, axes, row.is_exact and is_exact and not fused)
        found.is_product = name in ("multiply", "square")
        return found

    def _made(
        self, name: str, value: Value, dtype: Dtype, axes: int, is_exact: bool
    ) -> TracedArray:
        if not value.shape or value.shape[0] != self.rows:
            raise Untraced(f"gives numpy's {name} numbers of no row")
        return self.array(value, dtype, axes, is_exact or dtype == _TRUTH)

    def jump(self, name: str, is_exact: bool) -> None:
        """Note a function that jumps. Raises Untraced where the last bit of operands may differ."""
        self.jumps = True
        if not is_exact:
            raise Untraced(
                f"calls numpy's {name}, which jumps, of results whose last bit depends on the "
                "library"
            )

    def _power(self, base: Any, exponent: Any) -> TracedArray:
        """A power of which one side is a number that is known."""
        if _is_traced(base) and not _is_traced(exponent) and np.ndim(exponent) == 0:
            return self._known_power(base, float(exponent))
        if _is_traced(exponent) and np.ndim(base) == 0 and float(base) > 0:
            exp: Any = np.exp
            return exp(exponent * np.log(float(base)))
        raise Untraced("raises numbers to powers that it computes")

    def _known_power(self, base: TracedArray, exponent: float) -> TracedArray:
        plain: dict[float, Any] = {1.0: np.positive, 2.0: np.square}
        plain |= {0.5: np.sqrt, -1.0: np.reciprocal}
        if exponent in plain and (base.dtype.kind == "f" or exponent in (1.0, 2.0)):
            return plain[exponent](base)
        is_whole = is_whole_power(exponent)
        dtype = base.dtype if base.dtype == _SHORT or (is_whole and exponent >= 0) else _LONG
        dtype = _WHOLE if dtype == _TRUTH else dtype
        x = self.stored(base, dtype)
        f = self.writer.at("power").formula("power", _floats(_ELEMENTS[dtype]))
        value = f.finish(power(f, x, exponent), shape=x.shape)
        return self._made("power", value, dtype, base.ndim, dtype == _WHOLE and base.is_exact)


def _floats(element: Element) -> Element:
    return Element.FLOAT32 if element is Element.BOOL else element


def _is_traced(x: Any) -> bool:
    return isinstance(x, TracedArray)


def _is_product(x: Any) -> bool:
    return isinstance(x, TracedArray) and x.is_product


def _is_near(inputs: Sequence[Any]) -> bool:
    """Whether compared numbers may be about equal: all but a root or size compared with 0."""
    traced = [x for x in inputs if isinstance(x, TracedArray)]
    others = [x for x in inputs if not _is_traced(x)]
    is_sized = len(traced) == 1 and traced[0].is_size
    return not (is_sized and all(np.ndim(x) == 0 and x == 0 for x in others))


def _whole_divisor(name: str, inputs: Sequence[Any]) -> float:
    x, y = inputs
    if not _is_traced(x) or _is_traced(y) or np.ndim(y) != 0:
        raise Untraced(f"calls numpy's {name} by a number that it computes")
    number = float(y)
    if number == 0 or number != int(number):
        raise Untraced(f"calls numpy's {name} by {number:g}; by whole numbers it is exact")
    return number


def _truths(trace: FunctionTrace, name: str, values: list[Value]) -> Value:
    kind = _OF_TRUTHS[name]
    if kind != "not_equal":
        return trace.formula(Element.FLOAT32, kind, *values)
    one, other = values
    f = trace.writer.formula(name)
    neither = f("logical_not", f("logical_and", one, other))
    return f.finish(f("logical_and", f("logical_or", one, other), neither))


def _sample(x: Any) -> Any:
    """One number of the dtype of x; a number of Python as it is."""
    if isinstance(x, RowCount):
        x.refuse()
    if isinstance(x, bool | int | float | np.generic):
        return x
    return np.ones(1, x.dtype if _is_traced(x) else np.asarray(x).dtype)


def _dtype_or_number(x: Any) -> Any:
    """The operand of `np.result_type`: a number of Python, which takes any dtype, or a dtype."""
    return x if isinstance(x, bool | int | float) else np.asarray(_sample(x)).dtype


def _axes_of(inputs: Sequence[Any]) -> int:
    """The axes of a result. Raises Untraced where numpy would combine a column with rows."""
    axes = {x.ndim for x in inputs if isinstance(x, TracedArray)}
    known = max((np.ndim(x) for x in inputs if not _is_traced(x) and np.size(x) > 1), default=0)
    if len(axes) > 1 or (axes == {1} and known):
        raise Untraced("combines a column (rows,) with rows (rows, columns); take X[:, [0]]")
    return axes.pop()


def result_dtype(function: Callable[..., Any], inputs: Sequence[Any]) -> Dtype:
    """The dtype that numpy gives. Raises Untraced for dtypes that graphs do not have."""
    with np.errstate(all="ignore"):
        made = function(*map(_sample, inputs))
    if isinstance(made, tuple) or made.dtype not in _ELEMENTS:
        raise Untraced(f"computes {made!r} by numpy's {function.__name__}")
    return np.dtype(made.dtype)


def common(*arrays: Any) -> Dtype:
    """The dtype in which arrays and numbers are put together."""
    found = np.dtype(np.result_type(*map(_dtype_or_number, arrays)))
    if found not in _ELEMENTS:
        raise Untraced(f"puts numbers of {found} together")
    return found


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers of rows: `value` is (rows, columns), also of a column with one axis.

    `is_exact`: they have all bits of numpy's; `is_product`: a sum of float32 may take it without
    rounding; `is_size`: no number is negative; `is_owned`: it may be changed in place. A column of
    it that is changed does not change the whole, unless it is put back.
    """

    __array_priority__ = 1000

    def __init__(
        self, trace: FunctionTrace, value: Value, dtype: Dtype, axes: int, is_exact: bool
    ) -> None:
        self.trace, self.value, self.dtype, self.ndim = trace, value, dtype, axes
        self.is_exact, self.is_product, self.is_size, self.is_owned = is_exact, False, False, True

    @property
    def shape(self) -> tuple[Any, ...]:
        return (RowCount(), self.value.shape[1])[: self.ndim]

    @property
    def columns(self) -> int:
        return self.value.shape[1]

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if method == "reduce" and ufunc.__name__ in _REDUCED:
            return FUNCTIONS[_REDUCED[ufunc.__name__]](*inputs, **options)
        odd = {name for name, given in options.items() if given not in (True, "same_kind", "K")}
        if method != "__call__" or odd - {"axis"}:
            raise Untraced(f"calls numpy's {ufunc.__name__}.{method} with {sorted(odd)}")
        if ufunc.__name__ == "clip":
            return FUNCTIONS["clip"](*inputs)
        if ufunc.__name__ in ("matmul", "vecdot"):
            return FUNCTIONS["matmul"](*inputs)
        if any(hasattr(x, "iloc") for x in inputs):
            return NotImplemented
        found = self.trace.ufunc(ufunc.__name__, inputs, result_dtype(ufunc, inputs))
        found.is_size = ufunc.__name__ in ("absolute", "sqrt", "square", "fabs")
        if out is None:
            return found
        (target,) = out
        target.become(found)
        return target

    def become(self, other: TracedArray) -> None:
        """Change in place. Raises Untraced unless this is a copy of the function's own."""
        if not self.is_owned or other.dtype != self.dtype or other.ndim != self.ndim:
            raise Untraced("changes X in place; let it change a copy, X.copy()")
        self.value, self.is_exact = other.value, other.is_exact
        self.is_product = self.is_size = False

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        write = FUNCTIONS.get(function.__name__)
        if write is None:
            raise Untraced(f"calls numpy's {function.__name__}")
        return write(*args, **kwargs)

    def __array__(self, *given: Any, **options: Any) -> Any:
        raise Untraced("asks for the numbers of X, as np.asarray and np.c_ do")

    def __bool__(self) -> bool:
        raise Untraced("decides by the values of X; use np.where")

    def __len__(self) -> int:
        raise Untraced("asks for the number of rows; results may depend on their own row alone")

    def __iter__(self) -> Any:
        raise Untraced("walks through the rows of X")

    __float__ = __int__ = __index__ = __bool__

    def __getattr__(self, name: str) -> Any:
        """A method of arrays that is a function of numpy too."""
        if name not in _METHODS:
            raise AttributeError(name)
        write = FUNCTIONS[_METHODS[name]]
        return lambda *args, **kwargs: write(self, *args, **kwargs)

    @property
    def values(self) -> TracedArray:
        return self

    def take_columns(self, places: Sequence[int], axes: int = 2) -> TracedArray:
        """Columns by number, as a view."""
        writer = self.trace.writer.at("columns")
        runs: list[list[int]] = []
        for place in places:
            if runs and place == runs[-1][1]:
                runs[-1][1] += 1
            else:
                runs.append([place, place + 1])
        if not runs:
            raise Untraced("takes no column")
        value = joined(writer, [sliced(writer, self.value, 1, *run) for run in runs], 1)
        found = self.trace.array(value, self.dtype, axes, self.is_exact)
        found.is_product, found.is_size = self.is_product, self.is_size
        found.is_owned = self.is_owned
        return found

    def _places(self, key: Any) -> tuple[list[int], int]:
        """The numbers of the columns that a key chooses, and the axes of the result."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(_is_traced(each) for each in keys):
            raise Untraced("chooses rows by their values; use np.where")
        added = sum(each is None for each in keys)
        rest = [each for each in keys if each is not None]
        rows = rest[0] if rest else slice(None)
        if rows is Ellipsis and self.ndim == 2 and len(rest) == 1:
            rest = [slice(None)]
        elif rows is Ellipsis:
            rows = slice(None)
        if not (rows is Ellipsis or (isinstance(rows, slice) and rows == slice(None))):
            raise Untraced(f"chooses rows, by [{key}]; name columns, as in X[:, {key}]")
        last = rest[1] if len(rest) > 1 else slice(None)
        if len(rest) > self.ndim or added + self.ndim - isinstance(last, int | np.integer) > 2:
            raise Untraced(f"takes [{key}] of an array of {self.ndim} axes")
        every = np.arange(self.columns)
        chosen = every[last]
        axes = added + (1 if np.ndim(chosen) == 0 else self.ndim)
        return np.atleast_1d(chosen).tolist(), axes

    def __getitem__(self, key: Any) -> TracedArray:
        places, axes = self._places(key)
        return self.take_columns(places, axes)

    def __setitem__(self, key: Any, given: Any) -> None:
        if _is_traced(key):
            if key.dtype != _TRUTH or key.ndim != self.ndim or np.ndim(given) != 0:
                raise Untraced("changes chosen numbers in place; use np.where")
            self.become(FUNCTIONS["where"](key, np.asarray(given, self.dtype), self))
            return
        places, axes = self._places(key)
        if _is_traced(given) and (given.ndim != axes or given.columns not in (1, len(places))):
            raise Untraced(f"puts {given.columns} columns into {len(places)}")
        value = expanded(
            self.trace.writer,
            self.trace.stored(given, self.dtype),
            (self.trace.rows, len(places)),
        )
        own = self.trace.array(value, self.dtype)
        parts = [
            own.take_columns([places.index(n)]) if n in places else self.take_columns([n])
            for n in range(self.columns)
        ]
        is_exact = self.is_exact and (not _is_traced(given) or given.is_exact)
        whole = joined(self.trace.writer, [part.value for part in parts], 1)
        self.become(self.trace.array(whole, self.dtype, self.ndim, is_exact))


# Functions of arrays by numpy's names, which `array_functions` registers.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
# Methods of arrays by the names of functions.
_METHODS = {
    **{
        name: name
        for name in (
            *("all", "any", "astype", "clip", "copy", "cumsum", "dot", "max", "mean", "min"),
            *("prod", "ravel", "reshape", "round", "squeeze", "std", "sum", "take", "var"),
        )
    },
    **{name: name for name in ("abs", "fillna", "isna", "isnull", "to_numpy")},
    "flatten": "ravel",
}
_REDUCED = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod"}
