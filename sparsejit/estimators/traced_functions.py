"""Functions of a FunctionTransformer, recorded as graphs, and compared with themselves.

    lambda X: np.log1p(X[:, [0]])    is called with an array that records what numpy is asked
    lambda df: df[["a"]] / 2         with a frame that does

Each is then called with random numbers, and must give what its graph gives: as an array and as a
frame, of float32, float64 and int64. Forms of X that give anything else are refused when they
come; a function that differs in the form of its fit is refused altogether.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators import array_functions as _registered  # noqa: F401  (by numpy's names)
from sparsejit.estimators.piece_writer import PieceWriter
from sparsejit.estimators.traced_arrays import FunctionTrace, TracedArray, Untraced
from sparsejit.estimators.traced_frames import TracedFrame
from sparsejit.frontends.writing.missing import Unmapped
from sparsejit.ir.values import Array, Element, TensorType, Value

_CLOSE = {"float64": 1e-9, "int64": 1e-9, "float32": 1e-4}  # of the largest of a block
_LARGE = 1e3  # beyond, float32 rounds angles and exponents so that functions of them differ
_BLOCK = 12  # rows of random numbers of one kind


@dataclass(frozen=True, eq=False)
class TracedFunction:
    """A function: the number of its columns, and the forms of X for which its graph is right.

    A form is "array float64", "frame int64" and so on. `jumps`: it gives other numbers where X
    hardly differs; `is_exact`: they have all bits of numpy's; `is_flat`: it returns (rows,);
    `takes_frame`: it is recorded with a frame.
    """

    outputs: int
    jumps: bool
    is_exact: bool
    is_flat: bool
    takes_frame: bool
    forms: frozenset[str]


class Guard(NamedTuple):
    """Results of a function that a later step refuses."""

    no_nan: bool = False
    no_infinity: bool = False


def mark_of(guards: Iterable[Guard]) -> float:
    """The result that marks rows that are refused."""
    return float("nan") if any(guard.no_nan for guard in guards) else float("inf")


def is_function(step: Any) -> bool:
    """Whether a step is a FunctionTransformer with a function."""
    return type(step).__name__ == "FunctionTransformer" and step.func is not None


def read_function(step: Any) -> TracedFunction:
    """Record a function. Raises InvalidInput where it has no graph, or its graph differs."""
    reasons: list[Exception] = []
    for takes_frame in _frame_trials(step):
        try:
            forms, made, jumps = _compared(step, takes_frame)
        except (InvalidInput, Untraced, Unmapped) as error:
            reasons.append(error)
            continue
        except Exception as error:  # whatever a function of the user raises
            reasons.append(Untraced(f"raises {error!r} for an array that records it"))
            continue
        own = "frame" if _is_framed(step) else "array"
        if f"{own} float64" in forms:
            own_kind = jumps, made.is_exact, made.ndim == 1
            return TracedFunction(made.columns, *own_kind, takes_frame, forms)
        reasons.append(Untraced("gives other numbers for random X than what it was recorded by"))
    raise InvalidInput(
        f"the FunctionTransformer's function {_name(step)} {reasons[0]}; use numpy's elementwise "
        "functions, and columns by number or name"
    )


def write_function(writer: PieceWriter, x: Value, step: Any) -> tuple[Value, np.dtype[Any]]:
    """The function's results for x (batch, features), as float64, and the library's dtype of them.

    x has the element of X.
    """
    found = _recorded(FunctionTrace(writer, x.shape[0]), x, step, read_function(step).takes_frame)
    short = np.dtype(np.float32)
    return found.value, short if found.dtype == short else np.dtype(np.float64)


def _name(step: Any) -> str:
    return str(getattr(step.func, "__name__", step.func))


def _is_framed(step: Any) -> bool:
    """Whether the function reads a frame in its fit."""
    return hasattr(step, "feature_names_in_") and not step.validate


def _frame_trials(step: Any) -> list[bool]:
    """Whether to record with a frame, in the order of trials."""
    return [True, False] if _is_framed(step) else [False, True]


def _called(step: Any, x: Any) -> Any:
    return step.func(x, **(step.kw_args or {}))


def _recorded(trace: FunctionTrace, x: Value, step: Any, takes_frame: bool) -> TracedArray:
    given = trace.array(x, np.dtype(x.type.element.value))
    given.is_owned = False
    features = x.shape[1]
    if takes_frame:
        names = enumerate(_names(step, features))
        columns = {name: given.take_columns([n], 1) for n, name in names}
        found = _called(step, TracedFrame(trace, columns))
    else:
        found = _called(step, given)
    if isinstance(found, TracedFrame):
        found = found.to_numpy()
    if not isinstance(found, TracedArray) or found.trace is not trace:
        raise Untraced(f"returns {type(found).__name__}, which is no array that depends on X")
    if found.value.shape[0] != trace.rows:
        raise Untraced("returns other rows than it gets")
    found.value = trace.stored(found, np.dtype(np.float64))
    return found


def _names(step: Any, features: int) -> list[Any]:
    return list(getattr(step, "feature_names_in_", [f"x{n}" for n in range(features)]))


def _compared(step: Any, takes_frame: bool) -> tuple[frozenset[str], TracedArray, bool]:
    """The forms for which the recorded graph is right, its result, and whether it jumps."""
    features, forms = int(step.n_features_in_), set()
    made: dict[str, TracedArray] = {}
    jumps = False
    for dtype, blocks in _probes(features).items():
        x = np.concatenate(blocks)
        kind = "float32" if dtype == "float32" else "float64"
        writer = PieceWriter()
        value = writer.input(TensorType(x.shape, Element(kind)), "X")
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            trace = FunctionTrace(writer, len(x))
            result = _recorded(trace, value, step, takes_frame)
            (found,) = writer.finish(result.value).evaluate([x])
            for form in ("array", "frame"):
                if _agrees(step, form, x, found, result, _CLOSE[dtype]):
                    forms.add(f"{form} {dtype}")
        made[dtype], jumps = result, jumps or trace.jumps
    if step.validate:  # the library gives it the array of a frame
        forms = {form for form in forms if form.startswith("array")}
        forms |= {form.replace("array", "frame") for form in forms}
    return frozenset(forms), made["float64"], jumps


def _probes(features: int) -> Mapping[str, list[Array]]:
    """Blocks of rows of each dtype, each of numbers of another kind."""
    draw = np.random.default_rng(7)
    shape = (_BLOCK, features)
    holes = draw.standard_normal(shape)
    holes[draw.random(shape) < 0.3] = np.nan
    mixed = draw.standard_normal(shape)
    mixed[draw.random(shape) < 0.4] = 0
    floats = [
        draw.standard_normal(shape),
        draw.random(shape),
        draw.random(shape) * 1e-3,
        np.exp(draw.standard_normal(shape)),
        draw.standard_normal(shape) * 1e5,
        draw.standard_normal(shape) * 30,
        draw.integers(-4, 5, shape).astype(np.float64),
        draw.integers(0, 99, shape).astype(np.float64),
        mixed,
        holes,
    ]
    wholes = [draw.integers(-4, 5, shape), draw.integers(0, 9, shape)]
    wholes += [draw.integers(-99_999, 99_999, shape)]
    return {
        "float64": floats,
        "float32": [block.astype(np.float32) for block in floats if np.nanmax(block) < _LARGE],
        "int64": wholes,
    }


def _agrees(
    step: Any, form: str, x: Array, found: Array, made: TracedArray, close: float
) -> bool:
    """Whether the function gives `found`, up to rounding, for x in a form."""
    given: Any = x.copy()
    if form == "frame":
        try:
            pandas: Any = import_module("pandas")
        except ImportError:
            return False
        given = pandas.DataFrame(given, columns=_names(step, x.shape[1]))
    try:
        wanted = np.asarray(_called(step, given))
    except Exception:  # whatever a function of the user raises
        return False
    if wanted.ndim != made.ndim or wanted.size != found.size or wanted.dtype.kind not in "biuf":
        return False
    with np.errstate(all="ignore"):
        narrow = np.dtype(np.float32) if x.dtype == np.float32 else np.dtype(np.float64)
        got = found.astype(narrow).astype(np.float64)
        whole = wanted.reshape(found.shape).astype(narrow).astype(np.float64)
    blocks = range(0, len(x), _BLOCK)
    return all(_near(got[n : n + _BLOCK], whole[n : n + _BLOCK], close) for n in blocks)


def _near(got: Array, wanted: Array, close: float) -> bool:
    finite = np.isfinite(wanted)
    if not np.array_equal(np.where(finite, 0, wanted), np.where(np.isfinite(got), 0, got),
                          equal_nan=True):
        return False
    size = np.max(np.abs(wanted), axis=0, where=finite, initial=1e-300)
    return bool(np.all(np.abs(np.where(finite, got - wanted, 0)) <= close * size))
