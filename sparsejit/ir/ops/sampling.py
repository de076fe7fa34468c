"""What a network that makes a signal sample by sample does between its layers.

The float32 order of operations of `Predict`, `SumOfRows` and `Reconstruct`, each one rounded, is
part of their definition, so that a signal is the same to the bit wherever it is made.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir import reference
from sparsejit.ir.graph import Array, Element, TensorType
from sparsejit.ir.ops.types import float_type, require
from sparsejit.ir.spec import CategoricalDraw, DType, GruUpdate

# Samples that a prediction reads; those older than its order weigh zero.
PREDICTION_WINDOW = 32
# Thresholds that a level is counted among: those between the 256 values of a byte.
THRESHOLDS = 255

_SCALAR = float_type(())
INDEX = TensorType((), Element.INT64)


@dataclass(frozen=True)
class Uniform:
    """Sample `counter` of the stream of `seed`, both int64 (): float32 () in [0, 1).

    Both are read as 64 bits without sign; `reference.random_uniform` has the generator.
    """

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        require(operands == (INDEX, INDEX), self, operands, "give int64 seed and counter")
        return (_SCALAR,)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        seed, counter = (operand.astype(np.uint64) for operand in operands)
        return (np.asarray(reference.random_uniform(int(seed), counter), np.float64),)


@dataclass(frozen=True)
class Draw:
    """A class from softmax(logits * inverse_temperature) by a uniform number: int64 ().

    Logits (classes,), the number (); `CategoricalDraw` says how.
    """

    inverse_temperature: float = 1.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = "give logits (classes,) and one uniform number"
        fits = len(operands) == 2 and len(operands[0].shape) == 1 and operands[1] == _SCALAR
        require(fits and operands[0].size > 0, self, operands, wanted)
        return (INDEX,)

    def spec(self, classes: int) -> CategoricalDraw:
        """The draw among so many classes."""
        return CategoricalDraw(classes, self.inverse_temperature)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        logits, uniform = operands
        drawn = reference.categorical_draw(self.spec(len(logits)), logits, float(uniform))
        return (np.asarray(drawn, np.int64),)


@dataclass(frozen=True)
class Quantise:
    """How many of 255 ascending thresholds are not above a number (): int64 (), 0 to 255."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = f"give one number and {THRESHOLDS} thresholds"
        require(operands == (_SCALAR, float_type((THRESHOLDS,))), self, operands, wanted)
        return (INDEX,)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        number, thresholds = operands
        return (np.asarray(np.count_nonzero(thresholds <= number), np.int64),)


@dataclass(frozen=True)
class SumOfRows:
    """tables[0][indices[0]] + tables[1][indices[1]] + ... + rest, added in that order.

    Operands: int64 () indices, as many tables (rows, features), the rest (features,). Tables are
    stored as float32; as int8 in steps of their own for each feature, the largest magnitude in all
    tables being 127 of them; or, with other short dtypes, as float16, since nothing is multiplied
    and no other format of 16 bits keeps as much.
    """

    dtype: DType = DType.FLOAT32

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = "give int64 indices, as many tables (rows, features), and a vector (features,)"
        require(len(operands) % 2 == 1, self, operands, wanted)
        count, rest = len(operands) // 2, operands[-1]
        indices, tables = operands[:count], operands[count:-1]
        fits = all(index == INDEX for index in indices) and all(
            len(table.shape) == 2 and table.shape[1:] == rest.shape for table in tables
        )
        require(fits, self, operands, wanted)
        return (rest,)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        count = len(operands) // 2
        picked = zip(operands[:count], operands[count:-1], strict=True)
        return (sum(table[index] for index, table in picked) + operands[-1],)


@dataclass(frozen=True)
class GruStep:
    """A GRU's next state (hidden,) after its products: `reference.gru_update`.

    Operands: input and recurrent gates (3 * hidden,) with their biases, and the state (hidden,).
    With int8 as `dtype` the reset and the new gate are within 1.3e-4 of what they are: products
    then read the state in steps of 1/127.
    """

    dtype: DType = DType.FLOAT32

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = "give input gates and recurrent gates (3 * hidden,) and the state (hidden,)"
        require(len(operands) == 3 and len(operands[2].shape) == 1, self, operands, wanted)
        gates = float_type((3 * operands[2].shape[0],))
        require(operands[:2] == (gates, gates), self, operands, wanted)
        return (operands[2],)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        gates, recurrent, state = operands
        return (reference.gru_update(GruUpdate(len(state)), gates, recurrent, state),)


@dataclass(frozen=True)
class Predict:
    """The sum of 32 products of past samples and their weights, both (32,), oldest first: ().

    A balanced tree: products i and i + 16 are added first, then i and i + 8, + 4, + 2, + 1.
    """

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = f"give {PREDICTION_WINDOW} samples and their weights"
        require(operands == (float_type((PREDICTION_WINDOW,)),) * 2, self, operands, wanted)
        return (_SCALAR,)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        samples, weights = operands
        return (np.asarray(samples @ weights),)


@dataclass(frozen=True)
class Reconstruct:
    """A sample of the signal from the level of what prediction left, and one of the output.

    signal = clamp(levels[level] * scale + prediction, -limit, limit)
    output = signal + emphasis * last output

    Operands: level int64 (), levels (n,), scale, prediction and last output, each ().
    """

    limit: float
    emphasis: float

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = "give a level, the levels' values, a scale, a prediction and the last output"
        fits = len(operands) == 5 and operands[0] == INDEX and len(operands[1].shape) == 1
        require(fits and operands[2:] == (_SCALAR,) * 3, self, operands, wanted)
        return (_SCALAR, _SCALAR)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        level, levels, scale, prediction, last = operands
        signal = np.clip(levels[level] * scale + prediction, -self.limit, self.limit)
        return (np.asarray(signal), np.asarray(signal + self.emphasis * last))
