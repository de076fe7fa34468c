"""Recipes carried out: what they leave, that they resume exactly, and what they refuse."""

import copy
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_clock import TICK_NS, ticking
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from sparsejit.api.kernels.kernel import Kernel
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.machine.target import Target
from sparsejit.prune import (
    Pruner,
    PruningResult,
    Recipe,
    RunProgress,
    Workload,
    calibrate,
    in_model,
    layer_time,
    prune_second_order,
    prune_wanda,
    refit,
    run,
    run_recipe,
)
from sparsejit.prune.layer_time import time_layers
from sparsejit.prune.run import Batches

STEPS = 24
GRADUAL: dict[str, Any] = {
    "method": "gradual",
    "prune": {
        "targets": ["*.weight", "!1.weight"],
        "amount": 0.75,
        "schedule": {"kind": "cubic", "start": 3, "end": 17, "every": 4},
    },
    "train": {"steps": STEPS, "optimizer": {"kind": "adam", "lr": 1e-2}},
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 24, generator=generator)
    return inputs, (inputs @ torch.randn(24, 5, generator=generator)).argmax(1)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def workload() -> Workload:
    """A model that draws numbers and keeps statistics, on batches in a drawn order."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 5)
    )
    inputs, classes = data()
    batches = DataLoader(TensorDataset(inputs, classes), batch_size=16, shuffle=True)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"loss": loss(model, (inputs, classes)).item()}

    return Workload(model, batches, loss, evaluate)


def carried_out(recipe: dict[str, Any], given: Workload, **options: Any) -> PruningResult:
    return run_recipe(given, Recipe.from_dict(recipe), **options)


def merged(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: {**GRADUAL[key], **changes.get(key, {})} for key in ("prune", "train")} | {
        "method": changes.get("method", "gradual")
    }


def same_state(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_gradual_is_the_loop_that_one_would_write() -> None:
    result = carried_out(GRADUAL, workload())
    by_hand = workload()
    model, recipe = by_hand.model, Recipe.from_dict(GRADUAL)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    pruner = recipe.build_pruner()
    pruner.prepare(model, optimizer)
    batches = Batches(by_hand.batches, seed=0)
    torch.manual_seed(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model, next(batches)).backward()
        optimizer.step()
        pruner.step()
    assert same_state(result.model, model)
    assert [layer.name for layer in result.report.layers] == ["0.weight", "4.weight"]
    assert result.report.density == 0.25
    assert result.after["loss"] == by_hand.evaluate(model.eval())["loss"]
    assert result.before["loss"] == by_hand.evaluate(workload().model.eval())["loss"]


def interrupt_in_step(number: int) -> Workload:
    """Ctrl-C in the middle of a step."""
    steps = 0
    given = workload()

    def interrupting(model: nn.Module, batch: Any) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == number:
            signal.raise_signal(signal.SIGINT)
        return loss(model, batch)

    return Workload(given.model, given.batches, interrupting, given.evaluate)


VARIATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "movement": {"prune": {"criterion": "movement"}},
    "admm": {"prune": {"regulariser": {"kind": "admm", "every": 3}}, "train": {"clip": 0.5}},
    "sgd, cosine": {
        "train": {
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "learning_rate": {"kind": "cosine", "warm_up": 4},
        }
    },
    "rewinding": {
        "prune": {
            "schedule": {
                "kind": "iterative",
                "rounds": 2,
                "length": 10,
                "rewind_to": 4,
                "rewind_weights": True,
            }
        }
    },
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(variation: str, tmp_path: Path) -> None:
    recipe = merged(VARIATIONS[variation])
    whole = carried_out(recipe, workload())
    handler = signal.getsignal(signal.SIGINT)
    for number in (1, 6, 13, STEPS):
        checkpoint = tmp_path / f"{number}.pt"
        with pytest.raises(KeyboardInterrupt):
            carried_out(recipe, interrupt_in_step(number), checkpoint=checkpoint)
        assert torch.load(checkpoint, weights_only=True)["step"] == number
        resumed = carried_out(recipe, workload(), checkpoint=checkpoint)
        assert same_state(resumed.model, whole.model)
        assert resumed.as_dict() == whole.as_dict()
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("method", ["one-shot", "wanda", "second-order"])
def test_fine_tuning_after_pruning_resumes_too(method: str, tmp_path: Path) -> None:
    recipe = {"method": method, "prune": {"targets": "0.weight", "amount": 0.5, "pattern": "1x8"}}
    recipe["train"] = GRADUAL["train"]
    whole = carried_out(recipe, workload())
    checkpoint = tmp_path / "c.pt"
    # The calibration takes 16 batches before the first step.
    with pytest.raises(KeyboardInterrupt):
        carried_out(recipe, interrupt_in_step(20), checkpoint=checkpoint)
    resumed = carried_out(recipe, workload(), checkpoint=checkpoint)
    assert same_state(resumed.model, whole.model)
    assert whole.report.layers[0].density == 0.5


def test_a_checkpoint_is_written_at_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0.0)
    checkpoint = tmp_path / "c.pt"
    seen: list[int] = []

    def look(progress: RunProgress) -> None:
        if checkpoint.exists():
            seen.append(torch.load(checkpoint, weights_only=True)["step"])

    carried_out(GRADUAL, workload(), checkpoint=checkpoint, progress=look)
    assert seen == [*range(1, STEPS), STEPS]


def test_progress_is_told_loss_and_density() -> None:
    told: list[RunProgress] = []
    carried_out(GRADUAL, workload(), progress=told.append)
    steps = [one for one in told if one.stage == "training"]
    assert [one.step for one in steps] == [*range(1, STEPS + 1)]
    assert steps[0].density == 1.0 and steps[-1].density == 0.25
    assert {one.steps for one in steps} == {STEPS}
    assert all(one.loss is not None and one.loss > 0 for one in steps)


def test_one_shot_of_a_bare_module_needs_no_data() -> None:
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 5))
    expected = copy.deepcopy(model)
    Pruner(0.5, "1x8", targets=["0.weight"], allocation="lamp").prepare(expected)
    prune = {"targets": ["0.weight"], "amount": 0.5, "pattern": "1x8", "allocation": "lamp"}
    result = carried_out({"method": "one-shot", "prune": prune}, Workload(model))
    assert same_state(model, expected)
    assert result.before == result.after == {}


@pytest.mark.parametrize(
    ("method", "cut"), [("wanda", prune_wanda), ("second-order", prune_second_order)]
)
@pytest.mark.parametrize("labelled", [False, True])
def test_post_training_methods_are_the_functions_of_their_names(
    method: str, cut: Any, labelled: bool
) -> None:
    """With a loss the batches have labels, without one they are the inputs."""
    inputs, classes = data()
    model = workload().model
    expected = copy.deepcopy(model)
    cut(expected, calibrate(expected, "0.weight", [inputs] * 3), 0.5, "1x8")
    given = Workload(model, [(inputs, classes)], loss) if labelled else Workload(model, [inputs])
    prune = {"targets": "0.weight", "amount": 0.5, "pattern": "1x8"}
    carried_out({"method": {"kind": method, "batches": 3}, "prune": prune}, given)
    assert same_state(model, expected)


def test_refit_fits_what_one_shot_leaves() -> None:
    inputs, _ = data()
    model = workload().model
    expected = copy.deepcopy(model)
    calibration = calibrate(expected, "0.weight", [inputs] * 16)
    Pruner(0.6, targets="0.weight").prepare(expected)
    pruned = copy.deepcopy(expected)
    refit(expected, calibration)
    prune = {"targets": "0.weight", "amount": 0.6}
    carried_out(
        {"method": {"kind": "one-shot", "refit": True}, "prune": prune}, Workload(model, [inputs])
    )
    assert same_state(model, expected)
    assert not same_state(model, pruned)


def test_zeros_that_were_there_stay() -> None:
    for keep_zeros in (False, True):
        given = workload()
        given.model[0].weight.data[:, :12] = 0
        method = {"kind": "gradual", "keep_zeros": keep_zeros}
        recipe = merged({"method": method, "prune": {"allocation": "uniform"}})
        result = carried_out(recipe, given)
        assert (result.model[0].weight[:, :12] == 0).all() == keep_zeros


@pytest.mark.parametrize(
    ("recipe", "fields", "message"),
    [
        (GRADUAL, [], r"training needs batches: return Workload\(model, batches=\.\.\.\)"),
        (GRADUAL, ["batches"], "training needs loss"),
        ({**GRADUAL, "method": "wanda", "train": None}, [], "method wanda needs batches"),
    ],
)
def test_data_that_is_missing(recipe: Any, fields: list[str], message: str) -> None:
    whole = workload()
    given = Workload(whole.model, **{name: getattr(whole, name) for name in fields})
    if recipe["method"] == "wanda":
        recipe = {**recipe, "prune": {"targets": "0.weight", "amount": 0.5}}
    before = copy.deepcopy(whole.model)
    with pytest.raises(InvalidInput, match=message):
        carried_out(recipe, given)
    assert same_state(whole.model, before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda model, batch: loss(model, batch) * torch.nan, "the loss is nan at step 1: lower"),
        (lambda model, batch: model(batch[0]), "return a scalar tensor"),
        (lambda model, batch: 0.5, "the loss is 0.5: return a scalar tensor"),
    ],
)
def test_losses_that_cannot_be_minimised(wrong: Any, message: str) -> None:
    given = workload()
    with pytest.raises(InvalidInput, match=message):
        carried_out(GRADUAL, Workload(given.model, given.batches, wrong))


@pytest.mark.parametrize("returned", [0.5, None, {"accuracy": "high"}, {"losses": [1, 2]}])
def test_an_evaluation_without_named_figures(returned: Any) -> None:
    message = re.escape(f"evaluate returned {returned}: return figures by name")
    with pytest.raises(InvalidInput, match=message):
        carried_out(GRADUAL, Workload(nn.Linear(2, 2), [1], loss, lambda model: returned))


def test_checkpoints_of_something_else(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c.pt"
    carried_out(GRADUAL, workload(), checkpoint=checkpoint)
    other = merged({"train": {"steps": STEPS + 1}})
    with pytest.raises(InvalidInput, match="checkpoint of another recipe: go on with that one"):
        carried_out(other, workload(), checkpoint=checkpoint)
    given = workload()
    larger = nn.Sequential(nn.Linear(24, 48), *given.model[1:])
    with pytest.raises(InvalidInput, match=r"of another model .*size mismatch for 0\.weight"):
        carried_out(GRADUAL, Workload(larger, given.batches, loss), checkpoint=checkpoint)
    for content in (b"", b"PK\x03\x04 cut"):
        checkpoint.write_bytes(content)
        with pytest.raises(DamagedFile, match="cannot be read as tensors alone; delete it"):
            carried_out(GRADUAL, workload(), checkpoint=checkpoint)
    torch.save({"weight": torch.zeros(2)}, checkpoint)
    with pytest.raises(DamagedFile, match="no checkpoint of a recipe"):
        carried_out(GRADUAL, workload(), checkpoint=checkpoint)


def time_of(layer: nn.Module, dtype: str = "float32") -> dict[str, Any]:
    report = Pruner(0.0, targets="weight")
    report.prepare(layer)
    (row,) = time_layers(layer, report.finalize(), dtype).as_dict()["layers"]
    return row


@pytest.mark.parametrize("pattern", ["unstructured", "1x16", "lane16"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_time_of_a_layer_is_that_of_its_kernel(pattern: str, dtype: str) -> None:
    layer = nn.Linear(96, 64)
    Pruner(0.75, pattern, targets="weight").prepare(layer)
    with ticking():
        row = time_of(layer, dtype)
    assert row["measured_ns"] == TICK_NS
    assert row["real_gflops"] == pytest.approx(2 * 96 * 16 / TICK_NS)
    assert row["effective_gflops"] == pytest.approx(4 * row["real_gflops"])
    assert 0 < row["lane_use"] <= 1


@pytest.mark.skipif(Target.detect().isa != "avx512", reason="the lane16 kernel is AVX-512's")
def test_lanes_are_used_as_the_pattern_promises() -> None:
    layer = nn.Linear(96, 64)
    use = {}
    for pattern in ("unstructured", "lane16"):
        Pruner(0.75, pattern, targets="weight").prepare(copied := copy.deepcopy(layer))
        use[pattern] = time_of(copied)["lane_use"]
    assert use["lane16"] > 0.95 > use["unstructured"]


def test_convolutions_and_empty_layers_are_timed_as_matrices() -> None:
    conv = nn.Conv2d(4, 16, 3)
    with ticking():
        row = time_of(conv)
    assert row["real_gflops"] == pytest.approx(2 * 16 * 36 / TICK_NS)
    nn.init.zeros_(conv.weight)
    assert time_of(conv)["real_gflops"] == 0


def nonzeros(kernel: Kernel) -> int:
    return int(kernel.stats["nnz"])


def test_a_budget_in_place_of_an_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pretended machine where a nonzero takes a tenth of a nanosecond."""
    recipe = merged({"prune": {"targets": "0.weight", "budget_us": 0.03}})
    del recipe["prune"]["amount"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 5))
    given = workload()
    monkeypatch.setattr(in_model, "us_among_others", lambda kernel, room: 1e-4 * nonzeros(kernel))
    for module in (in_model, layer_time):
        monkeypatch.setattr(module, "us_in_turn", lambda each: 1e-4 * sum(map(nonzeros, each)))
    result = carried_out(recipe, Workload(model, given.batches, loss))
    report = time_layers(model, result.report)
    (left,) = (layer.nnz for layer in result.report.layers)
    assert 270 < left <= 300
    assert report.in_turn_us == pytest.approx(1e-4 * left)


def test_the_report_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    result = carried_out(GRADUAL, workload())
    with ticking():
        timed = time_layers(result.model, result.report)
    report = timed.as_dict()
    assert report["total"]["in_turn_us"] == TICK_NS / 1e3
    for key in ("nnz", "elements", "predicted_ns", "measured_ns"):
        values = [layer[key] for layer in report["layers"]]
        assert report["total"][key] == pytest.approx(np.sum(values))
    Console(width=80).print(timed)
    shown = capsys.readouterr().out
    for word in ("0.weight", "32 x 24", "25.00%", "predicted", "all in turn"):
        assert word in shown
