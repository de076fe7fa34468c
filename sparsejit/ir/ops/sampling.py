"""Operators between the layers of a network that makes a signal sample by sample.

    Uniform, Draw          a random number, and a class drawn by it
    SumOfRows, GruStep     layers of the network
    Predict, Reconstruct   linear prediction and the signal
    UniformRow, TreeDraw   a class drawn bit by bit, by a walk through a binary tree, and the random
                           numbers it takes

The float32 order of operations of `Predict`, `SumOfRows` and `Reconstruct`, each one rounded, is
part of their definition, so that a signal is the same to the bit wherever it is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.operator import Operator
from sparsejit.ir.signature import Bound, Signature, signature
from sparsejit.ir.spec import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    CategoricalDraw,
    DType,
    GruUpdate,
)
from sparsejit.ir.values import Array, Element, TensorType

# Samples that a prediction reads; samples older than its order have weight zero.
PREDICTION_WINDOW = 32
# Thresholds between the 256 levels of a byte.
THRESHOLDS = 255
# The type of an index.
INDEX = TensorType((), Element.INT64)


@dataclass(frozen=True)
class Uniform(Operator):
    """Sample `counter` of the stream of `seed`, both int64 (): float32 () in [0, 1).

    Both are read as unsigned numbers of 64 bits; `reference.random_uniform` has the generator.
    """

    types: ClassVar[str] = "seed int64 [], counter int64 [] -> float32 []"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        seed, counter = (operand.astype(np.uint64) for operand in operands)
        return (np.asarray(reference.random_uniform(int(seed), counter), np.float64),)


@dataclass(frozen=True)
class Draw(Operator):
    """A class from softmax(logits * inverse_temperature) by a uniform number: int64 ().

    Logits (classes,), the number (); `CategoricalDraw` has the formula.
    """

    inverse_temperature: float = 1.0

    types: ClassVar[str] = "logits float32 [classes], uniform float32 [] -> int64 []"
    needs: ClassVar[str] = (
        ", with at least one class and an inverse temperature of "
        f"{SMALLEST_SCALE:.3g} to {LARGEST_SCALE:.3g}"
    )

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        is_factor = SMALLEST_SCALE <= self.inverse_temperature <= LARGEST_SCALE
        return {} if bound["classes"] > 0 and is_factor else None

    def spec(self, classes: int) -> CategoricalDraw:
        """The spec of this draw from `classes` classes."""
        return CategoricalDraw(classes, self.inverse_temperature)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        logits, uniform = operands
        drawn = reference.categorical_draw(self.spec(len(logits)), logits, float(uniform))
        return (np.asarray(drawn, np.int64),)


@dataclass(frozen=True)
class Quantise(Operator):
    """Number of 255 ascending thresholds that are not above a number (): int64 (), 0 to 255."""

    types: ClassVar[str] = f"number float32 [], thresholds float32 [{THRESHOLDS}] -> int64 []"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        number, thresholds = operands
        return (np.asarray(np.count_nonzero(thresholds <= number), np.int64),)


@dataclass(frozen=True)
class SumOfRows(Operator):
    """tables[0][indices[0]] + tables[1][indices[1]] + ... + rest, added in that order.

    Operands: int64 () indices, a table (rows, features) for each, the rest (features,). Tables are
    stored as float32; as int8 with a step for each feature, the largest magnitude in all tables
    / 127; or, with other short dtypes, as float16, since nothing is multiplied and no other format
    of 16 bits is as precise.
    """

    dtype: DType = DType.FLOAT32

    def signature(self, operands: int) -> Signature:
        tables = range(max(operands // 2, 1))
        indices = "".join(f"index{n} int64 [], " for n in tables)
        rows = "".join(f"table{n} float32 [rows{n}, features], " for n in tables)
        return signature(f"{indices}{rows}rest float32 [features] -> float32 [features]")

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        count = len(operands) // 2
        picked = zip(operands[:count], operands[count:-1], strict=True)
        return (sum(table[index] for index, table in picked) + operands[-1],)


@dataclass(frozen=True)
class GruStep(Operator):
    """A GRU's next state (hidden,) after its products: `reference.gru_update`.

    Operands: input and recurrent gates (3 * hidden,) with their biases, and the state (hidden,).
    With int8 as `dtype` the reset and the new gate are within 1.3e-4 of their exact values:
    products then read the state in steps of 1/127.
    """

    dtype: DType = DType.FLOAT32

    types: ClassVar[str] = (
        "gates float32 [3*hidden], recurrent float32 [3*hidden], state float32 [hidden] "
        "-> float32 [hidden]"
    )
    mixes: ClassVar[tuple[str, ...]] = ("hidden",)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        gates, recurrent, state = operands
        return (reference.gru_update(GruUpdate(len(state)), gates, recurrent, state),)


@dataclass(frozen=True)
class Predict(Operator):
    """The sum of 32 products of past samples and their weights, both (32,), oldest first: ().

    A balanced tree: products i and i + 16 are added first, then i and i + 8, + 4, + 2, + 1.
    """

    types: ClassVar[str] = (
        f"samples float32 [{PREDICTION_WINDOW}], weights float32 [{PREDICTION_WINDOW}] "
        "-> float32 []"
    )

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        samples, weights = operands
        return (np.asarray(samples @ weights),)


@dataclass(frozen=True)
class Reconstruct(Operator):
    """A sample of the signal from its prediction and the residual's level, and one of the output.

    signal = clamp(levels[level] * scale + prediction, -limit, limit)
    output = signal + emphasis * last output

    Operands: level int64 (), levels (n,), scale, prediction and last output, each ().
    """

    limit: float
    emphasis: float

    types: ClassVar[str] = (
        "level int64 [], levels float32 [n], scale float32 [], prediction float32 [], "
        "last float32 [] -> float32 [], float32 []"
    )

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        level, levels, scale, prediction, last = operands
        signal = np.clip(levels[level] * scale + prediction, -self.limit, self.limit)
        return (np.asarray(signal), np.asarray(signal + self.emphasis * last))


# At most 2^24 classes, the most whose numbers are all exact in float32.
MOST_BITS = 24
# Each number has code of its own.
MOST_NUMBERS = 1024


@dataclass(frozen=True)
class UniformRow(Operator):
    """Samples `counter` to `counter` + count - 1 of the stream of `seed`: float32 (count,).

    Operands as of `Uniform`.
    """

    count: int

    def __post_init__(self) -> None:
        if not 0 < self.count <= MOST_NUMBERS:
            raise InvalidInput(f"{self}: give 1 to {MOST_NUMBERS} numbers")

    types: ClassVar[str] = "seed int64 [], counter int64 [] -> float32 [count]"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        seed, counter = (operand.astype(np.uint64) for operand in operands)
        numbers = counter + np.arange(self.count, dtype=np.uint64)
        return (np.asarray(reference.random_uniform(int(seed), numbers), np.float64),)


@dataclass(frozen=True)
class TreeDraw(Operator):
    """A class of `bits` bits, the highest first: int64 ().

    Operands: float32 parameters (2**bits,) and thresholds (bits,). The n-th bit is 1 where the
    n-th threshold is less than the parameter whose number is 1 followed by the bits before.
    """

    bits: int

    types: ClassVar[str] = (
        "parameters float32 [leaves], thresholds float32 [bits] -> int64 []"
    )

    def __post_init__(self) -> None:
        if not 0 < self.bits <= MOST_BITS:
            raise InvalidInput(f"{self}: give 1 to {MOST_BITS} bits")

    @property
    def leaves(self) -> int:
        """Number of classes, and of parameters."""
        return 1 << self.bits

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        nodes = self.path(*operands)
        return (np.asarray(nodes[-1] - self.leaves, np.int64),)

    def path(self, parameters: Array, thresholds: Array) -> list[int]:
        """The numbers of the parameters read, root first; last, 2**bits + the drawn class."""
        nodes = [1]
        for threshold in thresholds:
            nodes.append(2 * nodes[-1] + int(threshold < parameters[nodes[-1]]))
        return nodes
