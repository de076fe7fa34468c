"""Suggestions of a compiled model: the planner's prices, in the user's terms."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from level_marks import WHERE_INT8_GAINS
from rich.console import Console
from small_models import compiled, layers_graph, pruned, with_steps

from sparsejit.api.models.variant import Variant, make_variant
from sparsejit.api.reports import advisor
from sparsejit.api.reports.advisor import LEAST_SHARE, Advice, Suggestion, advice_for
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul, MatVec, Quantisation
from sparsejit.ir.values import Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.machine.target import Target
from sparsejit.planner import alternatives
from sparsejit.planner.alternatives import PATTERNS, AlternativePrices, random_zeros
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.planner.kernel_choice import plan
from sparsejit.planner.sharing import parallel_ns, worthwhile_threads
from sparsejit.runtime.step_timing import StepTimes

pytestmark = pytest.mark.plans

SLOWER = 2.0  # than predicted, say the times that tests make up
TARGET = Target.detect()


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "available_cores", lambda: 1)


def advice(variant: Variant, slower: float = SLOWER, shrinking: str = "") -> Advice:
    """Times of a model of which every step takes that many times its predicted time."""
    steps = [slower * step.facts.predicted_ns for step in variant.steps]
    return advice_for(variant, StepTimes(sum(steps), steps), shrinking=shrinking)


def sparse(rows: int, columns: int, density: float = 0.1, seed: int = 0) -> np.ndarray:
    return pruned(np.random.default_rng(seed), rows, columns, density)


def found(given: Advice, change: str) -> Suggestion:
    (suggestion,) = [each for each in given.suggestions if change in each.change]
    return suggestion


@pytest.mark.parametrize("shape", [(64, 64), (33, 50), (7, 15), (1, 1)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_zeros_keep_to_their_pattern(pattern: str, shape: tuple[int, int]) -> None:
    matrix = random_zeros(pattern, shape, 0.25)
    assert matrix.dense.shape == shape
    np.testing.assert_array_equal(matrix.dense, random_zeros(pattern, shape, 0.25).dense)
    if shape == (64, 64):
        assert matrix.density == pytest.approx(0.25, abs=0.05)
    kept = matrix.dense != 0
    if pattern.startswith("1x"):
        rows = int(pattern[2:])
        whole = kept[: shape[0] // rows * rows].reshape(-1, rows, shape[1])
        assert (whole == whole[:, :1]).all()
    elif pattern == "lane16" and min(shape) >= 16:
        whole = kept[: shape[0] // 16 * 16, : shape[1] // 16 * 16]
        counts = whole.reshape(-1, 16, shape[1] // 16, 16).sum(axis=3)
        assert (counts == counts[:, :1]).all()


def test_patterns_are_those_of_the_pruner() -> None:
    pytest.importorskip("torch")
    from sparsejit.prune import PATTERNS as PRUNED_PATTERNS

    assert PATTERNS.keys() == PRUNED_PATTERNS.keys()


def test_alternatives_cost_what_the_planner_says(monkeypatch: pytest.MonkeyPatch) -> None:
    prices, layer = AlternativePrices(TARGET, exact=False), MatVec(64, 96)
    own = SparseMatrix(sparse(64, 96))
    assert prices.with_zeros(layer, "1x8", 0.1) == chosen(layer, random_zeros("1x8", (64, 96), 0.1))
    short = replace(layer, dtype=DType.BFLOAT16)
    assert prices.stored(layer, own, DType.BFLOAT16) == chosen(short, own)
    batch = MatMul(layer, 16)
    assert prices.batched(layer, own, 16) == plan_batch(batch, own, TARGET).chosen
    resized = random_zeros("unstructured", (80, 96), 0.1)
    assert prices.with_sizes(layer, (80, 96), 0.1) == chosen(MatVec(80, 96), resized)
    monkeypatch.setattr(alternatives, "plan", None)  # what is known is not planned again
    assert prices.with_zeros(layer, "1x8", 0.1001) is prices.with_zeros(layer, "1x8", 0.1)


def chosen(layer: MatVec, matrix: SparseMatrix) -> object:
    return plan(layer, matrix, TARGET).chosen


def test_layers_without_a_kernel_have_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, exact: bool) -> None:
        raise InvalidInput("there is no kernel")

    monkeypatch.setattr(alternatives, "plan", refuse)
    assert AlternativePrices(TARGET, False).with_zeros(MatVec(16, 16), "1x8", 0.5) is None
    given = advice(compiled(layers_graph(sparse(256, 256)))[1])
    assert {each.change.split()[0] for each in given.suggestions} == set()


@WHERE_INT8_GAINS
def test_a_gain_is_that_of_prices_as_far_as_they_hold() -> None:
    weights = sparse(256, 256), sparse(256, 256, seed=1)
    _, variant = compiled(layers_graph(*weights))
    suggestion = found(advice(variant), "store weights as int8")
    prices = AlternativePrices(TARGET, exact=False)
    saved = 0.0
    for matrix, step in zip(weights, variant.steps, strict=True):
        other = prices.stored(MatVec(256, 256), SparseMatrix(matrix), DType.INT8)
        assert other is not None
        saved += SLOWER * (step.facts.plan.chosen.cost.ns - other.cost.ns)
    assert suggestion.saved_ns == pytest.approx(saved, rel=0.1)  # by the zeros alone
    assert suggestion.layers == ("0", "1")
    assert suggestion.how == 'dtype="int8"'
    assert "accuracy" in suggestion.risk


def test_suggestions_come_in_order_and_none_is_small() -> None:
    _, variant = compiled(layers_graph(sparse(256, 256), sparse(48, 256)))
    given = advice(variant)
    saved = [each.saved_ns for each in given.suggestions]
    assert len(saved) >= 3
    assert saved == sorted(saved, reverse=True)
    for each in given.suggestions:
        assert each.share == pytest.approx(each.saved_ns / given.whole_ns)
        assert each.share >= LEAST_SHARE
        assert each.layers
        assert each.how
        assert each.risk


def test_the_command_that_shrinks_is_advised_once() -> None:
    """For layers that are pruned and for others, where these gain: with AVX-VNNI they do not."""
    _, variant = compiled(layers_graph(sparse(256, 256), sparse(256, 256, 0.9, seed=1)))
    given = advice(variant, shrinking="sparsejit shrink")
    (suggestion,) = [each for each in given.suggestions if each.how == "sparsejit shrink"]
    assert suggestion.layers in (("0", "1"), ("0",))


@WHERE_INT8_GAINS
def test_the_dtype_argument_is_one_that_compile_takes() -> None:
    graph = layers_graph(sparse(256, 256), sparse(128, 256))
    variant = make_variant(graph, ModelOptions(TARGET), {"0": "bfloat16"}, None)
    suggestion = found(advice(variant), "store weights as int8")
    assert suggestion.layers == ("1",)
    arguments = eval(f"dict({suggestion.how})")
    assert arguments == {"dtype": {"0": "bfloat16", "1": "int8"}}
    again = make_variant(graph, ModelOptions(TARGET), arguments["dtype"], None)
    assert [step.facts.layer.dtype for step in again.steps] == [DType.BFLOAT16, DType.INT8]


def test_layers_that_are_slower_for_being_short(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layers_graph(sparse(256, 256), sparse(128, 256))
    variant = make_variant(graph, ModelOptions(TARGET), {"*": "bfloat16", "1": "int8"}, None)
    slower = {step.facts.layer.dtype: step.facts.plan.chosen for step in variant.steps}
    of_int8 = slower[DType.INT8]
    faster = replace(of_int8, cost=replace(of_int8.cost, ns=of_int8.cost.ns / 2))

    def stored(self: object, layer: MatVec, matrix: SparseMatrix, dtype: DType) -> object:
        return faster if (layer.dtype, dtype) == (DType.INT8, DType.FLOAT32) else None

    monkeypatch.setattr(AlternativePrices, "stored", stored)
    suggestion = found(advice(variant), "float32 would be faster here")
    assert suggestion.layers == ("1",)
    assert suggestion.how == 'dtype={"0": "bfloat16"}'
    assert suggestion.saved_ns == pytest.approx(SLOWER * faster.cost.ns, rel=0.01)


def test_a_short_layer_in_float32_has_no_scale_left() -> None:
    short = MatVec(64, 96, dtype=DType.INT8, x_steps=Quantisation(0.1, 3))
    own = SparseMatrix(sparse(64, 96))
    prices = AlternativePrices(TARGET, exact=False)
    assert prices.stored(short, own, DType.FLOAT32) == chosen(MatVec(64, 96), own)
    batch = prices.stored(MatMul(short, 16), own, DType.FLOAT32)
    assert batch == plan_batch(MatMul(MatVec(64, 96), 16), own, TARGET).chosen


def test_the_call_that_prunes_can_be_made() -> None:
    torch = pytest.importorskip("torch")
    from sparsejit.prune import Pruner

    weights = sparse(256, 256, 0.1), sparse(256, 256, 0.2)
    _, variant = compiled(layers_graph(*weights))
    suggestion = found(advice(variant), "half as many")
    pruner = eval(suggestion.how, {"Pruner": Pruner})
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in weights))
    pruner.prepare(model)
    kept = [float((layer.weight != 0).float().mean()) for layer in model]
    assert kept == pytest.approx([0.05, 0.1], abs=0.006)


def test_half_as_many_keep_the_pattern() -> None:
    matrix = random_zeros("1x16", (512, 512), 0.2).dense
    given = advice(compiled(layers_graph(matrix))[1])
    assert 'pattern="1x16"' in found(given, "half as many").how
    assert not [each for each in given.suggestions if "pattern 1x16" in each.change]


def test_dense_layers_are_to_be_pruned() -> None:
    given = advice(compiled(layers_graph(sparse(256, 256, 1.0)))[1])
    assert "Pruner(0.9, " in found(given, "prune to 90 %").how
    assert not [each for each in given.suggestions if "as much as now" in each.change]


def test_sizes_that_fill_no_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_sizes(self: AlternativePrices, layer: MatVec, shape: tuple[int, int], d: float):
        assert shape == (32, 48)
        assert d == pytest.approx(20 * 40 / (32 * 48))
        return replace(chosen(layer, matrix), cost=replace(cost, ns=cost.ns / 2))

    matrix = SparseMatrix(np.ones((20, 40), np.float32))
    cost = chosen(MatVec(20, 40), matrix).cost
    monkeypatch.setattr(AlternativePrices, "with_sizes", with_sizes)
    given = advice(compiled(layers_graph(matrix.dense))[1])
    assert found(given, "multiples of 16").how == "0: 32 x 48"


def test_threads_where_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "available_cores", lambda: 4)
    _, variant = compiled(layers_graph(sparse(512, 512)))
    ns = SLOWER * variant.steps[0].facts.predicted_ns
    target = variant.options.target
    count = worthwhile_threads(ns, 4, target)
    suggestion = found(advice(variant), "threads")
    assert suggestion.how == f"threads={count}"
    assert suggestion.saved_ns == pytest.approx(ns - parallel_ns(ns, count, target))
    shared = replace(variant, options=replace(variant.options, threads=4))
    assert not [each for each in advice(shared).suggestions if "threads" in each.change]


@WHERE_INT8_GAINS
def test_a_recurrence_gains_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "available_cores", lambda: 4)
    _, variant = compiled(layers_graph(sparse(512, 512)))
    (step,) = variant.steps
    facts = replace(
        step.facts, predicted_ns=20 * step.facts.predicted_ns, flops=20 * step.facts.flops
    )
    given = advice(with_steps(variant, (replace(step, facts=facts),)))
    once = advice(variant)
    assert not [each for each in given.suggestions if "threads" in each.change]
    int8 = "store weights as int8"
    assert found(given, int8).saved_ns == pytest.approx(20 * found(once, int8).saved_ns)


def test_batches_where_samples_run_one_by_one() -> None:
    graph = layers_graph(sparse(256, 256, 1.0))
    alone = advice(compiled(graph)[1])
    assert not [each for each in alone.suggestions if "samples at a time" in each.change]
    one_by_one = advice(compiled(graph, tile=1)[1])
    assert found(one_by_one, "samples at a time").how == "example_inputs with a batch of 64"


def test_relu_costs_nothing() -> None:
    step = compiled(layers_graph(sparse(16, 16), activation="sin"))[1].steps[1]
    _, variant = compiled(layers_graph(sparse(256, 256)))
    steps = (*variant.steps, replace(step, kernel="gelu"))
    given = advice_for(with_steps(variant, steps), StepTimes(100.0, [60.0, 40.0]))
    suggestion = found(given, "relu in place of gelu")
    assert (suggestion.saved_ns, suggestion.share) == (40, 0.4)
    assert suggestion.layers == ("sin",)


def test_elementwise_work_that_waits_for_far_caches() -> None:
    graph = layers_graph(sparse(16, 4096), rows=64)
    _, variant = compiled(graph, tile=64)
    facts = replace(variant.steps[0].facts, bound="data from L3", moved_bytes=1 << 23, layer=None)
    step = replace(variant.steps[0], kernel="add", facts=facts)
    far = with_steps(variant, (step,))
    suggestion = found(advice_for(far, StepTimes(10.0, [10.0])), "stays in L1")
    assert suggestion.how == "example_inputs with a batch of 16"


def test_time_that_no_price_explains_is_not_shared_out() -> None:
    _, variant = compiled(layers_graph(sparse(256, 256)))
    given = advice(variant, slower=50.0)
    assert given.suggestions == ()
    assert "no change saves" in str(given)


def test_zeros_between_groups_are_no_pattern() -> None:
    build = GraphBuilder()
    x = build.input(TensorType((1, 32, 8)), Origin("x"))
    filters = np.random.default_rng(0).standard_normal((32, 1, 3)).astype(np.float32)
    weights = build.constant(filters, Origin("weight", "conv"))
    op = Convolution(stride=(1,), padding=(1,), dilation=(1,), groups=32)
    y = build.one(op, x, weights, origin=Origin("conv", "conv"))
    given = advice(compiled(build.finish([y]))[1])
    assert not [each for each in given.suggestions if "Pruner" in each.how]


@pytest.mark.usefixtures("steady_clock")
def test_a_compiled_model_advises() -> None:
    model, _ = compiled(layers_graph(sparse(64, 64)))
    assert isinstance(model.advise(), Advice)


def test_advice_as_data_text_and_table() -> None:
    _, variant = compiled(layers_graph(sparse(256, 256)))
    given = advice(variant)
    data = json.loads(json.dumps(given.as_dict()))
    assert data["suggestions"][0]["how"] == given.suggestions[0].how
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(given)
    shown = console.export_text()
    for each in given.suggestions:
        for text in (str(given), shown):
            assert each.change in text
            assert each.how in text


def test_many_layers_are_not_all_named() -> None:
    names = tuple("abcdef")
    text = str(Advice((Suggestion(names, "do", "so", 1.0, 0.5, "none"),), 2.0, 3, 0.03))
    assert "a, b, c, d and 2 more" in text
    assert "a run of 3 samples" in text


def convolution(filters: np.ndarray, groups: int = 1) -> Variant:
    """Compiled over an image of 20 x 20, which it keeps."""
    build = GraphBuilder()
    x = build.input(TensorType((1, groups * filters.shape[1], 20, 20)), Origin("x"))
    weights = build.constant(filters, Origin("conv.weight", "conv", weights=("conv.weight",)))
    op = Convolution(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=groups)
    y = build.one(op, x, weights, origin=Origin("conv", "conv"))
    return compiled(build.finish([y]))[1]


def lowered_ns(variant: Variant) -> float:
    return sum(step.facts.predicted_ns for step in variant.steps)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_gains_what_lowering_says(groups: int) -> None:
    shape = (64, 64 // groups, 3, 3)
    columns = 576 // groups

    def pruned_to(pattern: str, density: float) -> Variant:
        zeros = random_zeros(pattern, (64, columns), density)
        return convolution(zeros.dense.reshape(shape), groups)

    now = pruned_to("unstructured", 0.1)
    assert all(step.facts.layer is None for step in now.steps)
    given = advice(now)
    for change, pattern, density, amount in (
        ("pattern 1x8", "1x8", 0.1, 0.9),
        ("half as many", "unstructured", 0.05, 0.95),
    ):
        saved = SLOWER * (lowered_ns(now) - lowered_ns(pruned_to(pattern, density)))
        if saved < LEAST_SHARE * given.whole_ns:
            assert change == "pattern 1x8", "fewer products gain, fewer loads only where they bind"
            assert not [each for each in given.suggestions if change in each.change]
            continue
        suggestion = found(given, change)
        assert suggestion.saved_ns == pytest.approx(saved)
        assert suggestion.how == f'Pruner({amount}, pattern="{pattern}", targets=["conv.weight"])'
        assert suggestion.layers == ("conv",)
    assert not [each for each in given.suggestions if "lane16" in each.change]


def test_a_dense_convolution_is_to_be_pruned() -> None:
    filters = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    suggestion = found(advice(convolution(filters)), "prune to 90 %")
    assert 'Pruner(0.9, pattern="unstructured", targets=["conv.weight"])' in suggestion.how
    assert "another kernel than now, sparse-windows" in suggestion.risk


def test_zeros_gain_nothing_where_each_channel_has_a_kernel_of_its_own() -> None:
    filters = np.random.default_rng(0).standard_normal((64, 1, 3, 3)).astype(np.float32)
    given = advice(convolution(filters, groups=64))
    assert not [each for each in given.suggestions if "Pruner" in each.how]


def test_convolutions_that_no_price_explains_gain_nothing() -> None:
    filters = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    assert advice(convolution(filters), slower=50.0).suggestions == ()
