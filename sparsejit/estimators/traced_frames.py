"""A DataFrame of pandas that records a function's operations on its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsejit.estimators.traced_arrays import FUNCTIONS, FunctionTrace, TracedArray, Untraced


class TracedFrame(np.lib.mixins.NDArrayOperatorsMixin):
    """Columns (rows,) by name. A function of numpy is applied to each of them."""

    __array_priority__ = 1001

    def __init__(self, trace: FunctionTrace, columns: Mapping[Any, TracedArray]) -> None:
        self.trace, self._columns, self._is_owned = trace, dict(columns), True

    @property
    def columns(self) -> list[Any]:
        return [*self._columns]

    def _each(self, function: Callable[[TracedArray], Any]) -> TracedFrame:
        return TracedFrame(self.trace, {n: function(x) for n, x in self._columns.items()})

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if method != "__call__" or out is not None:
            raise Untraced(f"calls numpy's {ufunc.__name__}.{method} of a frame, or in place")
        made = {}
        for place, name in enumerate(self._columns):
            own = [_column_of(x, name, place, self) for x in inputs]
            made[name] = ufunc(*own, **options)
        return TracedFrame(self.trace, made)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        raise Untraced(f"calls numpy's {function.__name__} of a frame; give it X.to_numpy()")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return TracedFrame(self.trace, {name: self._columns[name] for name in key})
        if isinstance(key, TracedArray | TracedFrame | slice):
            raise Untraced("chooses rows of a frame; use np.where")
        return self._columns[key]

    def __setitem__(self, key: Any, given: Any) -> None:
        if not self._is_owned:
            raise Untraced("changes X in place; let it change a copy, X.copy()")
        first = next(iter(self._columns.values()))
        if not isinstance(given, TracedArray):
            given = FUNCTIONS["full_like"](first, given, np.asarray(given).dtype)
        if given.ndim != 1:
            raise Untraced(f"puts {given.columns} columns into one of a frame")
        self._columns[key] = given

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("_columns", {})
        if name in columns:
            return columns[name]
        raise AttributeError(name)

    def __bool__(self) -> bool:
        raise Untraced("decides by the values of X; use np.where")

    def __len__(self) -> int:
        raise Untraced("asks for the number of rows; results may depend on their own row alone")

    def __array__(self, *given: Any, **options: Any) -> Any:
        raise Untraced("asks for the numbers of X, as np.asarray does; use X.to_numpy()")

    @property
    def values(self) -> TracedArray:
        return self.to_numpy()

    def to_numpy(self) -> TracedArray:
        """The columns side by side, (rows, columns)."""
        found: TracedArray = FUNCTIONS["column_stack"]([*self._columns.values()])
        return found

    def copy(self, deep: bool = True) -> TracedFrame:
        return TracedFrame(self.trace, self._columns)

    def astype(self, dtype: Any) -> TracedFrame:
        return self._each(lambda x: FUNCTIONS["astype"](x, dtype))

    def abs(self) -> TracedFrame:
        return self._each(np.absolute)

    def clip(self, lower: Any = None, upper: Any = None) -> TracedFrame:
        return self._each(lambda x: FUNCTIONS["clip"](x, lower, upper))

    def fillna(self, value: float) -> TracedFrame:
        return self._each(lambda x: FUNCTIONS["where"](np.isnan(x), value, x))

    def isna(self) -> TracedFrame:
        return self._each(np.isnan)

    def assign(self, **columns: Any) -> TracedFrame:
        made = self.copy()
        for name, given in columns.items():
            made[name] = given(made) if callable(given) else given
        return made

    def drop(self, columns: Any) -> TracedFrame:
        left_out = columns if isinstance(columns, list) else [columns]
        kept = {n: x for n, x in self._columns.items() if n not in left_out}
        return TracedFrame(self.trace, kept)


def _column_of(x: Any, name: Any, place: int, frame: TracedFrame) -> Any:
    """The operand of one column."""
    if isinstance(x, TracedFrame):
        if x.columns != frame.columns:
            raise Untraced("combines frames of other columns")
        return x[name]
    if isinstance(x, TracedArray):
        raise Untraced("combines a frame with a column, which pandas matches with its columns")
    known = np.asarray(x)
    if known.ndim > 1 or (known.ndim == 1 and len(known) != len(frame.columns)):
        raise Untraced(f"combines a frame with an array of shape {known.shape}")
    return known[place] if known.ndim else x
