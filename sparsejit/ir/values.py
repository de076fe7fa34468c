"""Typed values of a graph: each is one tensor, with its shape, its element and its origin.

    TensorType                the shape and the element
    Origin                    the source in the user's model
    Value                     the tensor
    broadcasts_to, axis_of    shapes and axes of tensors
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import Choice

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
        question: the name of the choice, such as "threads"
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


def broadcasts_to(shape: Sequence[int], *others: Sequence[int]) -> bool:
    """Whether all shapes broadcast to `shape`, by numpy's rules."""
    try:
        return np.broadcast_shapes(tuple(shape), *map(tuple, others)) == tuple(shape)
    except ValueError:
        return False


def axis_of(axis: int, rank: int) -> int:
    """Return the axis counted from the front; 0 for axes 0 and -1 of a tensor without axes.

    Raises InvalidInput for one that does not exist.
    """
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise InvalidInput(
            f"axis {axis} does not exist in a tensor of {rank} axes; use {-rank} to {rank - 1}"
        )
    return axis % rank if rank else 0


def float_type(shape: Sequence[int]) -> TensorType:
    """The type of a float32 tensor."""
    return TensorType(tuple(shape), Element.FLOAT32)
