"""A class drawn bit by bit, as a walk through a binary tree, and the numbers that it takes."""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir import reference
from sparsejit.ir.graph import Array, TensorType
from sparsejit.ir.ops.sampling import INDEX
from sparsejit.ir.ops.types import float_type, require


@dataclass(frozen=True)
class UniformRow:
    """Samples `counter` to `counter` + count - 1 of the stream of `seed`: float32 (count,).

    Operands as `Uniform` has.
    """

    count: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        require(operands == (INDEX, INDEX), self, operands, "give int64 seed and counter")
        return (float_type((self.count,)),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        seed, counter = (operand.astype(np.uint64) for operand in operands)
        numbers = counter + np.arange(self.count, dtype=np.uint64)
        return (np.asarray(reference.random_uniform(int(seed), numbers), np.float64),)


@dataclass(frozen=True)
class TreeDraw:
    """A class of `bits` bits, the highest first: int64 ().

    Operands: float32 parameters (2**bits,) and thresholds (bits,). The n-th bit is 1 where the
    n-th threshold is less than the parameter whose number is 1 followed by the bits before.
    """

    bits: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = f"give parameters ({1 << self.bits},) and thresholds ({self.bits},)"
        fits = operands == (float_type((1 << self.bits,)), float_type((self.bits,)))
        require(fits, self, operands, wanted)
        return (INDEX,)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        nodes = self.path(*operands)
        return (np.asarray(nodes[-1] - (1 << self.bits), np.int64),)

    def path(self, parameters: Array, thresholds: Array) -> list[int]:
        """The numbers of the parameters that are read, and the leaf."""
        nodes = [1]
        for threshold in thresholds:
            nodes.append(2 * nodes[-1] + int(threshold < parameters[nodes[-1]]))
        return nodes
