"""Decompositions of layers that torch runs as one operator where no gradients are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def fused_layers() -> dict[Any, Callable[..., Any]]:
    """Return decompositions by operator; one that returns NotImplemented leaves it to torch."""
    import torch

    return {torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer}


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *others: Any,
) -> Any:
    """torch.nn.TransformerEncoderLayer in evaluation, x (batch, length, width), without masks."""
    from torch.nn import functional

    norms, feed_forward, masks = others[:4], others[4:8], others[8:]
    if any(mask is not None for mask in masks) or x.dim() != 3 or x.is_nested:
        return NotImplemented

    def normed(y: Any, layer: int) -> Any:
        weight, bias = norms[2 * layer : 2 * layer + 2]
        return functional.layer_norm(y, (width,), weight, bias, eps)

    def attention(y: Any) -> Any:
        batch, length, _ = y.shape
        three = functional.linear(y, qkv_weight, qkv_bias).reshape(batch, length, 3, heads, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)
        each = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return functional.linear(each.reshape(batch, length, width), out_weight, out_bias)

    def forward(y: Any) -> Any:
        hidden = functional.linear(y, *feed_forward[:2])
        active = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(active, *feed_forward[2:])

    if norm_first:
        x = x + attention(normed(x, 0))
        return x + forward(normed(x, 1))
    x = normed(x + attention(x), 0)
    return normed(x + forward(x), 1)
