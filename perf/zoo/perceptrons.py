"""Models of linear layers and embeddings."""

import torch
from torch import Tensor, nn


def multilayer_perceptron() -> nn.Module:
    """(batch, 784) -> (batch, 10)."""
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def autoencoder() -> nn.Module:
    """Four linear layers, 64 features inside: (batch, 784) -> (batch, 784), each in [0, 1]."""
    encoder = nn.Sequential(nn.Linear(784, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU())
    decoder = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 784), nn.Sigmoid())
    return nn.Sequential(encoder, decoder)


class DeepAndWide(nn.Module):
    """Static Runtime's benchmark: two embeddings' product beside 50 clamped features.

    ad_emb_packed and user_emb (batch, 1, 32), wide (batch, features) -> (batch, 1).
    """

    # Scale of the last layer. With weights of 1, wide features of up to 10 saturate the sigmoid.
    SCALE = 0.02

    def __init__(self, features: int = 50) -> None:
        super().__init__()
        self._mu = nn.Parameter(torch.randn(1, features))
        self._sigma = nn.Parameter(torch.randn(1, features))
        self._fc_w = nn.Parameter(self.SCALE * torch.randn(1, features + 1))
        self._fc_b = nn.Parameter(torch.randn(1))

    def forward(self, ad_emb_packed: Tensor, user_emb: Tensor, wide: Tensor) -> Tensor:
        wide_offset = wide + self._mu
        wide_normalized = wide_offset * self._sigma
        wide_preproc = torch.clamp(wide_normalized, 0.0, 10.0)
        user_emb_t = torch.transpose(user_emb, 1, 2)
        dp_unflatten = torch.bmm(ad_emb_packed, user_emb_t)
        dp = torch.flatten(dp_unflatten, 1)
        joined = torch.cat([dp, wide_preproc], 1)
        fc1 = torch.addmm(self._fc_b, joined, torch.transpose(self._fc_w, 1, 0))
        return torch.sigmoid(fc1)


class Recommendation(nn.Module):
    """A small DLRM: embedding bags and a perceptron of the dense features meet in dot products.

    dense (batch, 13) and categories (batch, tables, bag) int64 -> (batch, 1).
    """

    ROWS, TABLES, BAG, WIDTH = 1000, 8, 4, 32
    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(self.ROWS, self.WIDTH, mode="sum") for _ in range(self.TABLES)
        )
        self.bottom = nn.Sequential(
            nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, self.WIDTH), nn.ReLU()
        )
        pairs = torch.tril_indices(self.TABLES + 1, self.TABLES + 1, offset=-1)
        self.register_buffer("pairs", pairs[0] * (self.TABLES + 1) + pairs[1])
        width = self.WIDTH + pairs.shape[1]
        self.top = nn.Sequential(
            nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        sums = [bag(categories[:, table]) for table, bag in enumerate(self.bags)]
        vectors = torch.stack([bottom, *sums], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        meeting = products[:, self.pairs]
        # Products of 32-wide sums are large beside the rest; 0.1 keeps the sigmoid's slope.
        return torch.sigmoid(0.1 * self.top(torch.cat([bottom, meeting], dim=1)))
