"""A class drawn bit by bit, as a walk through a binary tree, and the numbers that it takes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.graph import Array
from sparsejit.ir.ops.operator import Operator

# A class is one of 2^24 at most: as many as float32 can number.
MOST_BITS = 24
# Each number is a piece of code.
MOST_NUMBERS = 1024


@dataclass(frozen=True)
class UniformRow(Operator):
    """Samples `counter` to `counter` + count - 1 of the stream of `seed`: float32 (count,).

    Operands as `Uniform` has.
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
        """Classes, as many as there are parameters."""
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
