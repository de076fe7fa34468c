"""The writer of graphs, whose operators take values, numbers and known tensors alike.

    Writer                 appends operators to a graph
    Formula, FormulaStep   elementwise formulas, each of which becomes one chain
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from typing import Any

import numpy as np

from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.writing.held_numbers import HeldNumbers, Producers
from sparsejit.frontends.writing.missing import Unmapped
from sparsejit.ir.dtypes import (
    NOTED,
    Dtype,
    dtype_named,
    promoted_dtype,
    rank_of,
    within_float32,
)
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.pointwise import (
    FUNCTIONS,
    ROUNDINGS,
    WRAPS,
    Cast,
    Chain,
    ChainStep,
    Pointwise,
    write_activation,
)
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value
from sparsejit.passes.rewriter import remove_dead_code

# An operand of a mapping: a value of the graph, a tensor known now, or a number.
Operand = Any

# The function that narrows a number to a dtype.
_NARROWING: dict[Dtype, str] = {**WRAPS, **ROUNDINGS}
_INT32 = np.dtype(np.int32)
_UNNAMED = Origin("")


class Writer:
    """Appends operators to a graph. Constants become values once, when something reads them.

    The origin of a new value is `origin`, which the reader of a model sets for each operator, or a
    given name. Whole numbers are computed as int64, floats as float32; `dtype` returns the model's
    dtype of a value. Whole numbers are kept within the model's dtype. Short floats are rounded by a
    cast to them, and where something reads them as another dtype.
    """

    def __init__(self, arrays: dict[str, Array] | None = None) -> None:
        self.builder = GraphBuilder()
        self.origin = Origin("")
        # Named tensors, by key; shared by all graphs of a model.
        self._arrays = {} if arrays is None else arrays
        # By the id of a tensor, which is kept alive here: its key and origin, and its value.
        self._names: dict[int, tuple[Any, str, Origin]] = {}
        self._with_weights: dict[str, Origin] = {}  # origins that have weights, by name
        self._tensors: dict[int, tuple[Any, Value]] = {}
        self._numbers: dict[tuple[bytes, Element], Value] = {}
        # Results of `derived`, by memory and maker, with the operand, which is kept alive so.
        self._derived: dict[tuple[Any, Any], tuple[Any, Any]] = {}
        self._zeros: dict[tuple[int, ...], Value] = {}
        # The model's dtypes of values, where they differ from the elements' dtypes.
        self._dtypes: dict[Value, Dtype] = {}
        self._rounded: dict[Value, Value] = {}  # to their dtypes
        # Vectors with every place of an axis once, such as the results of a sort.
        self.orders: set[Value] = set()
        # The least and the largest number that quantised values may hold.
        self.limits: dict[Value, tuple[int, int]] = {}
        # Values in steps that a call computes: what they were, the scale and the zero point.
        self.dynamic_steps: dict[Value, tuple[Value, Value, Value]] = {}
        self._producers: Producers = {}
        self._held = HeldNumbers(self.builder, self._dtypes, self._producers)

    def input(self, kind: TensorType, name: str, dtype: str = "") -> Value:
        """An operand that a call gives; `dtype` is the model's, by numpy's name."""
        value = self.builder.input(kind, Origin(name))
        self.note(value, dtype)
        return value

    def note(self, value: Value, dtype: str) -> None:
        """Note the model's dtype of a value, where it differs from the element's."""
        if dtype in NOTED:
            self._dtypes[value] = NOTED[dtype]

    def finish(self, *outputs: Operand) -> Graph:
        """The graph of all nodes that outputs depend on; outputs are rounded to their dtypes."""
        made = []
        for value in map(self.value, outputs):
            self.origin = value.origin
            made.append(self.rounded(value))
        return remove_dead_code(self.builder.finish(made))

    def name(self, tensor: Any, key: str, origin: Origin) -> None:
        """Note name and weights of a known tensor; `key` is the key of its array.

        Without a name the tensor is called after its first reader.
        """
        self._names[id(tensor)] = (tensor, key, origin)

    def origin_of(self, x: Any) -> Origin:
        """The origin that `name` noted for a tensor; an empty one for anything else."""
        return self._names.get(id(x), (x, "", _UNNAMED))[2]

    def value(self, x: Operand) -> Value:
        """A value of the graph for x. Raises Unmapped unless x is a number or a tensor."""
        if isinstance(x, Value):
            return x
        if isinstance(x, bool | int | float):
            kinds = {bool: Element.BOOL, int: Element.INT64, float: Element.FLOAT32}
            return self.number(x, kinds[type(x)])
        if is_tensor(x):
            if id(x) not in self._tensors:
                noted = self.origin_of(x)
                name = noted.name or self.origin.name
                if noted.weights:
                    self._with_weights[name] = noted
                value = self.constant(within_float32(self.array(x)), name)
                self.note(value, str(x.dtype).removeprefix("torch."))
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
            floats = element if element is Element.FLOAT64 else Element.FLOAT32
            self._numbers[key] = self.builder.constant(array, Origin(f"{x:g}"), floats)
        return self._numbers[key]

    def zeros(self, shape: tuple[int, ...]) -> Value:
        """Zeros of float32, one value for all uses of a shape."""
        if shape not in self._zeros:
            self._zeros[shape] = self.constant(np.zeros(shape, np.float32), "zeros")
        return self._zeros[shape]

    def constant(self, array: Array, name: str, floats: Element = Element.FLOAT32) -> Value:
        """A value known now; floating-point numbers are rounded to `floats`."""
        noted = self._with_weights.get(name, _UNNAMED)
        weights, is_computed = noted.weights, noted.is_computed
        origin = replace(self.origin, name=name, weights=weights, is_computed=is_computed)
        return self.builder.constant(array, origin, floats)

    def array(self, tensor: Any) -> Array:
        """The array of a known tensor."""
        _, key, _ = self._names.get(id(tensor), (tensor, "", _UNNAMED))
        if key in self._arrays:
            return self._arrays[key]
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        if plain.is_floating_point() and plain.element_size() < 4:
            plain = plain.float()
        array = np.asarray(plain.contiguous().numpy())
        if key:
            self._arrays[key] = array
        return array

    def known(self, x: Operand) -> Array | None:
        """x as an array where it is known now, floats as float64; else None."""
        if not self.is_known(x):
            return None
        if isinstance(x, Value):
            array = self.builder.array(x)
        else:
            array = self.array(x) if is_tensor(x) else np.asarray(x)
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    def is_known(self, x: Operand) -> bool:
        """Whether the elements of x are known when the graph is written."""
        return not isinstance(x, Value) or self.builder.is_constant(x)

    def is_fixed(self, x: Operand) -> bool:
        """Whether no call changes x: it is known, or computed from known values alone."""
        waiting, seen = [x], set[Value]()
        while waiting:
            each = waiting.pop()
            if self.is_known(each) or each in seen:
                continue
            seen.add(each)
            if each not in self._producers:
                return False
            waiting.extend(self._producers[each][1])
        return True

    def depends_on(self, x: Operand, kind: type[Operator]) -> bool:
        """Whether x is computed from a result of an operator of that kind."""
        waiting, seen = [x] if isinstance(x, Value) else [], set[Value]()
        while waiting:
            value = waiting.pop()
            op, operands = self._producers.get(value, (None, ()))
            if isinstance(op, kind):
                return True
            waiting += [operand for operand in operands if operand not in seen]
            seen.update(operands)
        return False

    def derived(self, x: Operand, make: Callable[[Writer, Operand], Any]) -> Any:
        """Return `make(self, x)` for a known operand, computed once for all its readers."""
        key = _memory_of(x), make
        if key not in self._derived:
            self._derived[key] = (x, make(self, x))
        return self._derived[key][1]

    def one(self, op: Operator, *operands: Operand, name: str = "") -> Value:
        """Append an operator to the graph, and return its only output."""
        (value,) = self.many(op, *operands, name=name)
        return value

    def many(self, op: Operator, *operands: Operand, name: str = "") -> tuple[Value, ...]:
        """Append an operator to the graph, and return all its outputs."""
        values = tuple(map(self.value, operands))
        made = self.builder.add(op, *values, origin=Origin(name) if name else self.origin)
        self._producers.update(dict.fromkeys(made, (op, values)))
        return made

    def producer(self, x: Value) -> tuple[Operator, tuple[Value, ...]] | None:
        """The operator that makes a value, and its operands, if this writer appended it."""
        return self._producers.get(x)

    def shape(self, x: Operand) -> tuple[int, ...]:
        """The shape of any operand."""
        return tuple(x.shape) if isinstance(x, Value) or is_tensor(x) else ()

    def element(self, x: Operand) -> Element:
        """The element type of any operand, the dtype in which graphs hold its numbers."""
        return self.value(x).type.element

    def cast(self, x: Operand, element: Element) -> Value:
        """x in another element type, the dtype in which graphs hold numbers."""
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

    def dtype(self, x: Operand) -> Dtype:
        """The model's dtype of x: the noted one, or the element's."""
        value = self.value(x)
        return self._dtypes.get(value) or np.dtype(value.type.element.value)

    def converted(self, x: Operand, dtype: Any) -> Value:
        """Cast x to a dtype of numpy or torch; floats become whole numbers towards zero.

        Narrow dtypes keep the lowest bits. A float that int32 does not hold becomes int32's least
        number first, as x86 converts it, and so torch. Short floats are rounded.
        """
        element, wanted = element_of(dtype), dtype_named(dtype)
        if self.dtype(x) == wanted:
            return self.value(x)
        source = x if isinstance(x, bool | int | float) else self.rounded(x)
        value = self.cast(source, element)
        if wanted in WRAPS and self.dtype(x).kind == "f":
            held = self.pointwise("equal", self.narrowed(value, _INT32), value)
            value = self.pointwise("where", held, value, np.iinfo(np.int32).min)
        made = self.narrowed(value, wanted)
        return self._with_dtype(made, wanted, made is source or made not in self._producers)

    def narrowed(self, value: Value, dtype: Dtype) -> Value:
        """A value in a dtype narrower than its element, or itself where nothing is lost.

        Whole numbers keep their lowest bits, floats are rounded.
        """
        kind = _NARROWING.get(dtype)
        if kind is None or self.fits(value, dtype):
            return value
        if (array := self.known(value)) is not None:
            made = self.constant(FUNCTIONS[kind].evaluate(array), value.origin.name)
        else:
            made = self.one(Pointwise(kind), value)
        self._dtypes[made] = dtype
        return made

    def rounded(self, x: Operand) -> Value:
        """x as its own dtype stores it: short floats are rounded, other values stay as they are."""
        value = self.value(x)
        dtype = self._dtypes.get(value)
        if dtype not in ROUNDINGS:
            return value
        if value not in self._rounded:
            self._rounded[value] = self.narrowed(value, dtype)
        return self._rounded[value]

    def read(self, x: Operand, made: Collection[str], jumps: bool = False) -> Operand:
        """An operand as an operator reads it: rounded to its own dtype if the results have another.

        `made` are the results' dtypes. It is also rounded if the operator `jumps`: operands that
        hardly differ give results that do.
        """
        if not isinstance(x, Value):
            return x
        is_same = not jumps and all(self.dtype(x).name == name for name in made)
        return x if is_same else self.rounded(x)

    def noted(self, value: Value, dtype: Dtype) -> Value:
        """A result, with the model's dtype for it noted; whole numbers wrap around to that dtype.

        A value that others read as another dtype is left as it is; its copy gets the dtype.
        """
        made = self.narrowed(value, dtype) if dtype in WRAPS else value
        return self._with_dtype(made, dtype, made in self._dtypes or made not in self._producers)

    def _with_dtype(self, value: Value, dtype: Dtype, is_shared: bool) -> Value:
        """The value with its dtype noted; a copy if other readers need another dtype of it."""
        if self.dtype(value) == dtype:
            return value
        made = value
        if self.builder.is_constant(value):
            made = self.constant(self.builder.array(value), value.origin.name)
        elif is_shared:
            made = self.one(Reshape(value.shape), value)
        self.note(made, dtype.name)
        return made

    def fits(self, value: Value, dtype: Dtype) -> bool:
        """Whether a narrow dtype is known to hold all numbers that a value may have."""
        return self._held.fits(value, dtype)

    def promoted(self, *operands: Operand) -> list[Value]:
        """All operands in the dtype that torch's promotion gives.

        Floats stay float32 whatever their dtype.
        """
        common = self.common_dtype(operands)
        element = element_of(common)
        values = [self.cast(x, element) for x in operands]
        return [self.narrowed(x, common) for x in values] if common in WRAPS else values

    def common_dtype(self, operands: Sequence[Operand]) -> Dtype:
        """The dtype to which torch promotes operands: of the tensors with axes, or of a later kind.

        Kinds are bools, whole numbers and floats: a tensor without axes, or a number, counts only
        if its kind comes later.
        """
        if len(operands) == 1:
            return self.dtype(operands[0])
        groups: tuple[list[Dtype], ...] = ([], [], [])
        for x in operands:
            is_number = isinstance(x, bool | int | float)
            groups[2 if is_number else 0 if self.shape(x) else 1].append(self.dtype(x))
        lowest: Dtype = np.dtype(np.bool_)
        common = lowest
        for group in groups:
            found = reduce(promoted_dtype, group, lowest)
            common = found if rank_of(found) > rank_of(common) else common
        return common

    def pointwise(self, kind: str, *operands: Operand, name: str = "") -> Value:
        """A function of promoted operands; `where` promotes all but its condition."""
        if kind == "where":
            condition, *rest = operands
            values = [self.cast(condition, Element.BOOL), *self.promoted(*rest)]
        else:
            values = self.promoted(*operands)
        if FUNCTIONS[kind].to_bool:  # numbers too are compared in the dtype of the tensors
            common = self.common_dtype(operands)
            values = [x if self.dtype(x) == common else self.narrowed(x, common) for x in values]
        if kind in _OF_WHOLES and values[0].type.element is not Element.FLOAT32:
            return _OF_WHOLES[kind](self, values[0])
        return self.one(Pointwise(kind), *values, name=name)

    def activated(self, activation: Activation, x: Value, name: str = "") -> Value:
        """x under an activation that products can apply too (`Activation`), as operators alone."""
        return write_activation(
            activation,
            x,
            partial(self.pointwise, name=name),
            lambda number: self.constant(np.asarray(number, np.float32), name),
        )

    def formula(self, title: str, floats: Element = Element.FLOAT32) -> Formula:
        """A new formula, whose steps are written as one chain with that title.

        Its numbers are of the element `floats`.
        """
        return Formula(self, title, floats)


class Formula:
    """A formula, whose steps are written as one chain.

    A call f("mul", x, 0.5) adds a step, here 0.5 x, and returns a reference to it. Arguments are
    values of the graph, numbers, and references to earlier steps.
    """

    def __init__(self, write: Writer, title: str, floats: Element = Element.FLOAT32) -> None:
        self._write, self._title, self._floats = write, title, floats
        self._operands: list[Value] = []
        self._steps: list[tuple[str, list[tuple[bool, int]]]] = []

    def __call__(self, kind: str, *arguments: Operand) -> FormulaStep:
        self._steps.append((kind, [self._place(argument) for argument in arguments]))
        return FormulaStep(len(self._steps) - 1)

    def _place(self, argument: Operand) -> tuple[bool, int]:
        """Whether an argument is a step, and its number among the steps, or else the operands."""
        if isinstance(argument, FormulaStep):
            return True, argument.number
        number = isinstance(argument, int | float) and not isinstance(argument, bool)
        write = self._write
        value = write.number(argument, self._floats) if number else write.value(argument)
        if value not in self._operands:
            self._operands.append(value)
        return False, self._operands.index(value)

    def finish(self, *results: FormulaStep, shape: Sequence[int] | None = None) -> Value:
        """Write the chain over `shape`, by default the broadcast shape; return its first result."""
        return self.all(*results, shape=shape)[0]

    def all(self, *results: FormulaStep, shape: Sequence[int] | None = None) -> tuple[Value, ...]:
        """Write the chain as `finish` does, and return all of these results, one value for each."""
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
    """A reference to a step of a `Formula`, which later steps take as an argument."""

    def __init__(self, number: int) -> None:
        self.number = number


def _memory_of(x: Operand) -> Any:
    """A key of an operand's numbers: equal for tensors that view the same memory alike."""
    if not is_tensor(x):
        return id(x)
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.is_conj(), x.is_neg()


def _relu_of_whole(write: Writer, x: Value) -> Value:
    return write.pointwise("maximum", x, 0)


def _sign_of_whole(write: Writer, x: Value) -> Value:
    """The sign of whole numbers: 1 above 0, 0, -1 below; bools stay as they are."""
    if x.type.element is Element.BOOL:
        return x
    above, below = write.pointwise("greater", x, 0), write.pointwise("less", x, 0)
    return write.pointwise("where", above, 1, write.pointwise("where", below, -1, 0))


def _itself(write: Writer, x: Value) -> Value:
    return x


# Versions for whole numbers of functions that graphs have for float32 alone.
_OF_WHOLES: dict[str, Callable[[Writer, Value], Value]] = {
    "relu": _relu_of_whole,
    "sign": _sign_of_whole,
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _itself),
}


@cache
def element_of(dtype: Any) -> Element:
    """The element that holds a dtype of torch or numpy. Raises Unmapped for complex and others."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return Element.BOOL
    if name == "int64" or (name in NOTED and NOTED[name] in WRAPS):
        return Element.INT64
    if name == "float32" or name in NOTED:
        return Element.FLOAT32
    raise Unmapped(f"dtype {name}")


def type_of(tensor: Any) -> TensorType:
    """The type of a torch tensor whose sizes are numbers."""
    return TensorType(tuple(int(n) for n in tensor.shape), element_of(tensor.dtype))
