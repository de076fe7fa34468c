"""A model of several parts as a file: graphs of compiled parts, ONNX models of the others.

    {"settings": record, "inputs": nest, "outputs": nest, "chains": [record, ...],
     "models": [header of a native function, ...]}

The parts, in order, use the "models" and the ONNX tensors in order. Tensors: "constant.N" of the
Nth constant, "onnx.N" of the Nth session, "N/..." of the Nth model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from sparsejit.api.models.compiled_model import compile_saved
from sparsejit.api.models.model_file import (
    model_to_data,
    nest_from_data,
    nest_to_data,
    read_model,
    settings_from_data,
    settings_to_data,
    tensors_in,
)
from sparsejit.api.models.parts import LeftPart, OwnPart, Part, PartChain
from sparsejit.api.options import ModelSettings
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.artefact.sealed import Tensors
from sparsejit.errors import CompileError, DamagedFile
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.onnx.dividing import LeftNode
from sparsejit.frontends.onnx.sessions import check_whole
from sparsejit.ir.values import Array
from sparsejit.runtime.python_objects import ArrayType

KIND = "model in parts"


@dataclass(frozen=True)
class SavedInput:
    """An input of a model."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biufO" or min(self.shape, default=0) < 0:
            raise ValueError(f"{self.dtype} of {self.shape}")


@dataclass(frozen=True)
class SavedPart:
    """A part: `nodes` nodes as a native function, or the nodes `left` to ONNX Runtime."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: int
    left: tuple[LeftNode, ...]


@dataclass(frozen=True)
class SavedChain:
    """Parts in order. Raises ValueError unless each value has one name and is made before reads."""

    inputs: tuple[SavedInput, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    parts: tuple[SavedPart, ...]

    def __post_init__(self) -> None:
        names = [*(each.name for each in self.inputs), *self.constants]
        for part in self.parts:
            if not set(part.inputs) <= set(names):
                raise ValueError(f"{part.inputs} of {names}")
            names += part.outputs
        if len(set(names)) != len(names) or not set(self.outputs) <= set(names):
            raise ValueError(f"{self.outputs} of {names}")


_RECORDS = RecordCodec((SavedChain,))


@dataclass(frozen=True, eq=False)
class PartedSource:
    """The data from which a model of parts is made."""

    settings: ModelSettings
    input_nest: Nest
    output_nest: Nest
    chains: tuple[PartChain, ...]


def parted_to_data(source: PartedSource) -> tuple[dict[str, Any], Tensors]:
    """Return header and tensors. Raises InvalidInput for graphs that cannot be saved."""
    tensors: Tensors = {}
    models: list[dict[str, Any]] = []
    sessions, constants = count(), count()
    for chain in source.chains:
        tensors.update({f"constant.{next(constants)}": x for x in chain.constants.values()})
        for part in chain.parts:
            if isinstance(part, LeftPart):
                tensors[f"onnx.{next(sessions)}"] = np.frombuffer(part.onnx, np.uint8)
                continue
            header, own = model_to_data(part.model.source())
            tensors.update({f"{len(models)}/{key}": array for key, array in own.items()})
            models.append(header)
    header = {
        "settings": settings_to_data(source.settings),
        "inputs": nest_to_data(source.input_nest, "inputs"),
        "outputs": nest_to_data(source.output_nest, "outputs"),
        "chains": [_RECORDS.encode(_saved(chain)) for chain in source.chains],
        "models": models,
    }
    return header, tensors


def _saved(chain: PartChain) -> SavedChain:
    inputs = (SavedInput(x.name, x.dtype, tuple(n or 0 for n in x.shape)) for x in chain.inputs)
    parts = (
        SavedPart(x.inputs, x.outputs, x.nodes, x.left if isinstance(x, LeftPart) else ())
        for x in chain.parts
    )
    return SavedChain(tuple(inputs), chain.outputs, tuple(chain.constants), tuple(parts))


def read_parted(header: Any, tensors: Mapping[str, Array]) -> PartedSource:
    """Return the source that `parted_to_data` wrote, with its parts compiled again.

    Raises DamagedFile, without the file's name, for other data, MissingDependency without ONNX
    Runtime, and UnsupportedTarget as `compile_saved` does.
    """
    settings, inputs, outputs, chains, models = fields_of(
        header, settings=dict, inputs=dict, outputs=dict, chains=list, models=list
    )
    kept = settings_from_data(settings)
    reader = _PartReader(models, tensors, kept)
    found = tuple(reader.chain(_RECORDS.decode(data)) for data in chains)
    reader.finish()
    nests = nest_from_data(inputs, "inputs"), nest_from_data(outputs, "outputs")
    sizes = {(len(chain.inputs), len(chain.outputs)) for chain in found}
    if sizes != {tuple(map(tensors_in, nests))}:
        raise DamagedFile("has parts of other inputs or outputs than the model's")
    return PartedSource(kept, *nests, found)


class _PartReader:
    """Makes parts of models and tensors, in the order in which they were written."""

    def __init__(
        self, models: Sequence[Any], tensors: Mapping[str, Array], settings: ModelSettings
    ) -> None:
        self._models, self._left, self._threads = models, dict(tensors), settings.resolved().threads
        self._numbers = {kind: count() for kind in ("constant", "onnx", "model")}

    def chain(self, saved: SavedChain) -> PartChain:
        """Return the parts for inputs of certain shapes."""
        inputs = [ArrayType(each.dtype, each.shape, each.name) for each in saved.inputs]
        constants = {name: self._tensor("constant") for name in saved.constants}
        return PartChain(inputs, saved.outputs, constants, [*map(self._part, saved.parts)])

    def finish(self) -> None:
        """Raise DamagedFile for tensors and models that no part has read."""
        if self._left or next(self._numbers["model"]) < len(self._models):
            raise DamagedFile("has tensors or models of no part")

    def _part(self, saved: SavedPart) -> Part:
        ends = saved.inputs, saved.outputs
        if not saved.left:
            model = compile_saved(read_model(*self._next_model()))
            graph = model.graph
            if model.batch_is_free or (len(graph.inputs), len(graph.outputs)) != tuple(
                map(len, ends)
            ):
                raise DamagedFile("has a part of other inputs or outputs than its model")
            return OwnPart(model, *ends, saved.nodes)
        onnx = self._tensor("onnx").tobytes()
        check_whole(onnx)
        try:
            return LeftPart(onnx, *ends, saved.left, self._threads)
        except (CompileError, KeyError) as error:
            raise DamagedFile(f"has a part that is no model of ONNX: {error}") from error

    def _next_model(self) -> tuple[Any, dict[str, Array]]:
        number = next(self._numbers["model"])
        if number >= len(self._models):
            raise DamagedFile("has fewer models than parts")
        start = f"{number}/"
        own = [name for name in self._left if name.startswith(start)]
        return self._models[number], {x.removeprefix(start): self._left.pop(x) for x in own}

    def _tensor(self, kind: str) -> Array:
        name = f"{kind}.{next(self._numbers[kind])}"
        if name not in self._left:
            raise DamagedFile(f"has no tensor {name}")
        return self._left.pop(name)
