"""A model as a file: its graphs after all passes; it is compiled again where it is loaded.

    {"name": ..., "settings": record, "inputs": nest, "outputs": nest,
     "variants": [{"shared": bool, "graphs": [{"tile": ..., "graph": ...}, ...]}, ...],
     "shrinking": command}

A variant is the model for inputs of certain shapes. Where the batch is free it has graphs for one
or more tiles, the main one first; tile 0 means a fixed batch. "shrinking" is left out unless the
model came from ONNX.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparsejit.api.models.variant import TiledGraph
from sparsejit.api.options import ModelSettings
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.graph_file import graph_from_data, graph_to_data
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.artefact.sealed import Tensors
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.nesting import Nest, NestKind, from_json, open_axes, to_json
from sparsejit.ir.values import Array, TensorType
from sparsejit.machine.target import ISA_LEVELS
from sparsejit.planner.split import parse_threads

KIND = "model"
_RECORDS = RecordCodec((ModelSettings,))
_NAMES = ("native", *ISA_LEVELS)


class SavedVariant(NamedTuple):
    """Graphs after all passes, each with its tile or None; whether threads share the tiles."""

    graphs: Sequence[TiledGraph]
    shares_tiles: bool


@dataclass(frozen=True, eq=False)
class ModelSource:
    """The data from which a model is compiled."""

    name: str
    settings: ModelSettings
    input_nest: Nest
    output_nest: Nest
    variants: Sequence[SavedVariant]
    shrinking: str = ""


def model_to_data(source: ModelSource) -> tuple[dict[str, Any], Tensors]:
    """Return header and tensors. Raises InvalidInput for nests and graphs that cannot be saved."""
    writer = ArrayWriter()
    variants = [
        {
            "shared": shared,
            "graphs": [
                {"tile": tile or 0, "graph": graph_to_data(graph, writer)} for graph, tile in graphs
            ],
        }
        for graphs, shared in source.variants
    ]
    header = {
        "name": source.name,
        "settings": settings_to_data(source.settings),
        "inputs": nest_to_data(source.input_nest, "inputs"),
        "outputs": nest_to_data(source.output_nest, "outputs"),
        "variants": variants,
        **({"shrinking": source.shrinking} if source.shrinking else {}),
    }
    return header, writer.tensors


def read_model(header: Any, tensors: Mapping[str, Array]) -> ModelSource:
    """Return the source that `model_to_data` wrote.

    Raises DamagedFile, without the file's name, for other data. It checks every shape that the code
    relies on, but not whether a kernel exists for it.
    """
    whole = {"shrinking": "", **header} if isinstance(header, dict) else header
    name, settings, inputs, outputs, variants, shrinking = fields_of(
        whole, name=str, settings=dict, inputs=dict, outputs=dict, variants=list, shrinking=str
    )
    reader = ArrayReader(tensors)
    read = [_variant_from_data(data, reader) for data in variants]
    reader.finish()
    given, results = nest_from_data(inputs, "inputs"), nest_from_data(outputs, "outputs")
    arguments = [item.kind for item in given.items]
    if given.kind is not NestKind.TUPLE or arguments != [NestKind.TUPLE, NestKind.DICT]:
        raise DamagedFile("has inputs that are no arguments of a call")
    _check_interfaces(read, given, results)
    return ModelSource(name, settings_from_data(settings), given, results, read, shrinking)


def _variant_from_data(data: Any, reader: ArrayReader) -> SavedVariant:
    shared, described = fields_of(data, shared=bool, graphs=list)
    graphs = [_graph_from_data(one, reader) for one in described]
    tiles = [graph.tile for graph in graphs]
    if not tiles or (len(tiles) > 1 and (None in tiles or shared or len({*tiles}) < len(tiles))):
        raise DamagedFile(f"has graphs of tiles {tiles}")
    if shared and tiles == [None]:
        raise DamagedFile("has a graph of a fixed batch whose tiles threads share")
    return SavedVariant(graphs, shared)


def _graph_from_data(data: Any, reader: ArrayReader) -> TiledGraph:
    tile, described = fields_of(data, tile=int, graph=dict)
    if tile < 0:
        raise DamagedFile(f"has a graph of tile {tile}")
    return TiledGraph(graph_from_data(described, reader), tile or None)


def _check_interfaces(variants: Sequence[SavedVariant], given: Nest, made: Nest) -> None:
    """Raise DamagedFile unless the inputs and outputs of all graphs fit the nests and the tile."""
    shapes = set()
    kinds = set()
    for place, (graph, tile) in ((n, one) for n, each in enumerate(variants) for one in each[0]):
        outputs = tensors_in(made) + len({axis.size for axis in open_axes(made)})
        if (len(graph.inputs), len(graph.outputs)) != (tensors_in(given), outputs):
            raise DamagedFile("has a graph of other inputs or outputs than the model's")
        types = [value.type for value in (*graph.inputs, *graph.outputs)]
        shared = set(filter(graph.is_shared, range(len(graph.inputs))))
        sizes = [kind.shape[:1] for number, kind in enumerate(types) if number not in shared]
        has_batch = len(shared) < len(graph.inputs) and set(sizes) == {(tile,)}
        if (tile is not None and not has_batch) or (tile is None and graph.batch_axes is not None):
            raise DamagedFile(f"has a graph that does not run {tile} samples at a time")
        kinds.add((tile is None, tuple(kind.element for kind in types)))
        own = tuple(
            _free(value.type, None if number in shared else tile)
            for number, value in enumerate(graph.inputs)
        )
        shapes.add((place, *own))
    different = {shape[1:] for shape in shapes}
    if len(kinds) != 1 or not len(different) == len(shapes) == len(variants):
        raise DamagedFile("has graphs that are not one model for inputs of several shapes")


def _free(kind: TensorType, tile: int | None) -> tuple[int, ...]:
    return kind.shape if tile is None else kind.shape[1:]


def settings_to_data(settings: ModelSettings) -> dict[str, Any]:
    """Return the options of a model or an estimator, for its header."""
    return _RECORDS.encode(settings)


def settings_from_data(data: Any) -> ModelSettings:
    """Return the options that `settings_to_data` wrote. Raises DamagedFile for invalid options."""
    settings: ModelSettings = _RECORDS.decode(data)
    if isinstance(settings.target, str) and settings.target not in _NAMES:
        raise DamagedFile(f"has target {settings.target!r}")
    try:
        parse_threads(settings.threads)
    except InvalidInput as error:
        raise DamagedFile(f"has {error}") from error
    return settings


def tensors_in(nest: Nest) -> int:
    return sum(map(tensors_in, nest.items)) if nest.items else int(nest.kind is NestKind.TENSOR)


def nest_to_data(nest: Nest, where: str) -> dict[str, Any]:
    """Return a nest for a header. Raises InvalidInput for one that JSON does not preserve."""
    data = to_json(nest)
    try:
        kept = from_json(json.loads(json.dumps(data, allow_nan=False)), where) == nest
    except (DamagedFile, TypeError, ValueError):
        kept = False
    if not kept:
        raise InvalidInput(
            f"the nest of {where} has keys or constants that cannot be saved; use strings and "
            "finite numbers"
        )
    return data


def nest_from_data(data: Any, where: str) -> Nest:
    """Return the nest that `nest_to_data` wrote. Raises DamagedFile for anything else."""
    try:
        return from_json(data, where)
    except DamagedFile as error:
        raise DamagedFile(f"has {where} that are no nest of tensors") from error
