"""Finds what would make a model faster: the planner's prices of each layer as it might be.

A predicted gain counts as much as the layer's measured time is of its predicted time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from sparsejit.api.advice import Advice, Suggestion
from sparsejit.api.variant import Variant
from sparsejit.ir.graph import Graph, Origin
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul, MatVec
from sparsejit.lowering.step import Step
from sparsejit.lowering.tiles import MOST_SAMPLES
from sparsejit.planner.alternatives import PATTERNS, AlternativePrices
from sparsejit.planner.plan import Candidate
from sparsejit.planner.split import (
    available_cores,
    barrier_ns,
    parallel_ns,
    worthwhile_threads,
)
from sparsejit.runtime.step_timing import StepTimes

LEAST_LAYER_SHARE = 0.02
LEAST_SHARE = 0.03
_LANES = 16
_SPARSE = 0.1
_DENSE = 0.5  # from this density on, pruning has not been tried
# Activations that are a kernel of their own, where products apply relu, tanh and sigmoid for free.
_UNFUSED = frozenset(
    {"gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "leaky_relu", "hardswish"}
)

# Where a layer takes so many times what was predicted, something that has no price takes the time.
_MOST_UNEXPLAINED = 6
_FULL = 0.95  # blocks so full on average are the layer's pattern

_ACCURACY = "accuracy: measure it"
_RETRAIN = "accuracy: train on with the new zeros, then measure it"


@dataclass(frozen=True)
class _LayerGain:
    """What one layer would save by a change, and what goes into the call that makes it."""

    layer: str
    saved_ns: float
    argument: str = ""
    parameter: str = ""  # that a call which prunes names
    new_kernel: str = ""  # where another kind than now would be used


@dataclass(frozen=True)
class _Timed:
    """A step that multiplies by weights, and what it takes."""

    step: Step
    ns: float
    is_grouped: bool

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
        for name, rows in (("1x16", 16), ("1x8", 8)):
            if self.matrix.block_fill(rows) > _FULL:
                return name
        choice = self.step.facts.plan
        is_lane = choice is not None and "lane16" in choice.chosen.template.name
        return "lane16" if is_lane else "unstructured"

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

    def gain(self, other: Candidate | None, argument: str = "", batch: int = 1) -> _LayerGain:
        """What another kernel would save, for a `batch` of samples where this is for one."""
        parameter = self.step.facts.parameter
        if other is None:
            return _LayerGain(self.name, 0.0, argument, parameter)
        choice, name = self.step.facts.plan, other.template.name
        is_new = choice is not None and choice.chosen.template.family != other.template.family
        saved_ns = self._saved(other.cost.ns / batch)
        return _LayerGain(self.name, saved_ns, argument, parameter, name if is_new else "")

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
class _Idea:
    """A change, its gain for each layer that has one, and how to make it for all of those."""

    change: str
    gains: Sequence[_LayerGain]
    how: Callable[[Sequence[_LayerGain]], str]
    risk: str

    def suggestion(self, whole_ns: float) -> Suggestion:
        """Of the layers that gain."""
        gains = [gain for gain in self.gains if gain.saved_ns > 0]
        saved = sum(gain.saved_ns for gain in gains)
        layers = tuple(dict.fromkeys(gain.layer for gain in gains))
        how, risk = self.how(gains), self.risk
        kernels = ", ".join(dict.fromkeys(gain.new_kernel for gain in gains if gain.new_kernel))
        if kernels:
            risk += f"; another kernel than now, {kernels}: less sure, unless tune=True"
        return Suggestion(layers, self.change, how, saved, saved / whole_ns, risk)


def advice_for(variant: Variant, times: StepTimes, trainable: bool = True) -> Advice:
    """What would save at least LEAST_SHARE of the whole; takes some seconds for large layers.

    Where the model is not `trainable`, its layers and their zeros are taken as they are.
    """
    advisor = _Advisor(variant, times)
    ideas = [*advisor.ideas(), *(advisor.ideas_to_train() if trainable else ())]
    found = [idea.suggestion(times.whole) for idea in ideas]
    worthwhile = [each for each in found if each.share >= LEAST_SHARE]
    worthwhile.sort(key=lambda each: -each.saved_ns)
    return Advice(tuple(worthwhile), times.whole, variant.tile or 1, LEAST_SHARE)


class _Advisor:
    def __init__(self, variant: Variant, times: StepTimes) -> None:
        self.variant, self.whole_ns = variant, times.whole
        options = variant.options
        self.prices = AlternativePrices(options.target, options.exact)
        grouped = _grouped(variant.graph)
        both = zip(variant.steps, times.steps, strict=True)
        self.steps = [(step, ns) for step, ns in both if ns >= LEAST_LAYER_SHARE * times.whole]
        self.layers = [
            _Timed(step, ns, step.origin in grouped)
            for step, ns in self.steps
            if step.facts.layer is not None
        ]

    def ideas(self) -> Iterator[_Idea]:
        """Whatever they save."""
        for dtype in (DType.BFLOAT16, DType.INT8):
            yield self._storage(dtype)
        yield from self._threads()
        yield from self._batch()
        yield self._far_chains()

    def ideas_to_train(self) -> Iterator[_Idea]:
        """Those that change what the model is."""
        pruned = [timed for timed in self.layers if not timed.is_dense and not timed.is_grouped]
        dense = [timed for timed in self.layers if timed.is_dense and not timed.is_grouped]
        for pattern in ("1x8", "1x16", "lane16"):
            others = [timed for timed in pruned if timed.pattern != pattern]
            change = f"prune in pattern {pattern}, as much as now"
            yield self._pruning(change, others, pattern, lambda density: density)
        for pattern in PATTERNS:
            same = [timed for timed in pruned if timed.pattern == pattern]
            yield self._pruning("keep half as many weights", same, pattern, lambda d: d / 2)
        yield self._pruning("prune half", dense, "unstructured", lambda d: d / 2)
        yield self._pruning("prune to 90 %", dense, "unstructured", lambda d: _SPARSE)
        yield self._sizes()
        yield from self._activations()

    def _pruning(
        self,
        change: str,
        layers: Sequence[_Timed],
        pattern: str,
        wanted: Callable[[float], float],
    ) -> _Idea:
        gains = []
        for timed in layers:
            density = wanted(timed.matrix.density)
            assert timed.step.facts.layer is not None
            price = self.prices.with_zeros(timed.step.facts.layer, pattern, density)
            gains.append(timed.gain(price, _amount(density)))
        return _Idea(change, gains, lambda chosen: _pruner(chosen, pattern), _RETRAIN)

    def _storage(self, dtype: DType) -> _Idea:
        gains = [
            timed.gain(self.prices.stored(layer, timed.matrix, dtype))
            for timed in self.layers
            if (layer := timed.step.facts.layer) is not None and layer.dtype is DType.FLOAT32
        ]
        change = f"store weights as {dtype.value}"
        return _Idea(change, gains, lambda chosen: self._dtype(chosen, dtype), _ACCURACY)

    def _dtype(self, gains: Sequence[_LayerGain], dtype: DType) -> str:
        """The argument of `compile`; what layers are stored as now, it keeps."""
        kinds = {
            step.origin.layer: step.facts.layer.dtype.value
            for step in self.variant.steps
            if step.facts.layer is not None
        }
        wanted = {**kinds, **{gain.layer: dtype.value for gain in gains}}
        if set(wanted.values()) == {dtype.value}:
            return f'dtype="{dtype.value}"'
        rules = {name: kind for name, kind in wanted.items() if kind != DType.FLOAT32.value}
        return "dtype={" + ", ".join(f'"{name}": "{kind}"' for name, kind in rules.items()) + "}"

    def _sizes(self) -> _Idea:
        """Sizes up to a multiple of a vector's lanes, with as many nonzeros as now."""
        gains = []
        for timed in self.layers:
            layer = timed.step.facts.layer
            if layer is None or timed.is_grouped:
                continue
            now = layer.out_features, layer.in_features
            then = tuple(-(-size // _LANES) * _LANES if size > _LANES else size for size in now)
            if then == now:
                continue
            density = timed.matrix.nnz / prod(then)
            price = self.prices.with_sizes(layer, (then[0], then[1]), density)
            gains.append(timed.gain(price, f"{then[0]} x {then[1]}"))
        change = "make sizes multiples of 16, with as many weights as now"
        return _Idea(change, gains, _resized, "the model changes: train it anew")

    def _threads(self) -> Iterator[_Idea]:
        cores = available_cores()
        if self.variant.options.threads > 1 or cores == 1:
            return
        barrier = barrier_ns(self.variant.options.target)
        gains, most = [], 1
        for timed in self.layers:
            # The products of a recurrence run on one.
            if isinstance(timed.step.facts.layer, MatVec) and timed.products == 1:
                count = worthwhile_threads(timed.ns, cores, barrier)
                most = max(most, count)
                saved_ns = timed.ns - parallel_ns(timed.ns, count, barrier)
                gains.append(_LayerGain(timed.name, saved_ns))
        risk = "none for results but rounding; the cores must be free"
        yield _Idea(f"share layers among {most} threads", gains, lambda _: f"threads={most}", risk)

    def _batch(self) -> Iterator[_Idea]:
        """Where calls come in batches, but samples run one by one."""
        if self.variant.tile != 1:
            return
        gains = []
        for timed in self.layers:
            layer = timed.step.facts.layer
            if isinstance(layer, MatVec):
                price = self.prices.batched(layer, timed.matrix, MOST_SAMPLES)
                gains.append(timed.gain(price, batch=MOST_SAMPLES))
        yield _Idea(
            f"run {MOST_SAMPLES} samples at a time, if calls bring so many",
            gains,
            lambda _: f"example_inputs with a batch of {MOST_SAMPLES}",
            f"calls of fewer samples take as long as those of {MOST_SAMPLES}",
        )

    def _activations(self) -> Iterator[_Idea]:
        for name in sorted({step.kernel for step, _ in self.steps} & _UNFUSED):
            gains = [_LayerGain(s.origin.layer, ns) for s, ns in self.steps if s.kernel == name]
            change = f"relu in place of {name}: products apply it as they write"
            yield _Idea(
                change, gains, lambda _: "torch.nn.ReLU()", "accuracy: train the model anew"
            )

    def _far_chains(self) -> _Idea:
        """Elementwise kernels that wait for a far cache; fewer samples would fit a near one."""
        rates = self.variant.options.target.core.rates.data
        tile, gains = self.variant.tile or 1, []
        for step, ns in self.steps:
            level = step.facts.bound.removeprefix("data from ")
            if tile > 1 and step.facts.moved_bytes and level in rates and level != "L1":
                share = 1 - rates[level] / rates["L1"]
                gains.append(_LayerGain(step.origin.layer, ns * share))
        return _Idea(
            "run fewer samples at a time, so that elementwise work stays in L1",
            gains,
            lambda _: f"example_inputs with a batch of {max(1, tile // 4)}",
            "products of fewer samples may take longer",
        )


def _grouped(graph: Graph) -> set[Origin]:
    """Of convolutions in groups, whose zeros between groups are no choice."""
    nodes = (n for n in graph.nodes if isinstance(n.op, Convolution) and n.op.groups > 1)
    return {node.outputs[0].origin for node in nodes}


def _amount(density: float) -> str:
    """The share that is pruned, in steps of 1 %, or where less than 2 % is left of 0.1 %."""
    return f"{round(1 - density, 3 if density < 0.02 else 2):g}"


def _pruner(gains: Sequence[_LayerGain], pattern: str) -> str:
    """The call that prunes so; layers that keep different shares are named with theirs."""
    amounts = {gain.parameter: gain.argument for gain in gains}
    targets = ", ".join(f'"{name}"' for name in amounts)
    if len(set(amounts.values())) == 1:
        amount = next(iter(amounts.values()))
    else:
        amount = "{" + ", ".join(f'"{name}": {part}' for name, part in amounts.items()) + "}"
    return f'Pruner({amount}, pattern="{pattern}", targets=[{targets}])'


def _resized(gains: Sequence[_LayerGain]) -> str:
    sizes: Iterable[str] = (f"{gain.layer}: {gain.argument}" for gain in gains)
    return ", ".join(dict.fromkeys(sizes))
