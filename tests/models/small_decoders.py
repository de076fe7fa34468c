"""Decoders with caches in buffers: Llama's, GPT-2's and Whisper's forms, and a trained file."""

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
    """Attention of one query to all keys up to its position, which lie in buffers."""

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
        pairs = self.sizes.pairs
        query = self.query(x).view(1, self.sizes.heads, 1, self.each)
        key, value = (layer(x).view(1, pairs, 1, self.each) for layer in (self.key, self.value))
        if turn is not None:
            query, key = _turned(query, *turn), _turned(key, *turn)
        self.keys.index_copy_(2, position, key)
        self.values[:, :, position] = value
        seen = torch.arange(self.sizes.length)[None] <= position
        grouped = query.view(1, pairs, -1, self.each)
        found = functional.scaled_dot_product_attention(grouped, self.keys, self.values, seen)
        return self.out(found.reshape(1, 1, -1))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of neighbouring elements."""
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


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
        each = sizes.width // sizes.heads
        rates = 10000.0 ** (-torch.arange(0, each, 2) / each)
        angles = torch.arange(sizes.length)[:, None] * rates
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

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
        x = self.embedding(token) + self.places(self.position)[None]
        for layer in self.layers:
            x = layer(x, self.position)
        self.position.add_(1)
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


def said_by_torch(module: nn.Module, prompt: list[int], n: int, *others: Tensor) -> list[int]:
    """The greedy tokens of a module whose position is an input unless it has no `others`."""
    said = list(prompt)
    counts = "position" not in dict(module.named_buffers())
    for name, buffer in module.named_buffers():
        if name.split(".")[-1] in ("keys", "values", "position"):
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
