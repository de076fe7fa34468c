"""Models with attention, from torch and from ONNX files, become the kernel and equal torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runnable import ISAS
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax

import sparsejit
from sparsejit.attention_masks import causal, local, strided
from sparsejit.machine.target import Target

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

TOKENS, HEADS, WIDE = 48, 3, 24


class Attending(nn.Module):
    """A function of a mask, queries, keys and values."""

    mask: Tensor

    def __init__(self, mask: Tensor, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.function = function

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(self.mask, q, k, v)


class Layer(nn.Module):
    """One of torch's own layers over tokens (batch, tokens, width), under a mask or none."""

    mask: Tensor | None

    def __init__(self, of: nn.Module, mask: Tensor | None) -> None:
        super().__init__()
        self.of = of
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.of, nn.MultiheadAttention):
            return self.of(x, x, x, attn_mask=self.mask, need_weights=False)[0]
        return self.of(x) if self.mask is None else self.of(x, src_mask=self.mask)


def sdpa(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal_sdpa(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def added(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q @ k.transpose(-2, -1) * 0.3 + mask, dim=-1) @ v


def filled(number: float) -> Callable[..., Tensor]:
    def function(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) / 3
        return softmax(scores.masked_fill(~mask, number), dim=-1) @ v

    return function


def chosen(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As nanoGPT and GPT-2 write it: the part of a larger mask that is needed."""
    scores = (q / q.shape[-1] ** 0.5) @ k.transpose(-2, -1)
    seen = mask[: q.shape[-2], : k.shape[-2]]
    return softmax(torch.where(seen, scores, torch.finfo(scores.dtype).min), dim=-1) @ v


def infinities(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


STRIDED = torch.from_numpy(strided(TOKENS, 7))
OF_HEADS = torch.from_numpy(np.stack([local(TOKENS, 2 * n + 4) for n in range(HEADS)]))
NOTHING_SEEN = STRIDED.clone()
NOTHING_SEEN[5] = False
LARGER = torch.from_numpy(causal(2 * TOKENS))


def width_of_heads(function: Callable[..., Tensor], mask: Tensor) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        x = tuple(torch.randn(2, HEADS, TOKENS, 8) for _ in range(3))
        return Attending(mask, function), x

    return make


def layer(make: Callable[[], nn.Module], mask: Tensor) -> Callable[[], tuple[Any, Any]]:
    return lambda: (Layer(make(), mask), (torch.randn(2, TOKENS, WIDE),))


def multihead() -> nn.Module:
    return nn.MultiheadAttention(WIDE, HEADS, batch_first=True)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDE, HEADS, 32, batch_first=True)


MASKED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bools": width_of_heads(sdpa, STRIDED),
    "infinities": width_of_heads(sdpa, infinities(STRIDED)),
    "a batch of one": width_of_heads(sdpa, STRIDED[None]),
    "of each head": width_of_heads(sdpa, OF_HEADS),
    "batch and heads": width_of_heads(sdpa, OF_HEADS[None]),
    "a row without keys": width_of_heads(sdpa, NOTHING_SEEN),
    "is_causal": width_of_heads(causal_sdpa, STRIDED),
    "added": width_of_heads(added, infinities(STRIDED)),
    "added, lowest": width_of_heads(added, (~STRIDED) * torch.finfo(torch.float32).min),
    "filled": width_of_heads(filled(float("-inf")), STRIDED),
    "filled, -1e9": width_of_heads(filled(-1e9), OF_HEADS),
    "chosen": width_of_heads(chosen, LARGER),
    "MultiheadAttention": layer(multihead, ~STRIDED),
    "TransformerEncoderLayer": layer(encoder, ~STRIDED),
    "infinities in a layer": layer(encoder, infinities(STRIDED)),
}


def checked(model: nn.Module, x: tuple[Tensor, ...], fast: Any) -> None:
    """Equal to the model in float64."""
    doubles = [one.double() for one in x]
    with torch.no_grad():
        exact = model.double()(*doubles)
    found = torch.as_tensor(fast(*x))
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-5


@pytest.mark.parametrize("name", MASKED)
def test_constant_masks_are_spared_in_torch(name: str) -> None:
    torch.manual_seed(0)
    model, x = MASKED[name]()
    fast = sparsejit.compile(model.eval(), example_inputs=x)
    assert "masked attention" in str(fast.explain())
    assert fast.batch_is_free
    checked(model, x, fast)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("name", MASKED)
def test_constant_masks_are_spared_in_onnx(name: str, opset: int, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    torch.manual_seed(0)
    model, x = MASKED[name]()
    file = tmp_path / "model.onnx"
    names = [f"x{number}" for number in range(len(x))]
    torch.onnx.export(
        model.eval(), x, str(file), dynamo=False, opset_version=opset, input_names=names,
        dynamic_axes={name: {0: "batch"} for name in names},
    )  # fmt: skip
    fast = sparsejit.compile(file, [one.numpy() for one in x])
    assert "masked attention" in str(fast.explain())
    checked(model, x, lambda *given: fast(*(one.numpy() for one in given)))


@pytest.mark.parametrize("make", [multihead, encoder])
def test_layers_without_a_mask_use_the_kernel(make: Callable[[], nn.Module]) -> None:
    model, x = Layer(make(), None), (torch.randn(2, 64, WIDE),)
    # By prices under which the kernel is cheaper than two products, as it is not on every core.
    fast = sparsejit.compile(model.eval(), example_inputs=x, target=Target.detect().isa)
    report = fast.explain()
    assert "attentions of 64 queries to 64 keys" in str(report)
    choices = [each for layer in report.layers for each in layer.decisions]
    (of_attention,) = (each for each in choices if each.question == "attention")
    assert of_attention.price <= of_attention.runner_up_price
    assert str(of_attention) in " ".join(layer.why for layer in report.layers)
    checked(model, x, fast)


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(TOKENS, TOKENS),
        torch.where(STRIDED, 0.5, float("-inf")),
        torch.where(STRIDED, 0.0, -1e4),
        torch.rand(TOKENS, TOKENS) < 0.9,
        STRIDED[-1:].expand(TOKENS, TOKENS),
    ],
    ids=["nothing forbidden", "adds too", "adds little", "little forbidden", "all alike"],
)
def test_other_masks_equal_torch(mask: Tensor) -> None:
    model, x = width_of_heads(sdpa, mask)()
    checked(model, x, sparsejit.compile(model.eval(), example_inputs=x))


@pytest.mark.parametrize("tokens", [24, 64])
def test_samples_of_a_batch_have_the_bits_they_have_alone(tokens: int) -> None:
    for mask in (torch.ones(tokens, tokens, dtype=torch.bool), torch.from_numpy(causal(tokens))):
        model = Attending(mask, sdpa).eval()
        x = tuple(torch.randn(5, HEADS, tokens, 8) for _ in range(3))
        fast = sparsejit.compile(model, example_inputs=x)
        whole = fast(*x)
        for sample in range(5):
            assert torch.equal(fast(*(part[sample : sample + 1] for part in x))[0], whole[sample])


# Masks of a call as decoders with static caches write them; `allowed`: true for keys to read.
LOWEST = torch.finfo(torch.float32).min
Masked = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def with_sum(number: float) -> Masked:
    """transformers' eager attention: scores and 0 or a number are added."""

    def function(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return added(torch.where(allowed, 0.0, number), q, k, v)

    return function


def with_floats(number: float) -> Masked:
    def function(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(torch.where(allowed, 0.0, number), q, k, v)

    return function


def with_products(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Older transformers: a matrix of the least number, times where it stands."""
    return added(torch.full(allowed.shape, LOWEST) * ~allowed, q, k, v)


def with_choice(number: float) -> Masked:
    def function(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = 0.3 * (q @ k.transpose(-2, -1))
        return softmax(torch.where(allowed, scores, number), dim=-1) @ v

    return function


CACHE_MASKS: dict[str, Masked] = {
    "bools": sdpa,
    "floats": with_floats(LOWEST),
    "floats of -inf": with_floats(-np.inf),
    "sum": with_sum(LOWEST),
    "sum of -inf": with_sum(-np.inf),
    "sum of a little": with_sum(-20.0),
    "products": with_products,
    "fill": filled(LOWEST),
    "fill of less": filled(-1e9),
    "fill of -inf": filled(-np.inf),
    "choice": with_choice(LOWEST),
    "choice of -inf": with_choice(-np.inf),
}


class OfCall(nn.Module):
    """Attention under a mask that a call gives."""

    def __init__(self, function: Masked) -> None:
        super().__init__()
        self.function = function

    def forward(self, allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(allowed, q, k, v)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("name", CACHE_MASKS)
def test_masks_of_a_call_are_torchs(name: str, queries: int, isa: str) -> None:
    """A row without a key has torch's result: equal shares, zeros or NaN."""
    torch.manual_seed(0)
    model, random = OfCall(CACHE_MASKS[name]), np.random.default_rng(0)
    q, k, v = torch.randn(1, 2, queries, 8), torch.randn(1, 2, 48, 8), torch.randn(1, 2, 48, 16)
    for rows in (1, queries):
        allowed = torch.ones(1, 1, rows, 48, dtype=torch.bool)
        fast = sparsejit.compile(model, (allowed, q, k, v), target=isa, free_batch=False)
        kinds = [type(node.op).__name__ for node in fast.graph.nodes]
        assert ("CachedAttention" in kinds) == (rows == 1)
        for density in (0.0, 0.02, 0.1, 0.5, 1.0):
            allowed = torch.from_numpy(random.random((1, 1, rows, 48)) < density)
            given = allowed, q * random.choice([1, 30]), k, v
            with torch.no_grad():
                wanted = model(*given)
            np.testing.assert_allclose(fast(*given), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_a_mask_of_numbers_that_a_call_gives(isa: str) -> None:
    """A line of any numbers is added, such as a bias of distance with keys that are forbidden."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 48, 8), torch.randn(1, 2, 48, 16)
    distance = -0.3 * torch.arange(48.0).flip(0)
    masks = [distance.where(torch.arange(48) < end, LOWEST) for end in (0, 1, 17, 48)]
    masks += [torch.full((48,), -3.0), torch.where(torch.arange(48) == 40, 2.0, -1e9)]
    masks = [mask[None] for mask in masks]
    for function, nothing in ((sdpa, 0.0), (added, np.nan)):
        model = OfCall(function)
        fast = sparsejit.compile(model, (masks[0], q, k, v), target=isa, free_batch=False)
        assert any(type(node.op).__name__ == "CachedAttention" for node in fast.graph.nodes)
        for mask in masks:
            with torch.no_grad():
                wanted = model(mask, q, k, v)
            np.testing.assert_allclose(fast(mask, q, k, v), wanted, rtol=2e-5, atol=2e-5)
        forbidden = fast(torch.full((1, 48), -np.inf), q, k, v).numpy()
        np.testing.assert_array_equal(forbidden, np.full(forbidden.shape, nothing))


@pytest.mark.parametrize("isa", ISAS)
def test_heads_of_queries_that_share_keys_read_these_once(isa: str) -> None:
    """As transformers repeats keys and values for groups of heads: no copy of the cache."""
    torch.manual_seed(0)

    def repeated(x: Tensor) -> Tensor:
        return x[:, :, None].expand(1, 2, 3, 48, x.shape[-1]).reshape(1, 6, 48, x.shape[-1])

    def grouped(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return with_sum(LOWEST)(allowed, q, repeated(k), repeated(v))

    q, k, v = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 48, 8), torch.randn(1, 2, 48, 16)
    model, allowed = OfCall(grouped), torch.arange(48)[None] < 20
    fast = sparsejit.compile(model, (allowed, q, k, v), target=isa, free_batch=False)
    (node,) = (n for n in fast.graph.nodes if type(n.op).__name__ == "CachedAttention")
    assert [value.shape for value in node.inputs[:3]] == [(1, 2, 3, 8), k.shape, v.shape]
    np.testing.assert_allclose(
        fast(allowed, q, k, v), model(allowed, q, k, v), rtol=2e-5, atol=2e-5
    )
