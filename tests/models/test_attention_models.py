"""Models with attention, from torch and from ONNX files, become the kernel and equal torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
