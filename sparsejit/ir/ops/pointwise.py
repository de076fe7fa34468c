"""Functions of single elements, alone and fused in chains.

    FUNCTIONS   table of functions by name
    Pointwise   one function
    Chain       fused functions, with reductions over the last axis
    Cast        conversion of values to another element
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import erf
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.dtypes import NOTED, SHORT_FLOATS, Dtype, rounded
from sparsejit.ir.operator import BatchPlace, Follower, Node, Operator, SamplesMixed
from sparsejit.ir.reference import sigmoid
from sparsejit.ir.signature import Signature, signature
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array, Element, TensorType, broadcasts_to


class Function(NamedTuple):
    """A function of `arity` elements; `to_bool`: its results are bools, `whole`: it takes int64."""

    arity: int
    evaluate: Callable[..., Any]
    to_bool: bool = False
    whole: bool = False


# The function that keeps the lowest bits of an int64 as a number of that dtype.
WRAPS: dict[Dtype, str] = {
    dtype: f"as_{name}" for name, dtype in NOTED.items() if dtype.kind in "iu"
}


# The function that rounds to floats of that dtype.
ROUNDINGS: dict[Dtype, str] = {dtype: f"round_{name}" for name, dtype in SHORT_FLOATS.items()}


def _rounding(dtype: Dtype) -> Function:
    return Function(1, lambda x: rounded(x, dtype).astype(np.float64))


def _wrap(dtype: Any) -> Function:
    return Function(1, lambda x: np.asarray(x).astype(dtype).astype(np.int64), whole=True)


def _quotient(a: Array, b: Array) -> Array:
    """a / b rounded towards zero, modulo 2^64; 0 where b is 0."""
    floored = np.floor_divide(a, b)
    return floored + ((floored * b != a) & ((a < 0) != (b < 0)) & np.not_equal(b, 0))


def _shift(shift: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    """Make a shift of int64 by any number of bits from numpy's `shift`.

    A number below 0 or above 63 shifts by 63 and then by 1, so that no bit of the operand is left.
    """

    def evaluate(a: Array, bits: Array) -> Array:
        near = np.where((bits < 0) | (bits > 63), 63, bits)
        return np.asarray(shift(shift(a, near), np.where(near == bits, 0, 1)))

    return evaluate


# NaN spreads through all functions but `sign`, as in torch. `round` is to even. `fma` is a * b + c.
FUNCTIONS: dict[str, Function] = {
    "add": Function(2, np.add),
    "sub": Function(2, np.subtract),
    "mul": Function(2, np.multiply),
    "div": Function(2, np.divide),
    "maximum": Function(2, np.maximum),
    "minimum": Function(2, np.minimum),
    "fma": Function(3, lambda a, b, c: a * b + c),
    "neg": Function(1, np.negative),
    "abs": Function(1, np.abs),
    "sqrt": Function(1, np.sqrt),
    "rsqrt": Function(1, lambda x: 1 / np.sqrt(x)),
    "reciprocal": Function(1, lambda x: 1 / x),
    "square": Function(1, np.square),
    "relu": Function(1, lambda x: np.maximum(x, 0)),
    "exp": Function(1, np.exp),
    "exp2": Function(1, np.exp2),
    "expm1": Function(1, np.expm1),
    "log": Function(1, np.log),
    "log1p": Function(1, np.log1p),
    "tanh": Function(1, np.tanh),
    "sigmoid": Function(1, sigmoid),
    "erf": Function(1, np.vectorize(erf, otypes=[np.float64])),
    "sin": Function(1, np.sin),
    "cos": Function(1, np.cos),
    "floor": Function(1, np.floor),
    "ceil": Function(1, np.ceil),
    "round": Function(1, np.rint),
    "trunc": Function(1, np.trunc),
    "sign": Function(1, lambda x: np.sign(np.where(x == x, x, 0))),
    "copysign": Function(2, np.copysign),
    "equal": Function(2, np.equal, to_bool=True),
    "not_equal": Function(2, np.not_equal, to_bool=True),
    "less": Function(2, np.less, to_bool=True),
    "less_equal": Function(2, np.less_equal, to_bool=True),
    "greater": Function(2, np.greater, to_bool=True),
    "greater_equal": Function(2, np.greater_equal, to_bool=True),
    "logical_and": Function(2, np.logical_and, to_bool=True),
    "logical_or": Function(2, np.logical_or, to_bool=True),
    "logical_not": Function(1, np.logical_not, to_bool=True),
    "where": Function(3, np.where),
    "quotient": Function(2, _quotient, whole=True),
    "bitwise_and": Function(2, np.bitwise_and, whole=True),
    "bitwise_or": Function(2, np.bitwise_or, whole=True),
    "bitwise_xor": Function(2, np.bitwise_xor, whole=True),
    "shift_left": Function(2, _shift(np.left_shift), whole=True),
    "shift_right": Function(2, _shift(np.right_shift), whole=True),
    **{name: _wrap(dtype) for dtype, name in WRAPS.items()},
    **{name: _rounding(dtype) for dtype, name in ROUNDINGS.items()},
}

# Reductions over the last axis, which keeps one element.
ROW_REDUCTIONS: dict[str, Callable[[Array], Any]] = {
    "row_sum": lambda x: x.sum(axis=-1, keepdims=True),
    "row_max": lambda x: x.max(axis=-1, keepdims=True),
    "row_min": lambda x: x.min(axis=-1, keepdims=True),
}


# Functions that take float64 as well as float32.
_OF_DOUBLES = (
    *("div", "sqrt", "reciprocal", "exp", "log", "floor", "ceil", "round", "trunc"),
)
# The elements of operands by kind of function; all other kinds take float32.
_ELEMENTS = {
    **dict.fromkeys(_OF_DOUBLES, "float32|float64"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), "any"),
    **dict.fromkeys(("add", "mul", "maximum", "minimum", "where"), "X"),
    **dict.fromkeys(("sub", "neg", "abs", "square"), "float32|int64|float64"),
    **dict.fromkeys((kind for kind, each in FUNCTIONS.items() if each.whole), "int64"),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), "X"),
}


@dataclass(frozen=True)
class Pointwise(Operator):
    """FUNCTIONS[kind] of every element; operands broadcast."""

    kind: str

    def __post_init__(self) -> None:
        if self.kind not in FUNCTIONS:
            raise InvalidInput(
                f"function {self.kind!r} is unknown; use one of {', '.join(FUNCTIONS)}"
            )

    def signature(self, operands: int) -> Signature:
        function = FUNCTIONS[self.kind]
        usual = _ELEMENTS.get(self.kind, "float32")
        elements = [usual] * function.arity
        if self.kind == "where":
            elements[0] = "any"
        pairs = zip("abc", elements, strict=False)
        taken = ", ".join(f"{name} {each} [...]" for name, each in pairs)
        made = "bool" if function.to_bool else usual
        return signature(f"{taken} -> {made} [...]")

    def as_text(self) -> str:
        return self.kind

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.asarray(FUNCTIONS[self.kind].evaluate(*operands)),)


Operand = TypeVar("Operand")


def write_activation(
    activation: Activation,
    x: Operand,
    apply: Callable[..., Operand],
    number: Callable[[float], Operand],
) -> Operand:
    """Write an activation by functions of FUNCTIONS, and return its result.

    `apply(kind, *operands)` adds a function and returns its result; `number(x)` makes a constant.
    """
    if activation is Activation.NONE:
        return x
    if activation is Activation.RELU6:
        return apply("minimum", apply("relu", x), number(6.0))
    return apply(activation.value, x)


@dataclass(frozen=True)
class ChainStep:
    """A function or row reduction of numbered values: operands first, then earlier steps."""

    kind: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Chain(Operator):
    """Fused functions over elements that broadcast to `shape`, with reductions over its last axis.

    Values are numbered: operands from 0, then the steps. `results` are the numbers of the outputs.
    A value that depends on reductions alone (and on operands whose last axis has one element) has
    one element in its last axis; any other has `shape`, or broadcasts to it. Softmax over rows is

        Chain((8, 32), 1, (row_max(0), sub(0, 1), exp(2), row_sum(3), div(3, 4)), (5,))

    `title` is its name in the user's model.
    """

    shape: tuple[int, ...]
    operands: int
    steps: tuple[ChainStep, ...]
    results: tuple[int, ...]
    title: str = field(default="chain", compare=False)

    needs: ClassVar[str] = ", one for each operand that it counts, all broadcast to its shape"

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.operands, self.steps, self.results))

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        """Raise InvalidInput for an unknown step, or one that reads a later value."""
        known = self.operands
        for step in self.steps:
            self._check(step.arguments, known)
            reduces = step.kind in ROW_REDUCTIONS
            arity = 1 if reduces else FUNCTIONS[Pointwise(step.kind).kind].arity
            if len(step.arguments) != arity:
                raise InvalidInput(f"{self.title} has {step}; give {arity} arguments")
            known += 1
        self._check(self.results, known)

    def _check(self, numbers: tuple[int, ...], known: int) -> None:
        if not all(0 <= number < known for number in numbers):
            raise InvalidInput(
                f"{self.title} names values {numbers} of {known}; name earlier values"
            )

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        shapes = [operand.shape for operand in operands]
        fits = len(operands) == self.operands and broadcasts_to(self.shape, *shapes)
        if not fits or (self.reduces and not self.shape):
            raise self.refusal(operands)
        kinds = list(operands)
        for step in self.steps:
            kinds.append(self._type_of(step, [kinds[number] for number in step.arguments]))
        return tuple(kinds[number] for number in self.results)

    def signature(self, operands: int) -> Signature:
        """The types of the operands, without results."""
        return signature(", ".join(f"x{n} any [...]" for n in range(operands)))

    @property
    def reduces(self) -> bool:
        """Whether a step is a row reduction."""
        return any(step.kind in ROW_REDUCTIONS for step in self.steps)

    def follow_batch(self, follow: Follower, node: Node) -> None:
        place = follow.common(node)
        if place.axis == -1 and self.reduces:
            raise SamplesMixed(f"computes {self.title} over the batch")
        follow.put_from_end(node, place)

    def resized(self, node: Node, place: BatchPlace, length: int) -> Operator:
        axis = place.axis - len(node.outputs[0].shape) + len(self.shape)
        return replace(self, shape=(*self.shape[:axis], length, *self.shape[axis + 1 :]))

    def of_any_size(self) -> Operator:
        return replace(self, shape=())

    def as_text(self) -> str:
        steps = (f"{step.kind} {' '.join(map(str, step.arguments))}" for step in self.steps)
        return f"{self.title}[{'; '.join(steps)}]"

    def _type_of(self, step: ChainStep, arguments: list[TensorType]) -> TensorType:
        if step.kind in ROW_REDUCTIONS:
            return TensorType((*self.shape[:-1], 1), arguments[0].element)
        return Pointwise(step.kind).infer(*arguments)[0]

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        values = [np.asarray(operand) for operand in operands]
        with np.errstate(all="ignore"):
            for step in self.steps:
                arguments = [values[number] for number in step.arguments]
                if step.kind in ROW_REDUCTIONS:
                    whole = np.broadcast_to(arguments[0], self.shape)
                    values.append(ROW_REDUCTIONS[step.kind](whole))
                else:
                    values.append(np.asarray(FUNCTIONS[step.kind].evaluate(*arguments)))
        return tuple(values[number] for number in self.results)


@dataclass(frozen=True)
class Cast(Operator):
    """Convert to `element`: numbers become integers towards zero, bools 0 or 1.

    A number becomes True where it differs from zero, an int64 the nearest float32. Numbers that
    int64 cannot hold, NaN too, become its least number.
    """

    element: Element

    def __post_init__(self) -> None:
        if self.element is Element.FLOAT64:
            raise InvalidInput("a Cast cannot make float64; cast to float32")

    types: ClassVar[str] = "x any [...] -> element [...]"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        if self.element is Element.BOOL:
            return (np.not_equal(x, 0),)
        x = np.asarray(x)
        if self.element is Element.FLOAT32:
            # Integers are rounded as in compiled code; floats stay in float64.
            rounded = x if x.dtype.kind == "f" else x.astype(np.float32)
            return (rounded.astype(np.float64),)
        with np.errstate(invalid="ignore"):
            return (x.astype(np.int64),)
