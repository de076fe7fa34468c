"""Sizes by name: `dynamic_shapes`, the symbols of exported programs, and `prepare`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import sparsejit
from sparsejit.errors import InvalidInput

WIDTH = 12
FSMN = Path(__file__).parents[3] / "shared" / "data" / "onnx" / "fsmnvad-online.onnx"


class Tagger(nn.Module):
    """A GRU, whose length torch.export fixes, and a layer over each step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, 16, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(x)[0])


class Attending(nn.Module):
    """Each query reads all keys; two inputs share a length."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(memory).transpose(1, 2)
        return torch.softmax(scores, -1) @ memory


def strided() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv1d(8, 4, 3)).eval()


def example(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(fast: Any, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)


TAGGER = Tagger().eval()
TAGGED = sparsejit.compile(
    TAGGER,
    (example(2, 7, WIDTH),),
    dynamic_shapes={"x": {0: "batch", 1: Dim("time", min=1, max=40)}},
)


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 9), time=st.integers(1, 12))
def test_any_sizes_within_bounds_give_what_torch_gives(batch: int, time: int) -> None:
    assert_same(TAGGED, TAGGER, example(batch, time, WIDTH))


def test_strides_and_two_inputs_follow_their_sizes() -> None:
    model = strided()
    fast = sparsejit.compile(model, (example(1, 3, 30),), dynamic_shapes={"input": {2: "time"}})
    for time in (30, 9, 31, 64):
        assert_same(fast, model, example(1, 3, time))
    attending = Attending().eval()
    fast = sparsejit.compile(
        attending,
        (example(1, 4, WIDTH), example(1, 6, WIDTH)),
        dynamic_shapes=({1: "queries"}, [None, "keys", None]),
    )
    for queries, keys in ((4, 6), (1, 1), (6, 4), (5, 5)):
        assert_same(fast, attending, example(1, queries, WIDTH), example(1, keys, WIDTH))


def test_prepared_sizes_are_there_before_their_first_use() -> None:
    fast = sparsejit.compile(
        TAGGER, (example(1, 3, WIDTH),), dynamic_shapes={"x": {0: "batch", 1: "time"}}
    )
    fast.prepare(time=5)
    fast.prepare(batch=3, time=5)
    assert len(fast.parts.variants) == 2  # a batch needs none of its own
    assert_same(fast, TAGGER, example(4, 5, WIDTH))
    assert len(fast.parts.variants) == 2


def test_two_threads_may_ask_for_new_sizes_at_once() -> None:
    fast = sparsejit.compile(TAGGER, (example(1, 3, WIDTH),), dynamic_shapes={"x": {1: "time"}})
    threads = [threading.Thread(target=fast.prepare, kwargs={"time": n}) for n in (4, 5, 4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fast.parts.variants) == 4
    for time in (3, 4, 5, 6):
        assert_same(fast, TAGGER, example(1, time, WIDTH))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 41, WIDTH), r"axis 1 of input x, 'time', has 41 elements; it takes 1 to 40"),
        ((1, 0, WIDTH), r"axis 1 of input x, 'time', has 0 elements; it takes 1 to 40"),
        ((1, 5, WIDTH + 1), r"axis 2 of input x has 13 elements and is fixed at 12"),
        ((5, WIDTH), r"input x has shape \(5, 12\); give 3 axes"),
    ],
)
def test_a_size_that_is_not_taken_is_named(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        TAGGED(np.zeros(shape, np.float32))


def test_one_name_is_one_size() -> None:
    fast = sparsejit.compile(
        Attending().eval(),
        (example(1, 4, WIDTH), example(1, 4, WIDTH)),
        dynamic_shapes={"x": {1: "time"}, "memory": {1: "time"}},
    )
    with pytest.raises(InvalidInput, match=r"axis 1 of input memory, 'time', has 5.*x has 4"):
        fast(example(1, 4, WIDTH), example(1, 5, WIDTH))
    with pytest.raises(InvalidInput, match="one name is one size"):
        sparsejit.compile(
            Attending().eval(),
            (example(1, 4, WIDTH), example(1, 5, WIDTH)),
            dynamic_shapes={"x": {1: "time"}, "memory": {1: "time"}},
        )


@pytest.mark.parametrize(
    ("given_shapes", "words"),
    [
        ({"y": {0: "batch"}}, "names 'y'; the model's arguments are x"),
        ({"x": {3: "time"}}, r"dynamic_shapes\['x'\] has axis 3; it has 3 axes"),
        ({"x": {0: Dim.AUTO}}, r"give a name, or a torch.export.Dim with one"),
        ({"x": "batch"}, r"dynamic_shapes\['x'\] is a str; give a dict"),
        ("batch", "dynamic_shapes is a str; give a dict by argument"),
        ({"x": {1: Dim("time", min=1, max=6)}}, "has 7 elements; it takes 1 to 6"),
    ],
)
def test_dynamic_shapes_without_sizes_are_refused(given_shapes: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        sparsejit.compile(TAGGER, (example(2, 7, WIDTH),), dynamic_shapes=given_shapes)


def test_preparing_what_has_no_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no size of this model has a name"):
        sparsejit.compile(nn.Linear(3, 4).eval(), (example(1, 3),)).prepare(batch=3)
    with pytest.raises(InvalidInput, match=r"prepare\(length=...\): the model's sizes are batch"):
        TAGGED.prepare(length=3)
    with pytest.raises(InvalidInput, match=r"time=2\.5; give a number of elements"):
        TAGGED.prepare(time=2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="it takes 1 to 40"):
        TAGGED.prepare(time=41)


def exported_strided() -> tuple[nn.Module, Any]:
    model = strided()
    dims = {0: Dim("batch"), 2: Dim("time", min=16, max=100)}
    return model, torch.export.export(model, (example(2, 3, 30),), dynamic_shapes=(dims,))


class Exports:
    """Counts what torch.export exports."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, torch.export.export

        def counted(*args: Any, **given: Any) -> Any:
            self.count += 1
            return real(*args, **given)

        patch.setattr(torch.export, "export", counted)


def test_no_size_exports_the_model_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, exports = Attending().eval(), Exports(monkeypatch)
    sizes = {"x": {0: "batch", 1: "queries"}, "memory": {0: "batch", 1: "keys"}}
    inputs = example(2, 3, WIDTH), example(2, 5, WIDTH)
    fast = sparsejit.compile(model, inputs, dynamic_shapes=sizes)
    before = exports.count
    for batch, queries, keys in ((2, 4, 5), (1, 4, 7), (3, 2, 2), (2, 9, 30)):
        assert_same(fast, model, example(batch, queries, WIDTH), example(batch, keys, WIDTH))
    assert exports.count == before
    assert_same(fast, model, example(2, 1, WIDTH), example(2, 6, WIDTH))  # torch may take 1 apart
    assert exports.count > before


def test_models_that_torch_exports_for_one_length_are_exported_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Steps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = x[:, 0]
            for step in range(x.shape[1]):  # in Python
                state = torch.tanh(state + x[:, step])
            return state

    exports = Exports(monkeypatch)
    fast = sparsejit.compile(
        Steps(), (example(2, 3, WIDTH),), dynamic_shapes={"x": {0: "batch", 1: "time"}}
    )
    for time in (4, 5, 8):
        before = exports.count
        assert_same(fast, Steps(), example(3, time, WIDTH))
        assert exports.count > before


def test_a_recurrence_is_exported_for_all_lengths_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    fast = sparsejit.compile(
        TAGGER, (example(2, 3, WIDTH),), dynamic_shapes={"x": {0: "batch", 1: "time"}}
    )
    before = exports.count
    for time in (4, 5, 8, 2):
        assert_same(fast, TAGGER, example(3, time, WIDTH))
    assert exports.count == before


def test_a_program_whose_open_size_is_no_batch_takes_any() -> None:
    class Mixing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ x.transpose(1, 2), -1) @ x

    program = torch.export.export(
        Mixing(), (example(1, 4, WIDTH),), dynamic_shapes={"x": {1: Dim("time", min=2)}}
    )
    fast = sparsejit.compile(program)
    for time in (4, 2, 7):
        assert_same(fast, Mixing(), example(1, time, WIDTH))


def test_a_program_has_its_examples_and_sizes() -> None:
    model, program = exported_strided()
    fast = sparsejit.compile(program)
    assert fast.batch_is_free
    for batch, time in ((2, 30), (1, 16), (5, 31), (3, 100)):
        assert_same(fast, model, example(batch, 3, time))
    with pytest.raises(InvalidInput, match=r"axis 2 of input input, 's\d+', has 101 elements"):
        fast(example(1, 3, 101))
    with pytest.raises(InvalidInput, match="ExportedProgram, which names its sizes itself"):
        sparsejit.compile(program, dynamic_shapes={"input": {2: "time"}})


def test_sizes_of_an_onnx_file_have_names(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("ReduceSum", ["square", "axes"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "length", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    path = tmp_path / "sums.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    x = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)
    fast = sparsejit.compile(path, (x,), dynamic_shapes={"x": {0: "n", 1: "length"}})
    for shape in ((2, 6, 4), (3, 2, 4), (1, 9, 4)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(fast(x), (x**2).sum(axis=1), rtol=1e-5)
    with pytest.raises(InvalidInput, match="axis 2 of input x has 5 elements and is fixed at 4"):
        fast(np.zeros((1, 2, 5), np.float32))
    with pytest.raises(InvalidInput, match="dynamic_shapes needs an example of each argument"):
        sparsejit.compile(path, dynamic_shapes={"x": {1: "length"}})


@pytest.mark.skipif(not FSMN.exists(), reason="no trained files beside the checkout")
def test_a_trained_file_runs_at_all_sizes_within_its_bounds() -> None:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(FSMN))

    def inputs(frames: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(frames)
        speech = random.standard_normal((1, frames, 400)).astype(np.float32)
        caches = random.standard_normal((4, 1, 128, 19, 1)).astype(np.float32)
        return {"speech": speech} | {f"in_cache{n}": cache for n, cache in enumerate(caches)}

    sizes = {"speech": {1: Dim("frames", min=1, max=10)}}
    fast = sparsejit.compile(FSMN, tuple(inputs(3).values()), dynamic_shapes=sizes)
    for frames in (3, 1, 10, 7, 2, 4):
        given = inputs(frames)
        results = zip(fast.run([*given.values()]), session.run(None, given), strict=True)
        for result, wanted in results:
            np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    with pytest.raises(InvalidInput, match="'frames', has 11 elements; it takes 1 to 10"):
        fast(*inputs(11).values())
