"""Specs: frozen descriptions of computations that the reference and the templates share.

    MatVec, MatMul           products of weights with one x, and with the columns of a batch
    Elementwise              an activation
    GruUpdate, LstmUpdate    the gates of recurrent layers; also `RnnUpdate`
    CategoricalDraw          a class drawn by a random number
    DenseProduct             a product of two dense matrices
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.whole_numbers import ceil_div

_Choice = TypeVar("_Choice", bound="Choice")


class Choice(str, Enum):
    """An argument that is one of a few names."""

    @classmethod
    def parse(cls: type[_Choice], name: str) -> _Choice:
        """The member of that name.

        Raises:
            InvalidInput: there is none
        """
        try:
            return cls(name)
        except ValueError:
            choices = ", ".join(member.value for member in cls)
            raise InvalidInput(
                f"{cls.__name__.lower()} {name!r} is unknown; use one of {choices}"
            ) from None


class Activation(Choice):
    """The activation fused behind a matrix product."""

    NONE = "none"
    RELU = "relu"
    RELU6 = "relu6"
    TANH = "tanh"
    SIGMOID = "sigmoid"


class DType(Choice):
    """Storage of weights. x, y, the bias and all sums are float32.

    With int8, x is quantised too, and sums are int32.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"


# Least weight that rounds to infinity: halfway from a dtype's largest value to the next.
OVERFLOWS_AT = {DType.FLOAT16: 65520.0, DType.BFLOAT16: 2.0**128 - 2.0**119}

# int8: the largest quantised magnitude, so that -128 never occurs; and the least step, so that its
# reciprocal is finite where all values are zero.
LARGEST_INT8 = 127
SMALLEST_SCALE = 2.0**-100
LARGEST_SCALE = 1 / SMALLEST_SCALE


@dataclass(frozen=True)
class Quantisation:
    """Scale and zero point: an integer q in -128 .. 127 stands for (q - zero_point) * scale.

    Attributes:
        scale: the step from one integer to the next
        zero_point: the integer that stands for 0
        symmetric: whether q is in -127 .. 127 instead; the zero point is 0 then

    Raises:
        InvalidInput: a scale or a zero point is out of range
    """

    scale: float
    zero_point: int
    symmetric: bool = field(default=False, metadata={"newer": True})

    def __post_init__(self) -> None:
        fits = fits_quantisation(self.scale, self.zero_point)
        if not fits or (self.symmetric and self.zero_point):
            raise InvalidInput(
                f"the scale is {self.scale!r} and the zero point {self.zero_point}; give a scale "
                f"of {SMALLEST_SCALE:.3g} to {LARGEST_SCALE:.3g} and a zero point of "
                + ("0" if self.symmetric else "-128 to 127")
            )

    @property
    def least_integer(self) -> int:
        """The least q."""
        return -LARGEST_INT8 - (not self.symmetric)


def fits_quantisation(scale: float, zero_point: int) -> bool:
    """Whether a scale and a zero point are in range."""
    in_range = SMALLEST_SCALE <= scale <= LARGEST_SCALE
    return in_range and -LARGEST_INT8 - 1 <= zero_point <= LARGEST_INT8


@dataclass(frozen=True, eq=False)
class MatVec:
    """y = activation(W x + bias) for one x: float32 (in_features,) to (out_features,).

    The weights are passed beside the spec as a SparseMatrix, and are rounded to `dtype`.

    Attributes:
        out_features: rows of W
        in_features: columns of W
        bias: float32 (out_features,), or none
        activation: applied to each output
        dtype: storage of the weights
        x_steps: with int8, the steps of x; None is a scale of x's largest magnitude / 127. The
            product takes the integers as they are; the bias must correct for the zero point.

    Raises:
        InvalidInput: x_steps are given with another dtype
    """

    out_features: int
    in_features: int
    bias: npt.NDArray[np.float32] | None = None
    activation: Activation = Activation.NONE
    dtype: DType = DType.FLOAT32
    x_steps: Quantisation | None = None

    def __post_init__(self) -> None:
        if self.x_steps is not None and self.dtype is not DType.INT8:
            raise InvalidInput(
                f"x has a scale of {self.x_steps.scale!r} with dtype={self.dtype.value!r}; "
                "only dtype='int8' quantises x, leave it out"
            )

    @property
    def holds_any_weight(self) -> bool:
        """Whether every float32 weight is within the range of the dtype."""
        return self.dtype not in OVERFLOWS_AT and self.x_steps is None

    def check_largest_weight(self, weight: float, name: str) -> None:
        """Raise InvalidInput where the weight of largest magnitude is beyond the dtype.

        With int8 and steps of x, also where the product of the scales overflows.
        """
        largest = abs(weight)
        if largest >= OVERFLOWS_AT.get(self.dtype, math.inf):
            raise InvalidInput(
                f"{name} is {weight:.8g}, more than "
                f"{self.dtype.value} can hold; use dtype='float32'"
            )
        if self.x_steps is None:
            return
        with np.errstate(over="ignore"):
            scale = np.float32(largest) / np.float32(LARGEST_INT8) * np.float32(self.x_steps.scale)
        if not np.isfinite(scale):
            raise InvalidInput(
                f"input_scale={self.x_steps.scale!r} times the scale of weights as large as "
                f"{largest:.4g} is more than float32 can hold; give the quantisation scale of x, "
                "such as 1/127 where x lies in [-1, 1]"
            )

    @property
    def least_integer(self) -> int:
        """The least integer of quantised x."""
        return -LARGEST_INT8 if self.x_steps is None else self.x_steps.least_integer

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0 in x."""
        return 0 if self.x_steps is None else self.x_steps.zero_point

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.in_features,)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.out_features,)

    @cached_property
    def case(self) -> str:
        """All fields but the numbers of outputs and inputs, in words."""
        words = f"{self.dtype.value} {self.activation.value} bias={self.bias is not None}"
        if self.x_steps is None:
            return words
        zero = "" if self.x_steps.symmetric else f" zero_point={self.x_steps.zero_point}"
        return f"{words} scale={self.x_steps.scale}{zero}"


class Layout(Choice):
    """Order of axes of a batch's x and y: x (batch, in) or x (in, batch)."""

    BATCH_MAJOR = "batch-major"
    FEATURE_MAJOR = "feature-major"


# Most bytes of x, and of y: offsets within them are signed 32-bit displacements.
MOST_BYTES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class MatMul:
    """`each` applied to every column of a batch of at least two; x and y are C-contiguous.

    x is float32 (batch, in_features) and y (batch, out_features), or, feature-major, (in_features,
    pitch) and (out_features, pitch). Columns from batch on are padding: x's may be read, though
    subnormal numbers there may cost time; y's may be written.

    Attributes:
        each: the spec of each column
        batch: number of columns
        layout: layout of x, and of y without `result_layout`
        padded_to: the pitch, in elements; None is the batch
        part_of: the larger product of which this one computes some outputs or columns, in whose
            arrays its x and y lie; None for a whole one
        result_layout: layout of y, where it differs from x's
        added_pitch: elements from one feature to the next of an operand that is added to W x + bias
            before the activation; None without one. With y's pitch the operand has y's padding

    Raises:
        InvalidInput: x or y longer than `MOST_BYTES`, or a pitch below the batch or batch-major
    """

    each: MatVec
    batch: int
    layout: Layout = Layout.BATCH_MAJOR
    padded_to: int | None = None
    part_of: "MatMul | None" = None
    result_layout: Layout | None = None
    added_pitch: int | None = None

    def __post_init__(self) -> None:
        most = MOST_BYTES // (4 * max(self.in_features, self.out_features))
        if self.batch > most:
            raise InvalidInput(
                f"batch={self.batch} makes x or y longer than 2 GiB; give at most "
                f"{most} and call the kernel several times"
            )
        self._check_pitch("added_pitch", self.added_pitch, most)
        self._check_pitch("pitch", self.padded_to, most)

    def _check_pitch(self, name: str, pitch: int | None, most: int) -> None:
        if pitch is None:
            return
        if Layout.FEATURE_MAJOR not in (self.layout, self.y_layout):
            raise InvalidInput(
                f"{name}={pitch} with layout={self.layout.value!r}; only the rows of "
                "layout='feature-major' may be padded, leave it out"
            )
        if not self.batch <= pitch <= most:
            raise InvalidInput(
                f"{name}={pitch} for a batch of {self.batch}; give a number of elements "
                f"from {self.batch} to {most}"
            )

    @property
    def out_features(self) -> int:
        return self.each.out_features

    @property
    def in_features(self) -> int:
        return self.each.in_features

    @property
    def dtype(self) -> DType:
        return self.each.dtype

    @property
    def bias(self) -> npt.NDArray[np.float32] | None:
        return self.each.bias

    @cached_property
    def case(self) -> str:
        """All fields but the numbers of outputs and inputs, in words."""
        pitch = "" if self.padded_to is None else f" pitch={self.padded_to}"
        whole = "" if self.part_of is None else f" of {self.y_features}, {self.part_of.case}"
        to = "" if self.y_layout is self.layout else f" to {self.y_layout.value}"
        adds = "" if self.added_pitch is None else f" added_pitch={self.added_pitch}"
        return f"{self.each.case} batch={self.batch} {self.layout.value}{to}{pitch}{adds}{whole}"

    @property
    def y_layout(self) -> Layout:
        return self.layout if self.result_layout is None else self.result_layout

    @property
    def room(self) -> int:
        """Number of columns of x and y that may be accessed, padding included."""
        return self.batch if self.padded_to is None else self.padded_to

    @property
    def added_room(self) -> int:
        """Number of columns of an added operand that may be read, padding included."""
        return self.room if self.added_pitch in (None, self.pitch) else self.batch

    @property
    def pitch(self) -> int:
        """Elements from one feature to the next where x and y are feature-major."""
        return self.room if self.part_of is None else self.part_of.pitch

    @property
    def y_features(self) -> int:
        """Elements from one column to the next where y is batch-major."""
        return self.out_features if self.part_of is None else self.part_of.out_features

    @property
    def x_shape(self) -> tuple[int, ...]:
        return self._shape(self.layout, self.in_features)

    @property
    def y_shape(self) -> tuple[int, ...]:
        batch_major = self.y_layout is Layout.BATCH_MAJOR
        return self._shape(self.y_layout, self.y_features if batch_major else self.out_features)

    def _shape(self, layout: Layout, features: int) -> tuple[int, ...]:
        feature_major = layout is Layout.FEATURE_MAJOR
        return (features, self.pitch) if feature_major else (self.batch, features)


Layer: TypeAlias = MatVec | MatMul


@dataclass(frozen=True)
class Elementwise:
    """y = activation(x) over `length` float32 values."""

    length: int
    activation: Activation


@dataclass(frozen=True)
class GruUpdate:
    """One step of a GRU after its two matrix products; gate order r-z-n, each `hidden` long.

    r = sigmoid(input_r + recurrent_r); z = sigmoid(input_z + recurrent_z);
    n = tanh(input_n + r * recurrent_n); state = n + z * (state - n).
    Both biases are already inside the products (torch.nn.GRU's formula).
    """

    hidden: int


@dataclass(frozen=True)
class LstmUpdate:
    """One step of an LSTM after its two matrix products; gate order i-f-g-o, each `hidden` long.

    c = sigmoid(f) * c + sigmoid(i) * tanh(g); h = sigmoid(o) * tanh(c), where each gate is the sum
    of input and recurrent. Both biases are already inside the products (torch.nn.LSTM's formula).
    """

    hidden: int


@dataclass(frozen=True)
class RnnUpdate:
    """One step of a plain recurrent layer after its products: h = activation(input + recurrent)."""

    hidden: int
    activation: Activation


@dataclass(frozen=True)
class CategoricalDraw:
    """Draw a class from softmax(logits * inverse_temperature) with one uniform number.

    Weights are w[c] = exp((logits[c] - max) * inverse_temperature); the class is the number of
    partial sums w[0] + ... + w[c] that are <= uniform * total, at most classes - 1.
    """

    classes: int
    inverse_temperature: float = 1.0


@dataclass(frozen=True)
class DenseProduct:
    """C = activation(scale * A B + bias): float32 A (rows, depth), B (depth, columns).

    Attributes:
        rows: of A and C
        columns: of B and C
        depth: columns of A, rows of B
        a_pitch: bytes from row to row of A as it is stored, at least the bytes of a row
        b_pitch: the same of B as it is stored
        c_pitch: the same of C
        transposed: whether B is stored as (columns, depth)
        scale: factor of the product
        activation: applied to each element of C
        added_pitch: bytes from row to row of an operand (rows, columns) that is added before the
            activation, and may lie where C does; None without one. With one, A is constant.
        a_transposed: whether A is stored as (depth, rows)
        together: elements along the depth that one instruction multiplies: 1 float32, 2 that are
            rounded to bfloat16, or 4 that are quantised to bytes. If more than 1, A is not
            transposed, nor is B, except for pairs without a constant; of quads one is a constant.

    Raises:
        InvalidInput: a size below 1, a short or odd pitch, more than `MOST_BYTES`
    """

    rows: int
    columns: int
    depth: int
    a_pitch: int
    b_pitch: int
    c_pitch: int
    transposed: bool = False
    scale: float = 1.0
    activation: Activation = Activation.NONE
    added_pitch: int | None = None
    a_transposed: bool = False
    together: int = 1

    @property
    def pairs(self) -> bool:
        """Whether elements are rounded to bfloat16 and multiplied in pairs."""
        return self.together == 2

    @property
    def quads(self) -> bool:
        """Whether elements are quantised to bytes and multiplied in quads."""
        return self.together == 4

    @property
    def steps(self) -> int:
        """The number of products that each sum adds up: quads or pairs of elements, or elements."""
        return ceil_div(self.depth, self.together)

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.depth) < 1:
            raise InvalidInput(
                f"a dense product of {self.rows}x{self.depth} by {self.depth}x{self.columns}; "
                "give sizes of at least 1"
            )
        a_shape = (self.rows, self.depth)[:: -1 if self.a_transposed else 1]
        b_shape = (self.depth, self.columns)[:: -1 if self.transposed else 1]
        for name, pitch, (rows, columns) in (
            ("a_pitch", self.a_pitch, a_shape),
            ("b_pitch", self.b_pitch, b_shape),
            ("c_pitch", self.c_pitch, (self.rows, self.columns)),
        ):
            if pitch % 4 or pitch < 4 * columns:
                raise InvalidInput(
                    f"{name}={pitch} for rows of {columns} floats; give a multiple of 4 "
                    f"of at least {4 * columns} bytes"
                )
            if pitch * rows > MOST_BYTES:
                raise InvalidInput(
                    f"{name}={pitch} times {rows} rows is more than 2 GiB; split the product"
                )

    @classmethod
    def contiguous(
        cls,
        rows: int,
        columns: int,
        depth: int,
        transposed: bool = False,
        scale: float = 1.0,
        activation: Activation = Activation.NONE,
    ) -> "DenseProduct":
        """A product whose operands have no gaps between rows."""
        b_pitch = 4 * (depth if transposed else columns)
        sizes = (rows, columns, depth)
        return cls(*sizes, 4 * depth, b_pitch, 4 * columns, transposed, scale, activation)
