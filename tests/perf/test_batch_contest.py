"""Batches against the libraries: outputs first, then turns, then ratios of each round."""

import json
import sys

import pytest
from fake_clock import TICK_NS, FakeClock
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.errors import CompileError
from sparsejit.ir.spec import DType, Layout
from sparsejit.perf import batch_contest
from sparsejit.perf.batch_contest import (
    DEEPSPARSE,
    MKL_CSR,
    TORCH_CSR,
    BatchContest,
    geometric_mean,
    name_of,
    run_contest,
)
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer

pytest.importorskip("onnx")

# Answers as the worker of a peer does, and computes with numpy what the file says.
STAND_IN = """
import json, sys
import numpy, onnx
from onnx import numpy_helper
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "load":
        (weights,) = map(numpy_helper.to_array, onnx.load(asked["onnx"]).graph.initializer)
        x = numpy.load(asked["inputs"])["arr_0"]
        weights = weights if weights.shape[0] == x.shape[1] else weights.T
    elif asked["do"] == "run":
        numpy.savez(asked["outputs"], FACTOR * (x @ weights))
    print(json.dumps({"version": "0", "threads": 1, "ns": [50000.0, 60000.0]}), flush=True)
"""


class StandIn(ModelPeer):
    """A peer whose worker is that script."""

    factor = "1"

    def command(self, core: int) -> list[str]:
        return [sys.executable, "-c", STAND_IN.replace("FACTOR", self.factor)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock) -> None:
    monkeypatch.setitem(MODEL_PEERS, DEEPSPARSE, StandIn(DEEPSPARSE, "a stand-in", opset=14))


OURS = [name_of(dtype, layout) for dtype in batch_contest.DTYPES for layout in Layout]


def test_everyone_takes_turns(stand_in: None) -> None:
    """All of this process takes a tick, the stand-in half of one."""
    found = run_contest((32, 48), 5, rounds=2)
    assert list(found.ours) == OURS and list(found.native) == [*OURS, MKL_CSR]
    assert found.peers == {TORCH_CSR: [TICK_NS] * 2, DEEPSPARSE: [TICK_NS / 2] * 2}
    assert set(map(tuple, found.ours.values())) == {(TICK_NS, TICK_NS)}
    assert found.best_peer == DEEPSPARSE and not found.skipped
    assert {found.ratio(name) for name in OURS} == {0.5}
    assert {found.native_ratio(name) for name in OURS} == {1.0}
    assert json.loads(json.dumps(found.as_dict()))["ratios"] == dict.fromkeys(OURS, 0.5)


def test_a_wrong_peer_is_not_timed(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "factor", "1.001")
    with pytest.raises(CompileError, match="deepsparse: largest error"):
        run_contest((32, 48), 5, rounds=1)


def test_an_absent_peer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    absent = ModelPeer(DEEPSPARSE, "", ("no-such-package",))
    monkeypatch.setitem(MODEL_PEERS, DEEPSPARSE, absent)
    found = run_contest((32, 48), 5, [DType.FLOAT32], rounds=1)
    assert list(found.peers) == [TORCH_CSR]
    assert "bench peers --install deepsparse" in found.skipped[DEEPSPARSE]


def contest(ours: list[float], *peers: list[float]) -> BatchContest:
    named = {str(number): times for number, times in enumerate(peers)}
    native = {"ours": ours, MKL_CSR: peers[0]}
    return BatchContest((8, 8), 16, {"ours": ours}, named, native, {"ours": "kernel"}, {})


def test_a_round_is_won_against_its_best_peer() -> None:
    """The median of 1, 3 and 2, though the least of all would say 10 / 10."""
    found = contest([10.0, 10.0, 20.0], [10.0, 50.0, 60.0], [40.0, 30.0, 40.0])
    assert found.ratio("ours") == 2
    assert found.native_ratio("ours") == 3
    assert found.best_peer == "0"


def test_the_report_names_the_mean_and_the_least() -> None:
    contests = [contest([10.0], [20.0]), contest([10.0], [80.0])]
    assert geometric_mean(contests, "ours") == pytest.approx(4)
    (line,) = batch_contest.lines(contests)
    assert "4.00 times faster" in line and "least 2.00 (8x8, batch 16" in line


def test_the_command(stand_in: None) -> None:
    arguments = ["bench", "batch", "--shape", "32x48", "--size", "5", "--dtype", "float32"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "0.50 times faster in the geometric mean" in shown.stdout
    (row,) = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert row["best_peer"] == DEEPSPARSE and row["shape"] == [32, 48]
    assert not {"microarchitecture", "clock_ghz", "rates"} - row.keys()
