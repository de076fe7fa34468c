"""A class drawn bit by bit, by a walk through a binary tree, and the random numbers it takes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.operator import Operator
from sparsejit.ir.values import Array

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
        """The numbers of the parameters that are read, and the leaf."""
        nodes = [1]
        for threshold in thresholds:
            nodes.append(2 * nodes[-1] + int(threshold < parameters[nodes[-1]]))
        return nodes
