"""Whole models against peers: the talk with a worker, installations, and who is skipped and why."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sparsejit.commands import cli
from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.perf import any_model, model_contest, models, shrunk_contest
from sparsejit.perf.model_contest import Contestant
from sparsejit.perf.models import ModelTask, compare
from sparsejit.perf.peers import model_peers, peer_worker
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer, find_python, peers_named
from sparsejit.perf.peers.peer_process import PeerFailed, PeerProcess
from sparsejit.perf.zoo import ZOO, pruned

MODEL = ZOO["deep-and-wide"]

# Speaks the worker's side; how it answers "run" and "time" is its first argument.
FAKE = """
import json, os, shutil, sys
kind, outputs = sys.argv[1:]
for line in sys.stdin:
    request = json.loads(line)
    reply = {"version": "1.0", "ways": ["called"], "threads": 1, "ns": [5.0, 7.0, 9.0]}
    if request["do"] == "run":
        shutil.copy(outputs, request["outputs"])
    if request["do"] == "run" and kind == "raises":
        reply = {"error": "ValueError: no such\\n operator"}
    if request["do"] == "time" and kind == "dies":
        print("out of luck", file=sys.stderr)
        os._exit(3)
    if kind == "silent":
        continue
    print(json.dumps(reply), flush=True)
"""


@dataclass(frozen=True)
class FakePeer(ModelPeer):
    """A peer that is a script: it copies a file of outputs."""

    outputs: Path = Path()

    def command(self, *cores: int) -> list[str]:
        return [sys.executable, "-c", FAKE, self.name, str(self.outputs)]


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """A file with the results of MODEL for a batch of 2."""
    file = tmp_path / "right.npz"
    np.savez(file, *ModelTask(MODEL, 2, 1.0, tmp_path).exact)
    return file


def test_outputs_are_compared_first_and_whoever_fails_is_skipped_with_a_word(
    right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "OURS", (FakePeer("sparsejit", "", outputs=right),))
    wrong, other = tmp_path / "wrong.npz", tmp_path / "shape.npz"
    np.savez(wrong, np.zeros((2, 1), np.float32))
    np.savez(other, np.zeros((2, 2), np.float32))
    peers = [
        FakePeer("good", "", outputs=right),
        FakePeer("dies", "", outputs=right),
        FakePeer("raises", "", outputs=right),
        FakePeer("wrong", "", outputs=wrong),
        FakePeer("other shape", "", outputs=other),
        ModelPeer("absent", "", ("absent",)),
    ]
    found = compare(MODEL, 2, 1.0, peers, rounds=2)
    row = found.as_dict()
    assert {one["name"]: (one["ns_min"], one["ns_median"]) for one in row["times"]} == {
        "sparsejit": (5.0, 7.0),
        "good": (5.0, 7.0),
    }
    assert row["reference"] == "sparsejit" and row["ratio"] == {"sparsejit": 1.0, "good": 1.0}
    assert json.loads(json.dumps(row))["skipped"] == found.skipped
    assert found.skipped.keys() == {"dies", "raises", "wrong", "other shape", "absent"}
    assert found.skipped["dies"] == "it ended with exit status 3: out of luck"
    assert found.skipped["raises"] == "ValueError: no such operator"
    assert found.skipped["wrong"].startswith("wrong: its largest error is 1 of the largest output")
    assert found.skipped["other shape"] == "its outputs have shapes [(2, 2)], not [(2, 1)]"
    assert "bench peers --install absent" in found.skipped["absent"]


def test_a_silent_peer_is_given_up() -> None:
    command = FakePeer("silent", "").command(0)
    with (
        PeerProcess(command, patience_s=0.2) as process,
        pytest.raises(PeerFailed, match="no answer to 'load'"),
    ):
        process.ask(do="load")


# A worker whose engine prints, as libraries do when they load.
NOISY = """
from sparsejit.perf.peers import peer_worker
def load(request, inputs):
    print("Welcome!", end="", flush=True)
    return lambda: None, list
peer_worker.ENGINES["noisy"] = load, "numpy"
peer_worker.main("noisy", CORE)
"""


def test_prints_of_a_library_are_no_reply(tmp_path: Path) -> None:
    task = ModelTask(MODEL, 1, 1.0, tmp_path)
    script = NOISY.replace("CORE", repr(str(min(_cores()))))
    with PeerProcess([sys.executable, "-c", script], MODEL_PEERS["torch"].environment()) as process:
        reply = process.ask(do="load", inputs=str(task.inputs_file), onnx=None)
    assert reply == {"version": np.__version__, "ways": ["called"]}


def test_a_peer_whose_python_is_gone_is_told_so() -> None:
    with pytest.raises(PeerFailed, match=r"/no/python cannot be started .* install the peer again"):
        PeerProcess(["/no/python"])


def test_a_real_worker_loads_runs_and_times_torch(tmp_path: Path) -> None:
    task = ModelTask(MODEL, 2, 1.0, tmp_path)
    with Contestant(MODEL_PEERS["torch"], min(_cores())) as contestant:
        contestant.prepare(task)
        (scores,) = contestant.run(tmp_path)
        ns = contestant.times()
        with pytest.raises(PeerFailed, match="KeyError: 'dance'"):
            contestant._process.ask(do="dance")
    np.testing.assert_allclose(scores, task.exact[0], atol=1e-6)
    assert contestant.version == torch.__version__
    assert len(ns) >= 3


def _cores() -> set[int]:
    from os import sched_getaffinity

    return sched_getaffinity(0)


def test_every_peer_has_an_engine_and_its_package_among_the_requirements() -> None:
    ours = {one.name for one in (*models.OURS, *any_model.OURS.values(), *shrunk_contest.OURS)}
    assert peer_worker.ENGINES.keys() == {*MODEL_PEERS} | ours
    for peer in MODEL_PEERS.values():
        package = peer_worker.ENGINES[peer.name][1]
        assert any(one.startswith(package) for one in peer.requirements) or package == "torch"
        assert (peer.opset is None) == (not peer.requirements)


def test_a_sample_is_the_mean_of_as_many_calls_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0]
    worker = peer_worker.PeerWorker("torch")
    monkeypatch.setattr(peer_worker, "clock", lambda: now[0])

    def call() -> None:
        now[0] += 40

    worker._ways = {"called": (call, list)}
    most = peer_worker.SAMPLE_NS // 40
    reply = worker.answer({"do": "time", "samples": 7, "budget_ns": 10**9})
    assert reply == {"ns": [40.0] * 7} and worker._calls == {"called": most}
    reply = worker.answer({"do": "time", "samples": 100, "budget_ns": 40 * most * 5})
    assert reply == {"ns": [40.0] * 5}


def test_a_model_without_onnx_is_skipped_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_contest, "find_spec", lambda name: None)
    task = ModelTask(MODEL, 1, 1.0, tmp_path)
    with pytest.raises(MissingDependency, match=r"pip install 'sparsejit\[bench\]'"):
        task.onnx_file(17)


def test_a_paced_call_is_timed_from_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call takes two periods: those after it are late, and only then on time again."""
    now, took = [0.0], iter([0, 10, 2000, 10, 10, 10])
    worker = peer_worker.PeerWorker("torch")
    monkeypatch.setattr(peer_worker, "_AWAKE_NS", 100)

    def clock() -> float:
        now[0] += 1e-3  # looking takes time, or nobody would wait
        return now[0]

    def sleep(seconds: float) -> None:
        now[0] += seconds * 1e9 + 50  # and nobody wakes in time

    def call() -> None:
        now[0] += next(took)

    monkeypatch.setattr(peer_worker, "clock", clock)
    monkeypatch.setattr(peer_worker, "sleep", sleep)
    worker._ways = {"called": (call, list)}
    late = worker.answer({"do": "pace", "calls": 5, "period_ns": 1000})["ns"]
    assert late == pytest.approx([10, 2000, 1010, 20, 10], abs=1)


def test_a_peer_may_live_with_another_and_run_on_several_cores(shell: "Shell") -> None:
    peer = MODEL_PEERS["openvino-default"]
    assert peer.folder == MODEL_PEERS["openvino"].folder and not peer.is_float32
    with pytest.raises(MissingDependency, match=r"bench peers --install openvino`"):
        peer.command(0)
    assert MODEL_PEERS["torch"].command(2, 3)[-2:] == ["torch", "2,3"]
    assert MODEL_PEERS["torch"].environment(2)["OMP_NUM_THREADS"] == "2"


class Shell:
    """Stands for subprocess.run: makes the folder that `venv` would; pip fails while told to."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.pip_fails = False

    def __call__(self, command: list[str], **_: Any) -> SimpleNamespace:
        self.commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        failed = self.pip_fails and "pip" in command
        return SimpleNamespace(returncode=int(failed), stdout="", stderr="ERROR: no wheel\n")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shell = Shell()
    monkeypatch.setattr(model_peers.subprocess, "run", shell)
    return shell


def test_an_installation_that_failed_is_started_over(shell: Shell) -> None:
    peer = ModelPeer("some", "", ("some==1",))
    shell.pip_fails = True
    with pytest.raises(MissingDependency, match=r"some could not be installed.*no wheel"):
        peer.install()
    assert not peer.is_installed and peer.folder.exists()
    shell.pip_fails = False
    (peer.folder / "rest").write_text("of the first")
    peer.install()
    assert peer.is_installed and not (peer.folder / "rest").exists()
    done = len(shell.commands)
    peer.install()
    assert len(shell.commands) == done
    assert peer.command(5)[2:] == ["some", "5"]
    assert not ModelPeer("some", "", ("some==2",)).is_installed


def test_our_own_packages_are_not_on_the_path_of_a_peer() -> None:
    assert MODEL_PEERS["onnxruntime"].environment()["PYTHONPATH"] == ""
    root = Path(models.__file__).parents[2]
    assert MODEL_PEERS["torch"].environment()["PYTHONPATH"] == str(root)


def test_a_peer_without_a_python_is_told_clearly(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_peers.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependency, match=r"old exists for Python 3\.1 and 3\.2 only"):
        find_python("old", ("3.1", "3.2"))
    assert find_python("any", ()) == sys.executable
    assert shell.commands == []


def test_a_shim_that_does_not_start_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, tuple[int, str]] = {"/a/python3.1": (127, ""), "/a/python3.2": (0, "3.2\n")}

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        status, printed = versions[command[0]]
        return SimpleNamespace(returncode=status, stdout=printed)

    monkeypatch.setattr(model_peers.shutil, "which", lambda name: f"/a/{name}")
    monkeypatch.setattr(model_peers.subprocess, "run", run)
    assert find_python("old", ("3.1", "3.2")) == "/a/python3.2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["peers", "--install", "torch", "caffe"], "peer 'caffe' is unknown; use some of torch"),
        (["models", "--peers", "torch,caffe"], "peer 'caffe' is unknown"),
        (["models", "--model", "alexnet"], "model 'alexnet' is unknown"),
        (["models", "--density", "0"], "use 0 < density <= 1"),
        (["models", "--batch", "0"], "batch 0 is out of range"),
        (["models", "--pattern", "4x4in"], "pattern='4x4in' is unknown"),
    ],
)
def test_unknown_names_are_refused_before_any_work(
    arguments: list[str], message: str, shell: Shell
) -> None:
    result = CliRunner().invoke(cli.app, ["bench", *arguments])
    assert isinstance(result.exception, InvalidInput) and message in str(result.exception)
    assert shell.commands == []


def test_the_list_says_who_is_installed(shell: Shell) -> None:
    printed = CliRunner().invoke(cli.app, ["bench", "peers", "--json"]).stdout
    rows = {row["name"]: row["installed"] for row in json.loads(printed)}
    assert rows == {name: not peer.requirements for name, peer in MODEL_PEERS.items()}
    assert peers_named(["tvm"]) == [MODEL_PEERS["tvm"]]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_prints_every_contestant(
    as_json: bool, right: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "OURS", (FakePeer("sparsejit", "", outputs=right),))
    good = FakePeer("good", "", outputs=right)
    monkeypatch.setitem(MODEL_PEERS, "good", good)
    arguments = ["--model", MODEL.name, "--batch", "2", "--density", "1", "--peers", "good,tvm"]
    command = ["bench", "models", *arguments, *(["--json"] if as_json else [])]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.exception
    assert "no bench environment" in result.stdout
    if as_json:
        (row,) = json.loads(result.stdout)
        assert {one["name"] for one in row["times"]} == {"sparsejit", "good"}
    else:
        assert f"{MODEL.name}, batch 2, density 1" in result.stdout and "good" in result.stdout


def test_models_are_pruned_in_the_wanted_pattern() -> None:
    module = pruned(ZOO["small-2d"], 0.2, "4x1in")
    for number in (2, 4, 6):
        weight = module[number].weight.detach().numpy()
        fours = (weight != 0).reshape(len(weight), -1, 4, *weight.shape[2:])
        assert (fours.any(axis=2) == fours.all(axis=2)).all()
        assert np.mean(weight != 0) == pytest.approx(0.2, abs=0.01)
