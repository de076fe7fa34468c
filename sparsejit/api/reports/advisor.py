"""Advice to make a model faster, from the planner's prices of changed layers.

    Suggestion, Advice   suggestions, as data, text and a table
    advice_for           the changes that save enough of the whole time

A predicted gain is scaled by the ratio of the layer's measured to its predicted time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from sparsejit.api.models.variant import Variant
from sparsejit.api.reports.shown import counted, table_of
from sparsejit.api.reports.timed_layers import (
    LayerGain,
    TimedConvolution,
    TimedProduct,
    timed_convolutions,
)
from sparsejit.frontends.model_source import LEAST_SHRUNK
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import DType, MatVec
from sparsejit.ir.values import Origin
from sparsejit.lowering.tiles import MOST_SAMPLES
from sparsejit.planner.alternatives import PATTERNS, AlternativePrices
from sparsejit.planner.sharing import parallel_ns, worthwhile_threads
from sparsejit.runtime.step_timing import StepTimes
from sparsejit.runtime.workers import available_cores
from sparsejit.whole_numbers import round_up

if TYPE_CHECKING:
    from rich.table import Table

_MOST_NAMES = 4


@dataclass(frozen=True)
class Suggestion:
    """A suggested change to some layers.

    Attributes:
        layers: the names of the layers
        change: the change, in words
        how: the argument or call that makes the change
        saved_ns: nanoseconds of one run that the change is predicted to save
        share: the same as a share of the whole's measured time, 0 to 1
        risk: the side effects to check first
    """

    layers: tuple[str, ...]
    change: str
    how: str
    saved_ns: float
    share: float
    risk: str


@dataclass(frozen=True)
class Advice:
    """Suggestions, the greatest gain first; none where nothing is worth it. `print` shows them.

    Each gain is predicted for the change alone: gains for the same layers do not add up.

    Attributes:
        suggestions: the suggested changes
        whole_ns: nanoseconds of one run, measured
        samples: the number of samples of one run
        least_share: gains below this share of `whole_ns` are left out
    """

    suggestions: tuple[Suggestion, ...]
    whole_ns: float
    samples: int
    least_share: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [self._heading()]
        for each in self.suggestions:
            lines += [
                f"{each.share:6.1%}  {each.saved_ns:10,.0f} ns  {each.change}: {_names(each)}",
                f"        {each.how}",
                f"        {each.risk}",
            ]
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.text import Text

        table = table_of(Text(self._heading()), (), ("saves", "ns"), lines=True)
        for heading in ("change", "layers", "how", "risk"):
            table.add_column(heading)
        for each in self.suggestions:
            cells = [f"{each.share:.1%}", f"{each.saved_ns:,.0f}", each.change]
            table.add_row(*(Text(cell) for cell in [*cells, _names(each), each.how, each.risk]))
        return table

    def _heading(self) -> str:
        run = f"{self.whole_ns:,.0f} ns a run of {counted(self.samples, 'sample')}"
        if not self.suggestions:
            return f"{run}: no change saves {self.least_share:.0%} of this time"
        return f"{run}; changes that would save time, each by itself:"


def _names(suggestion: Suggestion) -> str:
    """Return the names of the layers, the first four if there are more."""
    names, more = suggestion.layers[:_MOST_NAMES], len(suggestion.layers) - _MOST_NAMES
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


LEAST_LAYER_SHARE = 0.02
LEAST_SHARE = 0.03
_LANES = 16
_SPARSE = 0.1
_UNSTRUCTURED = "unstructured"
# Activations with kernels of their own; products apply relu, tanh and sigmoid for free.
_UNFUSED = frozenset(
    (
        *("elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "leaky_relu"),
        *("log_sigmoid", "mish", "prelu", "silu", "softplus", "softshrink"),
    )
)

_ACCURACY = "accuracy: measure it"
_SHRINK = "accuracy: within --budget, 1 % by default"
_RETRAIN = "accuracy: train on with the new zeros, then measure it"


@dataclass(frozen=True)
class _Idea:
    """A change, its gain for each layer, and `how`: the argument or call for layers that gain."""

    change: str
    gains: Sequence[LayerGain]
    how: Callable[[Sequence[LayerGain]], str]
    risk: str

    def suggestion(self, whole_ns: float) -> Suggestion:
        """Return the suggestion for the layers that gain."""
        gains = [gain for gain in self.gains if gain.saved_ns > 0]
        saved = sum(gain.saved_ns for gain in gains)
        layers = tuple(dict.fromkeys(gain.layer for gain in gains))
        how, risk = self.how(gains), self.risk
        kernels = ", ".join(dict.fromkeys(gain.new_kernel for gain in gains if gain.new_kernel))
        if kernels:
            risk += f"; another kernel than now, {kernels}: less sure, unless tune=True"
        return Suggestion(layers, self.change, how, saved, saved / whole_ns, risk)


def advice_for(
    variant: Variant, times: StepTimes, trainable: bool = True, shrinking: str = ""
) -> Advice:
    """Return changes that would save at least LEAST_SHARE of the whole time.

    It takes some seconds for large layers. Changes to layers and their zeros are left out where the
    model is not `trainable`. `shrinking` is the command that makes zeros in an ONNX model, which
    has no parameters to train.
    """
    advisor = _Advisor(variant, times, shrinking)
    ideas = [*advisor.ideas(), *(advisor.ideas_to_train() if trainable else ())]
    found = [idea.suggestion(times.whole) for idea in ideas]
    worthwhile = [each for each in found if each.share >= LEAST_SHARE]
    worthwhile.sort(key=lambda each: -each.saved_ns)
    return Advice(tuple(worthwhile), times.whole, variant.tile or 1, LEAST_SHARE)


class _Advisor:
    def __init__(self, variant: Variant, times: StepTimes, shrinking: str) -> None:
        self.variant, self.whole_ns, self.shrinking = variant, times.whole, shrinking
        options = variant.options
        self.prices = AlternativePrices(options.target, options.exact)
        grouped = _grouped(variant.graph)
        both = zip(variant.steps, times.steps, strict=True)
        self.steps = [(step, ns) for step, ns in both if ns >= LEAST_LAYER_SHARE * times.whole]
        self.layers = [
            TimedProduct(step, ns, step.origin in grouped, self.prices)
            for step, ns in self.steps
            if step.facts.layer is not None
        ]
        self.convolutions = [
            each
            for each in timed_convolutions(variant, times)
            if each.ns >= LEAST_LAYER_SHARE * times.whole
        ]

    def ideas(self) -> Iterator[_Idea]:
        """Yield changes of options, which need no training; the caller drops small gains."""
        yield self._in_float32()
        for dtype in (DType.BFLOAT16, DType.INT8):
            yield self._storage(dtype)
        yield from self._threads()
        yield from self._batch()
        yield self._far_chains()

    def ideas_to_train(self) -> Iterator[_Idea]:
        """Yield changes of the model, which need training, and zeros, which `shrink` makes too."""
        layers = [timed for timed in self.layers if not timed.is_grouped]
        both: list[TimedProduct | TimedConvolution] = [*layers, *self.convolutions]
        if self.shrinking:
            yield self._shrunk([timed for timed in both if timed.matrix.size >= LEAST_SHRUNK])
            return
        every = [timed for timed in both if self._weights(timed.parameter)]
        pruned = [timed for timed in every if not timed.is_dense]
        dense = [timed for timed in every if timed.is_dense]
        for pattern in [each for each in PATTERNS if each != _UNSTRUCTURED]:
            others = [timed for timed in pruned if timed.pattern != pattern]
            change = f"prune in pattern {pattern}, as much as now"
            yield self._pruning(change, others, pattern, lambda density: density)
        for pattern in PATTERNS:
            same = [timed for timed in pruned if timed.pattern == pattern]
            yield self._pruning("keep half as many weights", same, pattern, lambda d: d / 2)
        yield self._pruning("prune half", dense, _UNSTRUCTURED, lambda d: d / 2)
        yield self._pruning("prune to 90 %", dense, _UNSTRUCTURED, lambda d: _SPARSE)
        yield self._sizes()
        yield from self._activations()

    def _shrunk(self, layers: Sequence[TimedProduct | TimedConvolution]) -> _Idea:
        """Return the gain of half as many weights in each layer, which one command chooses."""
        gains = [
            timed.if_pruned(
                _UNSTRUCTURED if timed.is_dense else timed.pattern, timed.matrix.density / 2
            )
            for timed in layers
        ]
        return _Idea("keep half as many weights", gains, lambda _: self.shrinking, _SHRINK)

    def _pruning(
        self,
        change: str,
        layers: Sequence[TimedProduct | TimedConvolution],
        pattern: str,
        wanted: Callable[[float], float],
    ) -> _Idea:
        gains = [timed.if_pruned(pattern, wanted(timed.matrix.density)) for timed in layers]
        return _Idea(change, gains, lambda chosen: self._pruner(chosen, pattern), _RETRAIN)

    def _pruner(self, gains: Sequence[LayerGain], pattern: str) -> str:
        """Return the call of the Pruner; where amounts differ, it has one for each weight."""
        origins = [(gain, self.origins[gain.parameter]) for gain in gains]
        amounts = {name: gain.argument for gain, origin in origins for name in origin.weights}
        targets = ", ".join(f'"{name}"' for name in amounts)
        if len(set(amounts.values())) == 1:
            amount = next(iter(amounts.values()))
        else:
            amount = "{" + ", ".join(f'"{name}": {part}' for name, part in amounts.items()) + "}"
        shared = ', allocation="uniform"' if len(amounts) > 1 and "{" not in str(amount) else ""
        folded = "fold(model); " if any(origin.is_computed for _, origin in origins) else ""
        return f'{folded}Pruner({amount}, pattern="{pattern}", targets=[{targets}]{shared})'

    @cached_property
    def origins(self) -> dict[str, Origin]:
        """Origins of constants that are weights of the user's model, by the constant's name."""
        found = (value.origin for value in self.variant.graph.constants)
        return {origin.name: origin for origin in found if origin.weights}

    def _weights(self, constant: str) -> tuple[str, ...]:
        origin = self.origins.get(constant)
        return () if origin is None else origin.weights

    def _storage(self, dtype: DType) -> _Idea:
        gains = [
            timed.gain(self.prices.stored(layer, timed.matrix, dtype))
            for timed in self.layers
            if (layer := timed.step.facts.layer) is not None and layer.dtype is DType.FLOAT32
        ]
        change = f"store weights as {dtype.value}"
        return _Idea(change, gains, lambda chosen: self._dtype(chosen, dtype), _ACCURACY)

    def _in_float32(self) -> _Idea:
        """Return the gain of float32 for layers stored in short dtypes."""
        gains = [
            timed.gain(self.prices.stored(layer, timed.matrix, DType.FLOAT32))
            for timed in self.layers
            if (layer := timed.step.facts.layer) is not None and layer.dtype is not DType.FLOAT32
        ]
        change = "float32 would be faster here"
        risk = "none for accuracy, which gains"
        return _Idea(change, gains, lambda chosen: self._dtype(chosen, DType.FLOAT32), risk)

    def _dtype(self, gains: Sequence[LayerGain], dtype: DType) -> str:
        """Return the `dtype` argument of `compile`: new for these layers, as now for others."""
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
        """Return the gain of layers' sizes rounded up to multiples of 16, with as much nnz."""
        gains = []
        for timed in self.layers:
            layer = timed.step.facts.layer
            if layer is None or timed.is_grouped:
                continue
            now = layer.out_features, layer.in_features
            then = tuple(round_up(size, _LANES) if size > _LANES else size for size in now)
            if then == now:
                continue
            density = timed.matrix.nnz / prod(then)
            price = self.prices.with_sizes(layer, (then[0], then[1]), density)
            gains.append(timed.gain(price, f"{then[0]} x {then[1]}"))
        change = "make sizes multiples of 16, with as many weights as now"
        return _Idea(change, gains, _resized, "the model changes: train it again")

    def _threads(self) -> Iterator[_Idea]:
        cores = available_cores()
        if self.variant.options.threads > 1 or cores == 1:
            return
        target = self.variant.options.target
        gains, most = [], 1
        for timed in self.layers:
            # The products of a recurrence run on one thread.
            if isinstance(timed.step.facts.layer, MatVec) and timed.products == 1:
                count = worthwhile_threads(timed.ns, cores, target)
                most = max(most, count)
                saved_ns = timed.ns - parallel_ns(timed.ns, count, target)
                gains.append(LayerGain(timed.name, saved_ns))
        risk = "none for results but rounding; the cores must be free"
        yield _Idea(f"share layers among {most} threads", gains, lambda _: f"threads={most}", risk)

    def _batch(self) -> Iterator[_Idea]:
        """Yield the gain of computing several samples at a time, where they run one by one now."""
        if self.variant.tiles != (1,):
            return
        gains = []
        for timed in self.layers:
            layer = timed.step.facts.layer
            if isinstance(layer, MatVec):
                price = self.prices.batched(layer, timed.matrix, MOST_SAMPLES)
                gains.append(timed.gain(price, batch=MOST_SAMPLES))
        yield _Idea(
            f"run {MOST_SAMPLES} samples at a time, if calls have enough",
            gains,
            lambda _: f"example_inputs with a batch of {MOST_SAMPLES}",
            f"calls of fewer samples take as long as calls of {MOST_SAMPLES}",
        )

    def _activations(self) -> Iterator[_Idea]:
        for name in sorted({step.kernel for step, _ in self.steps} & _UNFUSED):
            gains = [LayerGain(s.origin.layer, ns) for s, ns in self.steps if s.kernel == name]
            change = f"relu in place of {name}: products apply it as they write"
            yield _Idea(
                change, gains, lambda _: "torch.nn.ReLU()", "accuracy: train the model again"
            )

    def _far_chains(self) -> _Idea:
        """Return the gain of a smaller batch for elementwise kernels whose data exceeds L1."""
        rates = self.variant.options.target.core.rates.data
        tile, gains = (self.variant.tile or 1) if len(self.variant.tiles) == 1 else 1, []
        for step, ns in self.steps:
            level = step.facts.bound.removeprefix("data from ")
            if tile > 1 and step.facts.moved_bytes and level in rates and level != "L1":
                share = 1 - rates[level] / rates["L1"]
                gains.append(LayerGain(step.origin.layer, ns * share))
        return _Idea(
            "run fewer samples at a time, so that elementwise work stays in L1",
            gains,
            lambda _: f"example_inputs with a batch of {max(1, tile // 4)}",
            "products of fewer samples may take longer",
        )


def _grouped(graph: Graph) -> set[Origin]:
    """Return the convolutions in groups, whose zeros between groups cannot be pruned."""
    nodes = (n for n in graph.nodes if isinstance(n.op, Convolution) and n.op.groups > 1)
    return {node.outputs[0].origin for node in nodes}


def _resized(gains: Sequence[LayerGain]) -> str:
    sizes: Iterable[str] = (f"{gain.layer}: {gain.argument}" for gain in gains)
    return ", ".join(dict.fromkeys(sizes))
