"""Models around GRU and LSTM layers."""

import torch
from torch import Tensor, nn


class Tagger(nn.Module):
    """A recurrent layer, then a linear one at every step.

    x (batch, steps, 64) -> scores (batch, steps, 32).
    """

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], layers: int, both_ways: bool) -> None:
        super().__init__()
        self.rnn = kind(64, 256, layers, batch_first=True, bidirectional=both_ways)
        self.out = nn.Linear(512 if both_ways else 256, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(x)
        return self.out(hidden)


class DualFullyConnected(nn.Module):
    """LPCNet's last layer: two linear layers' tanh, weighted and added."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_features, out_features)
        self.second = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.rand(2, out_features))

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.tanh(self.first(x)), torch.tanh(self.second(x))
        return self.scale[0] * first + self.scale[1] * second


class LPCNetLike(nn.Module):
    """The sample network of LPCNet: levels and a frame's condition to scores of the next level.

    levels (batch, steps, 3) int64 in 0..255, condition (batch, steps, 128), state_a (1, batch, 384)
    and state_b (1, batch, 16) -> log-probabilities (batch, steps, 256) and both states after.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 128)
        self.gru_a = nn.GRU(3 * 128 + 128, 384, batch_first=True)
        self.gru_b = nn.GRU(384 + 128, 16, batch_first=True)
        self.out = DualFullyConnected(16, 256)

    def forward(
        self, levels: Tensor, condition: Tensor, state_a: Tensor, state_b: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        embedded = self.embedding(levels).flatten(2)
        a, state_a = self.gru_a(torch.cat([embedded, condition], 2), state_a)
        b, state_b = self.gru_b(torch.cat([a, condition], 2), state_b)
        return torch.log_softmax(self.out(b), -1), state_a, state_b
