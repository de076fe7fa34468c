"""Random torch models of sequences (batch, channels, time), and streams of their steps by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.sizes.step_reading import ReadStep, StepSize, read_step
from sparsejit.frontends.torch_export import export
from sparsejit.ir.graph import Graph
from sparsejit.ir.state import State
from sparsejit.ir.values import Array

Run = Callable[[list[Array]], list[Array]]


class Padded(nn.Module):
    """A layer behind frames of zeros, before and after the sequence."""

    def __init__(self, layer: nn.Module, before: int, after: int = 0) -> None:
        super().__init__()
        self.layer, self.before, self.after = layer, before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(functional.pad(x, (self.before, self.after)))


class TimeFirst(nn.Module):
    """A layer of (batch, time, channels)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.layer(x.transpose(1, 2))
        return (made[0] if isinstance(made, tuple) else made).transpose(1, 2)


class Skip(nn.Module):
    """The input beside its layers: added, or as further channels and a product."""

    def __init__(self, *layers: nn.Module, channels: int, adds: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.join = None if adds else nn.Conv1d(2 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.layers(x)
        return x + made if self.join is None else self.join(torch.cat([made, x], 1))


class Stacked(nn.Module):
    """Frames joined in pairs, a layer of these, and the pairs apart again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * channels, 2 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x.transpose(1, 2)
        pairs = frames.reshape(len(x), -1, 2 * x.shape[1])
        return torch.tanh(self.layer(pairs)).reshape(frames.shape).transpose(1, 2)


class Chomp(nn.Module):
    """A convolution with padding on both sides, without the last frames."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.layer = nn.Conv1d(channels, channels, kernel, padding=kernel - 1)
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[..., : 1 - self.kernel]


class Near(nn.Module):
    """Attention of two heads to frames that are near: at most `before` earlier, `after` later."""

    def __init__(self, channels: int, before: int, after: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.before, self.after = before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, frames = x.shape
        made = self.inner(x.transpose(1, 2)).reshape(batch, frames, 3, 2, channels // 2)
        query, key, value = made.permute(2, 0, 3, 1, 4)
        places = torch.arange(frames)
        distance = places[:, None] - places
        mask = (distance <= self.before) & (distance >= -self.after)
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, frames, channels)).transpose(1, 2)


def convolution(draw: st.DrawFn, channels: int, ahead: bool, stride: int = 1) -> nn.Module:
    kernel, dilation = draw(st.integers(stride, 5)), draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 2, channels]))
    reach = (kernel - 1) * dilation
    after = draw(st.integers(0, reach)) if ahead else 0
    layer = nn.Conv1d(channels, channels, kernel, stride, dilation=dilation, groups=groups)
    return Padded(layer, max(reach - after - stride + 1, 0), after)


def surrounded(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    """A convolution over copies of frames before the first one, and behind the last one."""
    kernel = draw(st.integers(1, 5))
    after = draw(st.integers(0, kernel - 1)) if ahead else 0
    mode = draw(st.sampled_from(["reflect", "replicate"])) if ahead else "replicate"
    padding = nn.ReflectionPad1d if mode == "reflect" else nn.ReplicationPad1d
    layer = nn.Conv1d(channels, channels, kernel, groups=draw(st.sampled_from([1, channels])))
    return nn.Sequential(padding((kernel - 1 - after, after)), layer)


def pooling(draw: st.DrawFn, channels: int, ahead: bool, stride: int = 1) -> nn.Module:
    kernel = draw(st.integers(stride, 4))
    layer = draw(st.sampled_from([nn.AvgPool1d, nn.MaxPool1d]))(kernel, stride)
    if ahead and kernel == 3:
        return type(layer)(kernel, stride, padding=1)
    return Padded(layer, kernel - stride)


def recurrent(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    cell = draw(st.sampled_from([nn.GRU, nn.LSTM, nn.RNN]))
    layers = draw(st.integers(1, 2))
    return TimeFirst(cell(channels, channels, num_layers=layers, batch_first=True))


def norm(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    if draw(st.booleans()):
        return TimeFirst(nn.LayerNorm(channels))
    layer = nn.BatchNorm1d(channels)
    nn.init.uniform_(layer.running_mean, -1, 1)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


def gate(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    kernel = draw(st.integers(1, 3))
    layer = nn.Conv1d(channels, 2 * channels, kernel)
    return nn.Sequential(Padded(layer, kernel - 1), nn.GLU(1))


def chomped(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    return Chomp(channels, draw(st.integers(2, 4)))


def skip(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    inner = draw(st.lists(st.sampled_from(FLAT[:-1]), min_size=1, max_size=2))
    layers = (make(draw, channels, ahead) for make in inner)
    return Skip(*layers, channels=channels, adds=draw(st.booleans()))


def scaled(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    """Layers at half the rate, beside the whole one."""
    down = draw(st.sampled_from([convolution, pooling]))(draw, channels, ahead, 2)
    inner = draw(st.sampled_from(FLAT[:-1]))(draw, channels, ahead)
    kernel = draw(st.integers(2, 4))
    up = draw(
        st.sampled_from(
            [nn.Upsample(scale_factor=2), nn.ConvTranspose1d(channels, channels, kernel, 2)]
        )
    )
    return Skip(down, inner, up, Trimmed(), channels=channels, adds=True)


class Trimmed(nn.Module):
    """A multiple of four frames: a transposed convolution makes up to two more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., : x.shape[-1] // 4 * 4]


def stacked(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    return Stacked(channels)


def activation(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    return draw(st.sampled_from([nn.ReLU(), nn.Tanh(), nn.PReLU(), nn.SiLU()]))


def attention(draw: st.DrawFn, channels: int, ahead: bool) -> nn.Module:
    return Near(channels, draw(st.integers(0, 9)), draw(st.integers(0, 2)) if ahead else 0)


FLAT = (
    *(convolution, surrounded, pooling, recurrent, norm, gate, chomped, activation, attention),
    skip,
)
EVERY = (*FLAT, scaled, stacked)
CHANNELS = 4
FRAMES = 48


@dataclass(frozen=True, eq=False)
class SequenceCase:
    """A model, the frames of a step, and the number of sequences."""

    model: nn.Module
    step: int
    batch: int

    @property
    def x(self) -> torch.Tensor:
        """The same random sequences at each call."""
        numbers = np.random.default_rng(0).standard_normal((self.batch, CHANNELS, FRAMES))
        return torch.from_numpy(numbers.astype(np.float32))


@st.composite
def sequence_cases(draw: st.DrawFn, ahead: bool = False, most: int = 4) -> SequenceCase:
    """Models of up to `most` layers, causal or with some frames `ahead`."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    makes = draw(st.lists(st.sampled_from(EVERY), min_size=1, max_size=most))
    layers = [make(draw, CHANNELS, ahead) for make in makes]
    even = any(make in (scaled, stacked) for make in makes)
    step = draw(st.sampled_from([4, 8, 24] if even else [1, 2, 3, 8, 24]))
    batch = draw(st.integers(1, 2))
    model = nn.Sequential(*layers).eval()
    return SequenceCase(model, step, batch)


def read(
    model: nn.Module,
    args: Sequence[Any],
    free_batch: bool = False,
    known: dict[int, Graph] | None = None,
) -> Any:
    """The exported model; its graph goes to `known`, by the frames on the last axis."""
    found = export(model, tuple(args), {}, free_batch)
    if known is not None:
        known[args[0].shape[-1]] = found.graph(None)
    return found


def step_of(
    model: nn.Module,
    x: torch.Tensor,
    step: int,
    axis: int = -1,
    known: dict[int, Graph] | None = None,
) -> ReadStep:
    return read_step(partial(read, model, known=known), (x,), StepSize(step, axis))


def whole_graph(model: nn.Module, x: torch.Tensor) -> Graph:
    return read(model, (x,)).graph(None)


def started(graph: Graph, states: Sequence[State]) -> list[Array]:
    """The states before the first step."""
    kinds = (graph.inputs[state.input].type for state in states)
    zeros = [np.zeros(kind.shape, kind.element.value) for kind in kinds]
    pairs = zip(states, zeros, strict=True)
    return [zero if state.initial is None else state.initial for state, zero in pairs]


def streamed(
    run: Run, values: list[Array], x: Array, step: int, axis: int, results: int
) -> list[list[Array]]:
    """The results of each step of a sequence, with the states carried by hand."""
    made = []
    for first in range(0, x.shape[axis], step):
        part = x.take(range(first, first + step), axis)
        found = run([part, *values])
        made.append(found[:results])
        values = found[results:]
    return made


def of_compiled(fast: CompiledModel, x: Array, axis: int = -1) -> list[list[Array]]:
    """`streamed` by a stream of compiled code, or by calls where there are no states."""
    assert fast.step is not None
    if not fast.states:
        return streamed(fast.run, [], x, fast.step, axis, len(fast.graph.outputs))
    stream = fast.stream() if fast.tile is None else fast.stream(batch=len(x))

    def run(given: list[Array]) -> list[Array]:
        made = stream(given[0])
        return list(made) if isinstance(made, tuple | list) else [made]

    return streamed(run, [], x, fast.step, axis, len(fast.graph.outputs))


def of_many(fast: CompiledModel, x: Array, axis: int = -1) -> list[Array]:
    """The results of streams of the samples of x, of which each joins a step after the last."""
    assert fast.step is not None
    streams, step = fast.streams(len(x)), fast.step
    made: list[list[Array]] = [[] for _ in x]
    for now in range(x.shape[axis] // step + len(x)):
        if now < len(x):
            streams.join()
        first = {number: step * (now - number) for number in range(min(now + 1, len(x)))}
        given = {
            number: x[number : number + 1].take(range(start, start + step), axis)
            for number, start in first.items()
            if start < x.shape[axis]
        }
        for number, y in streams.step(given).items():
            made[number].append(y)
    return [np.concatenate(each, axis) for each in made]


def of_graph(found: ReadStep, x: Array, step: int, axis: int = -1) -> list[list[Array]]:
    """`streamed` by the operators' references in float64."""
    graph, states = found.made.graph, found.made.states
    results = len(graph.outputs) - len(states)
    return streamed(graph.evaluate, started(graph, states), x, step, axis, results)


def joined(steps: list[list[Array]], number: int = 0, axis: int = -1) -> Array:
    return np.concatenate([each[number] for each in steps], axis)


def off_by(found: Array, wanted: Array, delay: int) -> float:
    """The largest difference of a stream that is late, as a share of the largest number.

    The frames before the first one must be zeros.
    """
    assert not found[..., :delay].any()
    late = found[..., delay:]
    shown = wanted[..., : late.shape[-1]]
    assert late.shape == shown.shape
    assert prod(late.shape)
    return float(np.abs(late - shown).max() / np.abs(wanted).max(initial=1e-30))
