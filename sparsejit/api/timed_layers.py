"""Layers of a model as they were timed, and what each would save by a change.

A predicted gain counts as much as the layer's measured time is of its predicted time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from sparsejit.api.convolution_prices import ConvolutionPrice, ConvolutionPrices
from sparsejit.api.variant import Variant
from sparsejit.ir.graph import Array, Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.lowering.step import Step
from sparsejit.planner.alternatives import AlternativePrices
from sparsejit.planner.plan import Candidate
from sparsejit.runtime.step_timing import StepTimes

_LANES = "lane16"
_DENSE = 0.5  # from this density on, pruning has not been tried
# Where a layer takes so many times what was predicted, something that has no price takes the time.
_MOST_UNEXPLAINED = 6
_FULL = 0.95  # blocks so full on average are the layer's pattern


@dataclass(frozen=True)
class LayerGain:
    """What one layer would save by a change, and what goes into the call that makes it."""

    layer: str
    saved_ns: float
    argument: str = ""
    parameter: str = ""  # that a call which prunes names
    new_kernel: str = ""  # where another kind than now would be used


@dataclass(frozen=True)
class TimedProduct:
    """A step that multiplies by weights, and what it takes."""

    step: Step
    ns: float
    is_grouped: bool
    prices: AlternativePrices

    @property
    def name(self) -> str:
        return self.step.origin.layer

    @cached_property
    def matrix(self) -> SparseMatrix:
        """Ones where the layer has weights that are not zero."""
        layer = self.step.facts.layer
        assert layer is not None
        shape = layer.out_features, layer.in_features
        bits = np.unpackbits(np.frombuffer(self.step.facts.zeros, np.uint8), count=prod(shape))
        # Not ones: some kernels keep an index in a weight's lowest bits.
        values = np.random.default_rng(0).uniform(0.5, 1, shape).astype(np.float32)
        return SparseMatrix(values * (bits.reshape(shape) == 0))

    @cached_property
    def pattern(self) -> str:
        """In which the layer was pruned, as far as its zeros tell."""
        choice = self.step.facts.plan
        is_lane = choice is not None and _LANES in choice.chosen.template.name
        return _blocks(self.matrix) or (_LANES if is_lane else "unstructured")

    @property
    def is_dense(self) -> bool:
        """Whether it can be called pruned."""
        return self.matrix.density > _DENSE

    @property
    def products(self) -> int:
        """How many the step makes: one, or one a time step of a recurrence."""
        facts, layer = self.step.facts, self.step.facts.layer
        columns = layer.batch if isinstance(layer, MatMul) else 1
        return facts.flops // max(2 * facts.nnz * columns, 1)

    @property
    def cost_ns(self) -> float:
        """Predicted, of one product."""
        choice = self.step.facts.plan
        assert choice is not None
        return choice.chosen.cost.ns

    def if_pruned(self, pattern: str, density: float) -> LayerGain:
        """What other zeros would save."""
        assert self.step.facts.layer is not None
        price = self.prices.with_zeros(self.step.facts.layer, pattern, density)
        return self.gain(price, _amount(density))

    def gain(self, other: Candidate | None, argument: str = "", batch: int = 1) -> LayerGain:
        """What another kernel would save, for a `batch` of samples where this is for one."""
        parameter = self.step.facts.parameter
        if other is None:
            return LayerGain(self.name, 0.0, argument, parameter)
        choice, name = self.step.facts.plan, other.template.name
        is_new = choice is not None and choice.chosen.template.family != other.template.family
        saved_ns = self._saved(other.cost.ns / batch)
        return LayerGain(self.name, saved_ns, argument, parameter, name if is_new else "")

    def _saved(self, alternative_ns: float) -> float:
        """Nanoseconds of the step, if a product cost so much."""
        facts = self.step.facts
        if not facts.predicted_ns:
            return 0.0
        scale = self.ns / facts.predicted_ns
        if scale > _MOST_UNEXPLAINED:
            return 0.0
        return scale * self.products * (self.cost_ns - alternative_ns)


@dataclass(frozen=True)
class TimedConvolution:
    """One that no product computes but kernels of its own, over windows, and what these take."""

    node: Node
    filters: Array
    ns: float
    prices: ConvolutionPrices

    @cached_property
    def matrix(self) -> SparseMatrix:
        """The filters as the Pruner counts them: (out, everything else)."""
        return SparseMatrix(self.filters.reshape(len(self.filters), -1))

    @cached_property
    def pattern(self) -> str:
        """In which the layer was pruned, as far as its zeros tell."""
        return _blocks(self.matrix) or "unstructured"

    @property
    def is_dense(self) -> bool:
        """Whether it can be called pruned."""
        return self.matrix.density > _DENSE

    @cached_property
    def price(self) -> ConvolutionPrice | None:
        """As it is."""
        return self.prices.of(self.node, self.filters)

    def if_pruned(self, pattern: str, density: float) -> LayerGain:
        """What other zeros would save: as much of the measured time as of the price.

        Nothing in lanes, which no kernel over windows makes use of.
        """
        name, parameter = self.node.output.origin.layer, self.node.inputs[1].origin.name
        if pattern == _LANES:
            return LayerGain(name, 0.0, _amount(density), parameter)
        now, then = self.price, self.prices.with_zeros(self.node, pattern, density)
        if now is None or then is None or self.ns > _MOST_UNEXPLAINED * now.ns:
            return LayerGain(name, 0.0, _amount(density), parameter)
        saved_ns = self.ns * (1 - then.ns / now.ns)
        new_kernel = then.kernel if then.kernel != now.kernel else ""
        return LayerGain(name, saved_ns, _amount(density), parameter, new_kernel)


def timed_convolutions(variant: Variant, times: StepTimes) -> Iterator[TimedConvolution]:
    """Those that kernels over windows compute, in all of their steps."""
    prices = ConvolutionPrices(variant.options)
    for node in variant.graph.nodes:
        if not isinstance(node.op, Convolution):
            continue
        both = zip(variant.steps, times.steps, strict=True)
        own = [(step.facts, ns) for step, ns in both if step.origin == node.output.origin]
        over_windows = any(f.weights for f, _ in own) and not any(f.layer for f, _ in own)
        filters = variant.graph.constants.get(node.inputs[1])
        if filters is not None and over_windows:
            yield TimedConvolution(node, filters, sum(ns for _, ns in own), prices)


def _blocks(matrix: SparseMatrix) -> str:
    """The pattern of blocks that the zeros keep to; none for others."""
    for name, rows in (("1x16", 16), ("1x8", 8)):
        if matrix.block_fill(rows) > _FULL:
            return name
    return ""


def _amount(density: float) -> str:
    """The share that is pruned, in steps of 1 %, or where less than 2 % is left of 0.1 %."""
    return f"{round(1 - density, 3 if density < 0.02 else 2):g}"
