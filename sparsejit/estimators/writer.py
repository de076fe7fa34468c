"""Writes the graph of an estimator from X on."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_steps import SELECTORS, ColumnScales, each_step, parts_of
from sparsejit.estimators.exact_scaling import (
    COMPARING,
    FILL,
    FITTED,
    TAKE,
    UNKNOWN,
    ScalingOperation,
    has_scaler,
    scaling_operations,
)
from sparsejit.estimators.lifting import NumberColumn
from sparsejit.estimators.parts import DECOMPOSITIONS, Link, Mapped, Stack, is_mixing, linear_map
from sparsejit.estimators.piece_writer import PieceWriter
from sparsejit.estimators.traced_functions import (
    Guard,
    is_function,
    mark_of,
    write_function,
)
from sparsejit.estimators.transformers import WRITTEN, is_written
from sparsejit.frontends.writing.arranging import joined, reshaped
from sparsejit.frontends.writing.writer import Formula, FormulaStep, Operand
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.columns import DoubleProduct, JoinedColumns, ScaledColumns
from sparsejit.ir.ops.pointwise import Cast
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array, Element, TensorType, Value

MOST_DOUBLES = 1 << 20  # most weights of a product in float64
_DOUBLE = np.dtype(np.float64)
_LARGE = 2.0**20  # float32 rounds products with weights of this size by a tenth
_FEW_SCORES = 8  # scores for which a product in float64 takes no longer than scaling the columns


class EstimatorWriter(PieceWriter):
    """Writes the methods of an estimator as graphs of X (batch, features).

    A sparse X is (batch, 2 features): first with zeros for elements that it leaves out, then with
    NaN.
    """

    def __init__(
        self,
        x: TensorType,
        is_sparse: bool = False,
        numbers: Sequence[NumberColumn] = (),
        guards: Mapping[int, Guard] = MappingProxyType({}),
    ) -> None:
        """`numbers` are columns of codes behind X; `guards` by the ids of functions."""
        super().__init__()
        self._guards, self._guarded = guards, list[tuple[Value, Guard]]()
        self._written: dict[Write, Value] = {}
        self._notes: list[str] = []
        self.batch, self.features = x.shape
        shape = (self.batch, 2 * self.features) if is_sparse else x.shape
        self._given = self.input(TensorType(shape, x.element), "X")
        if numbers:
            codes = self.at("codes").codes(self._given, numbers)
            self._given = joined(self, [self._given, codes], 1)
            self.features += len(numbers)
        self.begin(())

    @property
    def takes_singles(self) -> bool:
        """Whether X is float32."""
        return self._given.type.element is Element.FLOAT32

    def begin(self, steps: Sequence[Any], is_whole: bool = False) -> None:
        """Apply steps to X, and make the result the current columns, which methods read.

        `is_whole` keeps both halves of a sparse X.
        """
        x = self._given
        dtype = np.dtype(x.type.element.value)
        self._read(x, dtype)
        if x.shape[1] > self.features and not is_whole:
            self._columns = ColumnScales.of(self.features, dtype)
            self._read(self.columns(x.type.element), dtype)
        waiting = deque(steps)
        while waiting:
            step = waiting.popleft()
            selects = bool(waiting) and type(waiting[0]).__name__ in SELECTORS
            if selects and type(step).__name__ in DECOMPOSITIONS:
                self._decompose(step, waiting.popleft())
            else:
                self.transform(step)

    def finish(self, *outputs: Operand) -> Graph:
        """The graph, whose notes tell the parts of steps that were left out."""
        return replace(super().finish(*outputs), notes=tuple(dict.fromkeys(self._notes)))

    def guarded(self, result: Value) -> Value:
        """A method's result, with refused rows marked by NaN, infinity, or -1 for a place.

        A row is refused where a function gives numbers that a later step refuses.
        """
        if not self._guarded:
            return result
        if result.type.element is Element.BOOL:
            raise InvalidInput(
                "a FunctionTransformer stands before a model of several labels that refuses NaN "
                "and infinity, which it may give; fit a model of one label"
            )
        shape = (self.batch,) + (1,) * (len(result.shape) - 1)
        is_whole = result.type.element is Element.INT64
        mark = -1 if is_whole else mark_of(guard for _, guard in self._guarded)
        for value, guard in self._guarded:
            f = self.at("guard").formula("guard", Element.FLOAT64)
            odd = f("not_equal", value, value)
            if guard.no_infinity:
                is_far = f("equal", f("abs", value), float("inf"))
                odd = f("logical_or", odd, is_far) if guard.no_nan else is_far
            marks = f("row_max", f("where", odd, 1.0, 0.0))
            refused = f.finish(f("greater", marks, 0.5), shape=value.shape)
            result = self.pointwise("where", reshaped(self, refused, shape), mark, result)
        return result

    def _read(self, x: Value, dtype: np.dtype[Any] = _DOUBLE) -> None:
        """Make the columns of x the current columns; the library has x in this dtype."""
        self.x, self._columns = x, ColumnScales.of(x.shape[1], dtype)
        self._beside: tuple[Value, ColumnScales] | None = None
        # The columns before the first scaler, and all operations from it on.
        self._unscaled, self._scaling = self._columns, list[ScalingOperation]()

    def transform(self, step: Any) -> None:
        """Apply a step to the current columns."""
        kind = type(step).__name__
        inner = each_step([step]) if kind == "ColumnTransformer" else []
        if any(is_written(each) or is_mixing(each) for each in inner):
            self._in_parts(step)
            return
        if is_function(step):
            self._apply(step)
            return
        if is_written(step):
            dtype = self._columns.dtype
            exact = COMPARING.get(kind) == FITTED
            x = self._exact_columns(kind) if exact else self.columns(Element.FLOAT64)
            self._read(WRITTEN[kind](self.at(kind), x, step, dtype))
            return
        if not is_mixing(step):
            if self._scaling or has_scaler(step):
                self._scaling += scaling_operations(step, self._columns.dtype)
                self._columns = self._columns.behind(step)
            else:
                self._columns = self._unscaled = self._columns.behind(step)
            return
        if isinstance(step, Stack):
            if isinstance(step, Link):
                self._link(step)
            else:
                self._stack(step)
            return
        if isinstance(step, Mapped):
            self._read(step.write(self))
            return
        self._decompose(step)

    def _exact_columns(self, kind: str) -> Value:
        """The current columns in float64, to the last bit as the library scales them.

        Raises InvalidInput for steps that are not known to this bit, behind which a step of this
        kind compares.
        """
        if not self._scaling or self._beside is not None:
            return self.columns(Element.FLOAT64)
        dtype, self._columns = self._columns.dtype, self._unscaled
        made = self.columns(Element.FLOAT64)
        for function, numbers in self._scaling:
            if function == UNKNOWN:
                raise InvalidInput(
                    f"the {kind} compares the results of scalers and a {numbers[0]} to the last "
                    f"bit; put it before these, or leave it out"
                )
            made = self._scaled(made, function, numbers, dtype)
        return made

    def _scaled(
        self, x: Value, function: str, numbers: Array, dtype: np.dtype[Any]
    ) -> Value:
        """x (batch, columns) behind an operation in that dtype, as float64."""
        if function == TAKE:
            return self._widened(x, numbers)
        f = self.at("scaled").formula("scaled", Element.FLOAT64)
        row = np.asarray(numbers, np.float64)[None]
        operand = self.constant(row, "scaled.numbers", Element.FLOAT64)
        if function == FILL:
            made = f.finish(f("where", f("not_equal", x, x), operand, x), shape=x.shape)
        else:
            made = f.finish(f(function, x, operand), shape=x.shape)
        if dtype == _DOUBLE:
            return made
        return self._widened(self.one(Cast(Element.FLOAT32), made), np.arange(x.shape[1]))

    def _widened(self, x: Value, places: Array) -> Value:
        """Some columns of x, in float64."""
        columns = ColumnScales.of(x.shape[1], _DOUBLE).take(places)
        return self._made_of(x, columns, Element.FLOAT64)

    def _made_of(self, x: Value, columns: ColumnScales, element: Element) -> Value:
        """Columns of x, scaled, as one value (batch, columns)."""
        constants = (
            self.constant(columns.source, "columns"),
            self.constant(columns.operand, "columns.numbers", Element.FLOAT64),
        )
        return self.one(ScaledColumns(x.type.element, element), x, *constants)

    def _apply(self, step: Any) -> None:
        """Apply a FunctionTransformer in the library's dtype, and note the results it must give."""
        short = self._columns.dtype == np.dtype(np.float32)
        x = self.columns(Element.FLOAT32 if short else Element.FLOAT64)
        found, dtype = write_function(self.at("function"), x, step)
        self._read(found, dtype)
        if (guard := self._guards.get(id(step))) is not None:
            self._guarded.append((found, guard))

    def _decompose(self, step: Any, selector: Any = None) -> None:
        """Make a decomposition's components current, of which a selector behind it takes some."""
        weights, bias = linear_map(step)
        if selector is not None:
            kept = selector.get_support(indices=True)
            self._notes.append(
                f"components: {len(kept)} of the {len(bias)} of the {type(step).__name__} are "
                f"computed, which the {type(selector).__name__} takes"
            )
            weights, bias = weights[kept], bias[kept]
        is_vast = weights.size > MOST_DOUBLES
        write = self.scores if is_vast else self.product
        self._read(write(weights, bias, "components"))

    def _in_parts(self, transformer: Any) -> None:
        """Apply the parts of a ColumnTransformer one after another, each in float64."""
        x, columns, made = self.x, self._columns, []
        unscaled, scaling = self._unscaled, self._scaling
        for part in parts_of(transformer, len(columns.source)):
            self.x, self._columns = x, columns.take(part.columns)
            self._unscaled = unscaled if scaling else self._columns
            self._scaling = [*scaling, (TAKE, part.columns)] if scaling else []
            for step in part.steps:
                self.transform(step)
            made.append(self.columns(Element.FLOAT64))
        self._read(joined(self.at("columns"), made, 1))

    def _stack(self, stack: Stack) -> None:
        """Make a stack's predictions the current columns, with X beside them if it is passed on."""
        predicted = joined(self, [write(self) for write in stack.writes], 1)
        self.begin(stack.before)
        x, columns = self.x, self._columns
        self._read(predicted)
        if stack.passes_x:
            self._beside = (x, columns)

    def _link(self, link: Stack) -> None:
        """Make columns of X, and behind them a chain's predictions, the current columns."""
        predicted = [write(self) for write in link.writes]
        self.begin(link.before)
        x = self.x
        if not self._columns.changes_nothing(x.shape[1]) or not predicted:
            x = self.columns(Element.FLOAT64)
        if predicted:
            beside = joined(self, predicted, 1)
            x = self.at("chain").one(JoinedColumns(x.type.element), x, beside)
        self._read(x)

    def once(self, write: "Write") -> Value:
        """The value that `write` writes, which is written at its first use."""
        if write not in self._written:
            self._written[write] = write(self)
        return self._written[write]

    def columns(self, element: Element = Element.FLOAT32) -> Value:
        """Write the current columns as one value (batch, columns)."""
        if self._beside is not None:
            predicted = self._leave_predictions()
            self._read(joined(self, [predicted, self.columns()], 1))
        columns, x = self._columns, self.x
        if columns.changes_nothing(x.shape[1]) and x.type.element is element:
            return x
        if not len(columns.source):
            raise InvalidInput("the steps before the last give no columns; keep at least one")
        return self.at("columns")._made_of(x, columns, element)

    def _leave_predictions(self) -> Value:
        """Return the predictions, and make the columns of X beside them current."""
        assert self._beside is not None
        predicted = self.x
        self.x, self._columns = self._beside
        self._beside = None
        return predicted

    def scores(self, weights: Array, bias: Array, name: str) -> Value:
        """Multiply the current columns by weights (scores, columns) and add the bias.

        The product is in float64 if x is, if columns are scaled and the scores are few, so that it
        takes no longer, if many columns are of categories, whose sums are looked up, or if weights
        are so large that only sums that cancel make sense; but never for more than MOST_DOUBLES
        weights.
        """
        if self._beside is not None:
            return self._scores_of_both(weights, bias, name)
        used = self._used(weights, name)
        if used is not None:
            return self._reading(used, lambda: self.scores(weights[:, used], bias, name))
        x, columns = self.x, self._columns
        is_double = x.type.element is Element.FLOAT64
        is_scaled = columns.is_affine and not columns.changes_nothing(x.shape[1])
        is_short = is_scaled and len(weights) <= _FEW_SCORES
        cancels = max(np.abs(weights).max(initial=0.0), np.abs(bias).max(initial=0.0)) > _LARGE
        looks_up = columns.has_many_categories and len(weights) <= _FEW_SCORES
        if weights.size > MOST_DOUBLES or not (is_double or is_short or cancels or looks_up):
            return self.linear(self.columns(), weights, bias, name)
        return self.product(weights, bias, name, Element.FLOAT32)

    def _used(self, weights: Array, name: str) -> Array | None:
        """The columns with a weight, where others would be computed for nothing; else None."""
        used = np.flatnonzero(weights.any(axis=0))
        every = weights.shape[1]
        if self._columns.is_affine or not len(used) or len(used) == every:
            return None
        self._notes.append(
            f"{name}: {every - len(used)} of {every} columns are not computed; their weights are 0"
        )
        return used

    def _reading(self, used: Array, write: Callable[[], Value]) -> Value:
        """Write a value while only these columns are current."""
        every = self._columns
        self._columns = every.take(used)
        found = write()
        self._columns = every
        return found

    def _scores_of_both(self, weights: Array, bias: Array, name: str) -> Value:
        """Scores of predictions and of X as two products, since X may be far from zero."""
        predicted = self._leave_predictions()
        count = predicted.shape[1]
        own = self.scores(weights[:, count:], bias, f"{name}.x")
        self._read(predicted)
        found = self.scores(weights[:, :count], np.zeros(len(bias)), name)
        return self.at(name).pointwise("add", found, own)

    def product(
        self, weights: Array, bias: Array, name: str, result: Element = Element.FLOAT64
    ) -> Value:
        """Multiply the current columns by weights in float64, and add the bias."""
        if self._beside is not None:
            self.columns()
        used = self._used(weights, name)
        if used is not None:
            return self._reading(used, lambda: self.product(weights[:, used], bias, name, result))
        x, columns = self.x, self._columns
        if columns.has_many_categories and len(weights) <= _FEW_SCORES:
            weights = self._look_up(weights, name)
            x, columns = self.x, self._columns
        if columns.is_affine and columns.reads_all(x.shape[1]):
            weights, bias = columns.folded(weights, bias, x.shape[1])
        else:
            x = self.columns(Element.FLOAT64)
        return self.product_of(x, weights, bias, name, result)

    def product_of(
        self,
        x: Value,
        weights: Array,
        bias: Array,
        name: str,
        result: Element = Element.FLOAT64,
    ) -> Value:
        """x weights^T + bias in float64."""
        operands = [
            self.constant(array, f"{name}.{what}", Element.FLOAT64)
            for what, array in (("weights", weights), ("bias", bias))
        ]
        return self.at(name).one(DoubleProduct(x.type.element, result), x, *operands)

    def plain_columns(self) -> Value:
        """The current columns: X itself if they are X, else float64."""
        if self._beside is not None:
            self.columns()
        is_plain = self._columns.changes_nothing(self.x.shape[1])
        return self.x if is_plain else self.columns(Element.FLOAT64)

    def _look_up(self, weights: Array, name: str) -> Array:
        """Make sums of category columns current, with the other columns; return their weights."""
        x, columns, count = self.x, self._columns, len(weights)
        lookups = columns.lookups(weights)
        sums = self.at(f"{name}.sums").pieces(
            x,
            np.repeat([each.feature for each in lookups], count).tolist(),
            [each.bounds for each in lookups for _ in range(count)],
            [each.values[:, [number]] for each in lookups for number in range(count)],
            np.concatenate([each.missing for each in lookups]).tolist(),
        )
        others = np.flatnonzero(~columns.is_category)
        parts, matrices = [sums], [np.eye(count)] * len(lookups)
        if len(others):
            self._columns = columns.take(others)
            parts.append(self.columns(Element.FLOAT64))
            matrices.append(weights[:, others])
        self._read(joined(self.at(name), parts, 1))
        return np.concatenate(matrices, axis=1)

    def linear(
        self,
        x: Value,
        weights: Array,
        bias: Array,
        name: str,
        activation: Activation = Activation.NONE,
    ) -> Value:
        """activation(x weights^T + bias); a bias of zeros is left out."""
        self.at(name)
        operands = [self.constant(weights, f"{name}.weights")]
        if np.any(bias):
            operands.append(self.constant(bias, f"{name}.bias"))
        return self.one(Linear(activation), x, *operands)


def row_shares(f: Formula, p: Operand, columns: int) -> FormulaStep:
    """p divided by the sum of its row; a row of zeros becomes uniform."""
    total = f("row_sum", p)
    is_zero = f("equal", total, 0.0)
    shares = f("where", is_zero, 1.0, p)
    return f("div", shares, f("where", is_zero, float(columns), total))


# Writes the result of one method.
Write: TypeAlias = Callable[[EstimatorWriter], Value]
# The name under which scores that calibrators read are written in float64, (batch, scores).
WIDE = "scores in float64"
