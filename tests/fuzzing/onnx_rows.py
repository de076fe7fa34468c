"""Random ONNX graphs over all rows of the operator table, of any opset.

case = make(seed)        nodes with odd attributes, shapes and dtypes, two to five after another
check(case)              "equal" to ONNX Runtime, or to the onnx package where that is not
                         installed, or "refused" by one of our errors
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzzing import onnx_rows_of_bytes as of_bytes
from fuzzing import onnx_rows_of_elements as of_elements
from fuzzing import onnx_rows_of_layers as of_layers
from fuzzing import onnx_rows_of_ml as of_ml
from fuzzing import onnx_rows_of_others as of_others
from fuzzing import onnx_rows_of_shapes as of_shapes
from fuzzing import onnx_rows_of_signals as of_signals
from fuzzing.onnx_growing import NEWEST, OLDEST, OnnxGrowing
from runnable import LEVELS

import sparsejit
from sparsejit.errors import SparseJitError
from sparsejit.frontends.onnx.interpreting import MISFIT
from sparsejit.ir.values import Array

ROWS = of_elements.ROWS | of_shapes.ROWS | of_layers.ROWS | of_bytes.ROWS | of_others.ROWS
ROWS |= of_signals.ROWS | of_ml.ROWS
# Rows of NaN and infinities, too. A weight of 0, which products leave out, times one is undefined.
_OF_NAN = {
    name: make
    for name, make in (of_elements.ROWS | of_shapes.ROWS).items()
    if name not in of_elements.NOT_OF_NAN
}
# The cost that rounding may have: of the largest number on the way, and of the cost of noise.
_ROUNDING, _HALF_ROUNDING, _MARGIN = 2e-5, 2e-3, 20.0
# Noise up, down, and either way: what is cut off at a step lies on both sides of it.
_NOISE = ((1,), (-1,), (-1, 1), (-1, 1))


@dataclass(frozen=True)
class OnnxRowsCase:
    """Nodes, the values that the model returns, and how it is compiled."""

    seed: int
    grown: OnnxGrowing
    outputs: list[str]
    is_free: bool
    options: dict[str, Any]

    @property
    def title(self) -> str:
        grown = self.grown
        arrays = {**grown.inputs, **grown.known}
        lines = [f"opset {grown.opset}; {self.options}; free {self.is_free}"]
        for name, array in arrays.items():
            few = array.tolist() if array.size < 9 and name in grown.known else ""
            lines.append(f"{name} = {array.dtype}{list(array.shape)} {few}")
        for node in grown.nodes:
            proto, made = node.proto, [grown.values[name] for name in node.proto.output]
            given = {each.name: _value(each) for each in proto.attribute}
            kinds = ", ".join(f"{each.dtype}{list(each.shape)}" for each in made)
            names, operands = ", ".join(proto.output), ", ".join(proto.input)
            lines.append(f"{names} = {proto.op_type}({operands}, {given}): {kinds}")
        return "\n".join([*lines, f"return {self.outputs}"])


def _value(attribute: Any) -> Any:
    from onnx.helper import get_attribute_value

    return get_attribute_value(attribute)


def make(seed: int) -> OnnxRowsCase:
    """The case of a seed."""
    draw = random.Random(seed)
    opset = draw.choice((draw.randint(OLDEST, NEWEST), draw.randint(13, NEWEST)))
    grown = OnnxGrowing(draw, np.random.default_rng(seed), opset)
    grown.is_special = draw.random() < 0.08
    table = _OF_NAN if grown.is_special else ROWS
    rows = [name for name in sorted(table) if grown.has(name)]
    wanted = draw.randint(2, 5)
    for _ in range(30):
        ROWS[draw.choice(rows)](grown)
        if len(grown.nodes) >= wanted:
            break
    made = [name for node in grown.nodes for name in node.proto.output]
    read = {name for node in grown.nodes for name in node.proto.input}
    ends = [name for name in made if name not in read]
    more = draw.sample(made, min(len(made), draw.randint(0, 1)))
    used = {name: array for name, array in grown.inputs.items() if name in read}
    grown.inputs.clear()
    grown.inputs.update(used)
    batches = {array.shape[:1] for array in used.values()}
    is_free = draw.random() < 0.3 and len(batches) == 1 and batches > {()}
    options = {"target": draw.choice(LEVELS)}
    return OnnxRowsCase(seed, grown, list(dict.fromkeys([*ends, *more])), is_free, options)


def check(case: OnnxRowsCase) -> str:
    """The outcome. Raises AssertionError for a wrong result, and whatever else comes."""
    grown = case.grown
    model = grown.model(case.outputs, case.is_free)
    inputs = {name: _as_called(array) for name, array in grown.inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = sparsejit.compile(
                model, tuple(inputs.values()), free_batch=case.is_free, **case.options
            )
        except SparseJitError as refused:
            if MISFIT in str(refused):  # what the onnx package has computed
                raise
            return f"refused: {type(refused).__name__}"
        _compare(case, grown.inputs, compiled(*inputs.values()))
        if compiled.batch_is_free:
            first = {name: array[:1] for name, array in grown.inputs.items()}
            if _runs(grown, first):
                _compare(case, first, compiled(*(_as_called(array) for array in first.values())))
    return "equal"


def _as_called(array: Array) -> Array:
    """Calls take all floats as float32."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _runs(grown: OnnxGrowing, inputs: dict[str, Array]) -> bool:
    try:
        grown.again(inputs)
    except Exception:  # of whatever type the evaluator raises
        return False
    return True


def _compare(case: OnnxRowsCase, inputs: dict[str, Array], found: Any) -> None:
    """Raises AssertionError where results differ by more than rounding on the way may."""
    results = found if isinstance(found, tuple) else (found,)
    wanted = case.grown.again(inputs)
    halves = any(array.dtype == np.float16 for array in wanted.values())
    rounding = _HALF_ROUNDING if halves else _ROUNDING
    noisy = [case.grown.again(inputs, signs) for signs in _NOISE]
    for name, got in zip(case.outputs, results, strict=True):
        like = wanted[name]
        if any(each[name].shape != like.shape for each in noisy):  # noise decides its size
            continue
        assert got.shape == like.shape, f"{name} has shape {got.shape}, not {like.shape}"
        assert got.dtype.kind == like.dtype.kind, f"{name} is {got.dtype}, not {like.dtype}"
        is_float = like.dtype.kind == "f"
        error = rounding * case.grown.largest if is_float else case.grown.steps_apart(name)
        _assert_near(name, got, like, [each[name] for each in noisy], error)


def _assert_near(
    name: str, got: Array, like: Array, noisy: Sequence[Array], rounding: float
) -> None:
    with np.errstate(all="ignore"):
        one, other = np.asarray(got, np.float64), np.asarray(like, np.float64)
        spreads = [np.abs(np.asarray(each, np.float64) - other) for each in noisy]
        spread = np.nan_to_num(np.max(spreads, axis=0), nan=np.inf)
        if like.dtype.kind == "f":
            usual = np.median(spread[np.isfinite(spread)]) if np.isfinite(spread).any() else 0.0
            bound = rounding + _MARGIN * (spread + usual)
        else:
            bound = 2 * spread + rounding
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        wrong = ~(same | (np.abs(one - other) <= bound))
    text = f"{got[wrong][:4]} instead of {like[wrong][:4]}, bound {np.max(bound, initial=0):.3g}"
    assert not wrong.any(), f"{name}: {text}, {wrong.sum()} of {like.size}"
