"""A Ray cluster as a crew: a local one of two nodes, and a stand-in where Ray is not installed."""

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.voice.speak.bulk import Manner, SpeakingTask, ray_cluster, speak_tasks, tasks_of

pytest.importorskip("soundfile")
from spoken_folder import NETWORK, assert_spoken, manner_of_a_small_voice, recordings


def nothing() -> None:
    pass


@pytest.fixture
def tasks(tmp_path: Path) -> list[SpeakingTask]:
    return tasks_of(recordings(tmp_path / "in"), tmp_path / "out")


@pytest.fixture
def manner(tmp_path: Path) -> Manner:
    return manner_of_a_small_voice(tmp_path)


def test_a_cluster_of_two_nodes_speaks_each_file_once(
    tmp_path: Path, tasks: list[SpeakingTask], manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    node = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(num_cpus=1)
        tasks[3].source.write_bytes(b"no audio")
        with ray_cluster(manner, cluster.address) as crew:
            report = speak_tasks(tasks, NETWORK, crew, False, nothing)
            again = speak_tasks(tasks[:3], NETWORK, crew, False, nothing)
    finally:
        cluster.shutdown()
    assert set(report.spoken) == set(tasks[:3])
    assert set(report.failed) == set(tasks[3:])
    assert "cannot read audio" in report.failed[tasks[3]]
    assert again.kept == tasks[:3]
    for task in tasks[:3]:
        assert_spoken(manner, task)


class RayError(Exception):
    """As Ray raises where a worker is lost."""


class FakeRay(SimpleNamespace):
    """Runs tasks as they are asked for, in this process; `lost` names those that are lost once."""

    def __init__(self) -> None:
        super().__init__(exceptions=SimpleNamespace(RayError=RayError))
        self.lost: list[str] = []
        self.never: list[str] = []
        self.asked: list[SpeakingTask] = []
        self.log: list[Any] = []

    def init(self, **options: Any) -> None:
        if options["address"] == "nowhere":
            raise ConnectionError("nobody answers")
        self.log.append(("init", options["address"]))

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        assert options == {"num_cpus": 1, "max_retries": 0}

        def wrap(function: Callable[..., Any]) -> Any:
            def begin(manner: Manner, task: SpeakingTask) -> Any:
                self.asked.append(task)
                future: Future[Any] = Future()
                name = task.source.stem
                if name in self.lost:
                    self.lost.remove(name)
                    future.set_exception(RayError("the node died"))
                elif name not in self.never:
                    future.set_result(function(manner, task))
                return SimpleNamespace(name=name, kept=future, future=lambda: future)

            return SimpleNamespace(remote=begin)

        return wrap

    def cancel(self, reference: Any) -> None:
        self.log.append(("cancel", reference.name))
        reference.kept.set_exception(RayError("cancelled"))

    def shutdown(self) -> None:
        self.log.append("shutdown")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_a_task_that_is_lost_is_asked_for_once_more(
    ray: FakeRay, tasks: list[SpeakingTask], manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.lost = ["a", "b", "b"]
    monkeypatch.chdir(tasks[0].source.parents[1])
    relative = [SpeakingTask(Path("in", task.source.name), Path("out/a.wav")) for task in tasks]
    with ray_cluster(manner, "auto") as crew:
        report = speak_tasks(relative, NETWORK, crew, True, nothing)
    assert [task.source.stem for task in ray.asked] == [*"abcd", *"ab"]
    assert all(task.source.is_absolute() and task.out.is_absolute() for task in ray.asked)
    assert report.failed == {relative[1]: "RayError: the node died"}
    assert set(report.spoken) == {relative[0], *relative[2:]}
    assert ray.log == [("init", "auto"), "shutdown"]


def test_running_tasks_are_cancelled_at_the_end_of_the_block(
    ray: FakeRay, tasks: list[SpeakingTask], manner: Manner
) -> None:
    ray.never = ["b", "d"]

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ray_cluster(manner, "auto") as crew:
        speak_tasks([tasks[1], tasks[0], tasks[3]], NETWORK, crew, True, interrupt)
    assert ray.log[1:] == [("cancel", "b"), ("cancel", "d"), "shutdown"]


def test_without_ray_the_remedy_is_named(manner: Manner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    remedy = r"pip install 'sparsejit\[ray\]'"
    with pytest.raises(MissingDependency, match=remedy), ray_cluster(manner, "auto"):
        pass


def test_an_address_without_a_cluster_is_named(ray: FakeRay, manner: Manner) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for nobody in ("nowhere", address, f"ray://{address}", "127.0.0.1:99999"):
            with pytest.raises(InvalidInput, match=nobody), ray_cluster(manner, nobody):
                pass
    assert not ray.log
