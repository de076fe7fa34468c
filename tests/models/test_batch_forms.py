"""A model with several tiles: any batch gets its results from the tiles that fit it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from guard import EDGES, Edge, run_in_child
from hypothesis import given
from hypothesis import strategies as st
from native import Built, run_built
from saved_models import WORDS, perceptron, words
from small_models import small_graph

import sparsejit
from sparsejit.api.models.variant import TiledGraph, make_variant
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, Element, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.function import build_function, function_workspace_bytes
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.planner import sample_plan
from sparsejit.planner.sample_plan import TileTime, fewest_samples, tiles_that_pay

ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]
BATCHES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 31, 33, 64, 67)
GRAPHS = {"perceptron": perceptron, "words": words, "small": small_graph}


def form(graph: Graph, tile: int, isa: str) -> ModelSchedule:
    return lower_model(run_passes(graph), ModelOptions(Target.named(isa)), tile=tile)


class Whole(NamedTuple):
    """A lowered model as `run_built` asks it: a sample's graph, the workspace of all forms."""

    graph: Graph
    workspace_bytes: int
    status_offset: int


class Forms:
    """A graph for several tiles, built whether all of them pay or not."""

    def __init__(self, name: str, tiles: Sequence[int], isa: str) -> None:
        self.single = GRAPHS[name](1)
        forms = [form(GRAPHS[name](tile), tile, isa) for tile in sorted(tiles)[::-1]]
        whole: Any = Whole(self.single, function_workspace_bytes(forms), forms[0].status_offset)
        self.built = Built(whole, build_function(forms, "test"))

    def check(self, batch: int, edge: Edge) -> None:
        """Against float64, sample by sample; nothing around the arrays is read or written."""
        inputs = [random_samples(value, batch) for value in self.single.inputs]
        ran = run_built(self.built, inputs, edge)
        assert ran.status == 0
        for number in range(batch):
            wanted = self.single.evaluate([array[number] for array in inputs])
            for got, reference in zip(ran.outputs, wanted, strict=True):
                np.testing.assert_allclose(got[number], reference, rtol=1e-5, atol=1e-5)


def random_samples(value: Value, batch: int) -> Array:
    random, element = np.random.default_rng(batch), value.type.element
    if element is Element.INT64:
        return random.integers(0, WORDS, (batch, *value.shape))
    numbers = random.standard_normal((batch, *value.shape))
    return numbers.astype(np.float32) if element is Element.FLOAT32 else numbers > 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("tiles", [(1, 16), (1, 4, 16), (3,), (5, 1)])
def test_any_batch_at_guard_pages(name: str, tiles: tuple[int, ...], isa: str) -> None:
    forms = Forms(name, tiles, isa)
    run_in_child(
        (f"{batch} samples at the {edge}", lambda b=batch, e=edge: forms.check(b, e))
        for batch in BATCHES
        for edge in EDGES
    ).assert_clean()


@given(st.integers(0, 70), st.sets(st.sampled_from((1, 2, 3, 8, 16)), min_size=1))
def test_any_batch_and_any_tiles(batch: int, tiles: set[int]) -> None:
    variant = make_variant(
        perceptron(min(tiles)),
        ModelOptions(Target.named("avx2")),
        "float32",
        min(tiles),
        others=[TiledGraph(perceptron(each), each) for each in sorted(tiles)[1:]],
    )
    x = np.random.default_rng(batch).standard_normal((batch, 16)).astype(np.float32)
    (y,) = variant.call([x])
    assert len(y) == batch
    if batch:
        wanted = np.concatenate([perceptron(1).evaluate([row[None]])[0] for row in x])
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("times", "kept", "fewest"),
    [
        ({1: 10, 16: 50}, [16, 1], [6, 1]),  # five alone take as long
        ({1: 10, 16: 150}, [1], [1]),  # a tenth must be saved
        ({1: 10, 16: 50, 64: 150}, [64, 16, 1], [49, 6, 1]),
        ({1: 10, 16: 50, 64: 190}, [16, 1], [6, 1]),
        ({16: 50}, [16], [1]),
    ],
)
def test_which_tiles_pay_and_from_how_many_samples_on(
    times: dict[int, float], kept: list[int], fewest: list[int]
) -> None:
    pay = tiles_that_pay(TileTime(tile, ns) for tile, ns in times.items())
    assert [tile.samples for tile in pay[::-1]] == kept
    found = [fewest_samples(tile, pay[:n]) if n else 1 for n, tile in enumerate(pay)]
    assert found[::-1] == fewest


def test_exact_has_the_same_bits_in_any_batch_and_one_tile() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(100, 64), torch.nn.ReLU(), torch.nn.Linear(64, 9))
    x = torch.randn(40, 100)
    exact = sparsejit.compile(module, (x[:3],), exact=True)
    assert exact.parts.variants[0].tiles == (3,)
    whole = exact(x)
    for first, end in ((0, 1), (3, 20), (38, 40)):
        assert torch.equal(exact(x[first:end]), whole[first:end])


def test_compiled_at_any_batch_it_is_the_same_model() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(300, 99), torch.nn.ReLU(), torch.nn.Linear(99, 9))
    x = torch.randn(64, 300)
    made = [sparsejit.compile(module, (x[:batch],)) for batch in (1, 3, 17, 64)]
    assert len({tuple(sorted(one.parts.variants[0].tiles)) for one in made}) == 1
    for batch in (1, 5, 16, 64):
        results = [one(x[:batch]) for one in made]
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 11])
def test_threads_that_take_turns_leave_nothing_over(batch: int) -> None:
    options = ModelOptions(Target.named("avx2"), threads=2, shares_tiles=True)
    variant = make_variant(perceptron(3), options, "float32", 3)
    alone = make_variant(perceptron(3), ModelOptions(Target.named("avx2")), "float32", 3)
    x = np.random.default_rng(batch).standard_normal((batch, 16)).astype(np.float32)
    np.testing.assert_array_equal(variant.call([x])[0], alone.call([x])[0])


def test_a_saved_model_keeps_all_tiles(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_plan, "_MOST_OF_SMALLER", 1e9)  # whatever they gain here
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(40, 200), torch.nn.Tanh(), torch.nn.Linear(200, 9))
    fast = sparsejit.compile(module, (torch.randn(1, 40),))
    fast.save(tmp_path / "m.sjit")
    again = sparsejit.load(tmp_path / "m.sjit")
    assert len(fast.parts.variants[0].tiles) > 1
    assert again.parts.variants[0].tiles == fast.parts.variants[0].tiles
    x = torch.randn(19, 40)
    assert torch.equal(again(x), fast(x))
