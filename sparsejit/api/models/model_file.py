"""A model as a file: its graphs after all passes; it is compiled again where it is loaded.

    {"name": ..., "settings": record, "inputs": nest, "outputs": nest,
     "variants": [{"shared": bool, "graphs": [{"tile": ..., "graph": ...}, ...]}, ...],
     "shrinking": command, "sizes": [record, ...],
     "rules": [{"size": name, "tile": ..., "lengths": [...], "graphs": [graph, ...]}, ...],
     "states": [{"name": ..., "input": number, "output": number, "initial": [array],
                 "origin": text}, ...],
     "pace": [step, delay, axis, [axis, ...]]}

A variant is the model for inputs of certain shapes. Where the batch is free it has graphs for one
or more tiles, the main one first; tile 0 means a fixed batch. "shrinking" is left out unless the
model came from ONNX, "sizes" unless sizes have names, "rules" unless these have rules, and "states"
unless inputs take outputs of the call before; "initial" is empty for zeros. Buffers that a torch
module changes are states behind the tensors of "inputs" and "outputs". "pace" is the step of
a model that was made of one for whole sequences, its delay, and the axes of time in the first input
and in each output that is no state, -1 without one.

"sizes" has a record for each input: its name, the example's shape, and the bounds of named axes. A
rule is three lengths of a size, and the graphs of a tile at these lengths, from which the graph of
any length follows. The graph of the first length is left out where the first variant has it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparsejit.api.models.variant import TiledGraph
from sparsejit.api.options import ModelSettings
from sparsejit.api.sizes.named_sizes import NamedInput, NamedSizes
from sparsejit.api.sizes.size_rules import SizeRule
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.graph_file import graph_from_data, graph_to_data
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.artefact.sealed import Tensors
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.nesting import Nest, NestKind, dtypes, from_json, open_axes, to_json
from sparsejit.ir.dtypes import COMPLEX
from sparsejit.ir.sized_graph import SizedGraph, with_constants_of
from sparsejit.ir.state import NO_PACE, Pace, State, check_states
from sparsejit.ir.values import Array, Element, TensorType
from sparsejit.machine.target import ISA_LEVELS
from sparsejit.planner.split import parse_threads

KIND = "model"
_RECORDS, _SIZES = RecordCodec((ModelSettings,)), RecordCodec((NamedInput,))
_NAMES = ("native", *ISA_LEVELS)


class SavedVariant(NamedTuple):
    """The model for inputs of certain shapes: graphs after all passes, each with its tile.

    A tile of None means a fixed batch. `shares_tiles`: whether threads take turns with tiles.
    """

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
    sizes: NamedSizes | None = None
    rules: Sequence[SizeRule] = ()
    states: Sequence[State] = ()
    pace: Pace = NO_PACE


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
        **({"sizes": sizes_to_data(source.sizes)} if source.sizes else {}),
    }
    held = {graph.tile for graph in source.variants[0].graphs}
    rules = [_rule_to_data(rule, held, writer) for rule in source.rules]
    states = [_state_to_data(state, writer) for state in source.states]
    step, *rest, axes = source.pace
    pace = [] if step is None else [step, *rest, [-1 if axis is None else axis for axis in axes]]
    later = {"rules": rules, "states": states, "pace": pace}
    return {**header, **{name: each for name, each in later.items() if each}}, writer.tensors


def _state_to_data(state: State, writer: ArrayWriter) -> dict[str, Any]:
    """Return a state as JSON data."""
    initial = [] if state.initial is None else [writer.add(state.initial)]
    return {**vars(state), "initial": initial}


def _rule_to_data(rule: SizeRule, held: Collection[int | None], writer: ArrayWriter) -> Any:
    """Return a rule as JSON data; `held` are the tiles of the first variant."""
    size, tile, sized = rule
    graphs = [graph_to_data(one, writer) for one in sized.graphs[int(tile in held) :]]
    return {"size": size, "tile": tile or 0, "lengths": list(sized.lengths), "graphs": graphs}


def read_model(header: Any, tensors: Mapping[str, Array]) -> ModelSource:
    """Return the source that `model_to_data` wrote.

    Raises DamagedFile, without the file's name, for other data. It checks every shape that the code
    relies on, but not whether a kernel exists for it.
    """
    newer = {"shrinking": "", "sizes": [], "rules": [], "states": [], "pace": []}
    name, settings, inputs, outputs, variants, shrinking, named, growth, carried, pace = fields_of(
        {**newer, **header} if isinstance(header, dict) else header,
        name=str,
        settings=dict,
        inputs=dict,
        outputs=dict,
        variants=list,
        **{field: type(value) for field, value in newer.items()},
    )
    reader = ArrayReader(tensors)
    read = [_variant_from_data(data, reader) for data in variants]
    grown = [_rule_from_data(data, read, reader) for data in growth]
    states = [_state_from_data(data, reader) for data in carried]
    reader.finish()
    given, results = nest_from_data(inputs, "inputs"), nest_from_data(outputs, "outputs")
    arguments = [item.kind for item in given.items]
    if given.kind is not NestKind.TUPLE or arguments != [NestKind.TUPLE, NestKind.DICT]:
        raise DamagedFile("has inputs that are no arguments of a call")
    own = own_states(states, given, results)
    _check_interfaces(read, given, results, len(own))
    sizes = sizes_from_data(named)
    if own and sizes is not None:
        raise DamagedFile("has sizes of a model that changes buffers")
    _check_sizes(sizes, grown, read[0].graphs, (given, results))
    try:
        for graph, tile in (graph for each in read for graph in each.graphs):
            check_states(graph, states, tile)
    except InvalidInput as error:
        raise DamagedFile(f"has states that are not valid: {error}") from error
    kept = settings_from_data(settings)
    found = name, kept, given, results, read, shrinking, sizes, grown, states
    return ModelSource(*found, _pace_from_data(pace))


def _pace_from_data(data: list[Any]) -> Pace:
    """Return the pace that `model_to_data` wrote. Raises DamagedFile for other data."""
    if not data:
        return NO_PACE
    numbers, axes = data[:-1], data[-1]
    kinds = [type(number) for number in numbers]
    if kinds != [int] * 3 or min(numbers) < 0 or not isinstance(axes, list):
        raise DamagedFile(f"has {data} where a step, its delay and axes of time belong")
    if not all(type(axis) is int and axis >= -1 for axis in axes):
        raise DamagedFile(f"has axes of time {axes}")
    return Pace(*numbers, tuple(None if axis < 0 else axis for axis in axes))


def _state_from_data(data: Any, reader: ArrayReader) -> State:
    """Return the state that `_state_to_data` wrote."""
    name, before, after, initial, origin = fields_of(
        data, name=str, input=int, output=int, initial=list, origin=str
    )
    if len(initial) > 1:
        raise DamagedFile(f"has {len(initial)} initial values of state {name}")
    first = reader.read(initial[0]) if initial else None
    return State(name, before, after, first, origin)


def own_states(states: Sequence[State], given: Nest, made: Nest) -> list[State]:
    """Return the states behind the tensors of a call, in order, which no call gives.

    Raises DamagedFile unless their inputs and outputs follow the tensors without gaps.
    """
    first = tensors_in(given), tensors_in(made)
    own = [each for each in states if each.input >= first[0] or each.output >= first[1]]
    for number, state in enumerate(own):
        if (state.input, state.output) != (first[0] + number, first[1] + number):
            raise DamagedFile(f"has state {state.name} at input {state.input}, which is no place")
    return own


def sizes_to_data(sizes: NamedSizes | None) -> list[dict[str, Any]]:
    """Return named sizes as JSON data; [] where no size has a name."""
    return [] if sizes is None else list(map(_SIZES.encode, sizes.inputs))


def sizes_from_data(data: list[Any]) -> NamedSizes | None:
    """Return the sizes that `sizes_to_data` wrote. Raises DamagedFile for anything else."""
    inputs = list(map(_SIZES.decode, data))
    try:
        return NamedSizes(inputs) if inputs else None
    except InvalidInput as error:
        raise DamagedFile(f"has sizes that are not valid: {error}") from error


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


def _rule_from_data(
    data: Any, variants: Sequence[SavedVariant], reader: ArrayReader
) -> SizeRule:
    size, tile, lengths, described = fields_of(data, size=str, tile=int, lengths=list, graphs=list)
    graphs = [_graph_from_data({"tile": tile, "graph": each}, reader).graph for each in described]
    first = variants[0].graphs if variants else []
    held = [each.graph for each in first if (each.tile or 0) == tile]
    if not first or not all(type(length) is int and length > 0 for length in lengths):
        raise DamagedFile(f"has a rule of {size} for lengths {lengths}")
    if graphs and not held:
        graphs[0] = with_constants_of(first[0].graph, graphs[0])
    try:
        return SizeRule(size, tile or None, SizedGraph([*held, *graphs], lengths))
    except ValueError as error:
        raise DamagedFile(f"has a rule of {size} that is none: {error}") from error


def _check_sizes(
    sizes: NamedSizes | None,
    rules: Sequence[SizeRule],
    first: Sequence[TiledGraph],
    nests: tuple[Nest, Nest],
) -> None:
    """Raise DamagedFile unless sizes and rules fit the graphs of the first variant."""
    named = {} if sizes is None else sizes.lengths(sizes.example)
    places = {(rule.size, rule.tile) for rule in rules}
    if len(places) < len(rules) or not {size for size, _ in places} <= named.keys():
        raise DamagedFile("has rules that are not one for each size and tile")
    if sizes is None:
        return
    if len(sizes.inputs) != tensors_in(nests[0]):
        raise DamagedFile(f"has sizes of {len(sizes.inputs)} inputs")
    kinds, axes = _interface(first[0], *nests).kinds, first[0].graph.batch_axes
    tiled: list[tuple[TiledGraph, dict[str, int]]] = [(each, {}) for each in first]
    for size, tile, sized in rules:
        pairs = zip(sized.graphs, sized.lengths, strict=True)
        tiled += [(TiledGraph(graph, tile), {size: length}) for graph, length in pairs]
    for each, lengths in tiled:
        try:
            wanted = sizes.shapes_for(lengths)
        except InvalidInput as error:
            raise DamagedFile(f"has a rule that is not valid: {error}") from error
        alike = _interface(each, *nests).kinds == kinds and each.graph.batch_axes == axes
        if not alike or not _takes(each, wanted, dtypes(nests[0])):
            raise DamagedFile(f"has a graph that does not take inputs of shapes {wanted}")


def _takes(tiled: TiledGraph, shapes: Sequence[tuple[int, ...]], names: Sequence[str]) -> bool:
    """Whether a graph takes inputs of these shapes, of which a free batch may differ.

    `names` are the inputs' dtypes: a complex input has a last axis of 2 in the graph.
    """
    graph, tile = tiled
    axes = graph.batch_axes.inputs if graph.batch_axes else (0,) * len(shapes)
    for value, whole, name, axis in zip(graph.inputs, shapes, names, axes, strict=True):
        wanted, found = (*whole, 2) if name in COMPLEX else whole, value.shape
        if tile is not None and axis is not None:
            wanted, found = (*wanted[:axis], *wanted[axis + 1 :]), found[1:]
        if tuple(wanted) != found:
            return False
    return True


class _Interface(NamedTuple):
    """Inputs and outputs of a graph: whether the batch is fixed, elements, shapes of one sample."""

    kinds: tuple[bool, tuple[Element, ...]]
    shapes: tuple[tuple[int, ...], ...]


def _check_interfaces(
    variants: Sequence[SavedVariant], given: Nest, made: Nest, own: int
) -> None:
    """Raise DamagedFile unless all graphs are one model for inputs of several shapes.

    They have inputs and outputs for `own` states behind the tensors of a call.
    """
    found = [
        (place, _interface(one, given, made, own))
        for place, each in enumerate(variants)
        for one in each.graphs
    ]
    shapes = {(place, each.shapes) for place, each in found}
    different = {each for _, each in shapes}
    kinds = {each.kinds for _, each in found}
    if len(kinds) != 1 or not len(different) == len(shapes) == len(variants):
        raise DamagedFile("has graphs that are not one model for inputs of several shapes")


def _interface(tiled: TiledGraph, given: Nest, made: Nest, states: int = 0) -> _Interface:
    """Return a graph's interface. Raises DamagedFile unless it fits the nests and the tile."""
    graph, tile = tiled
    inputs, outputs = tensors_in(given) + states, tensors_in(made) + states
    outputs += len({axis.size for axis in open_axes(made)})
    if (len(graph.inputs), len(graph.outputs)) != (inputs, outputs):
        raise DamagedFile("has a graph of other inputs or outputs than the model's")
    types = [value.type for value in (*graph.inputs, *graph.outputs)]
    shared = set(filter(graph.is_shared, range(len(graph.inputs))))
    sizes = [kind.shape[:1] for number, kind in enumerate(types) if number not in shared]
    has_batch = len(shared) < len(graph.inputs) and set(sizes) == {(tile,)}
    if (tile is not None and not has_batch) or (tile is None and graph.batch_axes is not None):
        raise DamagedFile(f"has a graph that does not run {tile} samples at a time")
    own = (
        _free(value.type, None if number in shared else tile)
        for number, value in enumerate(graph.inputs)
    )
    return _Interface((tile is None, tuple(kind.element for kind in types)), tuple(own))


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
