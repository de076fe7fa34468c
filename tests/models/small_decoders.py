"""Decoders with caches in buffers, in the forms of Llama, GPT-2, Whisper and Moonshine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

STORIES = Path(__file__).parents[3] / "shared" / "data" / "llama"


class Sizes(NamedTuple):
    """Sizes of a decoder; `pairs` are the heads of keys and values."""

    width: int
    hidden: int
    layers: int
    heads: int
    pairs: int
    tokens: int
    length: int


class CachedAttention(nn.Module):
    """Attention of queries to all keys up to their positions, which lie in buffers."""

    def __init__(self, sizes: Sizes, *, bias: bool) -> None:
        super().__init__()
        self.sizes, self.each = sizes, sizes.width // sizes.heads
        narrow = sizes.pairs * self.each
        self.query = nn.Linear(sizes.width, sizes.width, bias=bias)
        self.key, self.value = (nn.Linear(sizes.width, narrow, bias=bias) for _ in range(2))
        self.out = nn.Linear(sizes.width, sizes.width, bias=bias)
        cache = torch.zeros(1, sizes.pairs, sizes.length, self.each)
        self.keys: Tensor
        self.values: Tensor
        self.register_buffer("keys", cache)
        self.register_buffer("values", cache.clone())

    def forward(self, x: Tensor, position: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        pairs, count = self.sizes.pairs, x.shape[1]
        layers = self.query, self.key, self.value
        query, key, value = (
            layer(x).view(1, count, -1, self.each).transpose(1, 2) for layer in layers
        )
        if turn is not None:
            query, key = _turned(query, *turn), _turned(key, *turn)
        self.keys.index_copy_(2, position, key)
        self.values[:, :, position] = value
        seen = torch.arange(self.sizes.length)[None] <= position[:, None]
        groups = self.sizes.heads // pairs
        grouped = query.reshape(1, pairs, groups * count, self.each)
        mask = seen.repeat(groups, 1) if count > 1 else seen
        found = functional.scaled_dot_product_attention(grouped, self.keys, self.values, mask)
        heads = found.reshape(1, self.sizes.heads, count, self.each)
        return self.out(heads.transpose(1, 2).reshape(1, count, -1))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of neighbouring elements, where there are angles for them."""
    most = 2 * cos.shape[-1]
    even, odd = x[..., :most:2], x[..., 1:most:2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([turned, x[..., most:]], -1) if most < x.shape[-1] else turned


def _angles(length: int, elements: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, elements / 2) of rotations by position."""
    rates = 10000.0 ** (-torch.arange(0, elements, 2) / elements)
    angles = torch.arange(length)[:, None] * rates
    return angles.cos(), angles.sin()


class RootMeanSquare(nn.Module):
    """Llama's norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = CachedAttention(sizes, bias=False)
        self.norm, self.second = RootMeanSquare(sizes.width), RootMeanSquare(sizes.width)
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Tensor, position: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm(x), position, turn)
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Rotated queries and keys, gated layers, and the embedding as classifier."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList(LlamaLayer(sizes) for _ in range(sizes.layers))
        self.norm = RootMeanSquare(sizes.width)
        cos, sin = _angles(sizes.length, sizes.width // sizes.heads)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.embedding(token)
        turn = self.cos[position], self.sin[position]
        for layer in self.layers:
            x = layer(x, position, turn)
        return self.norm(x) @ self.embedding.weight.T


class GptLayer(nn.Module):
    """A layer of GPT-2; with `seen`, Whisper's, which also attends to an encoder's states."""

    def __init__(self, sizes: Sizes, *, seen: bool = False) -> None:
        super().__init__()
        self.sizes = sizes
        self.attention = CachedAttention(sizes, bias=True)
        self.norm, self.second = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.up, self.down = (
            nn.Linear(sizes.width, sizes.hidden),
            nn.Linear(sizes.hidden, sizes.width),
        )
        if seen:
            self.third = nn.LayerNorm(sizes.width)
            self.cross = nn.MultiheadAttention(sizes.width, sizes.heads, batch_first=True)

    def forward(self, x: Tensor, position: Tensor, states: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm(x), position, None)
        if states is not None:
            x = x + self.cross(self.third(x), states, states, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """GPT-2's form; the position is a state of its own, the logits are (1, tokens)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.tokens, sizes.width)
        self.places = nn.Embedding(sizes.length, sizes.width)
        self.layers = nn.ModuleList(GptLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.tokens, bias=False)
        self.position: Tensor
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, token: Tensor) -> Tensor:
        position = self.position + torch.arange(token.shape[1])
        x = self.embedding(token) + self.places(position)[None]
        for layer in self.layers:
            x = layer(x, position)
        self.position.add_(token.shape[1])
        return self.head(self.norm(x))[:, 0]


class Whisper(nn.Module):
    """A decoder beside an encoder, whose states are an input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.tokens, sizes.width)
        self.places = nn.Embedding(sizes.length, sizes.width)
        self.layers = nn.ModuleList(GptLayer(sizes, seen=True) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, token: Tensor, step: Tensor, states: Tensor) -> Tensor:
        x = self.embedding(token) + self.places(step)[None]
        for layer in self.layers:
            x = layer(x, step, states)
        return self.norm(x) @ self.embedding.weight.T


class MoonshineLayer(nn.Module):
    """Rotated attention to a cache, attention to an encoder's states, a gated layer; no biases."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = CachedAttention(sizes, bias=False)
        self.cross = nn.MultiheadAttention(sizes.width, sizes.heads, bias=False, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.width, bias=False) for _ in range(3))
        self.up = nn.Linear(sizes.width, 2 * sizes.hidden)
        self.down = nn.Linear(sizes.hidden, sizes.width)

    def forward(
        self, x: Tensor, position: Tensor, turn: tuple[Tensor, Tensor], states: Tensor
    ) -> Tensor:
        first, second, third = self.norms
        x = x + self.attention(first(x), position, turn)
        x = x + self.cross(second(x), states, states, need_weights=False)[0]
        y, gate = self.up(third(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * y)


class Moonshine(nn.Module):
    """Moonshine's decoder: eight of nine elements of a head are rotated."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList(MoonshineLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width, bias=False)
        each = sizes.width // sizes.heads
        cos, sin = _angles(sizes.length, each * 9 // 10 // 2 * 2)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, token: Tensor, step: Tensor, states: Tensor) -> Tensor:
        x = self.embedding(token)
        turn = self.cos[step], self.sin[step]
        for layer in self.layers:
            x = layer(x, step, turn, states)
        return self.norm(x) @ self.embedding.weight.T


class Listener(nn.Module):
    """Moonshine's encoder: samples (1, time) to states, one for each 384 of them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, wide = sizes.width, 2 * sizes.width
        self.first = nn.Conv1d(1, width, 127, 64, bias=False)
        self.norm = nn.GroupNorm(1, width)
        self.second, self.third = nn.Conv1d(width, wide, 7, 3), nn.Conv1d(wide, width, 3, 2)
        layer = nn.TransformerEncoderLayer(
            *(width, sizes.heads, sizes.hidden, 0.0, functional.gelu),
            batch_first=True,
            norm_first=True,
            bias=False,
        )
        self.layers = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)

    def forward(self, samples: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.first(samples[:, None])))
        x = functional.gelu(self.third(functional.gelu(self.second(x))))
        return self.layers(x.transpose(1, 2))


def said_by_torch(module: nn.Module, prompt: list[int], n: int, *others: Tensor) -> list[int]:
    """The greedy tokens of a module whose position is an input unless it has no `others`."""
    said = list(prompt)
    counts = "position" not in dict(module.named_buffers())
    for name, buffer in module.named_buffers():
        if name.split(".")[-1].startswith(("keys", "values", "position", "cumulative")):
            buffer.zero_()
    with torch.no_grad():
        for place in range(len(prompt) + n - 1):
            at = (torch.tensor([place]),) if counts else ()
            logits = module(torch.tensor([[said[place]]]), *at, *others)
            if place >= len(prompt) - 1:
                said.append(int(logits.argmax()))
    return said[len(prompt) :]


def stories() -> Llama:
    """The trained decoder of `../shared`, in the format of llama2.c."""
    data = (STORIES / "stories260K.bin").read_bytes()
    sizes = Sizes(*np.frombuffer(data, np.int32, 7).tolist())
    module, each = Llama(sizes), sizes.width // sizes.heads
    weights, narrow = np.frombuffer(data, np.float32, offset=28), sizes.pairs * each
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("norm", (sizes.width,)),
        ("attention.query", (sizes.width, sizes.width)),
        ("attention.key", (narrow, sizes.width)),
        ("attention.value", (narrow, sizes.width)),
        ("attention.out", (sizes.width, sizes.width)),
        ("second", (sizes.width,)),
        ("gate", (sizes.hidden, sizes.width)),
        ("down", (sizes.width, sizes.hidden)),
        ("up", (sizes.hidden, sizes.width)),
    )
    numbers = range(sizes.layers)
    of_layers = [(f"layers.{n}.{part}", shape) for part, shape in shapes for n in numbers]
    for name, shape in (
        ("embedding", (sizes.tokens, sizes.width)),
        *of_layers,
        ("norm", (sizes.width,)),
    ):
        count = int(np.prod(shape))
        part, weights = weights[:count].reshape(shape), weights[count:]
        module.get_parameter(f"{name}.weight").data.copy_(torch.from_numpy(part.copy()))
    return module.eval()


class Tokenizer:
    """llama2.c's: pairs of tokens join into the one of the highest score."""

    def __init__(self) -> None:
        data = (STORIES / "tok512.bin").read_bytes()[4:]
        self.words: list[bytes] = []
        self.scores: list[float] = []
        while data:
            size = int(np.frombuffer(data, np.int32, 1, 4)[0])
            self.scores.append(float(np.frombuffer(data, np.float32, 1)[0]))
            self.words.append(data[8 : 8 + size])
            data = data[8 + size :]

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, 1 for its begin first."""
        made = [self.words.index(bytes([byte])) for byte in f" {text}".encode()]
        while True:
            joined = [
                (self.scores[self.words.index(word)], -place)
                for place in range(len(made) - 1)
                if (word := self.words[made[place]] + self.words[made[place + 1]]) in self.words
            ]
            if not joined:
                return [1, *made]
            place = -max(joined)[1]
            word = self.words[made[place]] + self.words[made[place + 1]]
            made[place : place + 2] = [self.words.index(word)]

    def text(self, tokens: npt.NDArray[np.int64]) -> str:
        """The text of tokens."""
        return b"".join(self.words[token] for token in tokens).decode().replace("<0x0A>", "\n")
