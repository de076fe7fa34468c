"""Models with attention."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, softmax

LAYERS, WIDTH, HEADS, TOKENS = 4, 256, 4, 32


def transformer_encoder() -> nn.Module:
    """(batch, tokens, 256) -> the same shape."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, dim_feedforward=4 * WIDTH, activation="gelu", batch_first=True
    )
    return nn.TransformerEncoder(layer, LAYERS)


def attended(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Attention of (batch, tokens, width), written out, as the library transformers traces it."""
    shape = query.shape
    query, key, value = (
        one.view(*shape[:2], heads, -1).transpose(1, 2) for one in (query, key, value)
    )
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return (softmax(scores, -1) @ value).transpose(1, 2).reshape(shape)


class BertLayer(nn.Module):
    """Attention and two linear layers, each with a residual that is normalised after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = attended(self.query(x), self.key(x), self.value(x), self.heads)
        x = self.norm1(x + self.output(mixed))
        return self.norm2(x + self.linear2(gelu(self.linear1(x))))


class Bert(nn.Module):
    """Ids of words (batch, tokens) -> (batch, tokens, width): BERT without segments.

    Attention is written out, as the library transformers traces it: engines recognise that.
    """

    WORDS, POSITIONS = 30522, 512

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(self.WORDS, width)
        self.positions = nn.Embedding(self.POSITIONS, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(BertLayer(width, heads) for _ in range(layers)))

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.layers(self.norm(self.words(ids) + self.positions(places)))


class VisionLayer(BertLayer):
    """The layers of `BertLayer`, each after a norm and with a residual."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.output(attended(self.query(y), self.key(y), self.value(y), self.heads))
        mixed: Tensor = self.linear2(gelu(self.linear1(self.norm2(x))))
        return x + mixed


class VisionTransformer(nn.Module):
    """(batch, 3, 224, 224) -> (batch, 1000): patches of 16 x 16, and a token for the class."""

    PATCH, SIZE = 16, 224

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, self.PATCH, self.PATCH)
        tokens = (self.SIZE // self.PATCH) ** 2 + 1
        self.first = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, tokens, width))
        self.layers = nn.Sequential(*(VisionLayer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        words = self.patches(x).flatten(2).transpose(1, 2)
        first = self.first.expand(len(x), -1, -1)
        y = self.layers(torch.cat([first, words], 1) + self.places)
        scores: Tensor = self.head(self.norm(y[:, 0]))
        return scores
