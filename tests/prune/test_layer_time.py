"""`time_layers`: how it is called, and what it refuses."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import DType
from sparsejit.prune import Pruner, layer_time, time_layers
from sparsejit.prune.convolutions import CompiledConvolution

pytestmark = pytest.mark.plans


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


@pytest.mark.parametrize("dtype", [each.value for each in DType])
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 16, 3, padding=1),
        nn.Conv2d(8, 8, 3, stride=2, groups=8),
        nn.ConvTranspose1d(6, 5, 4, stride=2),
    ],
)
def test_convolutions_are_timed_for_the_images_that_they_meet(
    monkeypatch: pytest.MonkeyPatch, module: nn.Conv2d, dtype: str
) -> None:
    seen: list[list[str]] = []

    def us(kernels: list[CompiledConvolution], places: int = 9) -> float:
        seen.append([kernel.strategy for kernel in kernels])
        return 2.0

    monkeypatch.setattr(layer_time, "us_in_turn", us)
    pruner = Pruner(0.5, targets="0.weight")
    model = nn.Sequential(module)
    pruner.prepare(model)
    image = torch.zeros(1, module.in_channels, *(12,) * len(module.kernel_size))
    timed = time_layers(model, pruner.finalize(), dtype, example_inputs=image)
    (row,) = timed.as_dict()["layers"]
    used = image if isinstance(module, nn.ConvTranspose1d) else model(image)
    positions = used[0, 0].numel()
    assert len(seen) == 2 and seen[0] == seen[1] == [row["kernel"]]
    assert (row["measured_ns"], row["lane_use"], timed.in_turn_us) == (2000.0, None, 2.0)
    assert row["predicted_ns"] > 0
    assert row["effective_gflops"] == pytest.approx(2 * row["elements"] * positions / 2000)
    assert row["real_gflops"] == pytest.approx(2 * row["nnz"] * positions / 2000)
    assert timed.as_dict()["total"]["real_gflops"] == pytest.approx(row["real_gflops"])
    assert "one product or image" in str(timed)


def test_an_image_that_is_computed_wrongly_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convolution, "_direct", lambda self, x, weights: np.ones((1, 4, 8, 8)))
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1))
    pruner = Pruner(0.5, targets="0.weight")
    pruner.prepare(model)
    with pytest.raises(CompileError, match="its time would mean nothing"):
        time_layers(model, pruner.finalize(), example_inputs=torch.zeros(1, 4, 8, 8))
