"""Draws of a class or sample from the last layer's outputs, as operators of the graph."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sparsejit.ir.ops.sampling import Draw, Uniform
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.tree_draw import TreeDraw, UniformRow
from sparsejit.ir.ops.views import Reshape, Slice
from sparsejit.ir.values import Array, Value
from sparsejit.voice.spec.outputs import (
    BinaryTree,
    Categorical,
    Gaussian,
    MixtureOfLogistics,
)
from sparsejit.voice.spec.sample_graph import SampleWriter

# All but a dual softmax, whose second parameters depend on the first draw.
SingleOutput: TypeAlias = Categorical | MixtureOfLogistics | Gaussian | BinaryTree

# Uniform numbers of a mixture keep this far from 0 and 1.
_EDGE = 1e-5


@dataclass(eq=False)
class UniformNumbers:
    """The numbers of a seed's stream one after the other; `counter` is the next one's index."""

    make: SampleWriter
    seed: Value
    counter: Value

    def one(self) -> Value:
        """The next number, ()."""
        number = self.make.one(Uniform(), self.seed, self.counter, name="uniform")
        self.counter = self.make.next(self.counter)
        return number

    def row(self, count: int) -> Value:
        """The next numbers, (count,)."""
        numbers = self.make.one(UniformRow(count), self.seed, self.counter, name="uniform")
        more = self.make.constant(np.array(count, np.int64), "numbers")
        self.counter = self.make.pointwise("add", self.counter, more, name="counter")
        return numbers


@dataclass(frozen=True, eq=False)
class SampleDraw:
    """Draws by uniform numbers: a class, or a sample."""

    make: SampleWriter
    temperature: float
    uniform: UniformNumbers

    def of(self, output: SingleOutput, parameters: Value) -> Value:
        """Draw from `output` with parameters (n,): a class int64 (), or a sample float32 ()."""
        match output:
            case Categorical():
                return self.categorical(parameters)
            case MixtureOfLogistics():
                return self._mixture(output, parameters)
            case Gaussian():
                return self._gaussian(output, parameters)
            case BinaryTree():
                return self._tree(output, parameters)

    def categorical(self, logits: Value) -> Value:
        """A class int64 () ~ softmax(logits / temperature), of logits (classes,)."""
        draw = Draw(1 / self.temperature)
        return self.make.one(draw, logits, self.uniform.one(), name="draw")

    def _mixture(self, output: MixtureOfLogistics, parameters: Value) -> Value:
        count = output.components
        logits, means, scales = (
            self.make.one(Slice(0, n * count, (n + 1) * count), parameters, name="mixture")
            for n in range(3)
        )
        draw = Draw(1 / self.temperature)
        component = self.make.one(draw, logits, self.uniform.one(), name="component")
        mean, log_scale = (picked(self.make, each, component) for each in (means, scales))
        u = self.uniform.one()
        # 1 - u is exact: log of it keeps its digits where u is near 1.
        below, above = (self._inside(each) for each in (u, self._number("sub", 1.0, u)))
        logs = (self._number("log", each) for each in (below, above))
        noise = self._number("sub", *logs)
        return self._continuous(mean, log_scale, output.least_log_scale, noise)

    def _inside(self, uniform: Value) -> Value:
        """Map [0, 1] to [1e-5, 1 - 1e-5]."""
        return self._number("fma", uniform, 1 - 2 * _EDGE, _EDGE)

    def _gaussian(self, output: Gaussian, parameters: Value) -> Value:
        mean, log_deviation = (self._element(parameters, n) for n in range(2))
        u, v = self.uniform.one(), self.uniform.one()
        squared = self._number("mul", self._number("log", self._number("sub", 1.0, u)), -2.0)
        wave = self._number("cos", self._number("mul", v, 2 * np.pi))
        noise = self._number("mul", self._number("sqrt", squared), wave)
        return self._continuous(mean, log_deviation, output.least_log_deviation, noise)

    def _continuous(self, mean: Value, log_scale: Value, least: float, noise: Value) -> Value:
        """mean + temperature * exp(max(log scale, least)) * noise, within [-1, 1]."""
        scale = self._number("exp", self._number("maximum", log_scale, least))
        spread = self._number("mul", noise, self.temperature)
        free = self._number("fma", scale, spread, mean)
        return self._number("minimum", self._number("maximum", free, -1.0), 1.0)

    def _tree(self, output: BinaryTree, parameters: Value) -> Value:
        """Draw by u < sigmoid(p / temperature), which is temperature * log(u / (1 - u)) < p."""
        u = self.uniform.row(output.bits)
        # 1 - u is exact.
        logs = (self._number("log", each) for each in (u, self._number("sub", 1.0, u)))
        thresholds = self._number("mul", self._number("sub", *logs), self.temperature)
        return self.make.one(TreeDraw(output.bits), parameters, thresholds, name="draw")

    def _element(self, numbers: Value, index: int) -> Value:
        one = self.make.one(Slice(0, index, index + 1), numbers, name="parameter")
        return self.make.one(Reshape(()), one, name="parameter")

    def _constant(self, name: str, array: Array) -> Value:
        return self.make.constant(array.astype(np.float32), name)

    def _number(self, kind: str, *operands: Value | float) -> Value:
        values = (
            each if isinstance(each, Value) else self._constant("number", np.array(each))
            for each in operands
        )
        return self.make.pointwise(kind, *values, name="sample")


def picked(make: SampleWriter, numbers: Value, index: Value) -> Value:
    """Element `index` of numbers (n,): ()."""
    column = make.one(Reshape((numbers.shape[0], 1)), numbers, name="picked")
    row = make.one(Embedding(), index, column, name="picked")
    return make.one(Reshape(()), row, name="picked")
