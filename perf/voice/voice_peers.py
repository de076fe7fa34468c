"""Peers that run a network sample by sample: each in its own process, its results checked first."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.errors import MissingDependency
from sparsejit.ir.values import Array
from sparsejit.perf.model_contest import Contestant, checked_error, export_onnx
from sparsejit.perf.peers.model_peers import MODEL_PEERS
from sparsejit.perf.peers.peer_process import PeerFailed
from sparsejit.perf.voice.voice_networks import SampleNetwork, network_named
from sparsejit.perf.voice.voice_steps import exact_step, step_of

STEP_PEERS = ("torch", "torchscript", "torch-compile", "onnxruntime")
# Number of samples compared with float64; later, rounding may change a drawn class.
_CHECKED = 3


class StepTask:
    """One sample of a network as files in `folder`, and its exact results."""

    def __init__(self, name: str, path: Path | None, folder: Path) -> None:
        self.name, self._path, self._folder = name, path, folder
        self._step = step_of(self._network)
        self.inputs_file = folder / "step.npz"
        np.savez(self.inputs_file, *(one.numpy() for one in self._step.examples))

    @property
    def _network(self) -> SampleNetwork:
        return network_named(self.name, self._path)

    @property
    def request(self) -> dict[str, Any]:
        """Fields of the "load" request to `PeerWorker` that name the network, besides files."""
        path = None if self._path is None else str(self._path)
        return {"network": [self.name, path], "feedback": self._step.feedback}

    def onnx_file(self, opset: int) -> Path:
        """A sample as ONNX. Raises as `export_onnx` does."""
        file = self._folder / f"step{opset}.onnx"
        if not file.exists():
            export_onnx(self._step, self._step.examples, file, opset)
        return file

    @cached_property
    def exact(self) -> list[list[Array]]:
        """Results of the first samples, in float64."""
        return [exact_step(step_of(self._network), calls + 1) for calls in range(_CHECKED)]


def ready_peers(
    stack: ExitStack,
    task: StepTask,
    folder: Path,
    core: int,
    names: Iterable[str] = STEP_PEERS,
    progress: Callable[[str], None] = lambda step: None,
) -> tuple[list[Contestant], dict[str, str]]:
    """Peers whose samples agree with float64, and the reason for each skipped peer.

    Their processes end with `stack`.
    """
    ready, skipped = list[Contestant](), dict[str, str]()
    for name in names:
        progress(f"{task.name}: {name} loads")
        try:
            contestant = stack.enter_context(Contestant(MODEL_PEERS[name], core))
            contestant.prepare(task)
            for exact in task.exact:
                checked_error(contestant.run(folder), exact)
            ready.append(contestant)
        except (MissingDependency, PeerFailed) as problem:
            skipped[name] = str(problem)
    return ready, skipped
