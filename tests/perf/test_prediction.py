"""The grid that the planner's predictions are judged on."""

import pytest

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


@pytest.mark.serial
def test_small_layers_are_predicted_to_the_order_of_magnitude(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loose, because a busy core stretches what is measured; the bench command is the judge."""
    monkeypatch.setattr(prediction, "SHAPES", ((256, 256),))
    monkeypatch.setattr(prediction, "SPARSITIES", (0.0, 0.9))
    found = compare((DType.FLOAT32,))
    assert len(found) == 4
    assert all(0.2 < one.ratio < 3 for one in found)
