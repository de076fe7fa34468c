"""Last layers that several samples have in common: what a sample alone computes, up to rounding."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guard import EDGES, Edge, run_in_child
from hypothesis import given
from hypothesis import strategies as st
from native import Built, built_model, run_built
from saved_models import WORDS, images
from sketch import Sketch, kinds
from small_models import compiled
from test_batch_forms import random_samples

import sparsejit
from sparsejit.asm_templates.convolution.padded_image import PaddedImage
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.row_chains import layer_norm, softmax
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Permute, Reshape, Slice
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Element, Value
from sparsejit.lowering import lower_graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution import windows
from sparsejit.lowering.function import build_function
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.lowering.tiles import ENOUGH_ROWS
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.last_layers import last_layers
from sparsejit.planner import sample_plan
from sparsejit.planner.convolution_plan import plan_windows

ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]
CLASSES = 33


def pooled(s: Sketch, batch: int = 1) -> Any:
    """(batch, 6) from an image of many positions."""
    wide = Convolution((1, 1), (1, 1), (1, 1), activation=Activation.RELU)
    y = s(wide, s.input(batch, 3, 6, 5), s.weight(6, 3, 3, 3), s.weight(6))
    mean = Pooling(PoolingKind.AVERAGE, (6, 5), (1, 1), ((0, 0), (0, 0)), (1, 1))
    return s(Reshape((batch, 6)), s(mean, y))


def classifier() -> Graph:
    """Two linear layers and a softmax."""
    s = Sketch()
    hidden = s(Linear(Activation.RELU), pooled(s), s.weight(40, 6), s.weight(40))
    scores = s(Linear(), hidden, s.weight(CLASSES, 40), s.weight(CLASSES))
    return s.finish(s(softmax((1, CLASSES)), scores))


def features_too() -> Graph:
    """The value that the last layers read is a result, in front of theirs and behind."""
    s = Sketch()
    x = pooled(s)
    first, second = (s(Linear(), x, s.weight(rows, 6), s.weight(rows)) for rows in (7, CLASSES))
    return s.finish(first, x, second)


def small_images() -> Graph:
    """Convolutions of a few positions, and what crosses is an image."""
    s = Sketch()
    strided = Convolution((2, 2), (1, 1), (1, 1), activation=Activation.RELU)
    y = s(strided, s.input(1, 3, 9, 8), s.weight(5, 3, 3, 3))  # 5 x 4 positions
    y = s(strided, y, s.weight(9, 5, 3, 3), s.weight(9))  # 3 x 2
    y = s("tanh", s(Convolution((1, 1), (0, 0), (1, 1)), y, s.weight(4, 9, 2, 1)))
    return s.finish(s(Linear(), s(Reshape((1, 16)), y), s.weight(CLASSES, 16)))


def two_read() -> Graph:
    """Two values cross, one of them through a view that does not lie in order."""
    s = Sketch()
    wide = Convolution((1,), (0,), (1,))
    y = s(wide, s.input(1, 3, 20), s.weight(4, 3, 1))
    short = Pooling(PoolingKind.MAX, (10,), (10,), ((0, 0),), (1,))
    turned = s(Reshape((1, 8)), s(Permute((0, 2, 1)), s(short, y)))
    mean = s(Reshape((1, 4)), s(Pooling(PoolingKind.AVERAGE, (20,), (1,), ((0, 0),), (1,)), y))
    first = s(Linear(), turned, s.weight(CLASSES, 8), s.weight(CLASSES))
    return s.finish(s("add", first, s(Linear(), mean, s.weight(CLASSES, 4))))


def looked_up() -> Graph:
    """The trunk looks indices up, which may be out of range."""
    s = Sketch()
    rows = s(Embedding(), s.input(1, 20, element=Element.INT64), s.weight(WORDS, 8))
    wide = s(Linear(Activation.RELU), rows, s.weight(5, 8), s.weight(5))
    return s.finish(s(Linear(), s(Reshape((1, 100)), wide), s.weight(CLASSES, 100)))


def several_results() -> Graph:
    """A chain of the last layers has several results: a norm's sum is read by a layer, too."""
    s = Sketch()
    x = pooled(s)
    first, second = s(Linear(), x, s.weight(8, 6)), s(Linear(), x, s.weight(8, 6))
    total = s("add", first, second)
    numbers = [s.constant(np.array(number)) for number in (1 / 8, 1e-5)]
    normal = s(layer_norm((1, 8), False, False), total, *numbers)
    wide = s(Linear(), normal, s.weight(CLASSES, 8), s.weight(CLASSES))
    return s.finish(s("add", wide, s(Linear(), total, s.weight(CLASSES, 8))), total)


def bottlenecks() -> Graph:
    """Blocks of pruned convolutions with a sum, of more positions than a vector has lanes."""
    s = Sketch()
    point, around = Convolution((1, 1), (0, 0), (1, 1)), Convolution((1, 1), (1, 1), (1, 1))
    relu = replace(point, activation=Activation.RELU)

    def pruned(*shape: int) -> Value:
        return s.constant(s.random.standard_normal(shape) * (s.random.random(shape) < 0.2))

    x = s(replace(relu, stride=(2, 2)), s.input(1, 3, 33, 33), s.weight(24, 3, 1, 1))
    x = s(replace(relu, stride=(3, 3)), x, s.weight(24, 24, 1, 1))  # 6 x 6
    for _ in range(2):
        y = s(relu, x, pruned(8, 24, 1, 1), s.weight(8))
        y = s(replace(around, activation=Activation.RELU), y, pruned(8, 8, 3, 3), s.weight(8))
        x = s("relu", s("add", s(point, y, pruned(24, 8, 1, 1), s.weight(24)), x))
    mean = Pooling(PoolingKind.AVERAGE, (6, 6), (1, 1), ((0, 0), (0, 0)), (1, 1))
    flat = s(Reshape((1, 24)), s(mean, x))
    return s.finish(s(Linear(), flat, s.weight(CLASSES, 24), s.weight(CLASSES)))


GRAPHS = {
    each.__name__: each
    for each in (classifier, features_too, small_images, two_read, looked_up, several_results)
}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Last layers are joined whatever they gain."""
    monkeypatch.setattr(sample_plan, "LEAST_SAVED", -1e9)


def lowered(graph: Graph, isa: str, joins: bool = True) -> ModelSchedule:
    options = ModelOptions(Target.named(isa))
    return lower_model(run_passes(graph), options, tile=1, joins=joins)


def check_batches(graph: Graph, made: ModelSchedule, isa: str) -> None:
    """Against a sample alone, all batches at guard pages; the workspace is NaN before."""
    plain = built_model(lowered(graph, isa, joins=False))
    built = Built(made, build_function([made], "joint"))

    def check(batch: int, edge: Edge) -> None:
        inputs = [random_samples(value, batch) for value in graph.inputs]
        ran, wanted = run_built(built, inputs, edge), run_built(plain, inputs)
        assert ran.status == wanted.status == 0
        for got, reference in zip(ran.outputs, wanted.outputs, strict=True):
            np.testing.assert_allclose(got, reference, rtol=2e-5, atol=2e-5)

    run_in_child(
        (f"{batch} samples at the {edge}", lambda b=batch, e=edge: check(b, e))
        for batch in (1, 2, 3, 5, 15, 16, 17, 31, 40)
        for edge in EDGES
    ).assert_clean()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_samples_alone(name: str, isa: str, joined: None) -> None:
    graph = GRAPHS[name]()
    made = lowered(graph, isa)
    assert made.end is not None and made.end.samples == 16
    check_batches(graph, made, isa)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_samples_that_take_turns_have_an_end_in_common(
    name: str, first: int, joined: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = GRAPHS[name]()
    monkeypatch.setattr(lower_graph, "first_of_turns", lambda steps, _: first)
    monkeypatch.setattr(lower_graph, "_MOST_IN_TURN", 3)
    made = lowered(graph, "avx2")
    assert made.turns is not None and made.end is not None
    check_batches(graph, made, "avx2")


@pytest.fixture
def far(joined: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of some positions are last layers, too, as where code comes from memory."""
    monkeypatch.setattr(lower_graph, "_sizes", lambda _: [(256, 4)])


@pytest.mark.parametrize("isa", ISAS)
def test_images_of_several_samples_lie_side_by_side(isa: str, far: None) -> None:
    graph = bottlenecks()
    made = lowered(graph, isa)
    assert made.end is not None and made.end.samples == 4
    (x,) = made.end.lowered.graph.inputs
    assert x.shape == (4, 24, 17, 17)
    check_batches(graph, made, isa)


@pytest.mark.parametrize("several", ["dense-windows", "winograd"])
def test_several_samples_may_take_other_windows(
    several: str, far: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose planes may be others, too: the code of one sample is not theirs then."""

    def planned(image: PaddedImage, *given: Any) -> Any:
        name = "sparse-windows" if image.samples == 1 else several
        return plan_windows(image, *given[:3], name)

    monkeypatch.setattr(windows, "plan_windows", planned)
    graph = bottlenecks()
    made = lowered(graph, "avx2")
    assert made.end is not None
    kernels = [step.kernel for step in made.end.lowered.steps]
    assert kernels.count(f"{several}-avx2") == 2
    check_batches(graph, made, "avx2")


def test_weights_are_there_once(far: None) -> None:
    """Code for one sample and for several reads them, whether they are code or data."""
    graph = bottlenecks()
    made = lowered(graph, "avx2")
    assert made.end is not None
    windows = [step for step in made.steps if step.kernel == "sparse-windows-avx2"]
    assert len(windows) == 2
    for step in windows:
        again = [each for each in made.end.lowered.steps if each.body is step.body]
        assert len(again) == 4
    alone = lowered(graph, "avx2", joins=False)
    sizes = [build_function([each], "joint").image.size for each in (made, alone)]
    weights = sum(step.facts.code_bytes for step in windows)
    assert sizes[0] - sizes[1] < sizes[1] - weights


@given(st.integers(1, 40), st.integers(1, 16))
def test_few_samples_are_computed_apart(batch: int, fewest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_plan, "LEAST_SAVED", -1e9)
        made = lowered(classifier(), "avx2")
    assert made.end is not None
    object.__setattr__(made.end, "fewest", fewest)
    graph = classifier()
    inputs = [random_samples(value, batch) for value in graph.inputs]
    ran = run_built(Built(made, build_function([made], "joint")), inputs)
    for number in range(batch):
        (wanted,) = graph.evaluate([array[number] for array in inputs])
        np.testing.assert_allclose(ran.outputs[0][number], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [0, 4, 15, 16, 19])
def test_an_index_out_of_range_is_found_in_any_sample(wrong: int, joined: None) -> None:
    fast, variant = compiled(looked_up(), tile=1)
    assert variant.planned.end is not None
    indices = np.zeros((20, 20), np.int64)
    fast.run([indices])
    indices[wrong, 7] = WORDS
    with pytest.raises(InvalidInput, match="found an index without a row in its table"):
        fast.run([indices])


def test_the_graph_is_cut_where_the_fewest_bytes_cross() -> None:
    found = last_layers(run_passes(classifier()), 16, ENOUGH_ROWS)
    assert found is not None
    assert [value.shape for value in found.graph.inputs] == [(16, 6)]
    assert [value.shape for value in found.graph.outputs] == [(16, CLASSES)]
    assert kinds(found.graph)[:2] == ["Linear", "Linear"]
    assert found.outputs == (0,)


def test_outputs_that_need_all_samples_have_no_joint_end() -> None:
    def cut(graph: Graph) -> Any:
        return last_layers(run_passes(graph), 16, ENOUGH_ROWS)

    s = Sketch()
    by_largest = Linear(dtype=DType.INT8)  # the largest of a product sets the scale of x
    assert cut(s.finish(s(by_largest, pooled(s), s.weight(5, 6)))) is None
    s = Sketch()
    by_scale = Linear(dtype=DType.INT8, x_steps=Quantisation(0.1, 0, symmetric=True))
    assert cut(s.finish(s(by_scale, pooled(s), s.weight(5, 6)))) is not None
    s = Sketch()
    assert cut(s.finish(s("tanh", pooled(s)))) is None  # no weights
    s = Sketch()
    assert cut(s.finish(s(Linear(), s.input(1, 6), s.weight(5, 6)))) is None  # no trunk
    s = Sketch()
    taken = s(Slice(1, 2, 8), s.input(1, 9))
    assert cut(s.finish(s(Linear(), taken, s.weight(5, 6)))) is None  # a narrow one


def test_an_end_that_gains_little_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lowered(classifier(), "avx2")
    whole = sum(step.ns for step in made.steps)
    monkeypatch.setattr(sample_plan, "LEAST_SAVED", 1.0)
    assert lowered(classifier(), "avx2").end is None
    monkeypatch.setattr(sample_plan, "LEAST_SAVED", -1e9)
    joined = lowered(classifier(), "avx2")
    assert joined.end is not None
    assert sum(step.ns for step in joined.steps) == whole


def test_exact_and_threads_have_no_end(joined: None) -> None:
    target = Target.named("avx2")
    for options in (ModelOptions(target, exact=True), ModelOptions(target, threads=2)):
        assert lower_model(run_passes(classifier()), options, tile=1, joins=True).end is None
    assert lower_model(run_passes(classifier()), ModelOptions(target), joins=True).end is None


def test_explain_says_what_samples_have_in_common(joined: None) -> None:
    fast, variant = compiled(images(1), tile=1)
    end = variant.planned.end
    assert end is not None
    first = variant.steps[end.first].origin.name
    assert f"from {first} on {end.fewest} to 16 samples of a batch" in str(fast.explain())


def test_saved_it_is_the_same_model(joined: None, tmp_path: Any) -> None:
    fast, _ = compiled(classifier(), tile=1)
    x = random_samples(classifier().inputs[0], 21)[:, 0]
    fast.save(tmp_path / "model.sjit")
    again = sparsejit.load(tmp_path / "model.sjit")
    assert again.parts.variants[0].planned.end is not None
    np.testing.assert_array_equal(again.run([x])[0], fast.run([x])[0])
