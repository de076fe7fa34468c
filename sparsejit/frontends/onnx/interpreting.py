"""Conversion of an ONNX graph, node by node, to a Graph.

    computed          results of nodes with known operands, by the onnx package's reference where it
                      is right
    read_graph        the conversion
    NodeInterpreter   its state while it runs nodes in order
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.onnx.call import Call, Operand, names_of, operator_of, own_constants, plain
from sparsejit.frontends.onnx.expansions import body_of, expanded
from sparsejit.frontends.onnx.inference import (
    Inference,
    Sizes,
    check_found,
    is_plain,
    no_type,
    version_of,
)
from sparsejit.frontends.onnx.loops import loop, read_by, scan_in_turns
from sparsejit.frontends.onnx.operators.table import OPERATORS
from sparsejit.frontends.onnx.reading import dtype_of, sparse_array, tensor_array
from sparsejit.frontends.onnx.sequences import (
    TensorSequence,
    is_of_sequences,
    through_sequences,
)
from sparsejit.frontends.onnx.words import ML_DOMAIN, ON_TEXT, Texts, Words, Zipped, is_text
from sparsejit.frontends.writing import arranging
from sparsejit.frontends.writing.columns import in_float32
from sparsejit.frontends.writing.missing import Missing, refuse
from sparsejit.frontends.writing.open_sizes import with_open_outputs
from sparsejit.frontends.writing.views import backward_places
from sparsejit.frontends.writing.writer import Unmapped, Writer, element_of
from sparsejit.ir.dtypes import TEXT, Dtype
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.selection import TruePlaces
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

def _gather_elements(x: Array, places: Array, axis: int = 0) -> Array:
    """GatherElements along an axis; `places` may be shorter than x along other axes."""
    axis %= x.ndim
    cut = tuple(slice(None if n == axis else size) for n, size in enumerate(places.shape))
    return np.take_along_axis(x[cut], places.astype(np.int64), axis)


def _slice(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """ONNX's Slice of a known array; backward slices start as `backward_places` says."""
    count = np.size(starts)
    given = (
        *(starts, ends),
        np.arange(count) if axes is None else axes,
        np.ones(count, np.int64) if steps is None else steps,
    )
    for start, end, axis, step in zip(*(np.ravel(each).tolist() for each in given), strict=True):
        part = slice(start, end, step)
        cut = part if step > 0 else backward_places(x.shape[axis], part)
        x = x[(slice(None),) * (axis % x.ndim) + (cut,)]
    return x


# Operators that the package's reference computes wrongly: with padding, positions, channels at the
# ends, magnitudes, numbers whose exponentials are beyond the dtype, and recurrent layers with
# lengths, clipped gates or other activations. Graphs compute them correctly.
_WRONG = (
    *("AveragePool", "ConvTranspose", "GlobalLpPool", "GlobalMaxPool", "LRN", "LogSoftmax"),
    *("LpNormalization", "LpPool", "MaxPool", "Resize", "GRU", "LSTM", "RNN", "Softplus"),
)
# The reference has only the Softmax of this opset.
_SOFTMAX_SINCE = 13
# Operators on shapes that the reference computes wrongly or refuses.
_OWN: Mapping[str, Callable[..., Array]] = {"GatherElements": _gather_elements, "Slice": _slice}


def computed(
    node: NodeProto, operands: Sequence[Operand], attributes: Mapping[str, Any], opset: int
) -> list[Operand]:
    """Compute a node's results. Raises Unmapped where that fails."""
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Constant" and "sparse_value" in attributes:
        return [attributes["sparse_value"]]
    is_old = node.op_type == "Softmax" and opset < _SOFTMAX_SINCE
    if node.op_type in _WRONG or node.domain == ML_DOMAIN or is_old:
        raise Unmapped("is not folded")
    own = _OWN.get(operator_of(node))
    given = {name: x for name, x in zip(node.input, operands, strict=True) if name}
    try:
        if own is not None:
            return [own(*operands, **attributes)]
        found: Any = ReferenceEvaluator(node, opsets={"": version_of(node, opset)}).run(None, given)
        return [np.asarray(x) if isinstance(x, np.generic) else x for x in found]
    except Exception as error:  # of whatever type its operator raises
        raise Unmapped(str(error).partition("\n")[0]) from None


OutputDtype = Dtype | None | tuple[Dtype | None, ...]
# Stands for results of a missing operator, and for masks and places that no mapping makes.
ABSENT: Any = object()
# Errors that a mapping may raise for a node that no exporter writes, and the message for them.
_MISFITS = (ValueError, TypeError, LookupError, ArithmeticError)
MISFIT = "its operands or attributes do not fit together"
# Most bytes of folded results, which are all kept while a model is read.
MOST_KNOWN_BYTES = 1 << 31
_REMEDY = (
    'write them with other operators, or leave them to ONNX Runtime with fallback="onnxruntime"'
)


class ReadGraph(NamedTuple):
    """A graph, and ONNX's dtypes of the model's outputs, None where they are not known.

    A sequence has the dtypes of its tensors, each of which is an output of the graph.
    """

    graph: Graph
    dtypes: tuple[OutputDtype, ...]


def read_graph(
    model: GraphProto,
    opset: int,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Array],
    words: Words | None = None,
) -> ReadGraph:
    """Read the graph for inputs of these shapes; `arrays` are the initialisers by name.

    Strings are refused unless `words` has their numbers.

    Raises UnsupportedOperator, which lists every node that has no mapping, and InvalidInput for an
    input of a dtype that no graph holds.
    """
    interpreter = NodeInterpreter(opset, words)
    interpreter.cast_to_floats = cast_to_floats(model)
    interpreter.in_doubles = compared_in_doubles(model)
    known: dict[str, Operand] = {
        name: interpreter.held(name, array) for name, array in arrays.items()
    }
    for each in model.input:
        if each.name not in arrays:
            kind = each.type.tensor_type.elem_type
            known[each.name] = interpreter.input(each.name, kind, shapes[each.name])
    interpreter.run(model.node, known)
    names = [each.name for each in model.output]  # torch writes some of them twice
    lacking = [
        Missing(name, "is not computed", Origin(name)) for name in names if known[name] is ABSENT
    ]
    if interpreter.missing or lacking:
        refuse(interpreter.missing or lacking, _REMEDY)
    made = [tensor for name in names for tensor in _tensors(known[name])]
    whole = interpreter.write.finish(*made)
    graph, mixed = with_open_outputs(whole)
    if mixed:
        refuse(mixed, _REMEDY)
    noted = replace(graph, notes=tuple(dict.fromkeys(interpreter.notes)))
    dtypes = [
        tuple(dtype for _, dtype in held.items)
        if isinstance(held := known[name], TensorSequence)
        else interpreter.inference.dtype(name)
        for name in names
    ]
    return ReadGraph(noted, tuple(dtypes))


def compared_in_doubles(model: GraphProto) -> set[str]:
    """Names of the inputs of float64 in a file with operators that read float64 as it is."""
    from onnx import TensorProto

    if all(node.domain != ML_DOMAIN for node in model.node):
        return set()
    kinds = {each.name: each.type.tensor_type for each in model.input}
    return {
        name
        for name, kind in kinds.items()
        if kind.elem_type == TensorProto.DOUBLE and len(kind.shape.dim) == 2
    }


def cast_to_floats(model: GraphProto) -> set[str]:
    """Names of the values that only Casts to floating-point dtypes read, in nodes' graphs too."""
    from onnx import TensorProto

    floats = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}
    cast, others = set[str](), {each.name for each in model.output}
    for node in model.node:
        is_cast = node.op_type == "Cast" and node.attribute[0].i in floats
        (cast if is_cast else others).update(read_by([node]))
    return cast - others


# Operators whose whole numbers are held as floats until they are cast or scaled.
_HELD_AS_FLOATS = ("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QuantizeLinear")


# Operators whose results may differ by much where operands hardly differ.
_JUMPING = ("Ceil", "Floor", "Mod", "Round", "Shrink", "Sign", "ThresholdedRelu")

# Reasons why operators that compute the sizes of their results are mapped for known operands only.
_OF_OPEN_SIZE = dict.fromkeys(
    ("NonMaxSuppression", "Range", "Unique"),
    "a call decides the size of its result; make its operands constants, or end before it",
)


class NodeInterpreter:
    """Runs nodes in order; nodes without a mapping are collected in `missing`.

    `notes` names the parts that cost more than the file suggests.
    """

    def __init__(self, opset: int, words: Words | None = None) -> None:
        self.write = Writer()
        self.words = words
        self.in_doubles: set[str] = set()  # inputs of float64 that graphs read as such
        self.doubles: dict[Value, Value] = {}  # float64 values of values that are rounded
        self.missing: list[Missing] = []
        self.notes: list[str] = []
        self.inference = Inference(opset)
        self.cast_to_floats: set[str] = set()  # results that only such a Cast reads
        self._opset = opset
        self.turns = self._known_bytes = 0  # of loops, written out
        self._constants: dict[int, tuple[Array, Value]] = {}

    def input(self, name: str, kind: int, shape: tuple[int, ...]) -> Value:
        """Add an input of the graph, of the dtype that ONNX numbers `kind`.

        Raises InvalidInput for a dtype that no graph holds.
        """
        dtype = dtype_of(kind, f"input {name}")
        if is_text(dtype) and self.words is not None:
            self.inference.name(name, kind)
            return self.write.input(TensorType(shape, Element.INT64), name)
        if name in self.in_doubles:
            self.inference.name(name, kind)
            given = self.write.input(TensorType(shape, Element.FLOAT64), name, dtype.name)
            rounded = in_float32(self.write, given)
            self.doubles[rounded] = given
            return rounded
        try:
            element = element_of(dtype)
        except Unmapped:
            raise InvalidInput(
                f"input {name} has {dtype}; give floats of 16 to 64 bits, bool, or whole numbers "
                "that int64 holds"
            ) from None
        self.inference.name(name, kind)
        return self.write.input(TensorType(shape, element), name, dtype.name)

    def held(self, name: str, array: Array) -> Array:
        """An initialiser as graphs hold it: strings by their numbers."""
        if self.words is None or not is_text(array.dtype):
            return array
        self.inference.name_as(name, TEXT)
        return self.words.of_array(array)

    def run(self, nodes: Iterable[NodeProto], known: dict[str, Operand]) -> None:
        """Interpret the nodes in order, and add their results to `known`, by name."""
        for node in (part for whole in nodes for part in expanded(whole)):
            operands = [known[name] if name else None for name in node.input]
            self.write.origin = _origin(node)
            if any(operand is ABSENT for operand in operands):
                results: Sequence[Operand] = [ABSENT] * len(node.output)
            else:
                results = self._results(node, operands, known)
            lacking = [ABSENT] * (len(node.output) - len(results))
            known.update(zip(node.output, [*results, *lacking], strict=False))

    def _results(
        self, node: NodeProto, operands: Sequence[Operand], known: Mapping[str, Operand]
    ) -> Sequence[Operand]:
        try:
            if operator_of(node) in REGIONS:
                results = REGIONS[node.op_type](self, node, operands, known)
                return [self._typed(node, number, x) for number, x in enumerate(results)]
            if any(isinstance(operand, Zipped) for operand in operands):
                raise Unmapped("reads the dicts of a ZipMap; end before it")
            if is_of_sequences(node, operands):
                call = Call(node, operands, _attributes(node), self._opset, self._constants)
                return through_sequences(self.write, self.inference, node, operands, call)
            texts = self._texts(node)
            mapping = OPERATORS.get(operator_of(node))
            is_known = all(not isinstance(operand, Value) for operand in operands)
            if mapping is None and not is_known:
                return self._by_its_body(node, operands)
            sizes = self.inference.sizes(node, operands)
            is_folded = is_known and not (texts and node.op_type == "Cast")
            folded = self._known(node, operands, sizes, mapping is None) if is_folded else None
            if folded is not None:
                return folded
            assert mapping is not None
            attributes = _attributes(node)
            made = [x.name for x in map(self.inference.dtype, node.output) if x is not None]
            jumps = node.op_type in _JUMPING
            operands = [self.write.read(operand, made, jumps) for operand in operands]
            casts = self.cast_to_floats.issuperset(node.output)
            call = Call(node, operands, attributes, self._opset, self._constants, casts)
            call.words, call.texts, call.doubles = self.words, texts, self.doubles
            found = mapping(self.write, call)
            results = found if isinstance(found, tuple) else (found,)
            check_found(results, sizes)
            self._check_sizes(operands, results)
            results = tuple(self._typed(node, number, x) for number, x in enumerate(results))
        except (Unmapped, InvalidInput) as reason:
            return self._lacking(node, str(reason))
        except _MISFITS as error:
            return self._lacking(node, f"{MISFIT}: {error}")
        return [ABSENT if each is None else each for each in results]

    def _texts(self, node: NodeProto) -> frozenset[int]:
        """The places of operands that stand for strings.

        Raises Unmapped for a node that does more with them than move and compare.
        """
        named = enumerate(node.input)
        found = frozenset(n for n, name in named if is_text(self.inference.dtype(name)))
        if found and operator_of(node) not in ON_TEXT:
            raise Unmapped("computes strings; turn them into numbers before the model")
        return found

    def _by_its_body(self, node: NodeProto, operands: Sequence[Operand]) -> Sequence[Operand]:
        """Results by ONNX's own body of the operator. Raises Unmapped where it has none."""
        why = _OF_OPEN_SIZE.get(node.op_type, "")
        if why or not all(is_plain(x) for x in operands if x is not None):
            raise Unmapped(why)
        types = [
            no_type() if x is None else self.inference.type_of(name, x)
            for name, x in zip(node.input, operands, strict=True)
        ]
        body = body_of(node, types, self._opset)
        if body is None:
            raise Unmapped("")
        before, found = self._opset, self.missing
        self._opset, self.missing = body.opset, []
        known: dict[str, Operand] = dict.fromkeys(body.inputs)
        known.update(zip(body.inputs, operands, strict=False))
        try:
            with self.inference.within(body.outputs, node.output):
                self.inference.copy(node.input, body.inputs)
                self.run(body.nodes, known)
            lacking = "; ".join(f"{each.operator} {each.reason}" for each in self.missing)
        finally:
            self._opset, self.missing = before, found
        if lacking:
            raise Unmapped(f"its ONNX function has {lacking}")
        return [known.get(name, ABSENT) for name in body.outputs[: len(node.output)]]

    def _check_sizes(self, operands: Sequence[Operand], results: Sequence[Operand]) -> None:
        """Raise Unmapped for a result that is a size, if values decide it."""
        if all(isinstance(x, Value) for x in results if x is not None):
            return
        if any(self.write.depends_on(x, TruePlaces) for x in operands):
            raise Unmapped("is a size that values decide")

    def _lacking(self, node: NodeProto, reason: str) -> Sequence[Operand]:
        """Note a missing operator and continue without its results, to find the others as well."""
        name = operator_of(node)
        where = Origin(name, source=f"node {node.name or node.output[0]}")
        self.missing.append(Missing(name, reason, where))
        return [ABSENT] * len(node.output)

    def _known(
        self,
        node: NodeProto,
        operands: Sequence[Operand],
        sizes: Sequence[Sizes | None],
        is_last_way: bool,
    ) -> Sequence[Operand] | None:
        """Results of a node with known operands; None where the onnx package does not compute them.

        Raises Unmapped where they are too large to keep, and instead of None if `is_last_way`.
        """
        wanted = self.inference.bytes_of(node, sizes)
        if self._known_bytes + wanted > MOST_KNOWN_BYTES:
            raise Unmapped(
                f"makes a constant of {wanted:,} bytes, with {self._known_bytes:,} before it more "
                f"than {MOST_KNOWN_BYTES:,}"
            )
        try:
            results = computed(node, operands, _attributes(node), self._opset)
        except Unmapped:
            if is_last_way:
                raise
            return None
        results = [
            self.held(name, x) if isinstance(x, np.ndarray) else x
            for name, x in zip(node.output, results, strict=False)
        ]
        for each in results:
            if isinstance(each, np.ndarray) and not any(
                isinstance(x, np.ndarray) and np.may_share_memory(each, x) for x in operands
            ):
                self._known_bytes += each.nbytes
        return results

    def _typed(self, node: NodeProto, number: int, result: Operand) -> Operand:
        """A node's result number `number` with the dtype that ONNX infers for it.

        Raises Unmapped for uint64, and for whole numbers that came as floats from an operator that
        is not known to keep them exact.
        """
        if isinstance(result, Texts):
            self.inference.name_as(node.output[number], TEXT)
            return result.numbers
        if isinstance(result, Value) and node.domain == ML_DOMAIN:
            self.inference.name_as(node.output[number], self.write.dtype(result))
        if isinstance(result, Value) and number < len(node.output):
            element = result.type.element
            self.inference.name_unknown(node.output[number], element, node.input)
        dtype = self.inference.dtype(node.output[number]) if number < len(node.output) else None
        if not isinstance(result, Value) or dtype is None or is_text(dtype):
            return result
        if dtype == np.uint64:
            raise Unmapped("makes uint64, which int64 does not hold")
        if result.type.element is element_of(dtype):
            return self.write.noted(result, dtype)
        if dtype.kind not in "iu":
            return result
        if node.op_type not in _HELD_AS_FLOATS and not self.write.fits(result, dtype):
            raise Unmapped("of whole numbers")
        self.write.note(result, dtype.name)
        return result

    def _chosen(
        self, node: NodeProto, operands: Sequence[Operand], known: Mapping[str, Operand]
    ) -> Sequence[Operand]:
        """Results of an If: of one branch if its condition is known now, else a choice of both."""
        (condition,) = operands
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        ways = [branches[name] for name in ("then_branch", "else_branch")]
        if isinstance(condition, np.ndarray):
            ways = ways[:1] if condition.all() else ways[1:]
        with self.inference.within(names_of(ways[0].output), node.output):
            results = [self.inside(way, (), known) for way in ways]
        if len(ways) == 1:
            return results[0]
        assert isinstance(condition, Value)
        self.notes.append(
            f"both branches of If {node.name or node.output[0]} are computed, and one is chosen at "
            f"the end: a call decides by {node.input[0]}"
        )
        truth = arranging.reshaped(self.write, condition, ())
        return [self._either(truth, *pair) for pair in zip(*results, strict=True)]

    def _either(self, truth: Value, then: Operand, other: Operand) -> Operand:
        """Choose one of two results of the same type by a condition that the model computes."""
        if then is ABSENT or other is ABSENT:
            return ABSENT
        one, two = (self.write.value(_plain(each)) for each in (then, other))
        if one.type != two.type:
            raise Unmapped(f"its branches give {one.type} and {two.type}; a call decides which")
        return self.write.pointwise("where", truth, one, two)

    def value(self, operand: Operand) -> Value:
        """An operand as a value of the graph."""
        return self.write.value(_plain(operand))

    def run_inside(
        self, region: GraphProto, inside: Mapping[str, Operand], write: Writer
    ) -> list[Value]:
        """Results of a graph within a node, as values of a writer of its own.

        `inside` has all values that the graph reads. Raises Unmapped where something is missing.
        """
        known = {**inside, **own_constants(region, inside)}
        outside = self.write, self._constants, self.missing
        self.write, self._constants, self.missing = write, {}, []
        try:
            self.run(region.node, known)
            lacking = "; ".join(f"{each.operator} {each.reason}".strip() for each in self.missing)
            results = [known[each.name] for each in region.output]
            if lacking or any(result is ABSENT for result in results):
                raise Unmapped(f"has {lacking or 'a missing result'} in its body")
            return [self.value(result) for result in results]
        finally:
            self.write, self._constants, self.missing = outside

    def inside(
        self, region: GraphProto, given: Sequence[Operand], outside: Mapping[str, Operand]
    ) -> Sequence[Operand]:
        """Results of a graph within a node, which may read the values around it."""
        known = {**outside, **own_constants(region, outside)}
        known.update(zip((each.name for each in region.input), given, strict=True))
        self.run(region.node, known)
        return [known[each.name] for each in region.output]


# Operators that run graphs within their node.
REGIONS: Mapping[str, Callable[..., Sequence[Operand]]] = {
    "If": NodeInterpreter._chosen,
    "Loop": loop,
    "Scan": scan_in_turns,
}


def _tensors(operand: Any) -> list[Any]:
    """An output of the model as the writer takes it; the tensors of a sequence."""
    if isinstance(operand, TensorSequence):
        return [_plain(tensor) for tensor, _ in operand.items]
    return [operand.rows if isinstance(operand, Zipped) else _plain(operand)]


def _plain(operand: Operand) -> Any:
    """An operand as the writer takes it: an array in a dtype of graphs, anything else as it is."""
    return plain(operand) if isinstance(operand, np.ndarray) else operand


def _origin(node: NodeProto) -> Origin:
    """The module is the path in the node's name: /encoder/layers.0/Gemm is of encoder.layers.0."""
    *path, _ = node.name.strip("/").split("/")
    return Origin(node.output[0], module=".".join(path) or node.name)


def _attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes as Python holds them: text, numbers, lists, arrays."""
    from onnx import AttributeProto
    from onnx.helper import get_attribute_value

    found = {}
    for attribute in node.attribute:
        value = get_attribute_value(attribute)
        if attribute.type == AttributeProto.STRING:
            value = value.decode()
        elif attribute.type == AttributeProto.STRINGS:
            value = [text.decode() for text in value]
        elif attribute.type == AttributeProto.TENSOR:
            value = tensor_array(value)
        elif attribute.type == AttributeProto.SPARSE_TENSOR:
            value = sparse_array(value)
        found[attribute.name] = value
    return found
