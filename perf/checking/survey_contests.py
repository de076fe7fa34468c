"""Contests whose ratio is a figure of a survey: of the planner, or of batches beside libraries.

A survey itself takes turns, repeats and medians. It is run once, no matter how many claims use it,
and every round returns the same ratio.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from sparsejit.ir.spec import DType, Layout
from sparsejit.machine.microarchitecture import UNKNOWN, core_named
from sparsejit.machine.target import Target
from sparsejit.perf.batch_contest import BatchContest, geometric_mean, name_of, run_contest
from sparsejit.perf.checking.claims import (
    ALL_PREDICTIONS,
    BEST_LIBRARY,
    CONTESTED_BATCHES,
    CONTESTED_SHAPES,
    FASTEST,
    SURVEYED_BATCHES,
    choices,
    layer_at,
    predictions,
    worst_choice,
)
from sparsejit.perf.planner_survey import SurveySummary, summary, survey, survey_layers
from sparsejit.planner.calibration import calibrated

# Measures both sides once; returns how many times better the first is.
Round = Callable[[], float]

# Number of layers surveyed; all of them would take three minutes for each batch.
SURVEYED_LAYERS = 40
_OURS = name_of(DType.FLOAT32, Layout.BATCH_MAJOR)


@cache
def _surveyed(batch: int, generic: bool) -> SurveySummary:
    machine = Target.detect()
    target = calibrated(replace(machine, core=core_named(UNKNOWN)) if generic else machine)
    return summary(survey(survey_layers(batch)[:SURVEYED_LAYERS], target))


@cache
def _contested(shape: tuple[int, int], batch: int) -> BatchContest:
    return run_contest(shape, batch)


def _all_contested() -> list[BatchContest]:
    return [_contested(shape, batch) for shape in CONTESTED_SHAPES for batch in CONTESTED_BATCHES]


def _kept_choice(batch: int, generic: bool) -> float:
    return 1 / _surveyed(batch, generic).geometric_mean


def _kept_worst(batch: int, generic: bool) -> float:
    return 1 / _surveyed(batch, generic).worst


def _share_within(batch: int, generic: bool) -> float:
    return _surveyed(batch, generic).share_within


def _over_library(shape: tuple[int, int], batch: int) -> float:
    return _contested(shape, batch).ratio(_OURS)


def _over_libraries() -> float:
    return geometric_mean(_all_contested(), _OURS)


def _int8_over_float32() -> float:
    """Least speed-up of int8 over float32, of all layers, batches and layouts."""
    return min(
        min(one.native[name_of(DType.FLOAT32, layout)])
        / min(one.native[name_of(DType.INT8, layout)])
        for one in _all_contested()
        for layout in Layout
    )


def _once(measure: Callable[[], float]) -> Round:
    measured = measure()
    return lambda: measured


_MEASURES: dict[tuple[str, str], Callable[[], float]] = {
    **{
        (subject(batch, generic), against): partial(measure, batch, generic)
        for subject, against, measure in (
            (choices, FASTEST, _kept_choice),
            (worst_choice, FASTEST, _kept_worst),
            (predictions, ALL_PREDICTIONS, _share_within),
        )
        for batch in SURVEYED_BATCHES
        for generic in (False, True)
    },
    **{
        (layer_at(shape, batch), BEST_LIBRARY): partial(_over_library, shape, batch)
        for shape in CONTESTED_SHAPES
        for batch in CONTESTED_BATCHES
    },
    ("batches of 16 to 256", BEST_LIBRARY): _over_libraries,
    ("batches in int8", "in float32"): _int8_over_float32,
}

# By subject and `against` of the claim.
CONTESTS: dict[tuple[str, str], Callable[[], Round]] = {
    key: partial(_once, measure) for key, measure in _MEASURES.items()
}
