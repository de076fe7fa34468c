"""Batches on any axis: time first, states with layers first, inputs that all samples share."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from guard import EDGES, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph
from saved_models import CASES as SMALL
from torch import nn
from torch.export import Dim

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.frontends.torch_export import export
from sparsejit.ir.graph import BatchAxes
from sparsejit.machine.target import Target
from sparsejit.runtime.guard_pages import GuardedArray

TIME, WIDTH, HIDDEN = 5, 12, 16
BATCHES = (1, 3, 16, 17, 64)
Inputs = tuple[torch.Tensor, ...]


class Steps(nn.Module):
    """A recurrent net from zeros, and a layer over each step."""

    def __init__(self, cell: Any = nn.GRU, **given: Any) -> None:
        super().__init__()
        self.cell = cell(WIDTH, HIDDEN, **given)
        self.out = nn.LazyLinear(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0])


class WithState(nn.Module):
    """A recurrent net that takes and gives its state."""

    def __init__(self, cell: Any = nn.GRU, **given: Any) -> None:
        super().__init__()
        self.cell = cell(WIDTH, HIDDEN, **given)

    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:
        y, state = self.cell(x, state if len(state) > 1 else state[0])
        return (y, *state) if isinstance(state, tuple) else (y, state)


class Attending(nn.Module):
    """Time first, as torch's own transformer has it by default."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.of(x, x, x, attn_mask=mask, need_weights=False)[0]


class Masked(nn.Module):
    """A mask with a batch of one, which is expanded, and a scale without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        scores = self.of(x) @ x.transpose(1, 2) + mask.expand(x.shape[0], -1, -1)
        return torch.softmax(scores, -1) * scale + mask


class Case(NamedTuple):
    """A model, its inputs for a batch, and where its batch lies."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    axes: BatchAxes


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def x_of(batch: int) -> torch.Tensor:
    return normal(TIME, batch, WIDTH)


CASES = {
    "gru": Case(Steps, lambda n: (x_of(n),), BatchAxes((1,), (1,))),
    "lstm both ways": Case(
        lambda: Steps(nn.LSTM, num_layers=2, bidirectional=True),
        lambda n: (x_of(n),),
        BatchAxes((1,), (1,)),
    ),
    "state": Case(
        lambda: WithState(num_layers=2),
        lambda n: (x_of(n), normal(2, n, HIDDEN)),
        BatchAxes((1, 1), (1, 1)),
    ),
    "state of one layer": Case(
        WithState, lambda n: (x_of(n), normal(1, n, HIDDEN)), BatchAxes((1, 1), (1, 1))
    ),
    "states of one layer": Case(
        lambda: WithState(nn.LSTM),
        lambda n: (x_of(n), normal(1, n, HIDDEN), normal(1, n, HIDDEN)),
        BatchAxes((1, 1, 1), (1, 1, 1)),
    ),
    "batch first": Case(
        lambda: WithState(nn.LSTM, num_layers=2, batch_first=True),
        lambda n: (normal(n, TIME, WIDTH), normal(2, n, HIDDEN), normal(2, n, HIDDEN)),
        BatchAxes((0, 1, 1), (0, 1, 1)),
    ),
    "batch first, one layer": Case(
        lambda: WithState(nn.LSTM, batch_first=True),
        lambda n: (normal(n, TIME, WIDTH), normal(1, n, HIDDEN), normal(1, n, HIDDEN)),
        BatchAxes((0, 1, 1), (0, 1, 1)),
    ),
    "attention": Case(
        Attending, lambda n: (x_of(n), normal(TIME, TIME)), BatchAxes((1, None), (1,))
    ),
    "mask": Case(
        Masked,
        lambda n: (normal(n, TIME, WIDTH), normal(1, TIME, TIME), normal()),
        BatchAxes((0, None, None), (0,)),
    ),
}
# One sample does not tell that a mask of one is for all.
MADE_AT = [(name, batch) for name in CASES for batch in (1, 6) if batch > 1 or name != "mask"]


def compiled(name: str, batch: int, **given: Any) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = CASES[name].model().eval()
    inputs = CASES[name].inputs(batch)
    with torch.no_grad():
        model(*inputs)  # lazy layers learn their sizes
    return sparsejit.compile(model, inputs, **given), model


def assert_same(fast: Any, model: nn.Module, inputs: Inputs) -> None:
    with torch.no_grad():
        wanted = model(*inputs)
    found = fast(*inputs)
    pair = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    for got, expected in zip(*pair, strict=True):
        assert got.is_contiguous()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "batch"), MADE_AT)
def test_any_batch_gives_what_torch_gives(name: str, batch: int) -> None:
    case = CASES[name]
    fast, model = compiled(name, batch)
    assert fast.batch_is_free and fast.batch_axes == case.axes
    for size in BATCHES:
        assert_same(fast, model, case.inputs(size))


@pytest.mark.parametrize("name", CASES)
def test_a_graph_of_any_batch_is_the_one_of_the_example(name: str) -> None:
    case = CASES[name]
    model, inputs = case.model().eval(), case.inputs(6)
    with torch.no_grad():
        wanted = model(*inputs)
    exported = export(model, inputs)
    arrays = [
        np.moveaxis(x.numpy(), axis or 0, 0) if x.ndim else x.numpy()
        for x, axis in zip(inputs, case.axes.inputs, strict=True)
    ]
    found = exported.graph(6).evaluate(arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, expected, axis in zip(found, wanted, case.axes.outputs, strict=True):
        np.testing.assert_allclose(np.moveaxis(got, 0, axis), expected, rtol=0, atol=1e-5)


SHARED = {name: compiled(name, 6) for name in ("state", "mask")}
EXACT = {name: compiled(name, 6, exact=True)[0] for name in SHARED}


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(EXACT)), batch=st.integers(0, 40), plain=st.booleans())
def test_a_sample_has_the_same_bits_in_any_company(name: str, batch: int, plain: bool) -> None:
    fast, axes = EXACT[name], CASES[name].axes
    inputs = [x.numpy() for x in CASES[name].inputs(batch + 1)]
    pairs = zip(inputs, axes.inputs, strict=True)
    alone = [x if axis is None else x.take([-1], axis) for x, axis in pairs]
    if not plain:  # not contiguous, as a caller's view may be
        inputs = [x.copy("F") for x in inputs]
    for whole, single, axis in zip(fast.run(inputs), fast.run(alone), axes.outputs, strict=True):
        assert whole.take([-1], axis).tobytes() == single.tobytes()


@pytest.mark.parametrize("name", ["state", "mask"])
def test_it_is_saved_loaded_pickled_and_explained(tmp_path: Path, name: str) -> None:
    fast, model = SHARED[name]
    fast.save(tmp_path / "m.sjit")
    for other in (sparsejit.load(tmp_path / "m.sjit"), pickle.loads(pickle.dumps(fast))):
        assert other.batch_axes == CASES[name].axes
        assert_same(other, model, CASES[name].inputs(7))
    words = {
        "state": "batch: input x on axis 1, input state_0 on axis 1, output",
        "mask": "batch: input mask has none, input scale has none; on axis 0 of all others",
    }
    assert words[name] in str(fast.explain())


@pytest.mark.parametrize("name", ["state", "mask"])
def test_a_bound_call_reads_and_writes_the_arrays_it_was_given(name: str) -> None:
    fast, _ = SHARED[name]
    inputs = [x.numpy() for x in CASES[name].inputs(2 * fast.tile)]
    outputs = [np.full_like(made, np.nan) for made in fast.run(inputs)]
    run = fast.bind(inputs, outputs)
    for _ in range(2):
        run()
        for got, wanted in zip(outputs, fast.run(inputs), strict=True):
            np.testing.assert_array_equal(got, wanted)
        inputs[0] *= -0.5
    if name == "mask":
        return
    with pytest.raises(InvalidInput, match="shares memory with another array"):
        fast.bind([*inputs[:-1], outputs[-1]], outputs)
    with pytest.raises(InvalidInput, match="is not contiguous, aligned"):
        fast.bind([np.asfortranarray(x) for x in inputs], outputs)


@pytest.mark.parametrize("made_at", [1, 6])
def test_a_batch_of_none_gives_none(made_at: int) -> None:
    fast, _ = compiled("state", made_at)
    found = fast(*CASES["state"].inputs(0))
    assert [tuple(each.shape) for each in found] == [(TIME, 0, HIDDEN), (2, 0, HIDDEN)]


def test_a_batch_behind_axes_of_one_element_is_bound_in_place() -> None:
    fast, model = compiled("state of one layer", 4)
    x, state = (each.numpy() for each in CASES["state of one layer"].inputs(4))
    outputs = [np.empty_like(made) for made in fast.run([x, state])]
    fast.bind([x, state], outputs)()
    with torch.no_grad():
        wanted = model(torch.from_numpy(x), torch.from_numpy(state))
    for got, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["state", "mask"])
@pytest.mark.parametrize("batch", [2, 40])
def test_threads_take_turns_with_tiles_or_share_them(name: str, batch: int) -> None:
    fast, model = compiled(name, batch, threads=2)
    assert fast.parts.variants[0].options.shares_tiles == (batch == 40)
    for size in (1, batch, 2 * batch + 1):
        assert_same(fast, model, CASES[name].inputs(size))


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_tiles_read_what_they_share_between_guard_pages(isa: str) -> None:
    graph = SMALL["time-first"].graph(4)
    random = np.random.default_rng(2)
    inputs = [random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]
    check_graph(graph, inputs, Target.named(isa), 1e-5, tiles=3)


@pytest.mark.parametrize("name", ["state", "mask"])
def test_calls_keep_to_the_arrays_they_are_given(name: str) -> None:
    fast, _ = SHARED[name]
    arrays = [x.numpy() for x in CASES[name].inputs(7)]
    wanted = fast.run(arrays)

    def check(edge: Any) -> None:
        placed = [GuardedArray(np.ascontiguousarray(x).ravel(), edge) for x in arrays]
        views = [each.values.reshape(x.shape) for each, x in zip(placed, arrays, strict=True)]
        for got, expected in zip(fast.run(views), wanted, strict=True):
            np.testing.assert_array_equal(got, expected)
        assert all(each.surroundings_intact() for each in placed)

    run_in_child([(f"{edge} of memory", lambda e=edge: check(e)) for edge in EDGES]).assert_clean()


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            ((5, 3, 12), (2, 4, 16)),
            r"state_0 has shape \(2, 4, 16\); give \(2, any, 16\); "
            "axis 1 is the batch, 3 in this call",
        ),
        (((5, 3, 13), (2, 3, 16)), r"x has shape \(5, 3, 13\); give \(5, any, 12\)"),
        (((6, 3, 12), (2, 3, 16)), r"x has shape \(6, 3, 12\); give \(5, any, 12\)"),
        (((5, 3), (2, 3, 16)), r"x has shape \(5, 3\); give \(5, any, 12\)"),
        (((5, 3, 12),), "the call gives 1 argument"),
    ],
)
def test_arrays_that_do_not_fit_are_named(shapes: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        SHARED["state"][0](*(np.zeros(shape, np.float32) for shape in shapes))


def test_a_shared_input_keeps_its_size() -> None:
    x, mask, scale = (x.numpy() for x in CASES["mask"].inputs(3))
    with pytest.raises(InvalidInput, match=r"mask has shape \(3, 5, 5\); give \(1, 5, 5\)"):
        SHARED["mask"][0](x, np.repeat(mask, 3, 0), scale)


NAMED: dict[str, Any] = {
    "batch": {"x": {0: "time", 1: "batch"}, "h": {1: "batch"}},
    "bounded": {"x": {1: Dim("batch_size", min=1, max=70)}, "h": {1: Dim("batch_size", max=70)}},
}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(WIDTH, HIDDEN)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.cell(x, h)


@pytest.mark.parametrize("name", NAMED)
def test_the_name_of_the_batch_may_stand_on_any_axis(name: str) -> None:
    model = Named().eval()
    # As many samples as steps: sizes alone do not tell which is which.
    inputs = normal(TIME, TIME, WIDTH), normal(1, TIME, HIDDEN)
    fast = sparsejit.compile(model, inputs, dynamic_shapes=NAMED[name])
    assert fast.batch_axes == BatchAxes((1, 1), (1, 1))
    for size in BATCHES:
        assert_same(fast, model, (x_of(size), normal(1, size, HIDDEN)))
    assert len(fast.parts.variants) == 1
    if name == "batch":
        assert_same(fast, model, (normal(7, 3, WIDTH), normal(1, 3, HIDDEN)))
        fast.prepare(time=7, batch=9)
        assert len(fast.parts.variants) == 2
        with pytest.raises(InvalidInput, match=r"axis 1 of input h, 'batch', has 4.*x has 3"):
            fast(x_of(3), normal(1, 4, HIDDEN))
    else:
        with pytest.raises(InvalidInput, match=r"axis 1 of input x, 'batch_size', has 71 elements"):
            fast(x_of(71), normal(1, 71, HIDDEN))


def test_samples_that_mix_are_compiled_for_each_named_batch() -> None:
    class Mixing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0)

    fast = sparsejit.compile(Mixing().eval(), (normal(3, 4),), dynamic_shapes={"x": {0: "batch"}})
    assert not fast.batch_is_free and fast.batch_axes is None
    for size in (3, 5):
        assert_same(fast, Mixing(), (normal(size, 4),))


def test_an_exported_program_says_itself_where_its_batch_lies() -> None:
    model, batch = Named().eval(), Dim("n", min=1, max=99)
    inputs = x_of(2), normal(1, 2, HIDDEN)
    program = torch.export.export(model, inputs, dynamic_shapes=({1: batch}, {1: batch}))
    fast = sparsejit.compile(program)
    assert fast.batch_axes == BatchAxes((1, 1), (1, 1))
    for size in (1, 3, 17):
        assert_same(fast, model, (x_of(size), normal(1, size, HIDDEN)))


def test_an_input_as_long_as_the_batch_may_be_shared_by_all() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ table)

    table = normal(4, 4)
    fast = sparsejit.compile(Sum().eval(), (normal(4, 4), table))
    assert fast.batch_axes == BatchAxes((0, None), (0,))
    for size in (1, 3, 17):
        assert_same(fast, Sum(), (normal(size, 4), table))


def test_a_number_may_stand_beside_a_state() -> None:
    class Scaled(Named):
        def forward(self, x: torch.Tensor, h: torch.Tensor, scale: torch.Tensor) -> Any:
            y, h = self.cell(x, h)
            return y * scale, h

    model, scale = Scaled().eval(), normal()
    fast = sparsejit.compile(model, (x_of(4), normal(1, 4, HIDDEN), scale))
    assert fast.batch_axes == BatchAxes((1, 1, None), (1, 1))
    for size in (1, 4, 9):
        assert_same(fast, model, (x_of(size), normal(1, size, HIDDEN), scale))


def test_other_sizes_keep_the_axes_of_the_batch() -> None:
    model = Named().eval()
    fast = sparsejit.compile(model, (x_of(4), normal(1, 4, HIDDEN)), free_shapes=True)
    for time, batch in ((TIME, 3), (9, 9), (9, 2), (1, 1), (1, 5)):
        assert_same(fast, model, (normal(time, batch, WIDTH), normal(1, batch, HIDDEN)))
    assert len(fast.parts.variants) == 3
    assert {each.axes for each in fast.parts.variants} == {BatchAxes((1, 1), (1, 1))}
