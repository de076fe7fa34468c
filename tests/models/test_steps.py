"""Steps of models of whole sequences: their streams are the whole model, late where it looks ahead.

The float64 references of a step's operators are compared with the whole graph's, and compiled code
with both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from runnable import ISAS
from streaming_models import (
    CHANNELS,
    FRAMES,
    Near,
    Padded,
    SequenceCase,
    TimeFirst,
    joined,
    of_compiled,
    of_graph,
    of_many,
    off_by,
    sequence_cases,
    started,
    step_of,
    streamed,
    whole_graph,
)
from torch import nn
from torch.nn import functional

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import OPERATORS, Operator

IN_DOUBLE, IN_SINGLE = 1e-12, 1e-6


def check(case: SequenceCase) -> int:
    """Compare a stream in float64 with the whole; return the delay."""
    graphs: dict[int, Graph] = {}
    found, x = step_of(case.model, case.x, case.step, known=graphs), case.x.numpy()
    (whole,) = graphs[FRAMES].evaluate([x])
    delay = found.made.delay
    if delay < FRAMES:
        assert off_by(joined(of_graph(found, x, case.step)), whole, delay) < IN_DOUBLE
    return delay


@settings(max_examples=120)
@given(sequence_cases())
def test_streams_of_causal_models_equal_the_whole(case: SequenceCase) -> None:
    assert check(case) == 0


@settings(max_examples=80)
@given(sequence_cases(ahead=True))
def test_streams_of_models_that_look_ahead_are_late(case: SequenceCase) -> None:
    check(case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ahead", [False, True])
def test_compiled_steps_equal_the_whole(isa: str, ahead: bool) -> None:
    @settings(max_examples=8)
    @given(sequence_cases(ahead=ahead))
    def check_code(case: SequenceCase) -> None:
        (whole,) = whole_graph(case.model, case.x).evaluate([case.x.numpy()])
        fast = sparsejit.compile(case.model, (case.x,), step=case.step, target=isa)
        if fast.delay < FRAMES:
            y = joined(of_compiled(fast, case.x.numpy()))
            # Deep nets amplify float32's rounding, in the whole model too.
            at_once = sparsejit.compile(case.model, (case.x,), target=isa)(case.x.numpy())
            assert off_by(y, whole, fast.delay) < IN_SINGLE + 2 * off_by(at_once, whole, 0)

    check_code()


EXACT = {
    "convolution": lambda: Padded(nn.Conv1d(4, 4, 3, dilation=2), 4),
    "depthwise": lambda: Padded(nn.Conv1d(4, 4, 3, groups=4), 2),
    "gru": lambda: TimeFirst(nn.GRU(4, 4, batch_first=True)),
    "lstm": lambda: TimeFirst(nn.LSTM(4, 4, batch_first=True)),
    "layer norm": lambda: TimeFirst(nn.LayerNorm(4)),
    "pooling": lambda: Padded(nn.AvgPool1d(3, 1), 2),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_streams_have_the_bits_of_the_whole(name: str) -> None:
    model, x = EXACT[name]().eval(), torch.randn(1, CHANNELS, FRAMES)
    whole = sparsejit.compile(model, (x,), exact=True, free_batch=False)
    fast = sparsejit.compile(model, (x,), exact=True, step=8)
    np.testing.assert_array_equal(joined(of_compiled(fast, x.numpy())), whole(x.numpy()))


TOGETHER: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: nn.Sequential(
        Padded(nn.Conv1d(4, 4, 3), 2), nn.ReLU(), Padded(nn.Conv1d(4, 4, 3), 1, 1)
    ),
    "a recurrence that is late": lambda: nn.Sequential(
        Padded(nn.Conv1d(4, 4, 3), 1, 1), TimeFirst(nn.LSTM(4, 4, batch_first=True))
    ),
    "attention": lambda: nn.Sequential(Padded(nn.Conv1d(4, 4, 3), 1, 1), Near(4, 3, 1)),
    "padding of ones": lambda: nn.Sequential(Padded(nn.Conv1d(4, 4, 3), 1, 1), Of(padding_of_ones)),
    "time first": lambda: TimeFirst(nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 4, batch_first=True))),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_streams_that_join_later_equal_the_whole(name: str) -> None:
    """Each is at a step of its own, and late by frames of zeros of its own."""
    torch.manual_seed(0)
    model, x = TOGETHER[name]().eval(), torch.randn(5, CHANNELS, FRAMES)
    fast = sparsejit.compile(model, (x[:1],), step=4)
    assert fast.tile is not None
    for y, one in zip(of_many(fast, x.numpy()), x, strict=True):
        whole = model(one[None]).detach().numpy()
        assert off_by(y, whole, fast.delay) < 4 * IN_SINGLE
        np.testing.assert_array_equal(y, of_many(fast, one[None].numpy())[0])


def test_a_batch_that_is_fixed_has_no_streams_together() -> None:
    model, x = Padded(nn.Conv1d(4, 4, 3), 2), torch.randn(2, CHANNELS, FRAMES)
    fast = sparsejit.compile(model.eval(), (x,), step=4, free_batch=False)
    with pytest.raises(InvalidInput, match="the batch of this model is fixed"):
        fast.streams(2)
    y = fast.stream().run(x.numpy(), out_axis=-1)
    assert off_by(y, model(x).detach().numpy(), 0) < IN_SINGLE


FIXED = {
    "a number": (lambda x: x.reshape(1, 4, -1), "torch.export fixes it"),
    "a mean": (lambda x: x - x.mean(0, keepdim=True), "mean over the batch"),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_model_that_fixes_its_batch_says_why(name: str, tmp_path: Path) -> None:
    function, why = FIXED[name]
    model = nn.Sequential(Padded(nn.Conv1d(4, 4, 3), 2), Of(function)).eval()
    x = torch.randn(1, CHANNELS, FRAMES)
    fast = sparsejit.compile(model, (x,), step=4)
    fast.save(tmp_path / "step.sjit")
    for each in (fast, sparsejit.load(tmp_path / "step.sjit")):
        (line,) = (line for line in each.explain().lines if "the batch is fixed: " in line)
        assert why in line and line.endswith("or use stream() for each")
        with pytest.raises(InvalidInput, match=f"streams cannot share .*{why}"):
            each.streams(2)
    y = fast.stream().run(x.numpy(), out_axis=-1)
    assert off_by(y, model(x).detach().numpy(), 0) < IN_SINGLE


class Of(nn.Module):
    """A function of x (batch, channels, time)."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def padding_of_ones(x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool1d(functional.pad(x, (2, 0), value=1), 3, 1)


FRAMES_FIRST = torch.randn(1, FRAMES, CHANNELS)
ALONG = (
    # name, function, frames of a step, delay
    ("padding of ones", padding_of_ones, 4, 0),
    ("two paddings", lambda x: functional.pad(functional.pad(x, (1, 0), value=2), (2, 0)), 4, 0),
    ("largest", lambda x: functional.max_pool1d(x, 3, 1, 1), 4, 1),
    ("largest of padding", lambda x: functional.max_pool1d(functional.pad(x, (2, 0)), 3, 1), 1, 0),
    ("shift", lambda x: torch.cat([torch.zeros(1, CHANNELS, 2), x], -1)[..., :-2], 4, 0),
    ("difference", lambda x: x[..., 1:] - x[..., :-1], 4, 1),
    ("decimation", lambda x: x[..., ::4], 4, 0),
    ("decimation behind some", lambda x: x[..., 6::4], 4, 4),
    ("unfolded", lambda x: x.unfold(-1, 4, 2).sum(-1), 4, 2),
    ("upsampled", lambda x: functional.interpolate(x[..., ::2], scale_factor=2) - x, 2, 0),
    ("two rates", lambda x: (x[..., ::2], functional.max_pool1d(x, 3, 1, 1)), 4, 2),
    ("a constant", lambda x: x * torch.ones(x.shape[-1]) + torch.zeros_like(x), 4, 0),
    ("softmax of channels", lambda x: x.softmax(1), 4, 0),
    ("attention of channels", lambda x: torch.einsum("bct,bdt->bdt", x, x), 4, 0),
)


@pytest.mark.parametrize(
    ("function", "step", "delay"), [row[1:] for row in ALONG], ids=[row[0] for row in ALONG]
)
def test_operators_along_time(function: Callable[..., object], step: int, delay: int) -> None:
    x = torch.randn(1, CHANNELS, FRAMES)
    found = step_of(Of(function).eval(), x, step)
    assert found.made.delay == delay
    steps = of_graph(found, x.numpy(), step)
    for number, whole in enumerate(whole_graph(Of(function).eval(), x).evaluate([x.numpy()])):
        late = delay * steps[0][number].shape[-1] // step
        y = joined(steps, number)
        kept = min(y.shape[-1], late + whole.shape[-1])
        assert off_by(y[..., :kept], whole, late) < IN_DOUBLE


def test_the_last_frame_and_the_last_state_follow_the_stream() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(CHANNELS, 5, batch_first=True)
            self.head = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, h = self.gru(x)
            return self.head(y[:, -1]), h

    model, x = Last().eval(), FRAMES_FIRST
    found = step_of(model, x, 4, axis=1)
    for number, made in enumerate(of_graph(found, x.numpy(), 4, axis=1)):
        part = x[:, : 4 * number + 4]
        for y, whole in zip(made, whole_graph(model, part).evaluate([part.numpy()]), strict=True):
            np.testing.assert_allclose(y, whole, atol=1e-12)


def test_attention_to_all_before_keeps_a_window() -> None:
    """Results are the model's while the sequence is no longer than the window."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2)
        made = functional.scaled_dot_product_attention(rows, rows, rows, is_causal=True)
        return made.transpose(1, 2)

    x = torch.randn(1, CHANNELS, FRAMES)
    fast = sparsejit.compile(Of(attention).eval(), (x,), step=4, window=20)
    whole = attention(x).numpy()
    y = joined(of_compiled(fast, x.numpy()))
    assert off_by(y[..., :20], whole[..., :20], 0) < IN_SINGLE
    last = attention(x[..., -20:]).numpy()[..., -1]
    np.testing.assert_allclose(y[..., -1], last, rtol=1e-5)


def test_a_spectrum_is_a_step_of_windows() -> None:
    def spectrum(x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(16)
        made = torch.stft(x[:, 0], 16, 4, window=window, center=False, return_complex=True)
        return made.abs()

    x = torch.randn(1, 1, 160)
    found = step_of(Of(spectrum).eval(), x, 8)
    assert found.made.delay == 12
    (whole,) = whole_graph(Of(spectrum).eval(), x).evaluate([x.numpy()])
    assert off_by(joined(of_graph(found, x.numpy(), 8)), whole, 3) < IN_DOUBLE


def test_time_may_be_an_axis_of_an_image() -> None:
    class Image(nn.Module):
        """(batch, channels, time, bands): causal in time, and a GRU over the bands of a frame."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, (3, 3), stride=(1, 2), padding=(0, 1))
            self.gru = nn.GRU(3, 3, batch_first=True, bidirectional=True)
            self.back = nn.ConvTranspose2d(6, 2, (2, 2), stride=(1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(functional.pad(x, (0, 0, 2, 0)))
            batch, channels, frames, bands = y.shape
            rows = y.permute(0, 2, 3, 1).reshape(batch * frames, bands, channels)
            z = self.gru(rows)[0].reshape(batch, frames, bands, 2 * channels)
            return self.back(z.permute(0, 3, 1, 2))[:, :, :-1]

    model, x = Image().eval(), torch.randn(1, 2, 24, 8)
    found = step_of(model, x, 2, axis=2)
    assert found.made.delay == 0
    (whole,) = whole_graph(model, x).evaluate([x.numpy()])
    y = joined(of_graph(found, x.numpy(), 2, axis=2), axis=2)
    np.testing.assert_allclose(y, whole, atol=1e-12)


def test_tokens_and_inputs_without_time() -> None:
    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.conv = nn.Embedding(10, 4), Padded(nn.Conv1d(4, 4, 3), 2)

        def forward(self, tokens: torch.Tensor, speaker: torch.Tensor) -> torch.Tensor:
            return self.conv(self.table(tokens).transpose(1, 2)) * speaker[..., None]

    model, tokens, speaker = Speaker().eval(), torch.arange(40)[None] % 10, torch.randn(1, 4)
    fast = sparsejit.compile(model, (tokens, speaker), step=5)
    values = started(fast.graph, fast.states)
    run = fast.run
    steps = streamed(
        lambda given: run([given[0], speaker.numpy(), *given[1:]]), values, tokens.numpy(), 5, -1, 1
    )
    whole = model(tokens, speaker).detach().numpy()
    np.testing.assert_allclose(joined(steps), whole, rtol=1e-5, atol=1e-6)


def test_an_exported_program_of_any_length() -> None:
    model = nn.Sequential(Padded(nn.Conv1d(4, 4, 3), 2), nn.Tanh()).eval()
    x = torch.randn(1, CHANNELS, FRAMES)
    sizes = {"input": {2: torch.export.Dim("time", min=4)}}
    program = torch.export.export(model, (x,), dynamic_shapes=sizes)
    fast = sparsejit.compile(program, (x,), step=4)
    whole = model(x).detach().numpy()
    assert off_by(joined(of_compiled(fast, x.numpy())), whole, fast.delay) < IN_SINGLE


def test_a_file_keeps_step_delay_and_states(tmp_path: Path) -> None:
    model, x = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1).eval(), torch.randn(1, CHANNELS, FRAMES)
    fast = sparsejit.compile(model, (x,), step=8)
    fast.save(tmp_path / "step.sjit")
    loaded = sparsejit.load(tmp_path / "step.sjit")
    assert (loaded.step, loaded.delay) == (fast.step, fast.delay) == (8, 1)
    assert [state.name for state in loaded.states] == ["conv1d.past", "steps.count"]
    for a, b in zip(of_compiled(fast, x.numpy()), of_compiled(loaded, x.numpy()), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("ahead", [0, 1])
def test_recurrent_layers_start_from_a_learned_state(ahead: int) -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = Padded(nn.Conv1d(CHANNELS, CHANNELS, 2), 1 - ahead, ahead)
            self.lstm = nn.LSTM(CHANNELS, CHANNELS, batch_first=True)
            self.h, self.c = (nn.Parameter(torch.randn(1, 1, CHANNELS)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.conv(x).transpose(1, 2)
            return self.lstm(rows, (self.h, self.c))[0].transpose(1, 2)

    model, x = Learned().eval(), torch.randn(1, CHANNELS, FRAMES)
    found = step_of(model, x, 4)
    assert found.made.delay == 4 * ahead
    (whole,) = whole_graph(model, x).evaluate([x.numpy()])
    assert off_by(joined(of_graph(found, x.numpy(), 4)), whole, found.made.delay) < IN_DOUBLE
    initial = [state.initial for state in found.made.states if "state" in state.name]
    np.testing.assert_array_equal(initial[0], model.h.detach().numpy()[0])


def onnx_model(
    nodes: list[onnx.NodeProto], time: int | str, weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """Nodes from x (1, 4, time) to y."""
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "sequence",
        [onnx.helper.make_tensor_value_info("x", float32, [1, 4, time])],
        [onnx.helper.make_tensor_value_info("y", float32, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def test_an_onnx_file_of_one_length_is_refused() -> None:
    model = onnx_model([onnx.helper.make_node("Relu", ["x"], ["y"])], FRAMES, {})
    x = np.zeros((1, 4, FRAMES), np.float32)
    with pytest.raises(InvalidInput, match="step reads the model at 96 and 48 frames"):
        sparsejit.compile(model, (x,), step=4)


def test_a_scan_carries_its_state() -> None:
    """A sum so far with a factor, written as ONNX's loop over frames."""
    float32 = onnx.TensorProto.FLOAT
    info = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Mul", ["h", "factor"], ["kept"]),
            onnx.helper.make_node("Add", ["kept", "part"], ["next"]),
            onnx.helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [info("h", float32, [1, 4]), info("part", float32, [1, 4])],
        [info("next", float32, [1, 4]), info("out", float32, [1, 4])],
        [onnx.numpy_helper.from_array(np.float32(0.9), "factor")],
    )
    scan = {"body": body, "num_scan_inputs": 1, "scan_input_axes": [2], "scan_output_axes": [2]}
    node = onnx.helper.make_node("Scan", ["first", "x"], ["last", "y"], **scan)
    model = onnx_model([node], "time", {"first": np.ones((1, 4), np.float32)})
    x = np.random.default_rng(1).standard_normal((1, 4, FRAMES)).astype(np.float32)
    whole, h = [], np.ones((1, 4))
    for part in np.moveaxis(x, -1, 0):
        h = 0.9 * h + part
        whole.append(h)
    fast = sparsejit.compile(model, (x,), step=4)
    assert off_by(joined(of_compiled(fast, x)), np.stack(whole, -1), 0) < IN_SINGLE


def test_an_onnx_model_with_open_time() -> None:
    weights = np.random.default_rng(0).standard_normal((4, 4, 3)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], pads=[2, 0]),
        onnx.helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = onnx_model(nodes, "time", {"w": weights})
    x = np.random.default_rng(1).standard_normal((1, 4, FRAMES)).astype(np.float32)
    fast = sparsejit.compile(model, (x,), step=4)
    padded = functional.pad(torch.from_numpy(x), (2, 0))
    whole = functional.conv1d(padded, torch.from_numpy(weights)).relu().numpy()
    assert off_by(joined(of_compiled(fast, x)), whole, 0) < IN_SINGLE


REFUSED = {
    "mean": (
        lambda x: x - x.mean(-1, keepdim=True),
        "mean mixes all of time, since it computes mean over the sequence; compute",
    ),
    "softmax": (lambda x: x.softmax(-1), "softmax mixes all of time"),
    "instance norm": (functional.instance_norm, "layer_norm mixes all of time"),
    "flip": (lambda x: x.flip(-1), "embedding takes frames by their number"),
    "sum so far": (lambda x: x.cumsum(-1), "is not the same for every length"),
    "sum so far, used": (lambda x: x.cumsum(-1).relu(), "is not the same for every length"),
    "largest": (lambda x: x.amax(-1), "amax mixes all of time"),
    "first frames": (lambda x: x[..., :20], "is not the same for every length"),
    "last frames": (lambda x: x[..., -2:], "is not the same for every length"),
    "roll": (lambda x: x.roll(1, -1), "beside all frames"),
    "places": (lambda x: x + torch.arange(x.shape[-1]), "which changes along time"),
    "length": (lambda x: x * x.shape[-1], "which depends on the length"),
    "products of frames": (lambda x: x.transpose(1, 2) @ x, "bmm mixes all of time"),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(*(x.transpose(1, 2),) * 3),
        "attention attends to all frames; mask",
    ),
    "attention to all before": (
        lambda x: functional.scaled_dot_product_attention(
            *(x.transpose(1, 2),) * 3, is_causal=True
        ),
        "give a window",
    ),
    "wrapped": (lambda x: functional.pad(x, (2, 2), mode="circular"), "has no last frames"),
    "flattened": (lambda x: x.flatten(1), "time inside of another axis"),
    "last frame ahead": (lambda x: functional.max_pool1d(x, 3, 1, 1)[..., -1], "looks ahead"),
    "uneven means": (
        lambda x: functional.avg_pool1d(x, 3, 1, 1, count_include_pad=False),
        "count the padding",
    ),
    "two lengths": (lambda x: torch.cat([x, x], -1), "joins frames along time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_read_all_frames_are_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(UnsupportedOperator, match=message) as found:
        step_of(Of(function).eval(), torch.randn(1, CHANNELS, FRAMES), 4)
    if name != "flattened":
        assert "test_steps.py" in str(found.value)


def test_a_bidirectional_layer_is_refused_by_its_name() -> None:
    model = nn.Sequential(TimeFirst(nn.LSTM(4, 2, bidirectional=True, batch_first=True))).eval()
    message = r"0\.layer.*recurrence runs from the last frame to the first; make it unidirectional"
    with pytest.raises(UnsupportedOperator, match=message):
        step_of(model, torch.randn(1, CHANNELS, FRAMES), 4)


def test_a_state_behind_layers_that_look_ahead_is_refused() -> None:
    class Ahead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 3, padding=1)
            self.gru = nn.GRU(4, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.gru(self.conv(x).transpose(1, 2))

    with pytest.raises(UnsupportedOperator, match=r"gru.*look ahead"):
        step_of(Ahead().eval(), torch.randn(1, CHANNELS, FRAMES), 4)


def test_a_given_first_state_is_refused() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 4, batch_first=True)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.gru(x, h)[0]

    with pytest.raises(UnsupportedOperator, match="leave it out"):
        sparsejit.compile(Given().eval(), (FRAMES_FIRST, torch.zeros(1, 1, 4)), step=4, axis=1)


def test_a_step_is_a_multiple_of_the_strides() -> None:
    layers = nn.Conv1d(4, 4, 3, stride=2), nn.Conv1d(4, 4, 3, stride=3), nn.AvgPool1d(2)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, CHANNELS, FRAMES)
    with pytest.raises(InvalidInput, match=r"step=8 .* a multiple of 12"):
        sparsejit.compile(model, (x,), step=8)
    assert sparsejit.compile(model, (x,), step=24).step == 24


WRONG = (
    ({"step": 0}, "step=0"),
    ({"step": 2.0}, "step=2.0"),
    ({"step": 4, "axis": 3}, "axis=3"),
    ({"step": 4, "window": 0}, "window=0"),
    ({"step": 4, "free_shapes": True}, "leave out"),
    ({"step": 4, "state": {"x": "y"}}, "leave out"),
)


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_steps_are_refused(options: dict[str, object], message: str) -> None:
    model, x = nn.Conv1d(CHANNELS, CHANNELS, 3).eval(), torch.randn(1, CHANNELS, FRAMES)
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(model, (x,), **options)  # type: ignore[call-overload]


# Operators with a rule of their own. All others compute frames apart where samples may lie, and
# are refused by name elsewhere.
WITH_RULES = {
    *("Convolution", "Pooling", "Recurrence", "Turns", "Reshape", "Slice", "Concat", "Pad"),
    *("Attention", "Embedding"),
}
APART_OR_REFUSED = {
    *("ArgMax", "Bmm", "ByteAttention", "CachedAttention", "Cast", "Chain", "ChannelMeans"),
    *("ColumnProducts", "Contributions", "JoinedColumns", "PowerColumns", "RowNorm"),
    *("Distances", "DoubleProduct", "Draw", "DynamicConvolution"),
    *("EmbeddingBag", "Expand", "Forest", "GruStep"),
    *("Linear", "NormalisedColumns", "OwnRows", "Permute", "PiecewiseColumns", "PlacedRows"),
    *("Pointwise", "Predict"),
    *("Quantise", "Reconstruct", "ScaledChannels", "ScaledColumns", "SumOfRows", "TopK"),
    *("TreeDraw", "TruePlaces", "Uniform", "UniformRow"),
}


def test_every_operator_has_a_rule_for_time() -> None:
    own = {name for name, op in OPERATORS.items() if op.time_rule is not Operator.time_rule}
    assert own == WITH_RULES
    assert OPERATORS.keys() - own == APART_OR_REFUSED


def test_a_stream_joins_the_steps_of_a_block_along_time(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 3, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(1, 4, 40)
    fast = sparsejit.compile(model, (x,), step=8)
    fast.save(tmp_path / "step.sjit")
    whole = model(x).detach()[:, :, : -fast.delay]
    for own in (fast, sparsejit.load(tmp_path / "step.sjit")):
        stream = own.stream()
        pieces = [stream.run(piece) for piece in x.split(11, dim=-1)]
        y = torch.cat([*pieces, stream.run(torch.zeros(1, 4, 4))], -1)
        torch.testing.assert_close(y[:, :, fast.delay :][:, :, : whole.shape[-1]], whole)
    with pytest.raises(InvalidInput, match="make a stream"):
        fast(x[:, :, :8])
