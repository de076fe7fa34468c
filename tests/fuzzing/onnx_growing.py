"""An ONNX graph under construction: each node is run when it is added.

ONNX Runtime runs them where it is installed, one by one and without its optimisations; else the
onnx package's own reference does. What both compute inexactly is computed here in float64.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, defs, helper
from onnx.numpy_helper import from_array

from sparsejit.ir.values import Array

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
# Its version with the trees of attributes, and with the ones of tensors, which deprecates these.
_ML_VERSIONS = 3, 5
OLDEST = 7  # opset
MOST_ELEMENTS, LARGEST = 1 << 12, 1e4
FLOAT = np.dtype(np.float32)
LONG = np.dtype(np.int64)
# Relative; float64 is computed in float32.
NOISE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-6}
# The error that docs/notes/models.md states for these is absolute.
_ABSOLUTE = 5e-7
_APPROXIMATED = (
    *("Erf", "Gelu", "GRU", "LSTM", "RNN", "Sigmoid", "Tanh", "FastGelu", "BiasGelu"),
    *("DynamicQuantizeLSTM", "Resize", "Upsample"),
)
# Whose bytes may be a step apart: another order of factors rounds ties another way.
_REQUANTISING = ("QLinear", "QGemm")
_FLOATS = (*["float32"] * 8, "float16", "float64")
_WHOLE = (*["int64"] * 3, *["int32"] * 2, "uint8", "int8", "int16", "uint16", "uint32")
# In ONNX's domain, at any opset.
OF_ONNX_RUNTIME = ("LayerNormalization", "SimplifiedLayerNormalization")
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-40)


@dataclass
class OnnxNode:
    """A node and the function that its evaluator computes of all its operands."""

    proto: NodeProto
    run: Callable[[dict[str, Array]], list[Array]]


@dataclass
class OnnxGrowing:
    """Nodes in order; `values` has what the inputs, the known ones among them, make of each."""

    draw: random.Random
    numbers: np.random.Generator
    opset: int
    inputs: dict[str, Array] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    nodes: list[OnnxNode] = field(default_factory=list)
    is_special: bool = False
    largest: float = 1.0

    # Operands, by name

    def input(self, array: Array) -> str:
        """A new input of the model with these numbers in its example."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = array
        return name

    def fixed(self, array: Any, dtype: Any = None) -> str:
        """An initialiser."""
        name = f"w{len(self.known)}"
        self.known[name] = self.values[name] = np.asarray(array, dtype)
        return name

    def either(self, array: Any) -> str:
        """An initialiser or, less often, an input."""
        return self.fixed(array) if self.draw.random() < 0.7 else self.input(np.asarray(array))

    def longs(self, numbers: Any) -> str:
        """An initialiser of int64."""
        return self.fixed(numbers, np.int64)

    def tensor(
        self,
        kinds: str = "f",
        ranks: tuple[int, int] = (0, 4),
        low: float = -4.0,
        high: float = 4.0,
        fits: Callable[[Array], bool] = lambda _: True,
        shape: Sequence[int] | None = None,
    ) -> str:
        """A value that fits, most often a late one, or a new input."""

        def is_good(array: Array) -> bool:
            if array.dtype.kind not in kinds or not ranks[0] <= array.ndim <= ranks[1]:
                return False
            if array.size and array.dtype.kind != "b" and (array.min() < low or array.max() > high):
                return False
            return (shape is None or array.shape == tuple(shape)) and fits(array)

        names = [name for name, array in self.values.items() if is_good(array)]
        names = [name for name in names if name not in self.known]
        if names and self.draw.random() < 0.8:
            return self.draw.choice(names[-2:] if self.draw.random() < 0.7 else names)
        for _ in range(50):
            chosen = self.shape(*ranks) if shape is None else shape
            array = self.array(chosen, self.dtype(self.draw.choice(kinds)), low, high)
            if fits(array):
                break
        return self.fixed(array) if self.draw.random() < 0.1 else self.input(array)

    def dtype(self, kind: str) -> Any:
        """One of a kind, the usual ones most often."""
        names = {"f": _FLOATS, "b": ("bool",)}.get(kind) or [
            name for name in _WHOLE if np.dtype(name).kind == kind
        ]
        return np.dtype(self.draw.choice(names))

    def array(self, shape: Sequence[int], dtype: Any, low: float = -4, high: float = 4) -> Array:
        """Random numbers between limits; now and then odd ones."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return np.asarray(self.numbers.random(shape) < 0.5)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            first, last = max(int(np.ceil(low)), limits.min), min(int(high), limits.max)
            return np.asarray(self.numbers.integers(first, max(last, first) + 1, shape), dtype)
        array = np.asarray(self.numbers.uniform(low, high, shape))
        if self.draw.random() < 0.2:  # ties of rounding, equal ones, and zeros
            array = np.asarray(np.clip(np.round(2 * array) / 2, low, high))
        if self.is_special and array.size and low < -1:
            array.flat[self.numbers.integers(array.size)] = self.draw.choice(_SPECIAL)
        return array.astype(dtype)

    def shape(self, fewest: int = 0, most: int = 4) -> tuple[int, ...]:
        """A shape of few elements; inputs of none are refused."""
        rank = self.rank(fewest, most)
        return tuple(self.draw.choice((1, 2, 2, 3, 3, 4, 5, 7)) for _ in range(rank))

    def rank(self, fewest: int, most: int) -> int:
        return self.draw.choice([n for n in (2, 3, 1, 4, 0, 2, 3, 4, 5) if fewest <= n <= most])

    def broadcasting(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Another shape that broadcasts to this one."""
        sizes = [1 if self.draw.random() < 0.3 else n for n in shape]
        return tuple(sizes[self.draw.choice((0, 0, 0, len(sizes), self.draw.randint(0, 3))) :])

    def beside(self, x: str, low: float = -4.0, high: float = 4.0) -> str:
        """An operand of the dtype of x that broadcasts with it."""
        like = self.values[x]
        shape = self.broadcasting(like.shape)
        if self.draw.random() < 0.3:
            found = [n for n, a in self.values.items() if _broadcasts(a, like, low, high)]
            if found:
                return self.draw.choice(found)
        return self.either(self.array(shape, like.dtype, low, high))

    # Attributes

    def axis(self, rank: int) -> int:
        """An axis, from the front or the end."""
        return self.draw.randrange(-rank, rank) if rank else 0

    def axes(self, rank: int) -> list[int]:
        """Some axes in any order, none twice."""
        chosen = self.draw.sample(range(rank), self.draw.randint(0 if rank == 0 else 1, rank))
        return [axis - self.draw.choice((0, rank)) for axis in chosen]

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Attributes, of which each may be left out; what is None is."""
        return {
            name: value
            for name, value in attributes.items()
            if value is not None and self.draw.random() < 0.75
        }

    def flag(self) -> int:
        return self.draw.randint(0, 1)

    # Nodes

    def has(self, operator: str, since: int = 0) -> bool:
        """Whether the opset has that operator, of at least that version, or ONNX Runtime has."""
        domain, _, name = operator.rpartition(".")
        if domain or name in OF_ONNX_RUNTIME:
            return onnxruntime is not None
        return _since(name, self.opset) >= max(since, 1)

    def add(
        self, operator: str, inputs: Sequence[str], results: int = 1, **attributes: Any
    ) -> list[str]:
        """Names of the results; none where they are too large or the evaluator refuses."""
        domain, _, name = operator.rpartition(".")
        outputs = [f"v{len(self.nodes)}.{n}" for n in range(results)]
        proto = helper.make_node(name, list(inputs), outputs, domain=domain, **attributes)
        known = {each: self.known[each] for each in inputs if each in self.known}
        try:
            node = OnnxNode(proto, _runner(proto, self.opset, self.values, known))
            made = node.run(self.values)
        except Exception:  # of whatever type the evaluator raises
            return []
        if not all(map(self._is_good, made)):
            return []
        self.nodes.append(node)
        self.values.update(zip(outputs, made, strict=True))
        return outputs

    def _is_good(self, array: Array) -> bool:
        if array.size > MOST_ELEMENTS or array.dtype.kind not in "fiub":
            return False
        if array.dtype.kind != "f" or not array.size:
            return True
        finite = array[np.isfinite(array)]
        size = float(np.abs(finite).max(initial=0))
        self.largest = max(self.largest, size)
        return size < LARGEST and (self.is_special or finite.size == array.size)

    def again(self, inputs: dict[str, Array], signs: tuple[int, ...] = ()) -> dict[str, Array]:
        """All values of other inputs; with noise of these signs, a step on what is requantised."""
        values = {**self.known, **inputs}
        for node in self.nodes:
            for name, array in zip(node.proto.output, node.run(values), strict=True):
                values[name] = self._noisy(node.proto, array, signs) if signs else array
        return values

    def _noisy(self, node: NodeProto, array: Array, signs: tuple[int, ...]) -> Array:
        operator, rounds = node.op_type, array.ndim > 0 and self._rounds_computed(node)
        sides = self.numbers.choice(signs, array.shape)
        if array.dtype.kind == "f":
            noisy = array * (1 + NOISE[array.dtype.name] * sides)
            noisy = noisy + _ABSOLUTE * sides if operator in _APPROXIMATED else noisy
            return np.asarray(noisy, array.dtype)
        if (operator.startswith(_REQUANTISING) or rounds) and array.dtype.kind in "iu":
            limits, wide = np.iinfo(array.dtype), array.astype(np.int64)
            moved = wide + sides
            is_held = (limits.min <= moved) & (moved <= limits.max)
            return np.asarray(np.where(is_held, moved, 2 * wide - moved), array.dtype)
        return array

    def _rounds_computed(self, node: NodeProto) -> bool:
        """Whether it rounds what others have computed, which may lie on a tie's other side."""
        is_computed = not {*node.input} <= {*self.inputs, *self.known}
        return node.op_type == "DynamicQuantizeLinear" and is_computed

    def steps_apart(self, name: str) -> int:
        """By how many steps a value may differ that is rounded to whole ones."""
        made_by = [node.proto for node in self.nodes if name in node.proto.output]
        return int(any(map(self._rounds_computed, made_by)))

    def model(self, outputs: Sequence[str], free: bool) -> ModelProto:
        """The graph with these outputs; `free` leaves axis 0 of all inputs open."""
        values = [
            (name, a, ("N", *a.shape[1:]) if free else a.shape) for name, a in self.inputs.items()
        ]
        made = [(name, self.values[name]) for name in outputs]
        return _model(
            [node.proto for node in self.nodes],
            [_declared(name, array, shape) for name, array, shape in values],
            [_declared(name, array, [None] * array.ndim) for name, array in made],
            self.known,
            self.opset,
        )


def _declared(name: str, array: Array, shape: Any) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    known: dict[str, Array],
    opset: int,
) -> ModelProto:
    initialisers = [from_array(array, name) for name, array in known.items()]
    graph = helper.make_graph(nodes, "grown", inputs, outputs, initialisers)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    if any(node.domain == ML for node in nodes):
        is_newer = any(node.op_type == "TreeEnsemble" for node in nodes)
        versions.append(helper.make_opsetid(ML, _ML_VERSIONS[is_newer]))
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def _runner(
    node: NodeProto, opset: int, values: dict[str, Array], known: dict[str, Array]
) -> Callable[[dict[str, Array]], list[Array]]:
    """A node as a function of values by name, of any sizes."""
    given = [name for name in dict.fromkeys(node.input) if name and name not in known]
    inputs = [_declared(name, values[name], None) for name in given]
    outputs = [helper.make_value_info(name, TypeProto()) for name in node.output if name]
    model = _model([node], inputs, outputs, known, opset)
    if node.op_type == "GroupNormalization":
        return lambda values: [_group_normalized(node, opset, {**known, **values})]
    evaluator = session(model)

    def run(values: dict[str, Array]) -> list[Array]:
        if node.op_type == "DynamicQuantizeLSTM" and values[given[0]].shape[1] > 1:
            return _by_sample(run, values, given[0])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = evaluator.run(None, {name: values[name] for name in given})
        return [np.asarray(each) for each in made]

    return run


def _by_sample(
    run: Callable[[dict[str, Array]], list[Array]], values: dict[str, Array], x: str
) -> list[Array]:
    """An LSTM of bytes for each sample of x (time, batch, in) alone, whose range so is its own."""
    samples = range(values[x].shape[1])
    each = [run({**values, x: values[x][:, sample : sample + 1]}) for sample in samples]
    return [np.concatenate(parts, axis=-2) for parts in zip(*each, strict=True)]


def _group_normalized(node: NodeProto, opset: int, values: dict[str, Array]) -> Array:
    """GroupNormalization as ONNX defines it, in float64.

    Both evaluators take the variance as a difference of squares in float32, which is wrong by 1e-3
    where a group's numbers lie close together.
    """
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    x, scale, shift = (values[name] for name in node.input)
    groups = given["num_groups"]
    apart = x.astype(np.float64).reshape(x.shape[0], groups, prod(x.shape[1:]) // groups)
    centred = apart - apart.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + given.get("epsilon", 1e-5))
    each = x.shape[1] // groups if opset < 21 else 1  # channels that share a scale
    wide = [np.repeat(part, each).reshape(-1, *[1] * (x.ndim - 2)) for part in (scale, shift)]
    return ((centred / deviation).reshape(x.shape) * wide[0] + wide[1]).astype(x.dtype)


def _broadcasts(array: Array, like: Array, low: float, high: float) -> bool:
    try:
        shape = np.broadcast_shapes(array.shape, like.shape)
    except ValueError:
        return False
    within = not array.size or array.dtype.kind == "b" or low <= array.min() <= array.max() <= high
    return array.dtype == like.dtype and within and np.prod(shape) <= MOST_ELEMENTS


def _newest_opset() -> int:
    """The newest that the onnx package knows, and ONNX Runtime where it is installed."""
    newest = defs.onnx_opset_version()
    return next(opset for opset in range(newest, OLDEST, -1) if is_taken(opset))


def is_taken(opset: int) -> bool:
    """Whether ONNX Runtime reads models of that opset; where there is none, it is taken."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    try:
        session(_model([helper.make_node("Relu", ["x"], ["y"])], [x], [y], {}, opset))
    except Exception:  # of whatever type it raises
        return False
    return True


def session(model: ModelProto) -> Any:
    """A session of ONNX Runtime, without its optimisations; else of the package's reference."""
    if onnxruntime is None:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


NEWEST = _newest_opset()


@cache
def _since(name: str, opset: int) -> int:
    try:
        schema = defs.get_schema(name, opset)
    except defs.SchemaError:
        return 0
    return 0 if schema.deprecated else int(schema.since_version)
