"""Compare whole models of the zoo with peers, in the rounds of `model_contest.py`."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsejit.frontends.onnx import import_onnx
from sparsejit.perf.model_contest import (
    LARGEST_RELATIVE_ERROR,
    ROUNDS,
    Arrays,
    ContestantTime,
    export_onnx,
    measure,
)
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer
from sparsejit.perf.zoo import ZooModel, pruned
from sparsejit.perf.zoo.quantised import OPSET, quantise_file

OURS = (
    ModelPeer("sparsejit", "this project, called as the model is"),
    ModelPeer("sparsejit-bound", "this project, bound to its arrays"),
)
# Engines round ties differently, and each such tie moves later values by whole steps.
_LARGEST_QUANTISED = 0.1
_MORE_SAMPLES = 3  # for the quantiser's calibration, besides the inputs


@dataclass(frozen=True)
class ModelComparison:
    """One model at one batch: times, fastest first, and the reason for each skipped contestant.

    density: the share of the pruned weights that is left.
    pattern: the pattern that they were pruned in.
    """

    model: str
    batch: int
    density: float
    times: tuple[ContestantTime, ...]
    skipped: dict[str, str]
    pattern: str = "unstructured"

    @property
    def reference(self) -> ContestantTime | None:
        """The contestant to compare others with: sparsejit, else torch, else the fastest."""
        by_name = {time.name: time for time in self.times}
        fastest = self.times[0] if self.times else None
        return by_name.get(OURS[0].name) or by_name.get("torch") or fastest

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `ratio` is each least time over the least time of `reference`."""
        if self.reference is None:
            return asdict(self)
        ratio = {time.name: time.ns_min / self.reference.ns_min for time in self.times}
        return {**asdict(self), "reference": self.reference.name, "ratio": ratio}


class ModelTask:
    """One model at one batch, as files in `folder`, and its exact outputs."""

    def __init__(
        self,
        model: ZooModel,
        batch: int,
        density: float,
        folder: Path,
        pattern: str = "unstructured",
    ) -> None:
        self.model, self.batch, self.density, self.pattern = model, batch, density, pattern
        self.folder = folder
        self.inputs = model.inputs(batch)
        self.inputs_file = folder / "inputs.npz"
        np.savez(self.inputs_file, *(tensor.numpy() for tensor in self.inputs))

    def module(self) -> torch.nn.Module:
        """The pruned model."""
        return pruned(self.model, self.density, self.pattern)

    @property
    def is_quantised(self) -> bool:
        """Whether the model is a quantised file, the same for all contestants."""
        return self.model.quantises is not None

    @cached_property
    def exact(self) -> Arrays:
        """The outputs in float64: torch's, or for a quantised file our own graph's."""
        if self.is_quantised:
            arrays = [tensor.numpy() for tensor in self.inputs]
            graph = import_onnx(self.onnx_file(OPSET), arrays, False).graph()
            return graph.evaluate([_widened(array) for array in arrays])
        module = self.module().double()
        doubles = (one.double() if one.is_floating_point() else one for one in self.inputs)
        with torch.no_grad():
            outputs = module(*doubles)
        several = isinstance(outputs, tuple)
        return [output.numpy() for output in (outputs if several else [outputs])]

    @property
    def request(self) -> dict[str, Any]:
        """Fields of the "load" request to `PeerWorker` that name the model, besides its files."""
        if self.is_quantised:
            file = str(self.onnx_file(OPSET))
            return {"file": file, "names": self._names, "constants": {}, "fallback": None}
        zoo = {"model": self.model.name, "density": self.density, "pattern": self.pattern}
        return {"zoo": zoo}

    def onnx_file(self, opset: int) -> Path:
        """The model as ONNX for exactly this batch; the same file for every opset if quantised.

        Raises as `export_onnx` and `quantise_file` do.
        """
        if self.is_quantised:
            return self._quantised_file
        file = self.folder / f"opset{opset}.onnx"
        if not file.exists():
            export_onnx(self.module(), self.inputs, file, opset)
        return file

    @property
    def _names(self) -> list[str]:
        return [f"x{number}" for number in range(len(self.inputs))]

    @cached_property
    def _quantised_file(self) -> Path:
        plain, made = self.folder / "plain.onnx", self.folder / "quantised.onnx"
        export_onnx(self.module(), self.inputs, plain, OPSET, self._names)
        samples = [self.inputs, *(_others(self.inputs, seed) for seed in range(_MORE_SAMPLES))]
        named = [
            {name: x.numpy() for name, x in zip(self._names, each, strict=True)} for each in samples
        ]
        quantise_file(plain, made, named, self.model.quantises or ())
        plain.unlink()
        return made


def _widened(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def _others(inputs: tuple[torch.Tensor, ...], seed: int) -> tuple[torch.Tensor, ...]:
    """Inputs of the same shapes with other random numbers."""
    random = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(x.shape, generator=random)
        if x.is_floating_point()
        else torch.randint(int(x.max()) + 1, x.shape, generator=random)
        for x in inputs
    )


def compare(
    model: ZooModel,
    batch: int,
    density: float,
    peers: Iterable[ModelPeer] = tuple(MODEL_PEERS.values()),
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
    pattern: str = "unstructured",
) -> ModelComparison:
    """Measure sparsejit and the peers on one model; `skipped` has the absent and wrong ones."""
    with tempfile.TemporaryDirectory(prefix="sparsejit-models-") as folder:
        task = ModelTask(model, batch, density, Path(folder), pattern)
        title = f"{model.name}, batch {batch}"
        contestants, largest = [*OURS, *peers], LARGEST_RELATIVE_ERROR
        if task.is_quantised:  # its worker binds files anyway, and torch does not read them
            readers = (peer for peer in contestants[len(OURS) :] if peer.opset is not None)
            contestants, largest = [OURS[0], *readers], _LARGEST_QUANTISED
        times, skipped = measure(task, title, contestants, progress, rounds, largest)
    return ModelComparison(model.name, batch, density, times, skipped, pattern)
