"""States of models: named, found by names, and buffers that a torch module changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

import sparsejit
from sparsejit.api.models import code_cache
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.compiler import ModelCompiler
from sparsejit.api.models.model_file import KIND, model_to_data
from sparsejit.artefact import sealed
from sparsejit.commands.cli import app
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.states import RULES

STEPS = 20
RATE, STATE, CACHE = {"sr": 16000}, (2, 1, 128), (1, 128, 19, 1)


class Stateful(nn.Module):
    """A module whose forward is a function of it and the inputs, with these buffers."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        self.layer, self.cell = nn.Linear(4, 4), nn.GRUCell(4, 4)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def hidden(m: Any, x: Tensor) -> Tensor:
    m.h = m.cell(x, m.h)
    return m.layer(m.h)


def hidden_in_place(m: Any, x: Tensor) -> Tensor:
    m.h.copy_(m.cell(x, m.h))
    return m.layer(m.h) + m.h


def delayed(m: Any, x: Tensor) -> Tensor:
    """The output is the state before, and the next state is the input itself."""
    y = m.h
    m.h = x
    return y


def delayed_twice(m: Any, x: Tensor) -> Tensor:
    """A line of two delays, whose views are read after both are assigned."""
    one, two = m.one, m.two.transpose(0, 1)
    m.one = x
    m.two = one
    return torch.cat([one, two.T], 1)[:, ::2] + m.layer(m.one) + m.two


def swapped(m: Any, x: Tensor) -> Any:
    m.one, m.two = m.two, m.one
    m.one = m.one + x
    return m.two[:, :4]


def added(m: Any, x: Tensor) -> Tensor:
    m.h += m.layer(x)
    return m.h.tanh()


def through_a_view(m: Any, x: Tensor) -> Tensor:
    m.h.view(-1).add_(x[0])
    first, second = m.h.chunk(2, 1)
    first.mul_(0.5)
    return m.layer(m.h) + second.sum()


def part_written(m: Any, x: Tensor) -> Tensor:
    m.h[:, :2] = m.h[:, 2:] * 0.5
    m.h[:, 2:] = x[:, :2]
    return m.layer(m.h)


def rolled(m: Any, x: Tensor) -> Tensor:
    m.ring.copy_(torch.roll(m.ring, -1, 1))
    m.ring[:, -1] = x
    return m.layer(m.ring).sum(1)


def shifted(m: Any, x: Tensor) -> Tensor:
    m.ring = torch.cat([m.ring[:, 1:], x[:, None]], 1)
    return m.layer(m.ring).amax(1)


def convolved(m: Any, x: Tensor) -> Tensor:
    """A causal convolution whose past is a buffer."""
    whole = torch.cat([m.ring, x[:, None]], 1)
    m.ring.copy_(whole[:, -5:])
    weight = m.layer.weight[:, :, None].repeat(1, 1, 6)
    return functional.conv1d(whole.transpose(1, 2), weight)[:, :, 0]


def ring_by_position(m: Any, x: Tensor) -> Tensor:
    m.ring[:, m.position] = x[:, None]
    m.position = (m.position + 1) % 5
    return m.layer(m.ring).sum(1)


def attended(m: Any, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention over the filled positions of a cache, as static caches of decoders have it."""
    mask = torch.arange(keys.shape[2])[None] <= m.position
    y = functional.scaled_dot_product_attention(x.view(1, 2, 1, 2), keys, values, mask)
    m.position += 1
    return y.reshape(1, 4)


def index_copied(m: Any, x: Tensor) -> Tensor:
    key, value = m.layer(x).view(1, 2, 1, 2), x.view(1, 2, 1, 2)
    m.keys.index_copy_(2, m.position, key)
    m.values.index_copy_(2, m.position, value)
    return attended(m, x, m.keys, m.values)


def index_put(m: Any, x: Tensor) -> Tensor:
    m.keys[:, :, m.position] = m.layer(x).view(1, 2, 1, 2)
    m.values.index_put_((torch.tensor([0]), torch.tensor([1]), m.position), x[:, :2])
    return attended(m, x, m.keys, m.values)


def slice_scattered(m: Any, x: Tensor) -> Tensor:
    m.keys = torch.slice_scatter(m.keys, m.layer(x).view(1, 2, 1, 2), 2, 3, 4)
    m.values[:, :, 7:] = torch.slice_scatter(m.values[:, :, 7:], x.view(1, 2, 1, 2), 2, 0, 1)
    return attended(m, x, m.keys, m.values)


def counted(m: Any, x: Tensor) -> Tensor:
    """Whole numbers that wrap, and a flag."""
    m.bytes += 100
    m.seen |= x > 0
    return x * m.bytes + m.seen


def halves(m: Any, x: Tensor) -> Tensor:
    m.short.copy_(0.75 * m.short.float() + x)
    m.wide += x.double() / 3
    return m.short.float() + m.wide.float()


def written_by_broadcasting(m: Any, x: Tensor) -> Tensor:
    m.h.copy_(x[0, :1] + m.h.sum(1))
    m.count.copy_(x.sum() * 1000)
    return m.layer(m.h) + m.count


def reset(m: Any, x: Tensor) -> Tensor:
    """A state that a call writes without reading it, and one that it resets."""
    m.one = x * 2
    m.two.zero_()
    return m.one + m.two


def turned(m: Any, x: Tensor) -> Tensor:
    m.phase *= torch.view_as_complex(x.view(1, 2, 2)) * 0.25 + 1
    return torch.view_as_real(m.phase).reshape(1, 4)


def cache(**others: Tensor) -> dict[str, Tensor]:
    return {"keys": torch.zeros(1, 2, 24, 2), "values": torch.zeros(1, 2, 24, 2), **others}


H, RING = torch.arange(4.0)[None], torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1))
POSITION = torch.tensor([0])
MODULES: dict[Callable[..., Any], dict[str, Tensor]] = {
    **dict.fromkeys((hidden, hidden_in_place, delayed, added, through_a_view, part_written)),
    **{each: {"ring": RING} for each in (rolled, shifted, convolved)},
    **{each: {"one": H, "two": H + 4} for each in (delayed_twice, swapped)},
    ring_by_position: {"ring": RING, "position": torch.tensor([3])},
    **dict.fromkeys((index_copied, index_put, slice_scattered), cache(position=POSITION)),
    counted: {"bytes": torch.tensor([7], dtype=torch.uint8), "seen": torch.zeros(1, 4).bool()},
    written_by_broadcasting: {"h": H, "count": torch.tensor([5], dtype=torch.int16)},
    reset: {"one": H, "two": H},
    halves: {"short": torch.ones(1, 4).half(), "wide": torch.ones(1, 4).double()},
    turned: {"phase": torch.ones(1, 2, dtype=torch.complex64)},
}


# They follow the batch of their inputs.
OF_ANY_BATCH = (
    *(hidden, hidden_in_place, delayed, added, part_written, rolled, shifted, convolved),
    *(delayed_twice, swapped, halves),
)


def module_of(function: Callable[..., Any]) -> Stateful:
    torch.manual_seed(0)
    buffers = MODULES[function] or {"h": H}
    return Stateful(function, **{name: value.clone() for name, value in buffers.items()}).eval()


def steps_of(fast: CompiledModel, xs: list[Tensor]) -> list[np.ndarray]:
    """The outputs of all steps, with states carried from call to call."""
    states = [each.initial.repeat(len(xs[0]), 0) for each in fast.states]
    outputs = []
    for x in xs:
        y, *states = fast.run([x, *states])
        outputs.append(y)
    return outputs


@pytest.mark.parametrize("function", MODULES, ids=lambda each: each.__name__)
def test_buffers_that_a_module_changes_are_states(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    model, x = module_of(function), torch.randn(1, 4)
    before = {name: value.clone() for name, value in model.named_buffers()}
    fast = sparsejit.compile(model, (x,))
    assert {name: value.equal(before[name]) for name, value in model.named_buffers()} == (
        dict.fromkeys(before, True)
    )
    assert {each.name for each in fast.states} == before.keys()
    path = tmp_path / "model.sjit"
    fast.save(path)
    assert fast.batch_is_free == (function in OF_ANY_BATCH)
    streams = 3 if fast.batch_is_free else 1
    xs, wanted = torch.randn(STEPS, streams, 4), np.zeros((STEPS, streams, 4), np.float32)
    for stream in range(streams):
        alone = module_of(function)
        with torch.no_grad():
            for step, x in enumerate(xs):
                wanted[step, stream] = alone(x[stream : stream + 1])[0]
    for each in (fast, sparsejit.load(path)):
        found = steps_of(each, list(xs))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


class Causal(nn.Module):
    """A causal convolution that keeps its past, by assignment."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, 3, dilation=dilation)
        self.register_buffer("past", torch.zeros(1, 4, 2 * dilation))

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.cat([self.past, x], 2)
        self.past = whole[:, :, -self.past.shape[2] :]
        return self.convolution(whole).relu()


def test_buffers_of_layers_are_states() -> None:
    """torch.export loses what a layer assigns to its buffers."""
    layers = nn.Sequential(Causal(1), nn.Identity(), Causal(3)).eval()
    xs = torch.randn(STEPS, 1, 4, 5)
    fast = sparsejit.compile(layers, (xs[0],))
    assert {each.name for each in fast.states} == {"0.past", "2.past"} and fast.batch_is_free
    with torch.no_grad():
        wanted = [layers(x).numpy() for x in xs]
    np.testing.assert_allclose(steps_of(fast, list(xs)), wanted, rtol=1e-5, atol=1e-5)


class Decoder(nn.Module):
    """A decoder of one layer, with rotations, whose caches and position are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 16), nn.RMSNorm(16)
        self.all, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 4, 24, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64), persistent=False)
        angles = torch.arange(24.0)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
        self.register_buffer("angles", angles)

    def forward(self, tokens: Tensor, place: Tensor | None = None) -> Tensor:
        at = self.place if place is None else place
        x = self.words(tokens)
        q, k, v = (
            each.unflatten(2, (4, 4)).transpose(1, 2) for each in self.all(self.norm(x)).chunk(3, 2)
        )
        cos, sin = self.angles[at].cos(), self.angles[at].sin()
        q, k = (each * cos + torch.cat([-each[..., 2:], each[..., :2]], 3) * sin for each in (q, k))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(24)[None] <= at[:, None]
        y = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        if place is None:
            self.place += 1
        return (x + self.out(y.transpose(1, 2).flatten(2))) @ self.words.weight.T


@pytest.mark.parametrize("is_given", [False, True])
def test_a_decoder_with_static_caches(is_given: bool) -> None:
    """Its position is a buffer, or an input, as transformers' cache_position is."""
    torch.manual_seed(0)
    model, tokens = Decoder().eval(), torch.randint(0, 50, (STEPS, 1, 1))
    calls = [(t, torch.tensor([n])) if is_given else (t,) for n, t in enumerate(tokens)]
    fast = sparsejit.compile(model, calls[-1])
    assert len(fast.states) == 3 - is_given and fast.batch_is_free == is_given
    states = [each.initial for each in fast.states]
    for call in calls:
        y, *states = fast.run([*call, *states])
        with torch.no_grad():
            np.testing.assert_allclose(y, model(*call), rtol=1e-4, atol=2e-5)


def test_buffers_of_several_samples() -> None:
    """The batch, on axis 1 of a layer's state, is free where all samples start alike."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y, m.h = m.gru(x, m.h)
        return y

    for start, is_free in ((torch.zeros(1, 3, 4), True), (torch.randn(1, 3, 4), False)):
        model = Stateful(forward, h=start.clone())
        model.gru = nn.GRU(4, 4, batch_first=True)
        model.eval()
        fast = sparsejit.compile(model, (torch.randn(3, 5, 4),))
        assert fast.batch_is_free == is_free
        (state,) = fast.states
        assert state.initial is not None and state.initial.shape == (1, 1 if is_free else 3, 4)
        x = torch.randn(3, 5, 4)
        y, h = fast.run([x, start])
        with torch.no_grad():
            wanted, _ = model.gru(x, start)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(h[0], wanted[:, -1], rtol=1e-5, atol=1e-5)


def test_a_call_and_data_are_refused_where_buffers_change() -> None:
    class Cell(Stateful):
        def forward(self, x: Tensor) -> Tensor:
            return hidden(self, x)

    model, x = Cell(hidden, h=H.clone()).eval(), torch.randn(1, 4)
    fast = sparsejit.compile(model, (x,))
    with pytest.raises(InvalidInput, match=r"keeps state \(h\); make a stream: .*fast\.stream"):
        fast(x)
    with pytest.raises(InvalidInput, match=r"keeps state \(h\)"):
        fast.accuracy([x])
    assert "state h: a buffer that the model changes" in str(fast.explain())
    for options in ({"free_shapes": True}, {"dynamic_shapes": {"x": {0: "batch"}}}):
        with pytest.raises(InvalidInput, match=r"changes buffers \(h\)"):
            sparsejit.compile(model, (x,), **options)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match=r"changes buffers \(h\)"):
        sparsejit.quantise(model, [x])


def test_buffers_of_an_exported_program_and_beside_given_states() -> None:
    def forward(m: Any, x: Tensor, c: Tensor) -> dict[str, Tensor]:
        m.h = m.cell(x, m.h)
        return {"y": m.h + c, "cn": c * 0.5 + x}

    model = Stateful(forward, h=H.clone()).eval()
    x, c = torch.randn(1, 4), torch.randn(1, 4)
    program = torch.export.export(model, (x, c))
    text = str(program)
    for each in (model, program):
        fast = sparsejit.compile(each, (x, c), state={1: "cn"})
        assert [(s.name, s.input, s.output) for s in fast.states][1:] == [("h", 2, 2)]
        (y, cn, h) = fast.run([x, c, H])
        wanted = model.cell(x, H).detach()
        np.testing.assert_allclose(h, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y, wanted + c, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(cn, c * 0.5 + x, rtol=1e-5, atol=1e-6)
    assert str(program) == text


def test_a_buffer_that_shares_memory_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.h.add_(x)
        return m.part * x

    model = Stateful(forward, h=H.clone()).eval()
    model.register_buffer("part", model.h[:, :4])
    with pytest.raises(InvalidInput, match=r"changes 'h' .* shares memory with part"):
        sparsejit.compile(model, (torch.randn(1, 4),))


class Nested(nn.Module):
    """A step with nests of states."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor], gain: Any = None) -> Any:
        h, c = self.cell(x, state)
        return h.tanh(), {"now": (h, c), "all": [h, c, x], "short": h[:, :4], "half": h.half()}


@pytest.fixture(scope="module")
def nested() -> Callable[[Any], CompiledModel]:
    model, z = Nested().eval(), torch.zeros(1, 6)
    return lambda state: sparsejit.compile(model, (torch.zeros(1, 4), (z, z + 0)), state=state)


@pytest.mark.parametrize(
    ("given", "tied"),
    [
        ({"state": "1.now"}, {1: 1, 2: 2}),
        ({1: "1.now"}, {1: 1, 2: 2}),
        ({"state": "1['now']"}, {1: 1, 2: 2}),
        ({"state[0]": "1.all[0]", "state.1": "1['now'].1"}, {1: 3, 2: 2}),
        ({"1.1": 0}, {2: 0}),
        ({"x": "1.all.2"}, {0: 5}),
        ({}, {}),
    ],
)
def test_states_are_named_by_argument_position_and_path(
    given: Any, tied: dict[int, int], nested: Callable[[Any], CompiledModel]
) -> None:
    fast = nested(given)
    assert {each.input: each.output for each in fast.states} == tied
    names = ["x", "state.0", "state.1"]
    assert [each.name for each in fast.states] == [names[number] for number in tied]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stat": "1.now"}, "names input 'stat'; .* x, state.0, state.1.*did you mean 'state'"),
        ({"state": "now"}, "names output 'now'; the outputs are 0, 1.now.0"),
        ({3: 0}, "names input 3; .* from 0 to 1"),
        ({True: 0}, "names input True"),
        ({"state": 1}, r"input 'state' \(0, 1\) to output 1 \(now.0, .* give two of the same form"),
        ({"state": "1.all"}, "give two of the same form"),
        ({"x": 0}, r"state x is float32\[1, 4\] before a call and float32\[1, 6\] after it"),
        ({"state.0": "1.half"}, r"state.0 is float32.* before a call and float16 after it"),
        ({"state": "1.now", "state.0": 0}, r"input 1 belongs to two states \(state.0\)"),
        ({"state.0": 0, "state.1": "0"}, "output 0 belongs to two states"),
        ("found", "state='found'; give a dict .* or 'auto'"),
        (["state"], "state is a list; give a dict"),
        ("auto", "finds no state: .* The inputs are x, state.0, state.1; the outputs are 0, 1.now"),
    ],
)
def test_states_that_are_none_are_refused(
    given: Any, message: str, nested: Callable[[Any], CompiledModel]
) -> None:
    with pytest.raises(InvalidInput, match=message):
        nested(given)


def test_a_state_whose_batch_moves_is_refused() -> None:
    class Moves(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return x * 2, (h + x).transpose(0, 1)

    example = torch.randn(3, 3), torch.randn(3, 3)
    with pytest.raises(InvalidInput, match=r"on axis 0 before a call, and on axis 1 after it"):
        sparsejit.compile(Moves(), example, state={"h": 1})
    fast = sparsejit.compile(Moves().eval(), example, state={"h": 1}, free_batch=False)
    assert not fast.batch_is_free and len(fast.states) == 1


def test_a_model_in_parts_keeps_no_state(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="state is given with fallback='onnxruntime'"):
        sparsejit.compile(
            step_file(tmp_path / "step.onnx", "h", "hn"), state="auto", fallback="onnxruntime"
        )


def step_file(file: Path, before: str, after: str, first: str = "x", out: str = "y") -> Path:
    """out = tanh(first + before), and after = out * first, in an ONNX file."""
    pytest.importorskip("onnx")
    import onnx
    from onnx import TensorProto, helper

    x, h, y, hn = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8])
        for name in (first, before, out, after)
    )
    nodes = [
        helper.make_node("Add", [first, before], ["sum"]),
        helper.make_node("Tanh", ["sum"], [out]),
        helper.make_node("Mul", [out, first], [after]),
    ]
    graph = helper.make_graph(nodes, "step", [x, h], [y, hn])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(file))
    return file


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(("h", "hn"), ("c0", "cn"), ("h_0", "h_n"), ("state", "stateN"), ("h_in", "h_out")),
        *(("in_cache0", "out_cache0"), ("att_cache", "r_att_cache"), ("mem", "mem_out")),
        *(("cache_last_channel", "cache_last_channel_next"), ("state0", "next_state0")),
        *(("cache_last_channel_len", "cache_last_channel_next_len"), ("pos", "pos_new")),
        *(("cached_key_0", "new_cached_key_0"), ("input_states_1", "output_states_1")),
        *(("past_key_values.0.key", "present.0.key"), ("past_key_self_0", "present_key_self_0")),
        ("strange", "other"),  # by its shape alone
    ],
)
def test_names_of_exporters_tell_states(before: str, after: str, tmp_path: Path) -> None:
    fast = sparsejit.compile(step_file(tmp_path / "step.onnx", before, after), state="auto")
    (state,) = fast.states
    assert (state.name, state.input, state.output, state.initial) == (before, 1, 1, None)
    assert f"takes {after}, by its {'shape' if before == 'strange' else 'name'}" in state.origin
    assert f"state {before}: takes {after}" in str(fast.explain())


def test_each_row_of_names_is_tried() -> None:
    marks = test_names_of_exporters_tell_states.pytestmark[0]
    for rule in RULES:
        pairs = ((re.fullmatch(rule.before, before), after) for before, after in marks.args[1])
        assert any(match and match.expand(rule.after) == after for match, after in pairs), rule


def test_the_data_of_a_call_is_no_state(tmp_path: Path) -> None:
    """x and x_out have the names of a state and its next value."""
    file = step_file(tmp_path / "step.onnx", "mem", "mem_out", "x", "x_out")
    (state,) = sparsejit.compile(file, state="auto").states
    assert state.name == "mem"


def test_a_file_with_states_is_compiled_once(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, "64")
    file = step_file(tmp_path / "step.onnx", "h", "hn")
    first = sparsejit.compile(file, state="auto")
    plain = sparsejit.compile(file)
    named = sparsejit.compile(file, state={"h": "hn"})

    def fails(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is read again")

    monkeypatch.setattr(ModelCompiler, "compiled", fails)
    for state, model in (("auto", first), (None, plain), ({"h": "hn"}, named)):
        again = sparsejit.compile(file, state=state)
        assert list(map(str, again.states)) == list(map(str, model.states))
    with pytest.raises(AssertionError, match="read again"):
        sparsejit.compile(file, state={"h": "y"})


@pytest.mark.parametrize(
    ("name", "options", "tied", "shapes"),
    [
        (name, options, tied, shapes)
        for names, options, tied, shapes in (
            (("silero_vad", "silero_vad_16k_op15"), {"constants": RATE}, {1: 1}, [(1, 576), STATE]),
            (("dtln_1", "dtln_2"), {}, {1: 1}, []),
            (("gtcrn_simple",), {}, {1: 1, 2: 2, 3: 3}, []),
            (("fsmnvad-online",), {}, {1: 1, 2: 2, 3: 3, 4: 4}, [(1, 10, 400), *[CACHE] * 4]),
        )
        for name in names
    ],
)
def test_trained_files_have_their_states(
    name: str, options: Any, tied: dict[int, int], shapes: list[tuple[int, ...]]
) -> None:
    """By names of the file, and found; steps that carry them equal ONNX Runtime's."""
    path = Path(__file__).parents[3] / "shared" / "data" / "onnx" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = [each.name for each in session.get_outputs()]
    inputs = [each.name for each in session.get_inputs() if each.name not in RATE]
    examples = tuple(np.zeros(shape, np.float32) for shape in shapes) or None
    given = {inputs[before]: outputs[after] for before, after in tied.items()}
    named = sparsejit.compile(path, examples, state=given, **options)
    fast = sparsejit.compile(path, examples, state="auto", **options)
    for each in (named, fast):
        assert {state.input: state.output for state in each.states} == tied
        assert [state.name for state in each.states] == [inputs[number] for number in tied]
    random = np.random.default_rng(0)
    shapes = shapes or [tuple(each.shape) for each in session.get_inputs()]
    ours = theirs = [np.zeros(shapes[number], np.float32) for number in tied]
    rate = {key: np.array(value, np.int64) for key, value in options.get("constants", {}).items()}
    for _ in range(STEPS):
        x = random.standard_normal(shapes[0], np.float32) * 0.5
        wanted = session.run(None, {**dict(zip(inputs, [x, *theirs], strict=True)), **rate})
        found = fast.run([x, *ours])
        ours, theirs = ([made[number] for number in tied.values()] for made in (found, wanted))
        for result, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(result, want, atol=1e-4 * max(1.0, np.abs(want).max()))


def forge(header: Any, change: str) -> None:
    """Damage the states in the header of a model with one input and the buffers one and two."""
    first, second = header["states"]
    if change == "no place":
        first.update(input=3, output=3)
    if change == "swapped":
        header["states"] = [second, first]
    if change == "one output for two":
        second.update(output=first["output"])
    if change == "two initials":
        first.update(initial=[*first["initial"], *second["initial"]])
    if change == "of the call":
        first.update(input=0)
    if change == "negative":
        first.update(input=-1)
    if change == "none":
        header["states"] = []
    if change == "one name":
        second.update(name=first["name"])
    if change == "a text":
        first.update(input="1")


@pytest.mark.parametrize(
    "change",
    [
        *("no place", "swapped", "one output for two", "another initial", "two initials"),
        *("of the call", "negative", "none", "one name", "a text"),
    ],
)
def test_a_file_of_other_states_is_refused(change: str, tmp_path: Path) -> None:
    model = Stateful(delayed_twice, one=H.clone(), two=torch.cat([H, H], 1)[:, 2:6]).eval()
    fast = sparsejit.compile(model, (torch.randn(1, 4),))
    header, tensors = model_to_data(fast.source())
    header = json.loads(json.dumps(header))
    if change == "another initial":
        initial = header["states"][1]["initial"][0]
        tensors = {**tensors, str(initial["tensors"][0]): np.ones((4, 1), np.float32)}
        initial.update(shape=[4, 1])
    else:
        forge(header, change)
    sealed.write(tmp_path / "m.sjit", KIND, header, tensors)
    with pytest.raises(DamagedFile):
        sparsejit.load(tmp_path / "m.sjit")


def invoked(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments], terminal_width=200)


def test_the_command_line_takes_states(tmp_path: Path) -> None:
    file = step_file(tmp_path / "step.onnx", "h", "hn")
    for given in ("auto", "h=hn", "1=1"):
        checked = invoked("check", file, "--state", given)
        assert checked.exit_code == 0 and "state h: takes hn" in checked.stdout
        told = invoked("explain", file, "--state", given)
        assert told.exit_code == 0 and "state h: takes hn" in told.stdout
    saved = tmp_path / "step.sjit"
    assert invoked("compile", file, "--state", "h=hn", "--out", saved).exit_code == 0
    assert [each.name for each in sparsejit.load(saved).states] == ["h"]
    assert "state h: takes hn" in invoked("check", saved).stdout
    refused = invoked("explain", saved, "--state", "auto")
    assert isinstance(refused.exception, InvalidInput) and "leave out --state" in str(
        refused.exception
    )
    for words in (["h"], ["h=hn", "h=y"], ["=hn"], ["auto", "h=hn"]):
        options = [part for word in words for part in ("--state", word)]
        refused = invoked("check", file, *options)
        assert isinstance(refused.exception, InvalidInput) and "state" in str(refused.exception)
