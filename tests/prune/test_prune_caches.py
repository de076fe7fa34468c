"""Remembered latencies and choices: damaged or not to be kept, they are measured again."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsejit.prune import Pruner, in_model
from sparsejit.prune.latency import LatencyTable, latency_table

pytestmark = pytest.mark.usefixtures("cache_folder")

TARGETS = ["*.weight"]
DEEP = "[" * 200_000
NO_TIME = (0, -1.0, float("nan"), float("inf"), 1e300, 10**400, "1", None, True, [1.0], {})


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A timed model on a machine where everything takes a microsecond."""
    calls: list[str] = []

    def among_others(*_: object) -> float:
        calls.append("layer")
        return 1.0

    def in_turn(*_: object) -> float:
        calls.append("model")
        return 1.0

    monkeypatch.setattr(in_model, "us_among_others", among_others)
    monkeypatch.setattr(in_model, "us_in_turn", in_turn)
    return calls


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def table() -> LatencyTable:
    return latency_table(network(), TARGETS, ["1x8"], (0.0, 0.5))


def damaged_rows(right: list[dict[str, Any]]) -> Iterator[Any]:
    for key in right[0]:
        yield [{name: value for name, value in row.items() if name != key} for row in right]
        wrong = NO_TIME if key == "us" else (None, [1], {}, 0.123)
        for value in wrong:
            rows = copy.deepcopy(right)
            rows[0][key] = value
            yield rows
    yield from (right[1:], [*right, right[0]], [*right, {**right[0], "amount": 0.7}], {}, 3, None)


def test_damaged_latencies_are_measured_again(cache_folder: Path, timed: list[str]) -> None:
    first = table()
    (file,) = cache_folder.glob("latency-*.json")
    right = json.loads(file.read_text())
    whole = json.dumps(right)
    contents = [json.dumps(value) for value in damaged_rows(right)]
    contents += [DEEP, "", *(whole[:end] for end in range(0, len(whole), 50))]
    for content in contents:
        timed.clear()
        file.write_text(content)
        assert table() == first, content[:200]
        assert len(timed) == 4, content[:200]
    timed.clear()
    assert table() == first and not timed


def chosen() -> object:
    pruner = Pruner(budget_us=1.0, pattern="1x8", targets=TARGETS)
    pruner.prepare(network())
    return pruner.amount


def test_a_damaged_choice_is_made_again(cache_folder: Path, timed: list[str]) -> None:
    first = chosen()
    (file,) = cache_folder.glob("choice-*.json")
    state, us = json.loads(file.read_text())
    contents = [json.dumps([state, value]) for value in NO_TIME]
    wrong_states = (-1, 10**9, 1.5, True, "0", None, [0])
    contents += [json.dumps([value, us]) for value in wrong_states]
    contents += [json.dumps([state]), json.dumps([state, us, us]), "[1", "{}", "null", DEEP, ""]
    for content in contents:
        timed.clear()
        file.write_text(content)
        assert chosen() == first, content[:200]
        assert "model" in timed, content[:200]
    timed.clear()
    assert chosen() == first and not timed


def test_without_a_cache_directory_all_is_measured_each_time(
    cache_folder: Path, timed: list[str]
) -> None:
    cache_folder.write_text("a file in its place")
    assert table() == table() and len(timed) == 8
    assert chosen() == chosen()
