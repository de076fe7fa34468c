"""The contest of forests without its rivals: what is compared, refused and reported."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("treelite")
pytest.importorskip("lightgbm")

from sparsejit.commands.cli import app
from sparsejit.errors import CompileError, InvalidInput, MissingDependency
from sparsejit.perf import forests
from sparsejit.perf.forests import (
    FOREST_PROBLEMS,
    ForestComparison,
    ForestTime,
    compare_forests,
    problems_named,
)
from sparsejit.perf.peers import forest_worker
from sparsejit.perf.peers.model_peers import ModelPeer


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and short rounds, and rivals that are not installed."""
    monkeypatch.setattr(forests, "ROWS", 300)
    monkeypatch.setattr(forests, "FITTED_ROWS", 200)
    monkeypatch.setattr(forests, "_NATIVE_ROWS", 10)
    monkeypatch.setattr(forests, "ROUNDS", 1)
    monkeypatch.setattr(forests, "ROUND_NS", 1_000_000)
    monkeypatch.setattr(forests, "PEER", ModelPeer("absent", "none", ("nothing",)))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", FOREST_PROBLEMS)
def test_without_rivals_ours_is_timed_and_they_are_named(name: str) -> None:
    problem = FOREST_PROBLEMS[name]
    found = compare_forests(problem)
    assert [time.name for time in found.times] == [forests.OURS, forests.OURS_FROM_PYTHON]
    assert all(time.relative_error < 1e-6 for time in found.times)
    assert set(found.skipped) == set(problem.engines)
    assert all(kernel.startswith("forest-") for kernel in found.kernels)
    assert np.isnan(found.gain(batch=True))


@pytest.mark.usefixtures("small")
def test_wrong_predictions_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forests, "LARGEST_ERROR", -1.0)
    problem = dataclasses.replace(
        FOREST_PROBLEMS["random-forest"], parameters={"n_estimators": 2, "max_depth": 2}
    )
    with pytest.raises(CompileError, match="differ by"):
        compare_forests(problem)


def test_the_gain_is_over_the_best_rival() -> None:
    times = [("sparsejit", 2, 4), ("sparsejit, from Python", 1, 1), ("a", 10, 30), ("b", 20, 20)]
    results = tuple(ForestTime(name, "", one, all_, 0.0) for name, one, all_ in times)
    found = ForestComparison("x", ("k", "k"), results, {})
    assert found.gain(batch=False) == 5 and found.gain(batch=True) == 5


def test_every_engine_is_known_to_the_worker() -> None:
    engines = {engine for problem in FOREST_PROBLEMS.values() for engine in problem.engines}
    assert engines == set(forest_worker.ENGINES)
    assert Path(forests._WORKER).is_file()


def test_an_unknown_forest_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'oak' is unknown.*random-forest"):
        problems_named(["oak"])


def test_the_remedy_for_absent_rivals_is_a_command_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingDependency) as error:
        forests.PEER.command(0)
    words = re.findall("`sparsejit (.*)`", str(error.value))[0].split()
    shown = CliRunner().invoke(app, [*words[:-1], "--help"])
    assert shown.exit_code == 0
    assert words[-1] in shown.stdout
