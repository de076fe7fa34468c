"""Samples that take turns with the last steps of a model: the bits of samples that do not."""

from typing import Any

import numpy as np
import pytest
from guard import EDGES, Edge, run_in_child
from native import Built, built_model, run_built
from saved_models import WORDS, images, perceptron, words
from small_models import compiled, small_graph
from test_batch_forms import random_samples

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.lowering import lower_graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.function import build_function
from sparsejit.lowering.lower_graph import first_of_turns, lower_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes

ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]
GRAPHS = {"perceptron": perceptron, "words": words, "small": small_graph, "images": images}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has three samples take turns from a step on."""

    def begin(first: int) -> None:
        monkeypatch.setattr(
            lower_graph, "first_of_turns", lambda steps, _: min(first, len(steps) - 1)
        )
        monkeypatch.setattr(lower_graph, "_MOST_IN_TURN", 3)

    return begin


def lowered(graph: Graph, isa: str) -> ModelSchedule:
    return lower_model(run_passes(graph), ModelOptions(Target.named(isa)), tile=1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", [0, 1, 2, 5])
@pytest.mark.parametrize("name", GRAPHS)
def test_bits_are_those_of_samples_alone(name: str, first: int, isa: str, turns: Any) -> None:
    graph = GRAPHS[name](1)
    plain = built_model(lowered(graph, isa))
    turns(first)
    taking = lowered(graph, isa)
    assert taking.turns is not None and taking.turns.samples == 3
    built = Built(taking, build_function([taking], "turns"))

    def check(batch: int, edge: Edge) -> None:
        inputs = [random_samples(value, batch) for value in graph.inputs]
        ran, wanted = run_built(built, inputs, edge), run_built(plain, inputs)
        assert ran.status == wanted.status == 0
        for got, reference in zip(ran.outputs, wanted.outputs, strict=True):
            np.testing.assert_array_equal(got, reference)

    run_in_child(
        (f"{batch} samples at the {edge}", lambda b=batch, e=edge: check(b, e))
        for batch in (1, 2, 3, 4, 6, 7)
        for edge in EDGES
    ).assert_clean()


@pytest.mark.parametrize("wrong", range(5))
def test_an_index_out_of_range_is_found_in_any_sample(wrong: int, turns: Any) -> None:
    turns(0)
    fast, _ = compiled(words(1), tile=1)
    indices = np.zeros((5, 3), np.int64)
    indices[wrong, 1] = WORDS
    with pytest.raises(InvalidInput, match="found an index without a row in its table"):
        fast.run([indices, np.ones(5, bool)])


def test_only_large_models_on_one_thread_take_turns() -> None:
    target = Target.named("avx2")
    steps = lowered(images(1), "avx2").steps
    far = ModelOptions(target, weight_bytes=target.l3_bytes * 2)
    assert first_of_turns(steps, far) is None  # their code is small
    assert first_of_turns(steps, ModelOptions(target)) is None
    assert first_of_turns(steps, ModelOptions(target, threads=2, weight_bytes=1 << 40)) is None


def test_explain_says_from_where_on(turns: Any) -> None:
    turns(1)
    fast, variant = compiled(images(1), tile=1)
    assert f"from {variant.steps[1].origin.name} on 3 samples of a batch take turns" in str(
        fast.explain()
    )
