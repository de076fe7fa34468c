"""Time a shrunk model, its dense model and other engines in one run, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import sparsejit
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.frontends.model_source import NamedModel
from sparsejit.frontends.onnx import is_onnx
from sparsejit.ir.values import Array
from sparsejit.perf.any_model import AnyTask
from sparsejit.perf.model_contest import ROUNDS, ModelRounds
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer
from sparsejit.perf.peers.peer_process import PeerFailed
from sparsejit.prune.shrink.shrunk import EngineTime, Shrunk

# The dense model, and the shrunk one, which may have any error.
OURS = (
    ModelPeer("sparsejit-dense", "the dense model, compiled"),
    ModelPeer("sparsejit-shrunk", "the shrunk model, compiled", is_float32=False),
)
_PEERS = ("onnxruntime", "openvino")
# A float32 engine whose relative error exceeds this computes another model.
_WRONG = 1e-2


class ShrunkComparison(NamedTuple):
    """The result with the times of one run, and the reason for each skipped engine."""

    shrunk: Shrunk
    skipped: dict[str, str]


class _ShrunkTask(AnyTask):
    """The dense model as it was given, for others, and both models compiled, for ours."""

    def __init__(self, source: NamedModel, folder: Path, models: dict[str, CompiledModel]) -> None:
        super().__init__(source, folder)
        self._models = {name: str(folder / f"{name}.sjit") for name in models}
        for name, model in models.items():
            model.save(self._models[name])

    @property
    def request(self) -> dict[str, Any]:
        """As `AnyTask.request`, and the compiled models."""
        known = {"names": [each.name for each in self._source.inputs]}
        return {**known, "constants": self._source.constants, "compiled": self._models}

    def onnx_file(self, opset: int) -> Path:
        """As `AnyTask.onnx_file`. Raises PeerFailed for a model that torch cannot write."""
        try:
            return super().onnx_file(opset)
        except Exception as error:  # torch's exporter raises anything; the result stays
            raise PeerFailed(f"no ONNX file of opset {opset}: {error}".splitlines()[0]) from error


def installed_peers() -> list[ModelPeer]:
    """ONNX Runtime and OpenVINO, where `bench peers` installed them or this Python has them."""
    peers = [MODEL_PEERS[name] for name in _PEERS]
    found = [peer for peer in peers if peer.is_installed]
    own = [peer for peer in peers if peer not in found and find_spec(peer.name) is not None]
    return [*found, *(replace(peer, requirements=()) for peer in own)]


def compare_shrunk(
    shrunk: Shrunk,
    source: NamedModel,
    element: Sequence[Array],
    options: dict[str, Any],
    peers: Sequence[ModelPeer],
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
) -> ShrunkComparison:
    """Time the result, the dense model and the peers for the dense model on an element of data.

    The times of the run replace the times of the result. Where one of our models fails, the result
    stays as it is. `options` are options of `sparsejit.compile`.
    """
    source = _with_inputs(source, element, shrunk.model)
    compiled = [shrunk.model]
    if not shrunk.is_dense:
        progress("compiling the dense model")
        dense = sparsejit.compile(
            source.model, source.args, constants=source.constants or None, **options
        )
        compiled.insert(0, dense)
    ours = OURS[: len(compiled)]
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="sparsejit-shrink-"))
        models = {peer.name: model for peer, model in zip(ours, compiled, strict=True)}
        task = _ShrunkTask(source, Path(folder), models)
        threads = options.get("threads", 1)
        contest = ModelRounds(stack, task, "peers", (*ours, *peers), progress, _largest, threads)
        times = {one.name: one for one in contest.times(rounds)}
        if any(peer.name not in times for peer in ours):
            return ShrunkComparison(shrunk, contest.skipped)
        known = {peer.name for peer in peers}
        found = tuple(
            EngineTime(one.name, one.version, one.ns_min)
            for one in times.values()
            if one.name in known
        )
        dense_ns, ns = times[ours[0].name].ns_min, times[ours[-1].name].ns_min
        made = replace(shrunk, dense_ns=dense_ns, ns=ns, peers=found)
        return ShrunkComparison(made, contest.skipped)


def _largest(peer: ModelPeer) -> float:
    return _WRONG if peer.is_float32 else float("inf")


def _with_inputs(source: NamedModel, element: Sequence[Array], model: CompiledModel) -> NamedModel:
    """The source with an element of data as inputs, in the dtypes that the model declares."""
    if is_onnx(source.model):
        inputs = [each for each in source.inputs if each.name not in source.constants]
        dtypes = [each.dtype for each in inputs]
    else:
        dtypes = [np.dtype(each.type.element.value) for each in model.graph.inputs]
    arrays = [
        np.ascontiguousarray(array, dtype)
        for array, dtype in zip(element, dtypes, strict=True)
    ]
    if is_onnx(source.model):
        return replace(source, args=tuple(arrays), kwargs={})
    import torch

    return replace(source, args=tuple(map(torch.from_numpy, arrays)), kwargs={})
