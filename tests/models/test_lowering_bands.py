"""Convolutions in bands of rows: the same results, whatever the bands."""

import numpy as np
import pytest
from native import check_graph, kernels_of
from runnable import ISAS
from sketch import Sketch

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Value
from sparsejit.lowering.convolution import bands
from sparsejit.machine.target import Target


def separable(s: Sketch, x: Value, out: int, kernel: int, stride: int, dilation: int = 1) -> Value:
    """A convolution by channel, then one across channels."""
    channels, padding = x.shape[1], dilation * (kernel // 2)
    sizes = (stride,) * 2, (padding,) * 2, (dilation,) * 2
    op = Convolution(*sizes, channels, activation=Activation.RELU)
    y = s(op, x, s.weight(channels, 1, kernel, kernel), s.weight(channels))
    across = Convolution((1, 1), (0, 0), (1, 1), activation=Activation.RELU)
    weights = s.random.standard_normal((out, channels, 1, 1)) * (s.random.random(channels) < 0.5)[
        :, None, None
    ]
    return s(across, y, s.constant(weights.astype(np.float32)), s.weight(out))


def net(size: int, kernel: int, strides: tuple[int, int], dilation: int = 1) -> Graph:
    """A stem, two separable convolutions, and one by channel as the end."""
    s = Sketch()
    stem = Convolution((2, 2), (1, 1), (1, 1), activation=Activation.RELU)
    y = s(stem, s.input(1, 3, size, size), s.weight(6, 3, 3, 3))
    y = separable(s, y, 9, kernel, strides[0], dilation)
    y = separable(s, y, 5, kernel, strides[1])
    last = Convolution((1, 1), (1, 1), (1, 1), 5)
    return s.finish(s(last, y, s.weight(5, 1, 3, 3)))


def steps_of(graph: Graph, isa: str) -> list[str]:
    """Kernels but those that set padding to 0."""
    return [kernel for kernel in kernels_of(graph, isa) if kernel != "fill"]


def use_bands(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Use `count` bands, for images of any size."""
    monkeypatch.setattr(bands, "gains_by_bands", lambda image_bytes, target: True)
    monkeypatch.setattr(bands, "band_count", lambda rows, threads, live_bytes, target: count)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilation"), [(3, (1, 2), 1), (5, (2, 1), 1), (3, (1, 1), 3)]
)
def test_bands_meet(
    monkeypatch: pytest.MonkeyPatch,
    isa: str,
    count: int,
    kernel: int,
    strides: tuple[int, int],
    dilation: int,
) -> None:
    graph = net(45, kernel, strides, dilation)
    whole = steps_of(graph, isa)
    use_bands(monkeypatch, count)
    assert len(steps_of(graph, isa)) >= count * len(whole)
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].shape).astype(np.float32)
    check_graph(graph, [x], Target.named(isa), 1e-3)


def test_values_with_other_readers_are_computed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is an output, or that two operators read, ends a chain."""
    use_bands(monkeypatch, 3)
    s = Sketch()
    op = Convolution((1, 1), (1, 1), (1, 1), 4)
    first = s(op, s.input(1, 4, 30, 30), s.weight(4, 1, 3, 3))
    second = s(op, first, s.weight(4, 1, 3, 3))
    both = s("add", first, second)
    assert len(kernels_of(s.finish(both), "avx2")) == 3
    s = Sketch()
    first = s(op, s.input(1, 4, 30, 30), s.weight(4, 1, 3, 3))
    second = s(op, first, s.weight(4, 1, 3, 3))
    assert len(kernels_of(s.finish(second), "avx2")) == 6
    assert len(kernels_of(s.finish(first, second), "avx2")) == 2
