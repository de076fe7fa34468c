"""A model as a graph in static single assignment: typed values, operators, constants.

Every value has one producer: an input, a constant, or one output of one node. Nodes are in an order
in which they can run. Passes take a graph and return another; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.batch_axes import BatchAxes
from sparsejit.ir.spec import Choice

if TYPE_CHECKING:
    from sparsejit.ir.ops.operator import Operator

Array = npt.NDArray[Any]

# Most bytes of one tensor: more is a mistake in its sizes.
MOST_BYTES = 1 << 43


class Element(Choice):
    """Type of a tensor's elements. Only operators that declare it take float64."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT64 = "int64"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return _DTYPES[self].itemsize


_DTYPES = {element: np.dtype(element.value) for element in Element}
_ELEMENTS = {dtype: element for element, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class TensorType:
    """Shape and element of a value; row-major."""

    shape: tuple[int, ...]
    element: Element = Element.FLOAT32

    def __post_init__(self) -> None:
        """Raise InvalidInput for sizes below 0, or more than MOST_BYTES."""
        # numpy refuses an empty tensor too, if its other axes alone would be too large.
        bytes_ = prod(max(length, 1) for length in self.shape) * self.element.bytes
        if min(self.shape, default=0) < 0 or bytes_ > MOST_BYTES:
            raise InvalidInput(
                f"a tensor has sizes {list(self.shape)}; give sizes of at least 0 and a tensor "
                f"of at most {MOST_BYTES >> 40} TiB"
            )

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements, without padding."""
        return self.size * self.element.bytes

    def __str__(self) -> str:
        return f"{self.element.value}{list(self.shape)}"


@dataclass(frozen=True)
class Origin:
    """Source of a value: its name, the module's path, the user's line as `file:line`.

    `weights` are the parameters of the torch model whose zeros a constant has. `is_computed` says
    that torch computes these from other parameters before every call, until `prune.fold`.
    """

    name: str
    module: str = ""
    source: str = ""
    code: str = ""
    weights: tuple[str, ...] = ()
    is_computed: bool = False

    @property
    def layer(self) -> str:
        """The path of the module; without a module, the value's own name."""
        return self.module or self.name


@dataclass(frozen=True)
class Decision:
    """The record of a choice between kernels, forms, layouts or sizes.

    Attributes:
        layer: the layer that the choice is about; "" for the whole model
        question: the table of candidates
        chosen: the name of the chosen candidate
        price: its predicted price, in `unit`
        runner_up: the name of the next best candidate
        runner_up_price: the price of that candidate
        unit: the unit of prices
    """

    layer: str
    question: str
    chosen: str
    price: float
    runner_up: str
    runner_up_price: float
    unit: str = "ns"

    def __str__(self) -> str:
        chosen = f"{self.chosen} at {self.price:,.0f} {self.unit}"
        return f"{self.question}: {chosen}, next {self.runner_up} at {self.runner_up_price:,.0f}"


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor. Two values are the same only if they are one object."""

    type: TensorType
    origin: Origin

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator."""

    op: Operator
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value


class OpenAxis(NamedTuple):
    """An axis of an output that is shorter than its array, by a number that calls compute.

    Attributes:
        output: number of the output
        axis: the axis
        inner: elements of the axis for each one counted
        size: number of the output, int64 (), that has the count
    """

    output: int
    axis: int
    inner: int
    size: int


@dataclass(frozen=True, eq=False)
class Graph:
    """A model. `constants` holds the arrays of values that are known at compile time.

    `notes` tell the user how the model was read. `batch_axes` are the batch's axes in the user's
    model (in the graph the batch lies on axis 0); None means axis 0 of everything with a batch.
    `open_axes` are the open axes of outputs of a model as it was read; passes drop them.
    `decisions` are the choices that led to this graph, of element types; passes drop them too.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[Value, Array]
    notes: tuple[str, ...] = ()
    batch_axes: BatchAxes | None = None
    open_axes: tuple[OpenAxis, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def with_open_axes(self, counts: Sequence[Value], axes: Sequence[OpenAxis]) -> Graph:
        """The graph with these counts as further outputs."""
        return replace(self, outputs=(*self.outputs, *counts), open_axes=tuple(axes))

    def is_shared(self, number: int) -> bool:
        """Whether an input is the same for all samples of a batch."""
        return self.batch_axes is not None and self.batch_axes.inputs[number] is None

    def producers(self) -> dict[Value, Node]:
        """The node that makes each value, for all results of nodes."""
        return {value: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """The nodes that read each value, once for each operand; no nodes for unread values."""
        readers: dict[Value, list[Node]] = {value: [] for value in self.values()}
        for node in self.nodes:
            for value in node.inputs:
                readers[value].append(node)
        return readers

    def values(self) -> list[Value]:
        """Inputs, constants and results of nodes, in that order."""
        made = (value for node in self.nodes for value in node.outputs)
        return [*self.inputs, *self.constants, *made]

    def evaluate(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs in float64, by the operators' references."""
        known: dict[Value, Array] = {
            value: _wide(array) for value, array in self.constants.items()
        }
        known.update(zip(self.inputs, map(_wide, inputs), strict=True))
        for node in self.nodes:
            results = node.op.reference(*(known[value] for value in node.inputs))
            known.update(zip(node.outputs, results, strict=True))
        return [known[value] for value in self.outputs]

    def __str__(self) -> str:
        from sparsejit.ir.printing import as_text

        return as_text(self)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


class GraphBuilder:
    """Makes a graph value by value, in the order in which it runs."""

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[Value, Array] = {}

    def input(self, kind: TensorType, origin: Origin) -> Value:
        """A new input."""
        value = Value(kind, origin)
        self._inputs.append(value)
        return value

    def constant(
        self, array: Array, origin: Origin, floats: Element = Element.FLOAT32
    ) -> Value:
        """A value known at compile time; floating-point numbers are rounded to `floats`.

        Raises InvalidInput for a dtype without an element.
        """
        array = np.asarray(array)  # numpy computes with arrays of no axes and returns scalars
        if array.dtype.kind == "f":
            array = array.astype(floats.value, copy=False)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=False)
        element = _ELEMENTS.get(array.dtype)
        if element is None:
            raise InvalidInput(
                f"{origin.name} has dtype {array.dtype}; use real or whole numbers"
            )
        value = Value(TensorType(array.shape, element), origin)
        self._constants[value] = array
        return value

    def adopt(self, value: Value, array: Array | None = None) -> Value:
        """Take over a value of another graph: an input, or with its array a constant."""
        if array is None:
            self._inputs.append(value)
        else:
            self._constants[value] = array
        return value

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known at compile time."""
        return value in self._constants

    def array(self, value: Value) -> Array:
        """The array of a constant."""
        return self._constants[value]

    def add(self, op: Operator, *inputs: Value, origin: Origin) -> tuple[Value, ...]:
        """Apply an operator. Raises InvalidInput where it does not take these operands."""
        types = op.infer(*(value.type for value in inputs))
        outputs = tuple(Value(kind, origin) for kind in types)
        self._nodes.append(Node(op, inputs, outputs))
        return outputs

    def adopt_node(self, node: Node) -> None:
        """Take over a node of another graph, whose operands are here already."""
        self._nodes.append(node)

    def one(self, op: Operator, *inputs: Value, origin: Origin) -> Value:
        """Apply an operator that has one output."""
        (output,) = self.add(op, *inputs, origin=origin)
        return output

    def finish(self, outputs: Sequence[Value]) -> Graph:
        """The graph, without constants that nothing reads."""
        read = {value for node in self._nodes for value in node.inputs} | set(outputs)
        constants = {value: a for value, a in self._constants.items() if value in read}
        return Graph(tuple(self._inputs), tuple(outputs), tuple(self._nodes), constants)
