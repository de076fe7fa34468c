"""Claims about surveys: each figure as a ratio, of one survey for all claims about it."""

import pytest
from test_batch_contest import contest
from test_planner_survey import row

from sparsejit.machine.microarchitecture import UNKNOWN
from sparsejit.machine.target import Target
from sparsejit.perf.batch_contest import BatchContest
from sparsejit.perf.checking import survey_contests
from sparsejit.perf.checking.claims import (
    ALL_PREDICTIONS,
    BEST_LIBRARY,
    FASTEST,
    choices,
    layer_at,
    predictions,
    worst_choice,
)
from sparsejit.perf.planner_survey import SurveyLayer, SurveyRow

ROWS = [row(200.0, 100.0), row(100.0, 100.0), row(100.0, 120.0), row(90.0)]


@pytest.fixture
def surveys(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Every survey takes no time, and is listed by batch and core."""
    made: list[tuple[int, str]] = []

    def survey(layers: list[SurveyLayer], target: Target) -> list[SurveyRow]:
        assert len(layers) == survey_contests.SURVEYED_LAYERS
        made.append((layers[0].problem.batch, target.core.key))
        return ROWS

    monkeypatch.setattr(survey_contests, "survey", survey)
    survey_contests._surveyed.cache_clear()
    return made


def test_figures_of_a_survey_as_ratios(surveys: list[tuple[int, str]]) -> None:
    """A loss of 2 in three layers, in the mean and at worst; three of four predictions are good."""
    contests = survey_contests.CONTESTS
    for generic in (False, True):
        assert contests[choices(16, generic), FASTEST]()() == pytest.approx(2 ** (-1 / 3))
        assert contests[worst_choice(16, generic), FASTEST]()() == 0.5
        assert contests[predictions(16, generic), ALL_PREDICTIONS]()() == 0.75
    assert surveys == [(16, Target.detect().core.key), (16, UNKNOWN)]


def test_figures_of_batches_as_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is twice as fast as the best library, int8 half as fast as float32."""

    def found(shape: tuple[int, int], batch: int) -> BatchContest:
        ours = {name: [10.0] for name in ("float32 batch-major", "float32 feature-major")}
        native = ours | {name.replace("float32", "int8"): [20.0] for name in ours}
        like = contest([10.0], [20.0])
        return BatchContest(shape, batch, ours, like.peers, native, {}, {})

    monkeypatch.setattr(survey_contests, "_contested", found)
    contests = survey_contests.CONTESTS
    assert contests[layer_at((256, 256), 64), BEST_LIBRARY]()() == 2
    assert contests["batches of 16 to 256", BEST_LIBRARY]()() == pytest.approx(2)
    assert contests["batches in int8", "in float32"]()() == 0.5
