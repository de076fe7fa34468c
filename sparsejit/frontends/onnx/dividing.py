"""Division of an ONNX file's nodes between sparsejit and ONNX Runtime, in as few parts as possible.

    part_model              some nodes of an ONNX file as a model of their own
    divided_onnx, divided   the parts

The results of a node that is left to ONNX Runtime become inputs of the graph, so that one reading
finds all such nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import CompileError, InvalidInput, SparseJitError
from sparsejit.frontends.onnx.call import Operand, operator_of, own_constants
from sparsejit.frontends.onnx.imported import GivenModel
from sparsejit.frontends.onnx.interpreting import ABSENT, NodeInterpreter, cast_to_floats
from sparsejit.frontends.onnx.reading import initialised, read_model, size_of, tensors_of
from sparsejit.frontends.onnx.sessions import result_types
from sparsejit.frontends.writing.missing import Missing, Unmapped, refuse
from sparsejit.ir.ops.selection import TruePlaces
from sparsejit.ir.values import Array, Origin, Value

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

def reads(node: NodeProto) -> list[str]:
    """The values that a node reads, also in graphs within it that read values around the node."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for region in _regions(attribute):
            found += _captured(region)
    return list(dict.fromkeys(found))


def _regions(attribute: AttributeProto) -> Sequence[GraphProto]:
    """The graphs within an attribute: branches, and bodies of loops."""
    return [attribute.g] if attribute.HasField("g") else attribute.graphs


def _captured(region: GraphProto) -> Iterator[str]:
    own = {each.name for each in region.input} | initialised(region)
    for node in region.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (each.name for each in region.output if each.name not in own)


def makes(node: NodeProto) -> list[str]:
    """The names of a node's results."""
    return [name for name in node.output if name]


def inlined(node: NodeProto, branch: GraphProto) -> list[NodeProto]:
    """The nodes of a branch in place of the If that chooses it.

    Its values are renamed: branches of several Ifs may have the same names.
    """
    from onnx.helper import make_node
    from onnx.numpy_helper import from_array

    own = initialised(branch)
    computed = {name for inner in branch.node for name in makes(inner)}
    names = {name: f"{node.output[0]}/{name}" for name in (*own, *computed)}
    last = []
    for result, name in zip(branch.output, node.output, strict=True):
        if result.name in computed:
            computed.remove(result.name)
            names[result.name] = name
        elif name:
            last.append(make_node("Identity", [names.get(result.name, result.name)], [name]))
    first = [
        make_node("Constant", [], [names[name]], value=from_array(array))
        for name, array in tensors_of(branch).items()
    ]
    return [*first, *(_renamed(inner, names) for inner in branch.node), *last]


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Copy a node, with other names for its values, also within its graphs."""
    made = type(node)()
    made.CopyFrom(node)
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    for attribute in made.attribute:
        for region in _regions(attribute):
            own = {each.name for each in region.input} | initialised(region)
            own.update(name for inner in region.node for name in inner.output)
            around = {name: other for name, other in names.items() if name not in own}
            nodes = [_renamed(inner, around) for inner in region.node]
            del region.node[:]
            region.node.extend(nodes)
            for result in region.output:
                result.name = around.get(result.name, result.name)
    return made


def needed(nodes: Mapping[int, NodeProto], outputs: Iterable[str]) -> dict[int, NodeProto]:
    """The nodes that outputs depend on, out of `nodes`, which are in order."""
    wanted = set(outputs)
    found: dict[int, NodeProto] = {}
    for place, node in reversed(list(nodes.items())):
        if wanted.intersection(node.output):
            found[place] = node
            wanted.update(reads(node))
    return dict(sorted(found.items()))


def without_sizes(kind: TypeProto) -> TypeProto:
    """The type with the same number of axes, of any sizes."""
    made = type(kind)()
    made.CopyFrom(kind)
    for axis in made.tensor_type.shape.dim:
        axis.Clear()
    return made


def crossing(nodes: Sequence[NodeProto], known: Mapping[str, Any]) -> list[str]:
    """Names that these nodes read from outside: neither results of theirs, nor in `known`."""
    made = {name for node in nodes for name in makes(node)}
    read = dict.fromkeys(name for node in nodes for name in reads(node))
    return [name for name in read if name not in made and name not in known]


def part_model(
    given: GivenModel,
    nodes: Sequence[NodeProto],
    outputs: Iterable[str],
    arrays: Mapping[str, Array],
    type_of: Callable[[str], TypeProto | None],
) -> ModelProto:
    """Write the nodes as a model; known values that they read become constants.

    `type_of` returns the type of an input; None for an output lets the model's reader infer it.
    """
    from onnx import ModelProto, ValueInfoProto
    from onnx.numpy_helper import from_array

    model = ModelProto(ir_version=given.model.ir_version, opset_import=given.model.opset_import)
    graph = model.graph
    graph.name = given.model.graph.name or "part"
    graph.node.extend(nodes)
    read = {name for node in nodes for name in reads(node)}
    graph.initializer.extend(from_array(x, name) for name, x in arrays.items() if name in read)
    graph.input.extend(
        ValueInfoProto(name=name, type=type_of(name)) for name in crossing(nodes, arrays)
    )
    graph.output.extend(ValueInfoProto(name=name, type=type_of(name)) for name in outputs)
    return model


_REMEDY = "write them with other operators"
# Errors that a fault of sparsejit may raise while a node is read.
_FAULTS = (LookupError, TypeError, ValueError, ArithmeticError, AssertionError, AttributeError)


@dataclass(frozen=True)
class LeftNode:
    """A node that ONNX Runtime runs: its operator, its name, and the reason."""

    operator: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} (node {self.name}): {self.reason}"


@dataclass(frozen=True)
class GraphPart:
    """Nodes by their places, all compiled or all left to ONNX Runtime; their inputs and outputs."""

    places: tuple[int, ...]
    is_left: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class DividedModel:
    """The nodes that the outputs need, by their places in order; decided branches are inlined.

    left: nodes that ONNX Runtime runs.
    known: arrays that no call changes.
    types: types of all other values.
    unsized: nodes that ONNX Runtime rejects if the types of their operands have sizes.
    """

    given: GivenModel
    nodes: Mapping[int, NodeProto]
    left: Mapping[int, LeftNode]
    known: Mapping[str, Array]
    types: Mapping[str, TypeProto]
    unsized: Collection[int]

    @cached_property
    def outputs(self) -> list[str]:
        """The names of the file's outputs."""
        return [each.name for each in self.given.model.graph.output]

    @cached_property
    def parts(self) -> list[GraphPart]:
        """The fewest parts that can run one after the other, compiled and left ones in turn."""
        computed = [
            place
            for place, node in self.nodes.items()
            if any(name in self.types and name not in self.known for name in makes(node))
        ]
        maker = {name: place for place in computed for name in makes(self.nodes[place])}
        before = {
            place: {maker[name] for name in reads(self.nodes[place]) if name in maker}
            for place in computed
        }
        ways = [_in_turn(before, self.left.keys(), begins_left) for begins_left in (False, True)]
        return [self.part(places) for places in min(ways, key=len)]

    def part(self, places: Sequence[int]) -> GraphPart:
        """The part of these nodes, with its inputs from others and its outputs to others."""
        nodes = [self.nodes[place] for place in places]
        inside = set(places)
        outside = [node for place, node in self.nodes.items() if place not in inside]
        wanted = {name for node in outside for name in reads(node)}.union(self.outputs)
        made = (name for node in nodes for name in makes(node))
        return GraphPart(
            tuple(places),
            places[0] in self.left,
            tuple(crossing(nodes, self.known)),
            tuple(name for name in made if name in wanted and name not in self.known),
        )

    def results(self, part: GraphPart) -> dict[int, str]:
        """The first result of each node of a part, which identifies the node."""
        return {place: makes(self.nodes[place])[0] for place in part.places}

    def model(self, part: GraphPart) -> ModelProto:
        """A part as a model of its own, with its constants."""
        return self._model(part, self.known)

    def given_part(self, part: GraphPart) -> GivenModel:
        """A compiled part as the source of an `ImportedModel`."""
        return GivenModel(self._model(part, {}), arrays=self.known)

    def _model(self, part: GraphPart, arrays: Mapping[str, Array]) -> ModelProto:
        nodes = [self.nodes[place] for place in part.places]
        types = self.types
        if not set(part.places).isdisjoint(self.unsized):
            types = {name: without_sizes(kind) for name, kind in types.items()}
        return part_model(self.given, nodes, part.outputs, arrays, types.get)


def _in_turn(
    before: Mapping[int, set[int]], left: Iterable[int], begins_left: bool
) -> list[list[int]]:
    """Nodes, by place, in rounds that ONNX Runtime and compiled code run in turn.

    `before` has the nodes that each node waits for, `left` the nodes of ONNX Runtime, whose round
    is the first if `begins_left`. A round has all nodes of its side that can run by then.
    """
    aside, done, rounds = set(left), set[int](), list[list[int]]()
    waiting, is_left = list(before), begins_left
    while waiting:
        taken = []
        for place in waiting:
            if (place in aside) == is_left and before[place] <= done:
                taken.append(place)
                done.add(place)
        waiting = [place for place in waiting if place not in done]
        rounds += [taken] if taken else []
        is_left = not is_left
    return rounds


def divided_onnx(
    source: str | Path | ModelProto,
    example_inputs: Sequence[Any] = (),
    constants: Mapping[str, Any] | None = None,
) -> DividedModel:
    """Divide a file's nodes, as far as reading them tells. Arguments are as in `import_onnx`.

    Raises the errors of `import_onnx` for a file and examples, and the errors of `divided`.
    """
    return divided(GivenModel(read_model(source), tuple(example_inputs), constants), {})


def divided(given: GivenModel, refused: Mapping[str, str]) -> DividedModel:
    """Divide the nodes of a model; `refused` has the nodes that failed to compile, and why.

    A node is identified by its first result.

    Raises UnsupportedOperator, which lists them, for nodes that ONNX Runtime cannot run either, and
    MissingDependency where it is not installed.
    """
    refused = dict(refused)
    while True:
        divider = _Divider(given, refused)
        producer = divider.divide()
        if producer is None:
            return divider.result()
        refused.update(producer)


class _Divider:
    """Reads a model node by node, to find the nodes that must be left to ONNX Runtime."""

    def __init__(self, given: GivenModel, refused: Mapping[str, str]) -> None:
        self._given, self._refused = given, refused
        self._outputs = [each.name for each in given.model.graph.output]
        self._nodes: dict[int, NodeProto] = {}
        self._interpreter = NodeInterpreter(given.opset)
        self._interpreter.cast_to_floats = cast_to_floats(given.model.graph)
        self._known: dict[str, Operand] = dict(given.arrays)
        self._types: dict[str, TypeProto] = {}
        # Reasons why values cannot enter a compiled graph.
        self._outside: dict[str, str] = {}
        self._left: dict[int, LeftNode] = {}
        self._missing: list[Missing] = []
        self._unsized: set[int] = set()
        for each in given.inputs:
            self._add(each.name, _sized(each.type, given.shapes[each.name]))

    def divide(self) -> dict[str, str] | None:
        """Read all nodes. Return a node that must be left too, with the reason, if any is found."""
        makers: dict[str, str] = {}
        nodes = dict(enumerate(self._given.model.graph.node))
        waiting = deque(needed(nodes, self._outputs).values())
        while waiting:
            node = waiting.popleft()
            if (branch := self._decided(node)) is not None:
                waiting.extendleft(reversed(inlined(node, branch)))
                continue
            if (name := self._absent(reads(node))) is not None:
                return {makers[name]: f"its result {name} is not computed"}
            own, *_ = results = makes(node)
            makers.update(dict.fromkeys(results, own))
            place = len(self._nodes)
            self._nodes[place] = node
            reason = self._refused.get(own) or self._unread(node) or self._interpreted(node)
            if reason:
                self._left[place] = LeftNode(operator_of(node), _name(node), reason)
                self._stand_in(place, node, reason)
        if (name := self._absent(self._outputs)) is not None:
            return {makers[name]: f"its result {name} is not computed"}
        return None

    def _decided(self, node: NodeProto) -> GraphProto | None:
        """The branch that an If always takes, or None."""
        condition = self._known.get(node.input[0]) if node.op_type == "If" else None
        if not isinstance(condition, np.ndarray):
            return None
        name = "then_branch" if condition.all() else "else_branch"
        branch = next(each.g for each in node.attribute if each.name == name)
        try:
            own_constants(branch, self._known)
        except Unmapped:  # reported when the If is read as a whole
            return None
        return branch

    def result(self) -> DividedModel:
        """Return the division. Raises UnsupportedOperator for nodes that neither side runs."""
        if self._missing:
            refuse(self._missing, _REMEDY)
        values = {name: x for name, x in self._known.items() if isinstance(x, Value)}
        types = {name: self._interpreter.inference.type_of(name, x) for name, x in values.items()}
        arrays = {name: x for name, x in self._known.items() if isinstance(x, np.ndarray)}
        nodes = needed(self._nodes, self._outputs)
        left = {place: x for place, x in self._left.items() if place in nodes}
        return DividedModel(
            self._given, nodes, left, arrays, {**types, **self._types}, self._unsized
        )

    def _absent(self, names: Iterable[str]) -> str | None:
        """The first of these names whose value a compiled node should have made, and has not.

        None if there is none.
        """
        absent = (name for name in names if self._known.get(name) is ABSENT)
        return next((name for name in absent if name not in self._outside), None)

    def _unread(self, node: NodeProto) -> str:
        outside = (name for name in reads(node) if name in self._outside)
        return next((f"reads {name}, {self._outside[name]}" for name in outside), "")

    def _interpreted(self, node: NodeProto) -> str:
        """Reason why a node has no mapping; empty if it has one."""
        reader = self._interpreter
        try:
            reader.run([node], self._known)
        except _FAULTS as error:
            if isinstance(error, SparseJitError) and not isinstance(error, InvalidInput):
                raise
            return f"{error!r}; report it"
        found, reader.missing = reader.missing, []
        made = (self._known.get(name) for name in makes(node))
        if any(reader.write.depends_on(x, TruePlaces) for x in made):
            self._known.update(dict.fromkeys(makes(node), ABSENT))
            return "a call decides the size of its result"
        own = operator_of(node)
        words = (
            each.reason if each.operator == own else f"{each.operator} within it {each.reason}"
            for each in found
        )
        return "; ".join(each.strip() or "has no mapping" for each in words)

    def _stand_in(self, place: int, node: NodeProto, reason: str) -> None:
        """Make a node's results inputs of the graph, with the types that ONNX Runtime infers."""
        arrays = {
            name: x for name in reads(node) if isinstance(x := self._known.get(name), np.ndarray)
        }
        model = part_model(self._given, [node], makes(node), arrays, self._type_of)
        try:
            kinds = self._kinds(place, model)
        except CompileError as error:
            lost = any(self._outside.get(name) == "" for name in reads(node))
            if not lost:  # else the missing operand was reported already
                where = Origin(node.op_type, source=f"node {_name(node)}")
                self._missing.append(Missing(operator_of(node), f"{reason}; {error}", where))
            self._known.update(dict.fromkeys(makes(node), ABSENT))
            self._outside.update(dict.fromkeys(makes(node), ""))
            return
        for name, kind in kinds.items():
            self._add(name, kind)

    def _kinds(self, place: int, model: ModelProto) -> dict[str, TypeProto]:
        """Types of a node's results. Raises CompileError where ONNX Runtime cannot run the node."""
        try:
            return result_types(model)
        except CompileError:  # a branch that is never taken may fit other sizes only
            for each in model.graph.input:
                each.type.CopyFrom(without_sizes(each.type))
            kinds = result_types(model)
            self._unsized.add(place)
            return kinds

    def _type_of(self, name: str) -> TypeProto | None:
        operand = self._known.get(name)
        if name in self._types or not isinstance(operand, Value):
            return self._types.get(name)
        return self._interpreter.inference.type_of(name, operand)

    def _add(self, name: str, kind: TypeProto) -> None:
        """Add a value that comes from elsewhere: an input of the graph, if graphs hold its type."""
        self._types[name] = kind
        try:
            sizes = _static_sizes(kind)
            number = kind.tensor_type.elem_type
            self._known[name] = self._interpreter.input(name, number, sizes)
        except InvalidInput as reason:
            self._known[name] = ABSENT
            self._outside[name] = str(reason).removeprefix(f"input {name} ").partition(";")[0]


def _name(node: NodeProto) -> str:
    return str(node.name or node.output[0])


def _sized(kind: TypeProto, sizes: Sequence[int]) -> TypeProto:
    from onnx.helper import make_tensor_type_proto

    return make_tensor_type_proto(kind.tensor_type.elem_type, sizes)


def _static_sizes(kind: TypeProto) -> tuple[int, ...]:
    """Sizes of a tensor type. Raises InvalidInput where they are not known now."""
    if not kind.HasField("tensor_type"):
        raise InvalidInput("which is no tensor")
    tensor = kind.tensor_type
    sizes = [size for axis in tensor.shape.dim if isinstance(size := size_of(axis), int)]
    if not tensor.HasField("shape") or len(sizes) < len(tensor.shape.dim):
        raise InvalidInput("whose sizes are known only when the model runs")
    return tuple(sizes)
