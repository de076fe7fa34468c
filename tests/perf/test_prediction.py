"""The grid that the planner's predictions are judged on."""

import pytest
from fake_clock import TICK_NS, FakeClock

from sparsejit import compile_matrix
from sparsejit.ir.spec import DType
from sparsejit.perf import prediction
from sparsejit.perf.prediction import Prediction, compare, grid


def predicted(ns: float) -> Prediction:
    return Prediction((8, 8), 0.5, "1x8", "float32", "f32-broadcast-avx2", ns, 100.0)


@pytest.mark.parametrize(
    ("ns", "within"), [(66.0, False), (67.0, True), (149.0, True), (151.0, False)]
)
def test_within_is_symmetric_in_ratio(ns: float, within: bool) -> None:
    assert predicted(ns).within is within


def test_grid_layers_differ() -> None:
    layers = [(problem.name, dtype) for problem, dtype in grid()]
    assert len(set(layers)) == len(layers) == 96 * len(DType)


def test_every_layer_of_the_grid_is_timed_beside_its_prediction(
    monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    monkeypatch.setattr(prediction, "SHAPES", ((256, 256),))
    monkeypatch.setattr(prediction, "SPARSITIES", (0.0, 0.9))
    layers, found = list(grid((DType.FLOAT32,))), compare((DType.FLOAT32,))
    assert len(found) == len(layers) == 4
    for (problem, dtype), one in zip(layers, found, strict=True):
        chosen = compile_matrix(problem.weights(), dtype=dtype).plan.chosen
        assert (one.template, one.predicted_ns) == (chosen.template.name, chosen.cost.ns)
        assert one.measured_ns == TICK_NS
        assert one.ratio == pytest.approx(chosen.cost.ns / TICK_NS)
