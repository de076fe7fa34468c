"""`time_layers`: how it is called, and what it refuses."""

import pytest
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import Pruner, layer_time, time_layers


@pytest.fixture(autouse=True)
def fake_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 ns a layer, 3 us for all in turn."""
    monkeypatch.setattr(layer_time, "time_copies", lambda *args, **options: [])
    monkeypatch.setattr(layer_time, "median_of_least", lambda times: 1000.0)
    monkeypatch.setattr(layer_time, "us_in_turn", lambda kernels: 3.0)


def test_the_model_comes_first_and_the_report_second() -> None:
    model = nn.Sequential(nn.Linear(24, 32), nn.Conv2d(2, 16, 3).bfloat16())
    pruner = Pruner(0.5, targets="*.weight")
    pruner.prepare(model)
    report = pruner.finalize()
    seen: list[str] = []
    timed = time_layers(model, report, progress=seen.append)
    assert seen == ["0.weight", "1.weight", "all in turn"]
    assert [row["measured_ns"] for row in timed.as_dict()["layers"]] == [1000.0, 1000.0]
    assert timed.in_turn_us == 3.0
    assert timed.as_dict() == time_layers(model=model, report=report).as_dict()


def test_a_report_of_another_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(24, 32))
    pruner = Pruner(0.5, targets="0.weight")
    pruner.prepare(model)
    with pytest.raises(InvalidInput, match=r"no weight '0\.weight', which the report names"):
        time_layers(nn.Linear(24, 32), pruner.finalize())
