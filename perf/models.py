"""Whole models of the zoo against their rivals, as `model_contest.py` measures them."""

import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsejit.errors import MissingDependency
from sparsejit.perf.model_contest import ROUNDS, Arrays, ContestantTime, measure
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer
from sparsejit.perf.peers.peer_process import PeerFailed
from sparsejit.perf.zoo import ZooModel, pruned

OURS = (
    ModelPeer("sparsejit", "this project, called as the model is"),
    ModelPeer("sparsejit-bound", "this project, bound to its arrays"),
)


@dataclass(frozen=True)
class ModelComparison:
    """One model at one batch: who took how long, fastest first, and why others are not there.

    density: the share of the pruned weights that is left.
    """

    model: str
    batch: int
    density: float
    times: tuple[ContestantTime, ...]
    skipped: dict[str, str]

    @property
    def reference(self) -> ContestantTime | None:
        """What the others are compared with: ours, else torch, else the fastest."""
        by_name = {time.name: time for time in self.times}
        fastest = self.times[0] if self.times else None
        return by_name.get(OURS[0].name) or by_name.get("torch") or fastest

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `ratio` is each one's least time over that of `reference`."""
        if self.reference is None:
            return asdict(self)
        ratio = {time.name: time.ns_min / self.reference.ns_min for time in self.times}
        return {**asdict(self), "reference": self.reference.name, "ratio": ratio}


class ModelTask:
    """One model at one batch, as files in `folder`, and what it should compute."""

    def __init__(self, model: ZooModel, batch: int, density: float, folder: Path) -> None:
        self.model, self.batch, self.density = model, batch, density
        self.folder = folder
        self._inputs = model.inputs(batch)
        self.inputs_file = folder / "inputs.npz"
        np.savez(self.inputs_file, *(tensor.numpy() for tensor in self._inputs))

    @cached_property
    def exact(self) -> Arrays:
        """The outputs in float64."""
        module = pruned(self.model, self.density).double()
        doubles = (one.double() if one.is_floating_point() else one for one in self._inputs)
        with torch.no_grad():
            outputs = module(*doubles)
        several = isinstance(outputs, tuple)
        return [output.numpy() for output in (outputs if several else [outputs])]

    @property
    def request(self) -> dict[str, Any]:
        """What `PeerWorker.load` is told of the model, besides files."""
        return {"zoo": {"model": self.model.name, "density": self.density}}

    def onnx_file(self, opset: int) -> Path:
        """The model as ONNX for exactly this batch.

        Raises as `export_onnx` does.
        """
        file = self.folder / f"opset{opset}.onnx"
        if not file.exists():
            export_onnx(pruned(self.model, self.density), self._inputs, file, opset)
        return file


def export_onnx(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], file: Path, opset: int
) -> None:
    """Write a module as ONNX with the shapes of `inputs`.

    By tracing: the newer exporter writes no opset that all peers read, and a GRU in pieces. Raises
    MissingDependency without the package onnx, PeerFailed for an operator that ONNX lacks.
    """
    if find_spec("onnx") is None:
        raise MissingDependency(
            "its file needs onnx, which is not installed: pip install 'sparsejit[bench]'"
        )
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # a failure prints its graph
        warnings.simplefilter("ignore")  # of the exporter's age, and of batches that differ
        try:
            torch.onnx.export(module, inputs, str(file), dynamo=False, opset_version=opset)
        except RuntimeError as problem:
            words = str(problem).splitlines()[0]
            raise PeerFailed(f"no ONNX file of opset {opset}: {words}") from problem


def compare(
    model: ZooModel,
    batch: int,
    density: float,
    peers: Iterable[ModelPeer] = tuple(MODEL_PEERS.values()),
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
) -> ModelComparison:
    """Measure ours and the peers on one model; who is absent or wrong is skipped, with why."""
    with tempfile.TemporaryDirectory(prefix="sparsejit-models-") as folder:
        task = ModelTask(model, batch, density, Path(folder))
        title = f"{model.name}, batch {batch}"
        times, skipped = measure(task, title, (*OURS, *peers), progress, rounds)
    return ModelComparison(model.name, batch, density, times, skipped)
