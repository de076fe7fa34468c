"""What a mapping writes with: operators on values, numbers and known tensors alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sparsejit.frontends.arrays import is_tensor
from sparsejit.ir.graph import Array, Element, Graph, GraphBuilder, Origin, TensorType, Value
from sparsejit.ir.ops.casts import Cast
from sparsejit.ir.ops.operator import Operator
from sparsejit.ir.ops.pointwise import FUNCTIONS, Chain, ChainStep, Pointwise, write_activation
from sparsejit.ir.spec import Activation
from sparsejit.passes.dead_code import remove_dead_code

# From the least: what an operation on two kinds yields is the later one.
_PROMOTION = (Element.BOOL, Element.INT64, Element.FLOAT32)
# What an operand of a mapping may be: a value of the graph, a tensor known now, or a number.
Operand = Any


class Unmapped(Exception):
    """A mapping cannot express these operands; the text says why."""


class Writer:
    """Appends operators to a graph. Constants become values once, when something reads them.

    What is written comes from `origin`, which who reads a model sets for each of its operators, or
    where a name is given, from that.
    """

    def __init__(self, arrays: dict[str, Array] | None = None) -> None:
        self.builder = GraphBuilder()
        self.origin = Origin("")
        # Of named tensors, by key; shared by all graphs of a model.
        self._arrays = {} if arrays is None else arrays
        # By id of a tensor that is held as well: its key and name, and its value.
        self._names: dict[int, tuple[Any, str, str]] = {}
        self._tensors: dict[int, tuple[Any, Value]] = {}
        self._numbers: dict[tuple[bytes, Element], Value] = {}
        self._zeros: dict[tuple[int, ...], Value] = {}

    def input(self, kind: TensorType, name: str) -> Value:
        """An operand that a call gives."""
        return self.builder.input(kind, Origin(name))

    def finish(self, *outputs: Operand) -> Graph:
        """The graph of what outputs depend on."""
        return remove_dead_code(self.builder.finish([self.value(x) for x in outputs]))

    def name(self, tensor: Any, key: str, name: str) -> None:
        """Name a known tensor; its key is that of its array."""
        self._names[id(tensor)] = (tensor, key, name)

    def value(self, x: Operand) -> Value:
        """A value of the graph for x. Raises Unmapped for what is no number or tensor."""
        if isinstance(x, Value):
            return x
        if isinstance(x, bool | int | float):
            kinds = {bool: Element.BOOL, int: Element.INT64, float: Element.FLOAT32}
            return self.number(x, kinds[type(x)])
        if is_tensor(x):
            if id(x) not in self._tensors:
                _, _, name = self._names.get(id(x), (x, "", self.origin.name))
                value = self.constant(self.array(x), name)
                self._tensors[id(x)] = (x, value)
            return self._tensors[id(x)][1]
        if isinstance(x, np.ndarray):
            return self.constant(x, self.origin.name)
        raise Unmapped(f"an operand is {x!r}")

    def number(self, x: float, element: Element) -> Value:
        """A constant without axes, one for all its uses."""
        array = np.asarray(x, dtype=element.value)
        key = (array.tobytes(), element)
        if key not in self._numbers:
            self._numbers[key] = self.builder.constant(array, Origin(f"{x:g}"))
        return self._numbers[key]

    def zeros(self, shape: tuple[int, ...]) -> Value:
        """Zeros of float32, one value for all uses of a shape."""
        if shape not in self._zeros:
            self._zeros[shape] = self.constant(np.zeros(shape, np.float32), "zeros")
        return self._zeros[shape]

    def constant(self, array: Array, name: str, floats: Element = Element.FLOAT32) -> Value:
        """A value known now; floating-point numbers are rounded to `floats`."""
        return self.builder.constant(array, replace(self.origin, name=name), floats)

    def array(self, tensor: Any) -> Array:
        """What a known tensor holds."""
        _, key, _ = self._names.get(id(tensor), (tensor, "", ""))
        if key in self._arrays:
            return self._arrays[key]
        plain = tensor.detach().cpu()
        if plain.is_floating_point() and plain.element_size() < 4:
            plain = plain.float()
        array = np.asarray(plain.contiguous().numpy())
        if key:
            self._arrays[key] = array
        return array

    def known(self, x: Operand) -> Array | None:
        """x as an array where it is known now, floats as float64; else None."""
        if isinstance(x, Value):
            if not self.builder.is_constant(x):
                return None
            array = self.builder.array(x)
        else:
            array = self.array(x) if is_tensor(x) else np.asarray(x)
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    def one(self, op: Operator, *operands: Operand, name: str = "") -> Value:
        """The only output of an operator."""
        (value,) = self.many(op, *operands, name=name)
        return value

    def many(self, op: Operator, *operands: Operand, name: str = "") -> tuple[Value, ...]:
        """All outputs of an operator."""
        values = map(self.value, operands)
        origin = Origin(name) if name else self.origin
        return self.builder.add(op, *values, origin=origin)

    def shape(self, x: Operand) -> tuple[int, ...]:
        """Of any operand."""
        return tuple(x.shape) if isinstance(x, Value) or is_tensor(x) else ()

    def element(self, x: Operand) -> Element:
        """Of any operand."""
        return self.value(x).type.element

    def cast(self, x: Operand, element: Element) -> Value:
        """x with these elements."""
        if isinstance(x, bool | int | float):
            return self.number(x, element)
        value = self.value(x)
        if value.type.element is element:
            return value
        if (array := self.known(value)) is not None:
            (converted,) = Cast(element).reference(array)
            return self.constant(converted, value.origin.name)
        if element is Element.BOOL:
            return self.one(Pointwise("not_equal"), value, self.number(0, value.type.element))
        if value.type.element is Element.BOOL:
            pair = self.number(1, element), self.number(0, element)
            return self.one(Pointwise("where"), value, *pair)
        return self.one(Cast(element), value)

    def floats(self, x: Operand) -> Value:
        """x as float32."""
        return self.cast(x, Element.FLOAT32)

    def promoted(self, *operands: Operand) -> list[Value]:
        """All with the elements that torch's promotion gives an operation on them."""
        kinds = [self._kind(x) for x in operands]
        common = max(kinds, key=_PROMOTION.index)
        return [self.cast(x, common) for x in operands]

    def _kind(self, x: Operand) -> Element:
        if isinstance(x, bool):
            return Element.BOOL
        if isinstance(x, int | float):
            return Element.INT64 if isinstance(x, int) else Element.FLOAT32
        return self.element(x)

    def pointwise(self, kind: str, *operands: Operand, name: str = "") -> Value:
        """A function of promoted operands; `where` promotes all but its condition."""
        if kind == "where":
            condition, *rest = operands
            values = [self.cast(condition, Element.BOOL), *self.promoted(*rest)]
        else:
            values = self.promoted(*operands)
        if kind in _OF_WHOLES and values[0].type.element is not Element.FLOAT32:
            return _OF_WHOLES[kind](self, values[0])
        return self.one(Pointwise(kind), *values, name=name)

    def activated(self, activation: Activation, x: Value, name: str = "") -> Value:
        """The function that products apply, by itself."""
        return write_activation(
            activation,
            x,
            partial(self.pointwise, name=name),
            lambda number: self.constant(np.asarray(number, np.float32), name),
        )

    def formula(self, title: str) -> Formula:
        """To write a chain in."""
        return Formula(self, title)


def _relu_of_whole(write: Writer, x: Value) -> Value:
    return write.pointwise("maximum", x, 0)


def _sign_of_whole(write: Writer, x: Value) -> Value:
    """1 above 0, -1 below; of truths themselves."""
    if x.type.element is Element.BOOL:
        return x
    above, below = write.pointwise("greater", x, 0), write.pointwise("less", x, 0)
    return write.pointwise("where", above, 1, write.pointwise("where", below, -1, 0))


def _itself(write: Writer, x: Value) -> Value:
    return x


# Functions that graphs have for float32 alone, of whole numbers.
_OF_WHOLES: dict[str, Callable[[Writer, Value], Value]] = {
    "relu": _relu_of_whole,
    "sign": _sign_of_whole,
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _itself),
}


class Formula:
    """Steps that become one chain: f("mul", x, 0.5) is a step of values, numbers and steps."""

    def __init__(self, write: Writer, title: str) -> None:
        self._write, self._title = write, title
        self._operands: list[Value] = []
        self._steps: list[tuple[str, list[tuple[bool, int]]]] = []

    def __call__(self, kind: str, *arguments: Operand) -> FormulaStep:
        self._steps.append((kind, [self._place(argument) for argument in arguments]))
        return FormulaStep(len(self._steps) - 1)

    def _place(self, argument: Operand) -> tuple[bool, int]:
        """Whether it is a step, and its number among steps or among operands."""
        if isinstance(argument, FormulaStep):
            return True, argument.number
        number = isinstance(argument, int | float) and not isinstance(argument, bool)
        value = self._write.floats(argument) if number else self._write.value(argument)
        if value not in self._operands:
            self._operands.append(value)
        return False, self._operands.index(value)

    def finish(self, *results: FormulaStep, shape: Sequence[int] | None = None) -> Value:
        """The chain over `shape`, else over what the operands broadcast to; its first result."""
        return self.all(*results, shape=shape)[0]

    def all(self, *results: FormulaStep, shape: Sequence[int] | None = None) -> tuple[Value, ...]:
        """As `finish`, with every result."""
        if len(self._steps) == 1 and self._steps[0][0] in FUNCTIONS:
            kind, places = self._steps[0]
            return (self._write.one(Pointwise(kind), *(self._operands[n] for _, n in places)),)
        count = len(self._operands)
        steps = tuple(
            ChainStep(kind, tuple(n + count * is_step for is_step, n in places))
            for kind, places in self._steps
        )
        whole = self._whole()
        chain = Chain(
            tuple(whole if shape is None else shape),
            count,
            steps,
            tuple(count + result.number for result in results),
            self._title,
        )
        return self._write.many(chain, *self._operands)


    def _whole(self) -> tuple[int, ...]:
        """The shape that the operands broadcast to. Raises Unmapped where they do not."""
        shapes = [value.shape for value in self._operands]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            found = ", ".join(str(list(shape)) for shape in shapes)
            raise Unmapped(f"its operands, {found}, do not broadcast") from None


class FormulaStep:
    """A step of a formula, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


def element_of(dtype: Any) -> Element:
    """How a graph holds a torch dtype. Raises Unmapped for complex and quantised ones."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return Element.BOOL
    if name in ("int8", "int16", "int32", "int64", "uint8"):
        return Element.INT64
    if name in ("float16", "bfloat16", "float32", "float64"):
        return Element.FLOAT32
    raise Unmapped(f"dtype {name}")


def type_of(tensor: Any) -> TensorType:
    """Of a torch tensor whose sizes are numbers."""
    return TensorType(tuple(int(n) for n in tensor.shape), element_of(tensor.dtype))
