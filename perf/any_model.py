"""Anybody's model against every engine that runs it: ours in three precisions, then the peers."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sparsejit.frontends.model_source import NamedModel
from sparsejit.frontends.onnx import import_onnx, is_onnx
from sparsejit.frontends.torch_export import export
from sparsejit.ir.graph import Graph
from sparsejit.perf.model_contest import ROUNDS, Arrays, ContestantTime, measure
from sparsejit.perf.models import export_onnx
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer

OURS = (
    ModelPeer("sparsejit", "this project, float32"),
    ModelPeer("sparsejit-bfloat16", "this project, weights in bfloat16"),
    ModelPeer("sparsejit-int8", "this project, weights and what they multiply in int8"),
)
# A peer in float32 that is further off runs another model; the price of precision is shown.
_WRONG, _SHOWN = 1e-2, float("inf")


@dataclass(frozen=True)
class AnyComparison:
    """Who took how long, fastest first, and why others are not there."""

    model: str
    times: tuple[ContestantTime, ...]
    skipped: dict[str, str]

    @property
    def verdict(self) -> str:
        """In a sentence: how many times faster ours is than the best of the others."""
        others = [one for one in self.times if not one.name.startswith("sparsejit")]
        ours = {one.name: one for one in self.times if one.name.startswith("sparsejit")}
        if "sparsejit" not in ours:
            return f"sparsejit does not run it: {self.skipped.get('sparsejit', 'no time')}"
        if not others:
            return "no other engine here runs it; `sparsejit bench peers --install` brings some"
        best = min(others, key=lambda one: one.ns_min)
        parts = [_times(best.ns_min / ours["sparsejit"].ns_min, f"the best other, {best.name}")]
        for name in ("sparsejit-bfloat16", "sparsejit-int8"):
            if name in ours:
                ratio = best.ns_min / ours[name].ns_min
                error = ours[name].relative_error
                parts.append(f"{name.partition('-')[2]} {ratio:.1f} times at {error:.1e}")
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def _times(ratio: float, whom: str) -> str:
    if ratio >= 1:
        return f"{ratio:.1f} times as fast as {whom}"
    return f"{1 / ratio:.1f} times slower than {whom}"


class AnyTask:
    """A model in files of a folder, and what it computes in float64."""

    def __init__(self, source: NamedModel, folder: Path) -> None:
        self._source, self.folder = source, folder
        self._is_onnx = is_onnx(source.model)
        self.inputs_file = folder / "inputs.npz"
        np.savez(self.inputs_file, *self._all_inputs)

    @property
    def _arrays(self) -> Arrays:
        return [_array(each) for each in self._source.args]

    @property
    def _all_inputs(self) -> Arrays:
        """Those of the file, constants among them."""
        if not self._is_onnx:
            return self._arrays
        source, given = self._source, iter(self._arrays)
        return [
            np.asarray(source.constants[each.name], each.dtype)
            if each.name in source.constants
            else next(given)
            for each in source.inputs
        ]

    @cached_property
    def _graph(self) -> Graph:
        source = self._source
        if self._is_onnx:
            return import_onnx(source.model, source.args, False, source.constants).graph()
        return export(source.model, source.args, source.kwargs, False).graph(None)

    @cached_property
    def exact(self) -> Arrays:
        """Of a torch module by torch, else by our own graph: other engines' errors check that."""
        source = self._source
        if hasattr(source.model, "state_dict") and hasattr(source.model, "double"):
            import torch

            wide = [x.double() if x.is_floating_point() else x for x in source.args]
            with torch.no_grad():
                outputs = copy.deepcopy(source.model).eval().double()(*wide)
            return [each.numpy() for each in _listed(outputs)]
        kinds = {"f": np.float64, "b": np.bool_}
        return self._graph.evaluate(
            [x.astype(kinds.get(x.dtype.kind, np.int64)) for x in self._arrays]
        )

    @cached_property
    def request(self) -> dict[str, Any]:
        """What `PeerWorker.load` is told of the model, besides files."""
        import torch

        source = self._source
        if self._is_onnx:
            constants = dict(source.constants)
            file = str(Path(source.model).resolve())
            names = [each.name for each in source.inputs]
            return {"file": file, "names": names, "constants": constants}
        if source.reference.endswith(".pt2"):
            return {"program": str(Path(source.reference).resolve())}
        state = self.folder / "state.pt"
        torch.save(source.model.state_dict(), state)
        return {"factory": source.reference, "state": str(state)}

    def onnx_file(self, opset: int) -> Path:
        """The file itself, or what torch writes of the module. Raises as `export_onnx` does."""
        if self._is_onnx:
            return Path(self._source.model)
        file = self.folder / f"opset{opset}.onnx"
        if not file.exists():
            module = self._source.model
            module = module.module() if hasattr(module, "module_call_graph") else module.eval()
            export_onnx(module, self._source.args, file, opset)
        return file


def compare_any(
    source: NamedModel,
    peers: Iterable[ModelPeer] = tuple(MODEL_PEERS.values()),
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
) -> AnyComparison:
    """Ours in three precisions and the peers, outputs first; who is wrong or absent is skipped."""
    torch_alone = [each for each in peers if not (each.opset is None and is_onnx(source.model))]
    with TemporaryDirectory(prefix="sparsejit-bench-") as folder:
        task = AnyTask(source, Path(folder))
        name = Path(source.reference).name
        times, skipped = measure(
            task, name, (*OURS, *torch_alone), progress, rounds, largest=_largest
        )
    return AnyComparison(name, times, skipped)


def _largest(name: str) -> float:
    return _SHOWN if name.startswith("sparsejit") else _WRONG


def _array(x: Any) -> np.ndarray[Any, Any]:
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]
