"""Steps of models from samples to samples through spectra: stft, a mask, and istft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from runnable import ISAS
from streaming_models import (
    joined,
    of_compiled,
    of_graph,
    of_many,
    off_by,
    step_of,
    whole_graph,
)
from torch import nn
from torch.nn import functional

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.passes.step_constants import rows_of_steps
from sparsejit.whole_numbers import ceil_div

IN_DOUBLE, IN_SINGLE = 1e-11, 1e-5
Net = Callable[[int], nn.Module]


class Recurrent(nn.Module):
    """A mask (batch, bins, frames) of magnitudes by a GRU."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(bins, 12), nn.Linear(12, bins)
        self.gru = nn.GRU(12, 12, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.gru(torch.tanh(self.encode(x.transpose(1, 2))))
        return self.decode(y).sigmoid().transpose(1, 2)


class Convolved(nn.Module):
    """A mask (batch, bins, frames) of magnitudes by causal convolutions."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(bins, 8, 3), nn.Conv1d(8, bins, 2, dilation=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(functional.pad(x, (2, 0))))
        return self.second(functional.pad(y, (2, 0))).sigmoid()


class Suppressor(nn.Module):
    """Samples (batch, time) to samples, by a mask of their spectra; options are torch.stft's."""

    def __init__(self, window: torch.Tensor, hop: int, net: Net, **options: object) -> None:
        super().__init__()
        self.register_buffer("window", window)
        self.hop, self.options = hop, {"center": True, "pad_mode": "constant", **options}
        self.keeps_length = self.options.pop("keeps_length", True)
        size = len(window)
        bins = size // 2 + 1 if self.options.get("onesided", True) else size
        self.net = net(bins)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        form = {"n_fft": len(self.window), "hop_length": self.hop, "window": self.window}
        z = torch.stft(x, **form, **self.options, return_complex=True)
        back = {key: value for key, value in self.options.items() if key != "pad_mode"}
        length = x.shape[-1] if self.keeps_length else None
        return torch.istft(z * self.net(z.abs()), **form, **back, length=length)


WINDOWS = {
    "hann": torch.hann_window,
    "sqrt hann": lambda size: torch.hann_window(size).sqrt(),
    "hamming": torch.hamming_window,
}
REFLECTED = (
    # size, hop, net, delay: a reflection reads one sample behind the first window
    (320, 160, Recurrent, 320),
    (512, 128, Convolved, 512),
    (400, 160, Convolved, 360),
    (256, 256, Convolved, 128),
)
SIZES = (
    # size, hop, window, center, net, delay
    (320, 160, "hann", True, Recurrent, 160),
    (320, 160, "sqrt hann", True, Convolved, 160),
    (512, 128, "hann", True, Recurrent, 384),
    (512, 128, "sqrt hann", True, Convolved, 384),
    (512, 128, "hamming", False, Recurrent, 384),
    (256, 256, "hamming", True, Convolved, 128),
    (256, 256, "hamming", False, Recurrent, 0),
    (400, 160, "sqrt hann", True, Convolved, 360),
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("size", "hop", "window", "center", "net", "delay"), SIZES)
def test_a_suppressor_is_one_stream(
    size: int, hop: int, window: str, center: bool, net: Net, delay: int, isa: str
) -> None:
    torch.manual_seed(size)
    model = Suppressor(WINDOWS[window](size), hop, net, center=center).eval()
    x = torch.randn(1, hop * 16)
    fast = sparsejit.compile(model, (x,), step=hop, axis=-1, target=isa)
    assert fast.delay == delay
    whole, y = model(x).detach().numpy(), joined(of_compiled(fast, x.numpy()))
    assert off_by(y, whole, delay) < IN_SINGLE
    np.testing.assert_array_equal(fast.stream().run(x.numpy(), out_axis=-1), y)


@pytest.mark.parametrize(("size", "hop", "net", "delay"), REFLECTED)
def test_a_reflection_waits_for_its_last_sample(
    size: int, hop: int, net: Net, delay: int
) -> None:
    """As torch.stft pads by default; also where streams begin one after the other."""
    torch.manual_seed(size)
    model = Suppressor(torch.hamming_window(size), hop, net, pad_mode="reflect").eval()
    x = torch.randn(2, hop * 12)
    fast = sparsejit.compile(model, (x[:1],), step=hop)
    assert fast.delay == delay and fast.tile is not None
    for y, one in zip(of_many(fast, x.numpy()), x, strict=True):
        whole = model(one[None]).detach().numpy()
        assert off_by(y, whole, delay) < IN_SINGLE
        alone = fast.stream().run(one[None].numpy(), out_axis=-1)
        assert off_by(alone, whole, delay) < IN_SINGLE


@pytest.mark.parametrize("row", [SIZES[0], SIZES[3]], ids=["recurrent", "convolved"])
def test_suppressors_that_begin_later_equal_the_whole(row: tuple[Any, ...]) -> None:
    size, hop, window, center, net, delay = row
    torch.manual_seed(size)
    model = Suppressor(WINDOWS[window](size), hop, net, center=center).eval()
    x = torch.randn(3, hop * 12)
    fast = sparsejit.compile(model, (x[:1],), step=hop, axis=-1)
    assert fast.tile is not None
    for y, one in zip(of_many(fast, x.numpy()), x, strict=True):
        assert off_by(y, model(one[None]).detach().numpy(), delay) < IN_SINGLE


@st.composite
def suppressors(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor, int]:
    """A model, samples, and the samples of a step."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    hop = draw(st.integers(2, 12))
    size = 2 * draw(st.integers((hop + 1) // 2, 2 * hop))  # torch exports no istft of odd sizes
    options = {
        "center": draw(st.booleans()),
        "pad_mode": draw(st.sampled_from(["constant", "reflect", "replicate"])),
        "normalized": draw(st.booleans()),
        "onesided": draw(st.booleans()),
        "keeps_length": draw(st.booleans()),
    }
    net = draw(st.sampled_from([Recurrent, Convolved]))
    model = Suppressor(torch.rand(size) + 0.2, hop, net, **options).eval()
    step = hop * draw(st.integers(1, 3))
    x = torch.randn(draw(st.integers(1, 2)), step * 12 + draw(st.integers(0, hop)))
    return model, x, step


def least_delay(size: int, hop: int, center: bool) -> int:
    """Samples from a result to the last one of its last frame, in steps of whole hops."""
    half = size // 2 if center else 0
    return half + hop * (ceil_div(size - half, hop) - 1)


@settings(max_examples=30)
@given(suppressors())
def test_streams_of_random_spectra_equal_the_whole(
    case: tuple[nn.Module, torch.Tensor, int],
) -> None:
    model, x, step = case
    found = step_of(model, x, step)
    (whole,) = whole_graph(model, x).evaluate([x.numpy()])
    np.testing.assert_allclose(whole, model(x).detach(), atol=1e-4)
    cut = x[:, : x.shape[-1] // step * step]
    delay, size, hop = found.made.delay, len(model.window), model.hop
    least = least_delay(size, hop, model.options["center"])
    waits = model.options["center"] and model.options["pad_mode"] == "reflect"
    assert least <= delay < least + step + hop + step * waits  # for one sample more
    if step == hop and size % hop == 0 and not waits:  # recurrent layers wait for whole steps
        assert delay == least
    y = joined(of_graph(found, cut.numpy(), step))
    shown = min(y.shape[-1], delay + whole.shape[-1])
    assert off_by(y[:, :shown], whole, delay) < IN_DOUBLE


def test_a_step_has_the_past_of_frames_once() -> None:
    """Samples of frames, and results that overlap: both of a window but one hop."""
    model = Suppressor(torch.hann_window(32), 8, Convolved).eval()
    states = step_of(model, torch.randn(1, 256), 8).made
    inputs = [states.graph.inputs[state.input] for state in states.states]
    sizes = [(value.origin.name, value.shape) for value in inputs]
    assert [each for each in sizes if each[0].startswith("stft")] == [("stft.past", (1, 3, 8))]


class DeepFilter(nn.Module):
    """A sum of three frames of a spectrum, by complex factors that a GRU makes."""

    def __init__(self, size: int, hop: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size))
        self.hop, bins = hop, size // 2 + 1
        self.gru, self.out = nn.GRU(bins, 8, batch_first=True), nn.Linear(8, 3 * bins * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        form = {"n_fft": len(self.window), "hop_length": self.hop, "window": self.window}
        z = torch.stft(x, **form, pad_mode="constant", return_complex=True)
        batch, bins, frames = z.shape
        made, _ = self.gru(z.abs().transpose(1, 2))
        pairs = self.out(made).reshape(batch, frames, 3, bins, 2)
        factors = torch.view_as_complex(pairs).permute(0, 2, 3, 1)
        padded = functional.pad(torch.view_as_real(z), (0, 0, 2, 0))
        late = torch.view_as_complex(padded)
        y = sum(factors[:, n] * late[..., 2 - n : 2 - n + frames] for n in range(3))
        return torch.istft(y, **form, length=x.shape[-1])


def test_a_filter_of_several_frames_adds_no_delay() -> None:
    model, x = DeepFilter(32, 8).eval(), torch.randn(1, 256)
    fast = sparsejit.compile(model, (x,), step=8)
    assert fast.delay == 24
    y = joined(of_compiled(fast, x.numpy()))
    assert off_by(y, model(x).detach().numpy(), fast.delay) < IN_SINGLE


def known(array: object, name: str) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def test_an_onnx_file_from_samples_to_samples() -> None:
    """STFT, a mask of magnitudes, DFT back, and overlap-add by a transposed convolution."""
    size, hop = 16, 4
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    float32 = TensorProto.FLOAT
    nodes = [
        helper.make_node("STFT", ["x", "hop", "window"], ["z"], onesided=1),
        helper.make_node("ReduceSumSquare", ["z"], ["power"], axes=[3], keepdims=1),
        helper.make_node("Sigmoid", ["power"], ["mask"]),
        helper.make_node("Mul", ["z", "mask"], ["masked"]),
        helper.make_node("Slice", ["masked", "first", "end", "axis", "back"], ["mirror"]),
        helper.make_node("Mul", ["mirror", "conjugate"], ["later"]),
        helper.make_node("Concat", ["masked", "later"], ["full"], axis=2),
        helper.make_node("DFT", ["full"], ["pairs"], axis=2, inverse=1),
        helper.make_node("Gather", ["pairs", "real"], ["frames"], axis=3),
        helper.make_node("Mul", ["frames", "window"], ["windowed"]),
        helper.make_node("Transpose", ["windowed"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("ConvTranspose", ["columns", "eye"], ["y"], strides=[hop]),
    ]
    constants = {
        "hop": np.int64(hop),
        "window": window,
        "first": np.array([size // 2 - 1]),
        "end": np.array([0]),
        "axis": np.array([2]),
        "back": np.array([-1]),
        "conjugate": np.array([1, -1], np.float32),
        "real": np.int64(0),
        "eye": np.eye(size, dtype=np.float32)[:, None],
    }
    graph = helper.make_graph(
        nodes,
        "suppressor",
        [helper.make_tensor_value_info("x", float32, [1, "time", 1])],
        [helper.make_tensor_value_info("y", float32, [1, 1, "later"])],
        [known(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    x = np.random.default_rng(1).standard_normal((1, hop * 20, 1)).astype(np.float32)
    fast = sparsejit.compile(model, (x,), step=hop, axis=1)
    (whole,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    assert fast.delay == size - hop
    y = joined(of_compiled(fast, x, axis=1))
    assert off_by(y, whole, fast.delay) < IN_SINGLE


class Of(nn.Module):
    """A function of samples (batch, time)."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


REFUSED = {
    "whole spectrum": (lambda x: torch.fft.rfft(x).abs(), "is not the same for every length"),
    "faded end": (
        lambda x: x * torch.cat([torch.ones(x.shape[-1] - 9), torch.arange(9.0)]),
        "changes along time; let it repeat",
    ),
    "waves": (lambda x: x * torch.sin(torch.arange(x.shape[-1]) / 7), "changes along time"),
    "ramp by length": (lambda x: x * torch.linspace(0, 1, x.shape[-1]), "changes along time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_spectra_without_a_stream_are_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(UnsupportedOperator, match=message):
        step_of(Of(function).eval(), torch.randn(1, 160), 4)


REPEATED = {
    "a start": lambda x: x * torch.cat([torch.arange(9.0), torch.ones(x.shape[-1] - 9)]),
    "every second": lambda x: x / (1 + torch.arange(x.shape[-1]) % 2),
    "every fourth, of two": lambda x: torch.where(torch.arange(x.shape[-1]) % 4 < 1, 3, x),
    "the first frames": lambda x: torch.where(torch.arange(x.shape[-1]) < 6, 0, x),
    "a delayed start": lambda x: functional.avg_pool1d(x, 3, 1, 1)
    * torch.cat([torch.arange(9.0), torch.ones(x.shape[-1] - 9)]),
    "an end ahead": lambda x: functional.avg_pool1d(x, 3, 1, 1)
    * torch.cat([torch.ones(x.shape[-1] - 1), torch.zeros(1)]),
}


@pytest.mark.parametrize("name", REPEATED)
def test_constants_along_time_repeat_with_each_step(name: str) -> None:
    model, x = Of(REPEATED[name]).eval(), torch.randn(2, 160)
    found = step_of(model, x, 4)
    (whole,) = whole_graph(model, x).evaluate([x.numpy()])
    assert off_by(joined(of_graph(found, x.numpy(), 4)), whole, found.made.delay) < IN_DOUBLE
    fast = sparsejit.compile(model, (x,), step=4)
    assert off_by(joined(of_compiled(fast, x.numpy())), whole, fast.delay) < IN_SINGLE
    assert fast.tile is not None
    for y, one in zip(of_many(fast, x.numpy()) if fast.states else [], whole, strict=False):
        assert off_by(y, one[None], fast.delay) < IN_SINGLE


@given(st.data())
def test_rows_of_steps_are_the_constant_wherever_a_stream_comes(data: st.DataObject) -> None:
    bounds = (1, 4), (0, 6), (0, 9), (0, 6)
    period, delay, head, tail = (data.draw(st.integers(*each)) for each in bounds)
    cycle = data.draw(st.sampled_from([each for each in range(1, 5) if period % each == 0]))
    sizes = (head, cycle, tail)
    numbers = st.integers(0, 2)
    start, middle, end = (
        data.draw(st.lists(numbers, min_size=size, max_size=size)) for size in sizes
    )
    short, long = (
        np.array([*start, *(middle * size)[: size - head - tail], *end])
        for size in (40, 40 + 12 * period)
    )
    table = rows_of_steps(long, short, period, delay)
    assert table is not None or tail > delay
    if table is not None:
        for array in (short, long):
            for place in range(len(array) - delay):
                step, own = divmod(place + delay, period)
                assert table[min(step, len(table) - 1), own] == array[place]


def test_an_example_without_a_steady_frame_is_refused() -> None:
    model = Suppressor(torch.hann_window(64), 8, Convolved).eval()
    with pytest.raises(UnsupportedOperator, match="give a longer example"):
        step_of(model, torch.randn(1, 40), 8)


def test_a_step_between_frames_is_refused() -> None:
    model = Suppressor(torch.hann_window(64), 16, Convolved).eval()
    with pytest.raises(InvalidInput, match="a multiple of 16"):
        sparsejit.compile(model, (torch.randn(1, 640),), step=8)
    with pytest.raises(UnsupportedOperator, match="a multiple of its hops"):
        sparsejit.compile(model, (torch.randn(1, 640),), step=24)


def test_windows_without_a_sum_are_refused() -> None:
    """As torch does: frames without overlap lose what their windows end in."""
    model = Suppressor(torch.hann_window(16), 16, Convolved).eval()
    with pytest.raises(UnsupportedOperator, match="add up to zero"):
        sparsejit.compile(model, (torch.randn(1, 320),), step=16)
