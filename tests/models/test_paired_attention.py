"""Attention in pairs of bfloat16, against float64 of rounded operands."""

from dataclasses import replace

import numpy as np
import pytest
from native import built_model, check_at_guard_pages, run_built
from test_attention import HERE, attention_graph, uniform

from sparsejit.attention_masks import block, causal, local
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Attention, Bmm
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.reference import round_to_bfloat16
from sparsejit.ir.values import Array, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.memory_plan import plan_memory
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.lowering.threads.waves import ScheduledStep, Wave
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.planner.attention_plan import (
    FORMS,
    ONE_KERNEL,
    PAIRS,
    SEVERAL_STEPS,
    gains_by_pairs,
)
from sparsejit.planner.cheapest_row import preferring

LEVEL = Target.named("avx512")
TARGET = replace(LEVEL, instruction_sets=LEVEL.instruction_sets | {"avx512_bf16"})
OPTIONS = ModelOptions(TARGET, rounds_x=True)
runs_here = pytest.mark.skipif(
    not TARGET.runs_on(Target.detect()), reason="needs products of pairs of bfloat16"
)


def lowered(graph: Graph) -> ModelSchedule:
    with preferring(PAIRS):
        made = lower_model(graph, OPTIONS)
    assert "attention-pairs" in {step.kernel for step in made.steps}
    return made


def bounds(inputs: list[Array], mask: Array | None, scale: float) -> tuple[Array, Array]:
    """The result of rounded operands, and how far rounded powers may move it.

    Powers are rounded by 2^-8, so their sum moves a result by 2^-8 of the mean distance between
    values and the result, and a little more for float32.
    """
    log2e = np.float32(scale * np.log2(np.e))
    q, k, v = (round_to_bfloat16(x).astype(float) for x in (inputs[0] * log2e, *inputs[1:]))
    scores = q @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp2(scores - np.where(np.isfinite(largest), largest, 0))
    total = powers.sum(axis=-1, keepdims=True)
    shares = powers / np.where(total > 0, total, 1)
    result = shares @ v
    far = np.stack([shares @ abs(v - result[..., n : n + 1, :]) for n in range(q.shape[-2])], -3)
    moved = np.einsum("...nne->...ne", far)
    return result, 1.02 * 2.0**-8 * moved + 1e-5 * abs(v).max()


def check(graph: Graph, inputs: list[Array], mask: Array | None, scale: float) -> None:
    """At both edges of guarded memory."""
    wanted, bound = bounds(inputs, mask, scale)

    def within(outputs: list[Array]) -> None:
        assert (abs(outputs[0] - wanted) <= bound).all()

    check_at_guard_pages(built_model(lowered(graph)), inputs, within)


def masks(queries: int, keys: int) -> dict[str, Array | None]:
    """Masks of all kinds; the last three have a row without keys, or keys that no row sees."""
    random, row, column = np.random.default_rng(1), *np.ogrid[:queries, :keys]
    rows = random.random((queries, keys)) < 0.3
    rows[queries // 2] = False
    a_head = random.random((3, queries, keys)) < 0.5
    a_head[1, :, : keys // 2] = False
    return {
        "none": None,
        "causal": column <= row,
        "padding": np.broadcast_to(column < (keys + 1) // 2, (queries, keys)),
        "a band": abs(row - column) < 5,
        "a band and a stride": (abs(row - column) < 3) | ((row - column) % 16 == 0),
        "rows": rows,
        "a mask a head": a_head,
        "nothing": np.zeros((queries, keys), bool),
    }


@runs_here
@pytest.mark.parametrize("kind", masks(1, 1))
@pytest.mark.parametrize(
    ("queries", "keys", "depth", "values"),
    [
        (1, 7, 8, 8),
        (7, 1, 9, 3),
        (16, 17, 31, 64),
        (17, 16, 33, 65),
        (33, 33, 64, 64),
        (127, 127, 80, 48),
        (32, 257, 128, 128),
        (257, 40, 1, 1),
        (64, 66, 72, 130),
    ],
)
def test_any_size_and_mask(
    queries: int, keys: int, depth: int, values: int, kind: str
) -> None:
    """All samples share their keys."""
    random, mask = np.random.default_rng(queries), masks(queries, keys)[kind]
    shapes = [(2, 3, queries, depth), (3, keys, depth), (2, 3, keys, values)]
    scale = -1.5 * depth**-0.5
    inputs = [2 * uniform(random, shape) for shape in shapes]
    check(attention_graph(shapes, mask, scale), inputs, mask, scale)


@runs_here
@pytest.mark.parametrize("queries", [20, 64])
def test_heads_are_read_and_written_behind_their_tokens(queries: int) -> None:
    random, build = np.random.default_rng(queries), GraphBuilder()
    shapes = [(2, n, 3, width) for n, width in ((queries, 20), (45, 20), (45, 24))]
    given = [build.input(TensorType(shape), HERE) for shape in shapes]
    heads = [build.one(Permute((0, 2, 1, 3)), x, origin=HERE) for x in given]
    y = build.one(Attention(0.3), *heads, origin=HERE)
    graph = build.finish([build.one(Permute((0, 2, 1, 3)), y, origin=HERE)])
    inputs = [uniform(random, shape) for shape in shapes]
    turned = [x.swapaxes(1, 2) for x in inputs]
    wanted, bound = (x.swapaxes(1, 2) for x in bounds(turned, None, 0.3))
    (found,) = run_built(built_model(lowered(graph)), [x[None] for x in inputs]).outputs
    assert (abs(found[0] - wanted) <= bound).all()


@runs_here
@pytest.mark.parametrize("mask", [block(40, 20), None])
def test_equal_values_come_out_as_they_are(mask: Array | None) -> None:
    """Powers are divided by the sum of rounded ones."""
    random = np.random.default_rng(2)
    inputs = [*(4 * uniform(random, (40, 16)) for _ in range(2)), np.full((40, 16), 3, np.float32)]
    built = built_model(lowered(attention_graph([(40, 16)] * 3, mask, 1.0)))
    (found,) = run_built(built, [x[None] for x in inputs]).outputs
    np.testing.assert_allclose(found[0], inputs[2], rtol=1e-6)


@runs_here
def test_keys_that_no_row_sees_are_not_read() -> None:
    """One at an even place and one at an odd place: the other of each pair is seen."""
    random = np.random.default_rng(3)
    mask = random.random((40, 41)) < 0.2
    mask[7] = False
    unseen = [10, 15, 20, 21, 40]
    mask[:, unseen] = False
    inputs = [uniform(random, (length, 8)) for length in (40, 41, 41)]
    built = built_model(lowered(attention_graph([x.shape for x in inputs], mask, 1.0)))
    (plain,) = run_built(built, [x[None] for x in inputs]).outputs
    for x in inputs[1:]:
        x[unseen] = np.nan
    (spoiled,) = run_built(built, [x[None] for x in inputs]).outputs
    assert not plain[0, 7].any()
    assert plain.tobytes() == spoiled.tobytes()


@runs_here
def test_infinite_and_missing_numbers() -> None:
    """A row of Q with NaN is NaN, an infinite score too; a key of -infinity is not chosen."""
    inputs = [np.ones((20, 8), np.float32) for _ in range(3)]
    inputs[0][3, 5], inputs[1][4] = np.nan, -np.inf
    graph = attention_graph([(20, 8)] * 3, None, 1.0)
    (found,) = run_built(built_model(lowered(graph)), [x[None] for x in inputs]).outputs
    assert np.isnan(found[0, 3]).all()
    assert (np.delete(found[0], 3, axis=0) == 1).all()
    inputs[1][4] = np.inf
    (found,) = run_built(built_model(lowered(graph)), [x[None] for x in inputs]).outputs
    assert np.isnan(found).all()


@runs_here
@pytest.mark.parametrize("mask", ["none", "causal", "local"])
@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_a_result_has_the_same_bits_in_any_part_and_batch(mask: str, way: int) -> None:
    """Cut by heads or by queries, for 2 or 3 threads; each of three samples at a time or alone."""
    given = {"none": None, "causal": causal(70), "local": local(70, 10)}[mask]
    graph = attention_graph([(3, 70, 24)] * 3, given, 0.2)
    whole = lowered(graph)
    (step,) = whole.steps
    assert step.divide is not None
    ways = step.divide(2 + way // 2)
    parts = ways[way % len(ways)]
    assert len(parts) > 1
    waves = (Wave(tuple((ScheduledStep(0, part),) for part in parts), 2e6, 1e6),)
    memory = plan_memory([[[each.step for each in run] for run in wave.threads] for wave in waves])
    cut = replace(whole, waves=waves, memory=memory)
    inputs = [uniform(np.random.default_rng(way), (3, 3, 70, 24)) for _ in range(3)]
    (wanted,) = run_built(built_model(whole), inputs).outputs
    (found,) = run_built(built_model(cut), inputs).outputs
    (alone,) = run_built(built_model(whole), [x[1:2] for x in inputs]).outputs
    assert found.tobytes() == wanted.tobytes()
    assert alone[0].tobytes() == wanted[1].tobytes()


def masked_by_a_call(*shapes: tuple[int, ...]) -> Graph:
    """softmax(Q K^T / 2 + mask) V, as two products; the last shape is the mask's."""
    build = GraphBuilder()
    query, key, value, mask = (build.input(TensorType(shape), HERE) for shape in shapes)
    scores = build.one(Bmm(True, 0.5), query, key, origin=HERE)
    masked = build.one(Pointwise("add"), scores, mask, origin=HERE)
    shares = build.one(row_chains.softmax(masked.shape), masked, origin=HERE)
    return run_passes(build.finish([build.one(Bmm(), shares, value, origin=HERE)]))


def products_of(graph: Graph, options: ModelOptions) -> list[str]:
    steps = [step.kernel for step in lower_model(graph, options).steps]
    return [kernel for kernel in steps if "product" in kernel]


@runs_here
@pytest.mark.parametrize("line", [True, False])
@pytest.mark.parametrize(
    ("queries", "keys", "depth", "values"), [(40, 40, 16, 24), (33, 70, 64, 17), (128, 31, 50, 64)]
)
def test_masks_of_a_call_stand_between_products_of_pairs(
    queries: int, keys: int, depth: int, values: int, line: bool
) -> None:
    """Padding, whose scores are -infinity, or numbers for each query and key."""
    random = np.random.default_rng(keys)
    shapes = [(2, queries, depth), (2, keys, depth), (2, keys, values)]
    inputs = [2 * uniform(random, shape) for shape in shapes]
    bias = 3 * uniform(random, (2, queries, keys))
    padding = np.where(np.arange(keys) < 20, 0, -np.inf).astype(np.float32)[None, None]
    inputs.append(padding if line else bias)
    graph = masked_by_a_call(*(x.shape for x in inputs))
    options = replace(OPTIONS, target=replace(TARGET, core=core_named("zen4")))
    assert products_of(graph, options) == ["paired dense product"] * 2
    q, k, v = (round_to_bfloat16(x).astype(float) for x in inputs[:3])
    powers = np.exp(q @ k.swapaxes(-1, -2) / 2 + inputs[3])
    shares = powers / powers.sum(axis=-1, keepdims=True)
    bound = 1.02 * 2.0**-8 * shares @ abs(v) + 1e-5

    def within(outputs: list[Array]) -> None:
        assert (abs(outputs[0] - shares @ v) <= bound).all()

    check_at_guard_pages(built_model(lower_model(graph, options)), inputs, within)


def test_products_stay_exact_where_rounding_is_not_allowed_or_gains_nothing() -> None:
    """Others than attention's, a single query, 1.2 MB of shares, and as options or the core say."""
    zen4, golden_cove = (replace(TARGET, core=core_named(key)) for key in ("zen4", "golden_cove"))
    shapes = [(2, 64, 32)] * 3 + [(1, 1, 64)]
    graph, allowed = masked_by_a_call(*shapes), replace(OPTIONS, target=zen4)
    for options in (
        replace(allowed, rounds_x=False),
        replace(allowed, exact=True),
        replace(allowed, target=golden_cove),
    ):
        assert products_of(graph, options) == ["dense product"] * 2
    far = masked_by_a_call((1, 40, 32), *[(1, 15_000, 32)] * 2, (1, 1, 15_000))
    assert products_of(far, allowed) == ["paired dense product", "dense product"]
    single = masked_by_a_call((2, 1, 32), *shapes[1:3], (2, 1, 64))
    assert products_of(single, allowed) == ["dense product"] * 2
    build = GraphBuilder()
    operands = [build.input(TensorType((2, 64, 64)), HERE) for _ in range(2)]
    alone = build.finish([build.one(Bmm(), *operands, origin=HERE)])
    assert products_of(alone, allowed) == ["dense product"]


def kernels(options: ModelOptions, *shapes: tuple[int, ...]) -> list[str]:
    return [step.kernel for step in lower_model(attention_graph([*shapes], None, 1), options).steps]


def test_operands_are_rounded_only_where_that_is_allowed() -> None:
    for options in (
        replace(OPTIONS, rounds_x=False),
        replace(OPTIONS, exact=True),
        replace(OPTIONS, target=LEVEL),
        replace(OPTIONS, target=Target.named("avx2")),
    ):
        with preferring(PAIRS):
            assert "attention-pairs" not in kernels(options, *[(12, 128, 64)] * 3)


@pytest.mark.parametrize(("core", "gains"), [("zen4", True), ("golden_cove", False)])
def test_pairs_are_taken_where_the_core_gains(core: str, gains: bool) -> None:
    """Golden Cove multiplies two vectors of float32 a cycle, and one of pairs."""
    target = replace(TARGET, core=core_named(core))
    assert gains_by_pairs(target) is gains
    found = kernels(replace(OPTIONS, target=target), *[(12, 128, 64)] * 3)
    assert found == ["attention-pairs" if gains else "attention"]


@pytest.mark.plans
def test_the_chosen_form_is_the_cheapest() -> None:
    """Pairs must gain a tenth; where there is none, the choice is between the others."""
    options = ModelOptions(Target.detect(), rounds_x=True)
    for length in (1, 16, 17, 128):
        graph = attention_graph([(4, length, 64)] * 3, None, 1.0)
        predicted = {}
        for form in FORMS:
            with preferring(form.name):
                steps = lower_model(graph, options).steps
            predicted[form.name] = sum(step.facts.predicted_ns for step in steps)
        chosen = lower_model(graph, options)
        is_paired = "attention-pairs" in {step.kernel for step in chosen.steps}
        least = min(predicted[name] for name in (ONE_KERNEL, SEVERAL_STEPS))
        assert not is_paired or predicted[PAIRS] < least
        assert is_paired or not options.multiplies_pairs or 1.3 * predicted[PAIRS] > least
