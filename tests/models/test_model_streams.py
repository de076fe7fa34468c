"""Streams: models whose states stay inside from call to call."""

import copy
import gc
import pickle
import tracemalloc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from streaming_files import FOLDER, STATES, Rival

import sparsejit
from sparsejit.api.models.stepped import layout_of
from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.native_call import address_table, new_workspace
from sparsejit.runtime.program import build
from sparsejit.runtime.python_objects import emit_call
from sparsejit.runtime.state_step import emit_step, emit_steps

ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]
SILENCE, RNG = 1e-6, np.random.default_rng(0)


def frames(*shape: int) -> np.ndarray:
    return (0.5 * RNG.standard_normal(shape)).astype(np.float32)


def gru(**options: Any) -> Any:
    """One step a call: x (batch, 1, 5) and a state that has its batch on axis 1."""
    module = torch.nn.GRU(5, 8, batch_first=True).eval()
    given = torch.zeros(2, 1, 5), torch.zeros(1, 2, 8)
    return sparsejit.compile(module, given, state={1: 1}, **options)


def lstm() -> Any:
    """Two states in a tuple."""
    module = torch.nn.LSTM(5, 8, batch_first=True).eval()
    states = torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)
    return sparsejit.compile(module, (torch.zeros(2, 1, 5), states), state={1: 1})


class Decay(torch.nn.Module):
    """A state that fades away; `gain` scales the result."""

    def forward(self, x: Any, gain: Any, state: Any) -> Any:
        state = 0.5 * state + x
        return {"y": state * gain, "twice": 2 * x, "state": state}


def decay(**options: Any) -> Any:
    zeros = torch.zeros(1, 4)
    return sparsejit.compile(Decay().eval(), (zeros, zeros, zeros), state={2: 2}, **options)


def by_hand(fast: Any, xs: Sequence[Any], h: Any) -> tuple[list[Any], Any]:
    ys = []
    for x in xs:
        y, h = fast(x, h)
        ys.append(y)
    return ys, h


def test_a_step_equals_the_model_fed_its_own_states() -> None:
    fast = gru()
    stream, xs = fast.stream(), frames(6, 1, 1, 5)
    wanted, h = by_hand(fast, xs, np.zeros((1, 1, 8), np.float32))
    np.testing.assert_array_equal([stream(x) for x in xs], wanted)
    (name,) = stream.state
    np.testing.assert_array_equal(stream.state[name], h)
    stream.reset()
    found = [stream(torch.from_numpy(x)) for x in xs]
    assert all(isinstance(each, torch.Tensor) for each in found)
    np.testing.assert_array_equal(torch.stack(found), wanted)


def test_states_in_a_nest_leave_the_arguments_and_the_results() -> None:
    fast = lstm()
    stream, xs = fast.stream(), frames(4, 1, 1, 5)
    states = np.zeros((1, 1, 8), np.float32), np.zeros((1, 1, 8), np.float32)
    wanted, states = by_hand(fast, xs, states)
    np.testing.assert_array_equal([stream(x) for x in xs], wanted)
    np.testing.assert_array_equal(list(stream.state.values()), states)
    left = decay().stream()(frames(1, 4), frames(1, 4))
    assert list(left) == ["y", "twice"]


class Pair(NamedTuple):
    y: Any
    states: Any
    z: Any


class Nested(torch.nn.Module):
    """States by name and in a dict, with other arguments between them."""

    def forward(self, both: Any, *, h: Any, gain: Any, more: Any) -> Any:
        x, c = both
        h, c = 0.5 * h + x, c + 1.0
        results = {"pair": Pair(h * gain, (h, c), more["m"] + x), "m": 2 * more["m"]}
        return results, [c * x]


def test_states_by_name_in_named_tuples_and_dicts() -> None:
    zeros = torch.zeros(1, 3)
    named = {"h": zeros, "gain": zeros, "more": {"m": zeros}}
    tied = {"both.1": "0.pair.states.1", "h": "0.pair.states.0", "more.m": "0.m"}
    fast = sparsejit.compile(
        Nested().eval(), ((zeros, zeros),), example_kwargs=named, state=tied
    )
    assert [state.input for state in fast.states] == [1, 2, 4]
    stream, h, c, m = fast.stream(), *frames(3, 1, 3)
    stream.state = dict(zip(stream.state, (c, h, m), strict=True))
    for _ in range(3):
        x, gain = frames(1, 3), frames(1, 3)
        wanted, (product,) = fast((x, c), h=h, gain=gain, more={"m": m})
        pair, (found,) = stream((x,), gain=gain)
        assert list(pair) == ["pair"] and pair["pair"]._fields == ("y", "z")
        np.testing.assert_array_equal(pair["pair"], (wanted["pair"].y, wanted["pair"].z))
        np.testing.assert_array_equal(found, product)
        (h, c), m = wanted["pair"].states, wanted["m"]
    np.testing.assert_array_equal(list(stream.state.values()), (c, h, m))
    twice = stream.run((np.concatenate([frames(1, 3), frames(1, 3)], 1),), gain=frames(1, 3))
    assert twice[0]["pair"].y.shape == (2, 1, 3)


@pytest.mark.parametrize("batch", [2, 5, 17])
def test_samples_of_a_batch_are_streams(batch: int) -> None:
    fast = gru()
    stream, xs = fast.stream(batch), frames(4, batch, 1, 5)
    wanted, h = by_hand(fast, xs, np.zeros((1, batch, 8), np.float32))
    np.testing.assert_array_equal([stream(x) for x in xs], wanted)
    (state,) = stream.state.values()
    np.testing.assert_array_equal(state, h)
    again = fast.stream(batch)
    np.testing.assert_array_equal(again.run(np.concatenate(xs, 1)), wanted)
    x, y = xs[0].copy(), np.empty((batch, 1, 8), np.float32)
    step = stream.bind([x], [y])
    step()
    np.testing.assert_array_equal(y, fast(x, h)[0])


def test_a_batch_on_another_axis_is_moved() -> None:
    module = torch.nn.GRU(5, 8).eval()
    given = torch.zeros(1, 2, 5), torch.zeros(1, 2, 8)
    fast = sparsejit.compile(module, given, state={1: 1})
    xs = frames(3, 1, 4, 5)
    wanted, _ = by_hand(fast, xs, np.zeros((1, 4, 8), np.float32))
    np.testing.assert_array_equal([fast.stream(4)(xs[0])], wanted[:1])
    found = fast.stream(4).run(np.concatenate(xs), out_axis=0)
    np.testing.assert_array_equal(found, np.concatenate(wanted))
    streams = fast.streams(4)
    ids = [streams.join() for _ in range(4)]
    near = streams.step(ids, xs[0])
    np.testing.assert_allclose(near, wanted[0], atol=1e-6)
    each = streams.step({number: xs[1][:, n : n + 1] for n, number in enumerate(ids)})
    np.testing.assert_allclose(np.concatenate(list(each.values()), 1), wanted[1], atol=1e-6)


@pytest.mark.parametrize("pieces", [(30,), (1,) * 30, (7, 0, 2, 1, 20), (4, 11, 15)])
def test_blocks_of_any_length_equal_steps(pieces: tuple[int, ...]) -> None:
    fast = decay()
    samples, gain = frames(1, 30), frames(1, 4)
    whole, stream = fast.stream(), fast.stream()
    wanted = [whole(samples[:, n : n + 4], gain)["y"] for n in range(0, 28, 4)]
    ends = np.cumsum(pieces)
    found = [
        stream.run(samples[:, end - size : end], gain, out_axis=-1)["y"]
        for size, end in zip(pieces, ends, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(found, 1), np.concatenate(wanted, 1))
    np.testing.assert_array_equal(stream.state["state"], whole.state["state"])


def test_a_block_has_inputs_for_each_step_or_for_all() -> None:
    stream, samples = decay().stream(), frames(1, 12)
    gains = frames(3, 1, 4)
    each = stream.run(torch.from_numpy(samples), torch.from_numpy(gains))
    assert each["y"].shape == (3, 1, 4)
    stream.reset()
    for n, gain in enumerate(gains):
        wanted = stream(samples[:, 4 * n : 4 * n + 4], gain)
        np.testing.assert_array_equal(each["y"][n], wanted["y"])
    twin = stream.copy()
    with pytest.raises(InvalidInput, match="one for each of the 3 steps"):
        stream.run(np.concatenate((samples, samples[:, :1]), 1), frames(2, 1, 4))
    further = frames(1, 12)
    found = stream.run(further, gains[0])  # as if nothing was asked before
    np.testing.assert_array_equal(found["y"], twin.run(further, gains[0])["y"])


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_in_any_layout_of_memory(axis: int) -> None:
    zeros = torch.zeros(3, 4)
    fast = sparsejit.compile(Decay().eval(), (zeros, zeros, zeros), state={2: 2}, free_batch=False)
    whole, gain = frames(9, 16), frames(3, 4)
    block = whole[:3] if axis else whole[:, :4]
    stream = fast.stream()
    steps = np.split(block, 4 if axis else 3, axis)
    wanted = [stream(np.ascontiguousarray(step), gain)["y"] for step in steps]
    for layout in (np.ascontiguousarray, np.asfortranarray, lambda x: x):
        stream.reset()
        np.testing.assert_array_equal(stream.run(layout(block), gain)["y"], wanted)


def test_the_axis_of_a_block() -> None:
    stream = gru().stream()
    xs = frames(1, 6, 5)
    np.testing.assert_array_equal(stream.run(xs, out_axis=1).shape, (1, 6, 8))
    for block, axis, message in (
        (frames(1, 2, 6), None, "alone"),
        (frames(1, 2, 5), 2, "alone"),
        (frames(5), None, "longer or shorter"),
        (frames(1, 1, 5), 3, "axis=3; give a whole number from -3 to 2"),
        (frames(1, 1, 5).astype(np.float64), None, "float64"),
    ):
        with pytest.raises(InvalidInput, match=message):
            stream.run(block, axis=axis)
    left = decay().stream()
    assert len(left.run(frames(1, 3), frames(1, 4))["y"]) == 0
    for axis, context in ((0, 0), (1, 2)):
        with pytest.raises(InvalidInput, match="3 are kept of the block before along axis 1"):
            left.run(frames(1, 4), frames(1, 4), axis=axis, context=context)
    with pytest.raises(InvalidInput, match="context=4; give a whole number from 0 to 3"):
        left.run(frames(1, 4), frames(1, 4), context=4)
    left.reset()
    assert len(left.run(frames(1, 4), frames(1, 4))["y"]) == 1


@pytest.mark.parametrize("context", [1, 3])
def test_steps_see_the_end_of_the_steps_before(context: int) -> None:
    fast, new = decay(), 4 - context
    samples, gain = frames(1, 40), frames(1, 4)
    padded = np.concatenate((np.zeros((1, context), np.float32), samples), 1)
    whole, stream = fast.stream(), fast.stream()
    wanted = [whole(padded[:, n : n + 4], gain)["y"] for n in range(0, 41 - new, new)]
    found = []
    for piece in np.split(samples, [1, 2, 2, 17, 30], 1):
        found += [*stream.run(piece, gain, context=context)["y"]]
    np.testing.assert_array_equal(found, wanted[: len(found)])
    assert len(found) == 40 // new
    stream.reset()
    again = stream.run(samples[:, :20], gain, context=context)["y"]
    np.testing.assert_array_equal(again, wanted[: 20 // new])


def test_states_are_read_and_set_by_name() -> None:
    stream = decay().stream()
    stream(frames(1, 4), frames(1, 4))
    before = stream.state["state"]
    before[...] = 9.0  # a copy
    assert not np.array_equal(stream.state["state"], before)
    stream.state = {"state": before}
    np.testing.assert_array_equal(stream.state["state"], before)
    stream.state["state"] = torch.zeros(1, 4)
    assert not stream.state["state"].any()
    for values, message in (
        ({}, "state state is missing"),
        ({"state": np.zeros((1, 5), np.float32)}, r"another shape; give \(1, 4\)"),
        ({"state": np.zeros(4, np.float32)}, r"\(4,\); give \(1, 4\)"),
        ({"state": np.zeros((1, 4))}, "float64; give float32"),
    ):
        with pytest.raises(InvalidInput, match=message):
            stream.state = values
    with pytest.raises(InvalidInput, match="did you mean 'state'"):
        stream.state["stat"] = before


def test_a_loaded_model_has_the_same_streams(tmp_path: Path) -> None:
    fast, xs = lstm(), frames(3, 1, 1, 5)
    fast.save(tmp_path / "m.sjit")
    again = sparsejit.load(tmp_path / "m.sjit")
    stream, twin = fast.stream(), again.stream()
    np.testing.assert_array_equal([twin(x) for x in xs], [stream(x) for x in xs])
    assert list(twin.state) == list(stream.state)
    streams = fast.streams(2), again.streams(2)
    for each in streams:
        each.join()
    for x in xs:
        np.testing.assert_array_equal(*(each.step(each.ids, x) for each in streams))


def test_copies_and_pickles_go_on_from_the_same_states() -> None:
    stream, samples, gain = decay().stream(), frames(1, 6), frames(1, 4)
    stream.run(samples, gain)  # keeps two
    copies = [stream.copy(), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    wanted = stream.run(samples, gain)["y"]
    for each in copies:
        np.testing.assert_array_equal(each.run(samples, gain)["y"], wanted)


def test_reset_and_rest() -> None:
    fast = gru()
    stream, silence = fast.stream(), np.zeros((1, 1, 5), np.float32)
    stream.run(frames(1, 9, 5))
    stream.reset()
    (name,) = stream.state
    assert not stream.state[name].any()
    stream.reset(rest=True)
    rest = stream.state[name]
    assert rest.any()
    stream(silence)
    np.testing.assert_allclose(stream.state[name], rest, atol=2 * SILENCE)
    stream.reset(rest=True, steps=3)
    few = stream.state[name]
    stream.reset()
    for _ in range(3):
        stream(silence)
    np.testing.assert_array_equal(stream.state[name], few)
    for options in ({"steps": 3}, {"rest": True, "steps": -1}, {"rest": 1}):
        with pytest.raises(InvalidInput, match="give"):
            stream.reset(**options)


def test_a_state_that_becomes_nan_is_named() -> None:
    stream, bad = decay().stream(), np.full((1, 4), np.nan, np.float32)
    stream(bad, bad)
    stream.reset()
    stream.check = True
    gain = frames(1, 4)
    stream(frames(1, 4), gain)
    with pytest.raises(InvalidInput, match="state state became NaN"):
        stream(bad, gain)
    stream.reset()
    with pytest.raises(InvalidInput, match="state state became NaN"):
        stream.run(np.concatenate((frames(1, 8), bad, frames(1, 8)), 1), gain)
    stream.reset()
    found = stream.run(frames(1, 8), gain)["y"]
    assert found.shape == (2, 1, 4) and np.isfinite(found).all()


def test_a_bound_step_reads_and_writes_the_same_arrays() -> None:
    stream, x = gru().stream(), frames(1, 1, 5)
    twin, y = stream.copy(), np.empty((1, 1, 8), np.float32)
    step = stream.bind([x], [y])
    for _ in range(3):
        x[...] = frames(1, 1, 5)
        step()
        np.testing.assert_array_equal(y, twin(x))


@pytest.mark.parametrize("isa", ISAS)
def test_denormal_numbers_do_not_stay_in_a_state(isa: str) -> None:
    fast = decay(target=isa)
    gain, silence = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    state = np.full((1, 4), 2.0**-120, np.float32)
    for _ in range(12):
        state = fast(silence, gain, state)["state"]
    assert 0 < state.max() < np.finfo(np.float32).tiny  # by hand it is denormal
    stream = fast.stream()
    stream.state = {"state": np.full((1, 4), 2.0**-120, np.float32)}
    for _ in range(12):
        stream(silence, gain)
    assert not stream.state["state"].any()
    stream(np.ones((1, 4), np.float32), gain)
    stream.run(np.zeros((1, 4 * 100_000), np.float32), gain)
    assert not stream.state["state"].any()
    denormal = np.full(64, 1e-40, np.float32)
    assert (denormal * np.float32(0.5)).all()  # the caller's arithmetic is as before


def test_a_failed_step_leaves_the_states_as_they_are() -> None:
    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cell = torch.nn.Embedding(6, 5), torch.nn.GRUCell(5, 8)

        def forward(self, word: Any, state: Any) -> Any:
            state = self.cell(self.table(word), state)
            return 2 * state, state

    fast = sparsejit.compile(
        Words().eval(), (torch.tensor([1]), torch.zeros(1, 8)), state={1: 1}
    )
    stream = fast.stream()
    stream(np.array([3]))
    (before,) = stream.state.values()
    for _ in range(2):
        with pytest.raises(InvalidInput, match="found an index without a row"):
            stream(np.array([9]))
        np.testing.assert_array_equal(*stream.state.values(), before)
    twin = stream.copy()
    with pytest.raises(InvalidInput, match="found an index without a row"):
        stream.run(np.array([1, 2, 9, 3]))
    twin.run(np.array([1, 2]))
    np.testing.assert_array_equal(*stream.state.values(), *twin.state.values())


def test_memory_that_is_filled_before_calls_keeps_the_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast, xs = gru(), frames(4, 1, 1, 5)
    wanted = [fast.stream()(xs[0])]
    monkeypatch.setenv("SPARSEJIT_FILL", "1")
    stream = fast.stream()
    first = stream(xs[0])
    np.testing.assert_array_equal(first, wanted[0])
    stream(xs[1])
    y = np.empty((1, 1, 8), np.float32)
    stream.bind([xs[2]], [y])()
    last = stream.run(xs[3])
    monkeypatch.delenv("SPARSEJIT_FILL")
    plain = fast.stream()
    np.testing.assert_array_equal([plain(x) for x in xs][2:], [y, last[0]])


def test_one_thread_at_a_time_uses_a_stream() -> None:
    stream, x = gru().stream(), frames(1, 1, 5)
    for _ in range(3):  # the second call makes the stub
        stream(x)
        with stream._taken():
            for use in (stream, stream.run, lambda x: stream.reset(), lambda x: stream.copy()):
                with pytest.raises(InvalidInput, match="another thread is in a call"):
                    use(x)
    stream(x)


def test_models_without_streams_and_wrong_calls() -> None:
    plain = sparsejit.compile(torch.nn.Linear(4, 3).eval(), (torch.zeros(1, 4),))
    for make in (plain.stream, lambda: plain.streams(2)):
        with pytest.raises(InvalidInput, match="the model has no states; compile it with state="):
            make()
    fixed = gru(free_batch=False)
    assert fixed.stream()(frames(2, 1, 5)).shape == (2, 1, 8)
    with pytest.raises(InvalidInput, match="batch=2: the batch of this model is fixed"):
        fixed.stream(2)
    with pytest.raises(InvalidInput, match="batch of this model is fixed"):
        fixed.streams(2)
    fast = gru()
    for batch in (0, True, 1.0):
        with pytest.raises(InvalidInput, match="batch="):
            fast.stream(batch)
        with pytest.raises(InvalidInput, match="capacity="):
            fast.streams(batch)
    stream = fast.stream()
    for _ in range(3):
        with pytest.raises(InvalidInput, match=r"shape \(1, 1, 6\); give \(1, 1, 5\)"):
            stream(frames(1, 1, 6))
        with pytest.raises(InvalidInput, match="2 arguments by position"):
            stream(frames(1, 1, 5), frames(1, 1, 8))
        stream(frames(1, 1, 5))
    stream.close()
    for use in (stream, stream.run, lambda x: stream.reset(), lambda x: stream.bind([x], [x])):
        with pytest.raises(InvalidInput, match="the stream is closed"):
            use(frames(1, 1, 5))


def _called(memory: ExecutableMemory, inputs: Any, outputs: Any, *more: int) -> int:
    call = memory.function(2 + len(more), with_status=True)
    status: int = call(address_table(inputs), address_table(outputs), *more)
    return status


def test_native_steps_with_a_block_and_a_workspace_apart() -> None:
    """As exported C has them."""
    fast = gru()
    (variant, *_), target = fast.parts.variants, Target.detect()
    run = variant.program
    layout = layout_of(variant, fast.states)

    def call(asm: Any) -> None:
        emit_call(asm, run.pointer)

    step = build("step", target, lambda asm: emit_step(asm, layout, call), beside=run.memory)
    steps = build(
        "steps",
        target,
        lambda asm: emit_steps(asm, layout, call, (20, 32)),
        beside=run.memory,
    )
    block, workspace = new_workspace(layout.bytes), new_workspace(variant.workspace_bytes)
    xs, ys = frames(7, 1, 1, 5), np.empty((7, 1, 1, 8), np.float32)
    block[: layout.bytes] = 0
    addresses = block.ctypes.data, workspace.ctypes.data
    assert _called(step.memory, [xs[0]], [ys[0]], *addresses) == 0
    assert _called(steps.memory, [xs[1]], [ys[1]], *addresses, 0) == 0
    assert _called(steps.memory, [xs[1]], [ys[1]], *addresses, 6) == 0
    stream = fast.stream()
    np.testing.assert_array_equal(ys, [stream(x) for x in xs])
    assert block[0] == 1 and layout.bytes == 64 + 2 * 64


class Detector(torch.nn.Module):
    """A model with tiles of several sizes, whose bits differ."""

    shapes = (100,), 48

    def __init__(self) -> None:
        super().__init__()
        self.front, self.out = torch.nn.Linear(100, 64), torch.nn.Linear(48, 9)
        self.cell = torch.nn.GRUCell(64, 48)

    def forward(self, x: Any, state: Any) -> Any:
        state = self.cell(self.front(x).relu(), state)
        return self.out(state), state


class Wide(torch.nn.Module):
    """A model whose last layers take several samples at once, with other bits than for one."""

    shapes = (1, 40), 200

    def __init__(self) -> None:
        super().__init__()
        self.front, self.back = torch.nn.Conv1d(1, 16, 5), torch.nn.Linear(2000, 200)
        self.hidden = torch.nn.Linear(16 * 36, 2000)

    def forward(self, x: Any, state: Any) -> Any:
        x = self.hidden(self.front(x).relu().flatten(1)).relu()
        state = 0.5 * state + self.back(x)
        return 2 * state, state


def free(model: Any, isa: str = "native") -> Any:
    shape, size = model.shapes
    given = torch.zeros(2, *shape), torch.zeros(2, size)
    return sparsejit.compile(model().eval(), given, state={1: 1}, target=isa)


class Alone:
    """Every stream by itself, in streams of the same capacity, of which it is the only one."""

    def __init__(self, fast: Any, capacity: int, threads: int = 1) -> None:
        self._streams = fast.streams(capacity, threads=threads)

    def check(self, calls: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        number = self._streams.join()
        for x, y in calls:
            np.testing.assert_array_equal(self._streams.step([number], x), y)
        self._streams.leave(number)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_streams_that_join_and_leave_have_the_bits_of_each_alone(threads: int, isa: str) -> None:
    fast, rng = free(Detector, isa), np.random.default_rng(1)
    streams = fast.streams(64, threads=threads)
    calls: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for turn in range(300):
        if len(streams) < 64 and rng.random() < 0.5:
            calls[streams.join()] = []
        if len(streams) > 3 and rng.random() < 0.3:
            streams.leave(int(rng.choice(streams.ids)))
        active = streams.ids
        if turn % 3 == 0:
            who = active
        else:
            some = rng.integers(0, len(active) + 1)
            who = active[rng.permutation(len(active))[:some]]
        x = frames(len(who), 100)
        y = streams.step(who, x)
        for n, number in enumerate(who):
            calls[int(number)].append((x[n : n + 1], y[n : n + 1]))
    assert len(streams) > 16 and sum(map(len, calls.values())) > 1000
    alone = Alone(fast, 64, threads)
    for each in calls.values():
        alone.check(each)


@pytest.mark.parametrize("model", [Detector, Wide])
def test_streams_of_any_tiles_have_the_bits_of_each_alone(model: Any) -> None:
    fast = free(model)
    for capacity in (1, 5, 20):
        streams, x = fast.streams(capacity), frames(capacity, *model.shapes[0])
        ids = [streams.join() for _ in range(capacity)]
        found = [streams.step(ids, x) for _ in range(2)]
        alone = Alone(fast, capacity)
        for n in range(capacity):
            alone.check([(x[n : n + 1], each[n : n + 1]) for each in found])


def test_streams_take_dicts_states_and_resets() -> None:
    fast = lstm()
    streams, stream = fast.streams(3), fast.stream()
    first, second = streams.join(), streams.join()
    x = frames(1, 1, 5)
    found = streams.step({second: torch.from_numpy(x)})
    assert list(found) == [second] and isinstance(found[second], torch.Tensor)
    np.testing.assert_allclose(found[second], stream(x), atol=1e-6)
    state = streams.state(second)
    for name, value in stream.state.items():
        np.testing.assert_allclose(state[name], value, atol=1e-6)
        assert not streams.state(first)[name].any()
    streams.state(first).update(state)
    streams.reset(second)
    both = streams.step({first: x, second: x})
    np.testing.assert_allclose(both[first], stream(x), atol=1e-6)
    np.testing.assert_array_equal(both[second], found[second])
    assert streams.step({}) == {}
    streams.leave(first)
    assert len(streams) == 1 and streams.ids.tolist() == [second]


def test_wrong_streams() -> None:
    streams = gru().streams(2)
    first, second = streams.join(), streams.join()
    x = frames(2, 1, 5)
    for use, message in (
        (streams.join, "all 2 streams are taken"),
        (lambda: streams.step([first, 7], x), "there is no stream 7"),
        (lambda: streams.step([first, first], x), "named twice"),
        (lambda: streams.step([first], x), r"for 1 streams give float32\(1, 1, 5\)"),
        (lambda: streams.step({first: x}), "of stream 0 is"),
        (lambda: streams.step({first: x[:1]}, x), "and no others"),
        (lambda: streams.leave(7), "there is no stream 7"),
        (lambda: streams.state(7), "there is no stream 7"),
    ):
        with pytest.raises(InvalidInput, match=message):
            use()
    streams.leave(first)
    assert streams.join() not in (first, second)
    with pytest.raises(TypeError, match="copy the states of each"):
        pickle.dumps(streams)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", STATES)
def test_trained_files_equal_onnx_runtime_fed_its_own_states(name: str, isa: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    sizes, states = STATES[name]
    rival = Rival(path, sizes, states)
    constants = {"sr": 16000} if "silero" in name else None
    example = tuple(rival.given.values())
    fast = sparsejit.compile(path, example, constants=constants, state=states, target=isa)
    stream = fast.stream()
    for _ in range(200):
        given = {each: frames(*shape) for each, shape in rival.inputs.items()}
        found = stream(*given.values())
        wanted = rival.step(given)
        for ours, theirs in zip(found if len(wanted) > 1 else [found], wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4 * max(1, np.abs(theirs).max()))


def test_memory_stays_flat() -> None:
    streams = gru().streams(8)

    def work(turns: int) -> None:
        for turn in range(turns):
            number = streams.join()
            streams.step(streams.ids, np.zeros((len(streams), 1, 5), np.float32))
            streams.step([number], np.zeros((1, 1, 5), np.float32))
            if turn % 8 or len(streams) == 8:
                streams.leave(number)

    tracemalloc.start()
    work(50)
    before, _ = tracemalloc.get_traced_memory()
    work(500)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000


def test_a_model_and_its_streams_go_without_the_collector() -> None:
    gc.disable()
    try:
        fast = gru()
        stream = fast.stream()
        stream.run(frames(1, 3, 5))
        gone = weakref.ref(fast)
        del fast
        assert gone() is not None  # for its explanation, and its pickle
        stream(frames(1, 1, 5))
        stream(frames(1, 1, 5))
        del stream
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("samples", [1, 2])
def test_streams_begin_with_the_initial_states_of_the_model(samples: int) -> None:
    """They are of one sample, or of the example's batch, whose first one counts."""
    fast = gru()
    (state,) = fast.states
    initial = frames(1, samples, 8)
    fast.states = (replace(state, initial=initial),)
    first = initial[:, :1]
    x = frames(3, 1, 5)
    wanted, _ = fast(x, np.repeat(first, 3, 1))
    stream = fast.stream(3)
    stream(x)
    stream.reset()
    np.testing.assert_array_equal(stream(x), wanted)
    streams = fast.streams(3)
    ids = [streams.join() for _ in range(3)]
    streams.step(ids, x)
    streams.reset(ids[1])
    np.testing.assert_array_equal(streams.state(ids[1])[state.name], first)
    np.testing.assert_array_equal(fast.stream().state[state.name], first)
