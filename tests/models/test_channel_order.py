"""Memories of networks (FSMN): images whose channels lie side by side, and sums inside of taps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph, kernels_of, random_input
from runnable import ISAS
from sketch import Sketch, applied, kinds

import sparsejit
from sparsejit.api.models.final_graph import final_graph
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Concat, Permute, Reshape, Slice
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.channel_order import with_channel_order
from sparsejit.machine.target import Target
from sparsejit.passes.residual_taps import fold_residual_taps
from sparsejit.planner.cheapest_row import preferring
from sparsejit.planner.convolution_plan import CHANNELS, POSITIONS

WIDE = ModelOptions(Target.named("avx512"))


def memory(
    frames: int, channels: int, taps: int, dilation: int = 1, features: int = 40, rank: int = 3
) -> Graph:
    """A layer's frames behind a cache, filtered by channel, added to themselves; and the cache."""
    s, past = Sketch(), (taps - 1) * dilation
    end = (1,) * (rank - 3)
    h = s(Linear(), s.input(1, frames, features), s.weight(channels, features), s.weight(channels))
    x = s(Permute((0, 2, 1)), h)
    x = s(Reshape((1, channels, frames, *end)), x) if end else x
    whole = s(Concat(2), s.input(1, channels, past, *end), x)
    zeros = (0,) * (rank - 2)
    op = Convolution((1,) * (rank - 2), zeros, (dilation, 1)[: rank - 2], channels)
    y = s("add", x, s(op, whole, s.weight(channels, 1, taps, *end)))
    y = s(Reshape((1, channels, frames)), y) if end else y
    y = s(Linear(), s(Permute((0, 2, 1)), y), s.weight(30, channels))
    return s.finish(y, s(Slice(2, frames, frames + past), whole))


def compiled(graph: Graph, target: Target) -> Graph:
    return final_graph(graph, ModelOptions(target), "float32")


SHAPES = [(10, 128, 20, 1, 40, 4), (1, 128, 20, 1, 40, 3), (7, 24, 5, 2, 16, 3)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_memory_has_no_sum_and_turns_only_the_cache(isa: str, shape: tuple[int, ...]) -> None:
    graph = memory(*shape)
    with preferring(CHANNELS):
        final = compiled(graph, Target.named(isa))
        assert "add" not in kinds(final)
        kernels = kernels_of(final, isa)
        assert kernels.count("copy") == 2 and kernels.count(f"depthwise-{isa}") == 1
        inputs = [random_input(each) for each in _inputs(graph)]
        check_graph(final, inputs, Target.named(isa), 5e-4)


def _inputs(graph: Graph) -> list[Graph]:
    """Graphs with one input each, for `random_input`."""
    return [Graph((value,), (), (), {}) for value in graph.inputs]


@given(
    frames=st.integers(1, 12),
    channels=st.integers(2, 40),
    taps=st.integers(2, 12),
    dilation=st.integers(1, 3),
    rank=st.integers(3, 4),
)
@settings(max_examples=30)
def test_any_memory_computes_the_same(
    frames: int, channels: int, taps: int, dilation: int, rank: int
) -> None:
    """Both rewrites leave values as they are, in float64."""
    graph = memory(frames, channels, taps, dilation, 8, rank)
    folded = applied(fold_residual_taps, graph)
    assert "add" not in kinds(folded)
    with preferring(CHANNELS):
        ordered = applied(lambda each: with_channel_order(each, WIDE), folded)
    node = next(each for each in ordered.nodes if isinstance(each.op, Concat))
    assert rank == 4 or node.op == Concat(1)
    with preferring(POSITIONS):
        assert with_channel_order(folded, WIDE) is folded


@pytest.mark.parametrize("change", ["read twice", "strided", "other rows", "activation first"])
def test_sums_that_are_no_tap_stay(change: str) -> None:
    s, channels = Sketch(), 8
    stride = 2 if change == "strided" else 1
    x = s.input(1, channels, 20 if change == "strided" else 12)
    y = s(Convolution((stride,), (0,), (1,), channels), x, s.weight(channels, 1, 3))
    length = y.shape[2]
    first = 4 if change == "other rows" else 1
    x = s.input(1, channels, 20) if change == "other rows" else x
    part = s(Slice(2, first, first + length), x)
    outputs = [s("add", s("relu", y) if change == "activation first" else y, part)]
    outputs += [y] if change == "read twice" else []
    graph = s.finish(*outputs)
    assert fold_residual_taps(graph) is graph


def test_a_slice_of_the_image_is_a_tap_too() -> None:
    s, channels = Sketch(), 8
    x = s.input(2, channels, 9, 12)
    y = s(Convolution((1, 1), (0, 1), (1, 2), channels), x, s.weight(channels, 1, 3, 3))
    graph = s.finish(s("add", s(Slice(2, 2, 9), s(Slice(3, 1, 11), x)), y))
    assert fold_residual_taps(graph) is graph  # two axes are cut
    s = Sketch()
    x = s.input(2, channels, 9, 12)
    y = s(Convolution((1, 1), (0, 2), (1, 2), channels), x, s.weight(channels, 1, 3, 3))
    assert kinds(applied(fold_residual_taps, s.finish(s("add", s(Slice(2, 2, 9), x), y)))) == [
        "Convolution"
    ]


@pytest.mark.parametrize("isa", ISAS)
def test_int8_leaves_filters_of_one_channel_in_float32(isa: str) -> None:
    """As products they would be zeros, but for one channel; named layers stay in int8."""
    graph, target = memory(10, 128, 20), Target.named(isa)
    options = ModelOptions(target)
    for dtype, expected in (("int8", True), ({"*": "int8"}, False)):
        kernels = kernels_of(final_graph(graph, options, dtype), isa)
        assert (f"depthwise-{isa}" in kernels) == expected
        assert sum(kernel.startswith("int8") for kernel in kernels) == (2 if expected else 3)


def test_streams_of_memories_equal_the_whole_in_any_blocks() -> None:
    """A torch module of whole sequences, in steps of 3 frames and of 1."""
    torch = pytest.importorskip("torch")

    class Memory(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(24, 64, bias=False)
            self.taps = torch.nn.Conv1d(64, 64, 7, groups=64, bias=False)

        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            h = self.first(x).transpose(1, 2)
            past = torch.nn.functional.pad(h, (6, 0))
            return (h + self.taps(past)).transpose(1, 2)

    torch.manual_seed(0)
    model, x = Memory().eval(), torch.randn(1, 24, 24)
    wanted = model(x).detach().numpy()
    for step in (1, 3):
        stream = sparsejit.compile(model, (x,), step=step, axis=1).stream()
        parts = [stream(x[:, at : at + step].numpy()) for at in range(0, 24, step)]
        found = np.concatenate(parts, 1)
        np.testing.assert_allclose(found, wanted, atol=2e-6)
