"""Attention under masks known at compile time: tables, code between guard pages, torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native import ISAS, check_graph, run_graph
from torch.nn.functional import scaled_dot_product_attention

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph, GraphBuilder, Origin, TensorType
from sparsejit.ir.ops.attention import MaskedAttention
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.row_groups import row_groups
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.model import lower_model
from sparsejit.machine.target import Target

HERE = Origin("attention")
TOLERANCE = 1e-4


def uniform(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.uniform(-1, 1, shape).astype(np.float32)


def attention_graph(shapes: list[tuple[int, ...]], mask: np.ndarray, scale: float) -> Graph:
    build = GraphBuilder()
    operands = [build.input(TensorType(shape), HERE) for shape in shapes]
    constant = build.constant(mask, HERE)
    return build.finish(build.add(MaskedAttention(scale), *operands, constant, origin=HERE))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=6)
@given(
    queries=st.sampled_from([1, 7, 16, 17, 33, 50]),
    keys=st.sampled_from([1, 8, 9, 40, 65]),
    depth=st.sampled_from([1, 5, 16, 31, 32, 33, 72]),
    values=st.sampled_from([1, 3, 8, 16, 28, 29, 40, 65]),
    stack=st.sampled_from([(), (1,), (3,), (2, 3)]),
    own_masks=st.booleans(),
    stride=st.sampled_from([0, 3, 10]),
    density=st.sampled_from([0.0, 0.02, 0.2, 0.9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_size_and_mask(
    isa: str,
    queries: int,
    keys: int,
    depth: int,
    values: int,
    stack: tuple[int, ...],
    own_masks: bool,
    stride: int,
    density: float,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    shapes = [(*stack, queries, depth), (*stack[-1:], keys, depth), (*stack, keys, values)]
    heads = stack[-1:] if own_masks else ()
    mask = generator.random((*heads, queries, keys)) < density
    row, column = np.ogrid[:queries, :keys]
    if stride:  # one tile adds to another
        mask |= (abs(row - column) < 3) | ((row - column) % stride == 0)
    graph = attention_graph(shapes, mask, 1.5)
    check_graph(graph, [uniform(generator, s) for s in shapes], Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_forbidden_keys_do_not_count(isa: str) -> None:
    generator = np.random.default_rng(3)
    mask = generator.random((40, 40)) < 0.2
    mask[7] = False  # sees nothing: zeros
    mask[:, 11] = False  # seen by nobody: never read
    arrays = [uniform(generator, (40, 8)) for _ in range(3)]
    graph = attention_graph([(40, 8)] * 3, mask, 1.0)
    (plain,) = run_graph(graph, arrays, Target.named(isa))
    for array in arrays[1:]:
        array[11] = np.nan
    (spoiled,) = run_graph(graph, arrays, Target.named(isa))
    assert not plain[7].any()
    assert plain.tobytes() == spoiled.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_large_scores_do_not_overflow(isa: str) -> None:
    generator = np.random.default_rng(4)
    arrays = [uniform(generator, (33, 16)) * 100 for _ in range(3)]
    mask = np.tril(np.ones((33, 33), bool))
    check_graph(attention_graph([(33, 16)] * 3, mask, 1.0), arrays, Target.named(isa), 2e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_heads_are_read_and_written_where_they_lie(isa: str) -> None:
    generator, build = np.random.default_rng(5), GraphBuilder()
    inputs = [build.input(TensorType((2, 20, 3, 9)), HERE) for _ in range(3)]
    heads = [build.one(Permute((0, 2, 1, 3)), x, origin=HERE) for x in inputs]
    mask = build.constant(generator.random((3, 20, 20)) < 0.3, HERE)
    y = build.one(MaskedAttention(0.3), *heads, mask, origin=HERE)
    graph = build.finish([build.one(Permute((0, 2, 1, 3)), y, origin=HERE)])
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    assert [step.kernel for step in lowered.steps] == ["masked attention", "copy"]  # of the output
    arrays = [uniform(generator, (2, 20, 3, 9)) for _ in range(3)]
    check_graph(graph, arrays, Target.named(isa), TOLERANCE)


def test_operands_that_do_not_fit_are_refused() -> None:
    for mask in (np.ones((4, 6), bool), np.ones((3, 4, 5), bool), np.ones((4, 5), np.float32)):
        with pytest.raises(InvalidInput, match="a mask"):
            attention_graph([(2, 4, 8), (2, 5, 8), (2, 5, 8)], mask, 1.0)


@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    size=st.sampled_from([1, 8, 16]),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_groups_hold_each_row_once_and_all_it_sees(
    queries: int, keys: int, size: int, density: float, seed: int
) -> None:
    mask = np.random.default_rng(seed).random((queries, keys)) < density
    groups = row_groups(mask, size)
    begun = np.concatenate([group.rows for group in groups if not group.adds])
    assert sorted(begun) == list(range(queries))
    seen = np.zeros(mask.shape, int)
    for group in groups:
        assert 0 < len(set(group.rows)) == len(group.rows) <= size
        seen[np.ix_(group.rows, group.keys)] += group.allowed.T
    assert np.array_equal(seen, mask)
    assert sum(group.adds for group in groups) <= queries


def test_a_band_and_a_stride_are_grouped_apart() -> None:
    row, column = np.ogrid[:256, :256]
    mask = (abs(row - column) < 16) | ((row - column) % 16 == 0)
    groups = row_groups(mask, 16)
    assert {group.adds for group in groups} == {False, True}
    assert sum(len(g.keys) for g in groups) * 16 < 2 * mask.sum()


def test_rows_of_a_stride_share_their_keys() -> None:
    row, column = np.ogrid[:128, :128]
    assert sum(len(g.keys) for g in row_groups((row - column) % 8 == 0, 16)) == 8 * 16
    assert sum(len(g.keys) for g in row_groups(abs(row - column) < 8, 16)) <= 8 * 30


class _Attention(torch.nn.Module):
    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


def _local(heads: int) -> torch.Tensor:
    row, column = torch.arange(48)[:, None], torch.arange(48)
    return torch.stack([(row - column).abs() < 3 + head for head in range(heads)])


MASKS = {
    "bools": _local(1)[0],
    "infinities": torch.zeros(48, 48).masked_fill(~_local(1)[0], float("-inf")),
    "a batch of one": _local(1)[None],
    "of each head": _local(3),
    "batch and heads": _local(3)[None],
}


@pytest.mark.parametrize("name", MASKS)
def test_torch_masks_are_spared(name: str) -> None:
    model = _Attention(MASKS[name]).eval()
    x = tuple(torch.randn(2, 3, 48, 8) for _ in range(3))
    fast = sparsejit.compile(model, example_inputs=x)
    assert "masked attention" in str(fast.explain())
    assert torch.allclose(fast(*x), model(*x), atol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(48, 48),
        torch.where(_local(1)[0], 0.5, float("-inf")),
        torch.rand(48, 48) < 0.9,
        _local(1)[0][:1].expand(48, 48),
    ],
    ids=["nothing forbidden", "adds too", "little forbidden", "all alike"],
)
def test_other_masks_equal_torch(mask: torch.Tensor) -> None:
    model = _Attention(mask).eval()
    x = tuple(torch.randn(2, 3, 48, 8) for _ in range(3))
    assert torch.allclose(sparsejit.compile(model, example_inputs=x)(*x), model(*x), atol=1e-5)


def test_samples_of_a_batch_have_the_bits_they_have_alone() -> None:
    model = _Attention(_local(1)[0]).eval()
    x = tuple(torch.randn(5, 3, 48, 8) for _ in range(3))
    fast = sparsejit.compile(model, example_inputs=x)
    whole = fast(*x)
    for sample in range(5):
        assert torch.equal(fast(*(part[sample : sample + 1] for part in x))[0], whole[sample])
