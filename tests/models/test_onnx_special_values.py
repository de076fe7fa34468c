"""Functions of elements and reductions of ONNX at NaN, infinities and zeros, as ONNX Runtime."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from runnable import LEVELS
from test_onnx_runtime_operators import by_onnx_runtime, model_of

import sparsejit
from sparsejit.frontends.onnx.operators import elementwise, reductions

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAN, INFINITE = float("nan"), float("inf")
NUMBERS = [NAN, INFINITE, -INFINITE, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, 1.5]
NUMBERS += [1e30, -1e30, 88.8, -104.0, 1e-10, 20.0]
X = np.array(NUMBERS, np.float32)
ONE, OTHER = (each.reshape(-1) for each in np.meshgrid(X, X))
# Rows with no NaN, one at either end or between, and several; no sum depends on its order.
ROWS = np.array(
    [
        [NAN, 1, 2, 3, 2], [1, NAN, 3, 2, 3], [3, 1, 2, 3, NAN], [NAN] * 5, [1, NAN, NAN, 0, 1],
        [INFINITE, 1, NAN, 2, -INFINITE], [-INFINITE, NAN, -INFINITE, NAN, -INFINITE],
        [INFINITE, 2, 1, INFINITE, 0], [-INFINITE, 1, -INFINITE, 2, 0], [-INFINITE] * 5,
        [INFINITE, -INFINITE, 1, 2, 3], [0, -0.0, 0, -0.0, 0], [1, 5, 5, -7, -7],
    ],
    np.float32,
)  # fmt: skip
WITHOUT_NAN = ROWS[~np.isnan(ROWS).any(axis=1)]
AXIS = np.array([1])


@dataclass(frozen=True)
class Case:
    """Operands, of which that many come with a call, the first ones, and attributes."""

    operands: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    called: int = 1


_TRUTHS = ONE > 0, OTHER > 0
_WHOLE = tuple(each.astype(np.int32) for each in np.meshgrid([-3, 0, 2, 7], [-3, 1, 2, 7]))
_BYTES = tuple(each.astype(np.uint8) for each in np.meshgrid([0, 1, 2, 200], [0, 1, 3, 7]))
_BITS = {key: [Case(_WHOLE, called=2)] for key in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")}
_LOGIC = {key: [Case(_TRUTHS, called=2)] for key in ("And", "Or", "Xor")}
_TWO = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu")
_TWO += ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
# Results of rows with one axis less; `keepdims` and several axes are in other tests.
_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Prod", "Sum", "SumSquare")
_PLACES = [Case((ROWS,), {"axis": axis, "select_last_index": n}) for axis in (0, 1) for n in (0, 1)]

CASES: dict[str, list[Case]] = {
    **{key: [Case((ONE, OTHER), called=2)] for key in _TWO},
    **{f"Reduce{name}": [Case((ROWS, AXIS))] for name in _REDUCED},
    **_BITS,
    **_LOGIC,
    "ArgMax": _PLACES,
    "ArgMin": _PLACES,
    "BitShift": [Case(_BYTES, {"direction": side}, 2) for side in ("LEFT", "RIGHT")],
    "BitwiseNot": [Case(_WHOLE[:1])],
    "Cast": [Case((X[3:12],), {"to": 6}), Case((X,), {"to": 9})],
    "CastLike": [Case((X, np.array([True])))],
    "Clip": [Case((X, np.float32(low), np.float32(high))) for low, high in ((-1, 2), (2, -1))],
    "CumSum": [Case((ROWS, np.array(axis))) for axis in (0, 1)],
    "Mod": [
        Case((ONE[np.abs(ONE) < 1e9], OTHER[np.abs(ONE) < 1e9]), {"fmod": 1}, 2),
        Case(_WHOLE, {}, 2),
        Case(_WHOLE, {"fmod": 1}, 2),
    ],
    "Not": [Case(_TRUTHS[:1])],
    "Pow": [Case((X, np.float32(n))) for n in (0, 1, 2, 3, -1, 0.5, -0.5, 2.5)],
    # ONNX Runtime gives NaN for NaN or passes it over, by its place and the length of its row:
    # ours is NaN, as in the reference of the onnx package.
    "ReduceMax": [Case((WITHOUT_NAN, AXIS))],
    "ReduceMin": [Case((WITHOUT_NAN, AXIS))],
    "TopK": [Case((WITHOUT_NAN, np.array([2])))],
    "Where": [Case((ONE > 0, ONE, OTHER), called=3)],
}
# At huge numbers these are bounded only, as docs/notes/models.md says.
_PERIODIC = ("Cos", "Sin", "Tan")


def cases_of(operator: str) -> list[Case]:
    """The rows of the table, else one of all numbers."""
    numbers = X[np.abs(X) < 1e9] if operator in _PERIODIC else X
    return CASES.get(operator, [Case((np.append(numbers, NAN).astype(np.float32),))])


@pytest.mark.parametrize("operator", sorted(elementwise.OPERATORS | reductions.OPERATORS))
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_at_special_values(operator: str, level: Any) -> None:
    for case in cases_of(operator):
        operands, attributes, called = case.operands, case.attributes, case.called
        given = [np.asarray(each) for each in operands[:called]]
        model = model_of(operator, [np.asarray(x) for x in operands], called, 20, **attributes)
        if operator == "TopK":
            model.graph.node[0].output.append("places")
        model.graph.output[0].type.tensor_type.elem_type = _kind(operator, operands, attributes)
        (wanted,) = by_onnx_runtime(model, given)
        found = sparsejit.compile(model, tuple(given), free_batch=False, target=level)(*given)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6, err_msg=str(attributes))


def _kind(operator: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> int:
    """The dtype of the result, as ONNX numbers it."""
    from onnx.helper import np_dtype_to_tensor_dtype

    if "to" in attributes:
        return int(attributes["to"])
    if operator in ("ArgMax", "ArgMin"):
        return int(np_dtype_to_tensor_dtype(np.dtype(np.int64)))
    truths = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN")
    if operator in (*truths, "CastLike"):
        return int(np_dtype_to_tensor_dtype(np.dtype(bool)))
    like = operands[1] if operator == "Where" else operands[0]
    return int(np_dtype_to_tensor_dtype(np.asarray(like).dtype))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extremes_of_rows_with_nan_are_nan(operator: str) -> None:
    model = model_of(operator, [ROWS, AXIS], 1, 20)
    found = sparsejit.compile(model, free_batch=False)(ROWS)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(ROWS).any(axis=1, keepdims=True))
