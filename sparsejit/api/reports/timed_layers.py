"""Timed layers of a model, and the time that each would save by a change.

A predicted gain is scaled by the ratio of the layer's measured to its predicted time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from sparsejit.api.models.predicted_times import ConvolutionPrice, ConvolutionPrices
from sparsejit.api.models.variant import Variant
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.ir.values import Array
from sparsejit.lowering.step import Step
from sparsejit.planner.alternatives import AlternativePrices
from sparsejit.planner.kernel_choice import Candidate
from sparsejit.runtime.step_timing import StepTimes

_LANES = "lane16"
_DENSE = 0.5  # a layer of a higher density counts as not pruned
# Above this ratio of measured to predicted time, a cost that is not in the prediction dominates.
_MOST_UNEXPLAINED = 6
_FULL = 0.95  # a layer has a pattern of blocks if these are fuller than this on average


@dataclass(frozen=True)
class LayerGain:
    """The time that one layer would save by a change, and arguments of the call that makes it."""

    layer: str
    saved_ns: float
    argument: str = ""
    parameter: str = ""  # name of the weights' constant
    new_kernel: str = ""  # name of the kernel, if of another family than now


@dataclass(frozen=True)
class TimedProduct:
    """A step that multiplies by weights, and its measured time."""

    step: Step
    ns: float
    is_grouped: bool
    prices: AlternativePrices

    @property
    def name(self) -> str:
        return self.step.origin.layer

    @property
    def parameter(self) -> str:
        """The name of the weights' constant."""
        return self.step.facts.parameter

    @cached_property
    def matrix(self) -> SparseMatrix:
        """A matrix with the layer's zeros and random nonzeros; reports do not keep weights."""
        layer = self.step.facts.layer
        assert layer is not None
        shape = layer.out_features, layer.in_features
        bits = np.unpackbits(np.frombuffer(self.step.facts.zeros, np.uint8), count=prod(shape))
        # Random values, not ones: some kernels keep an index in a weight's lowest bits.
        values = np.random.default_rng(0).uniform(0.5, 1, shape).astype(np.float32)
        return SparseMatrix(values * (bits.reshape(shape) == 0))

    @cached_property
    def pattern(self) -> str:
        """The pattern in which the layer was pruned, inferred from its zeros."""
        choice = self.step.facts.plan
        is_lane = choice is not None and _LANES in choice.chosen.template.name
        return _blocks(self.matrix) or (_LANES if is_lane else "unstructured")

    @property
    def is_dense(self) -> bool:
        """Whether the layer counts as not pruned."""
        return self.matrix.density > _DENSE

    @property
    def products(self) -> int:
        """Number of products in the step: 1, or one for each time step of a recurrence."""
        facts, layer = self.step.facts, self.step.facts.layer
        columns = layer.batch if isinstance(layer, MatMul) else 1
        return facts.flops // max(2 * facts.nnz * columns, 1)

    @property
    def cost_ns(self) -> float:
        """Predicted nanoseconds of one product."""
        choice = self.step.facts.plan
        assert choice is not None
        return choice.chosen.cost.ns

    def if_pruned(self, pattern: str, density: float) -> LayerGain:
        """Return the time saved if a share `density` of the weights were left, in a pattern."""
        assert self.step.facts.layer is not None
        price = self.prices.with_zeros(self.step.facts.layer, pattern, density)
        return self.gain(price, _amount(density))

    def gain(self, other: Candidate | None, argument: str = "", batch: int = 1) -> LayerGain:
        """Return the time saved by another kernel, which computes `batch` samples at once."""
        if other is None:
            return LayerGain(self.name, 0.0, argument, self.parameter)
        choice, name = self.step.facts.plan, other.template.name
        is_new = choice is not None and choice.chosen.template.family != other.template.family
        saved_ns = self._saved(other.cost.ns / batch)
        return LayerGain(self.name, saved_ns, argument, self.parameter, name if is_new else "")

    def _saved(self, alternative_ns: float) -> float:
        """Nanoseconds that the step would save if one product took `alternative_ns`."""
        facts = self.step.facts
        if not facts.predicted_ns:
            return 0.0
        scale = self.ns / facts.predicted_ns
        if scale > _MOST_UNEXPLAINED:
            return 0.0
        return scale * self.products * (self.cost_ns - alternative_ns)


@dataclass(frozen=True)
class TimedConvolution:
    """A convolution computed by kernels over windows, not by a product, and its measured time."""

    node: Node
    filters: Array
    ns: float
    prices: ConvolutionPrices

    @property
    def parameter(self) -> str:
        """The name of the filters' constant."""
        return self.node.inputs[1].origin.name

    @cached_property
    def matrix(self) -> SparseMatrix:
        """The filters as the Pruner counts them: (out, everything else)."""
        return SparseMatrix(self.filters.reshape(len(self.filters), -1))

    @cached_property
    def pattern(self) -> str:
        """The pattern in which the layer was pruned, inferred from its zeros."""
        return _blocks(self.matrix) or "unstructured"

    @property
    def is_dense(self) -> bool:
        """Whether the layer counts as not pruned."""
        return self.matrix.density > _DENSE

    @cached_property
    def price(self) -> ConvolutionPrice | None:
        """The predicted cost with its current weights."""
        return self.prices.of(self.node, self.filters)

    def if_pruned(self, pattern: str, density: float) -> LayerGain:
        """Return the time saved if a share `density` of the weights were left, in a pattern.

        The measured time shrinks in the ratio of predicted times. The gain is 0 for pattern lane16,
        which no kernel over windows uses.
        """
        name, parameter = self.node.output.origin.layer, self.parameter
        if pattern == _LANES:
            return LayerGain(name, 0.0, _amount(density), parameter)
        now, then = self.price, self.prices.with_zeros(self.node, pattern, density)
        if now is None or then is None or self.ns > _MOST_UNEXPLAINED * now.ns:
            return LayerGain(name, 0.0, _amount(density), parameter)
        saved_ns = self.ns * (1 - then.ns / now.ns)
        new_kernel = then.kernel if then.kernel != now.kernel else ""
        return LayerGain(name, saved_ns, _amount(density), parameter, new_kernel)


def timed_convolutions(variant: Variant, times: StepTimes) -> Iterator[TimedConvolution]:
    """Yield the convolutions that kernels over windows compute, each with its steps' time."""
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
    """Return the block pattern of the zeros, or "" for others."""
    for name, rows in (("1x16", 16), ("1x8", 8)):
        if matrix.block_fill(rows) > _FULL:
            return name
    return ""


def _amount(density: float) -> str:
    """Return the pruned share as text, rounded to 1 %, or to 0.1 % where less than 2 % is left."""
    return f"{round(1 - density, 3 if density < 0.02 else 2):g}"
