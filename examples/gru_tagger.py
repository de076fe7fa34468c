"""A pruned GRU with a linear layer at every step, as one native function.

Run with `python examples/gru_tagger.py`.
"""

import torch
from comparing import compare, prune_by_magnitude
from torch import Tensor, nn

import sparsejit


class Tagger(nn.Module):
    """x (batch, steps, 64) -> scores (batch, steps, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(64, 256, batch_first=True)
        self.out = nn.Linear(256, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.gru(x)
        return self.out(hidden)


def main() -> None:
    torch.manual_seed(0)
    model = prune_by_magnitude(Tagger(), 0.9)
    x = torch.randn(1, 100, 64)
    # torch.export unrolls the steps for a free batch in twice the time of a fixed one.
    fast = sparsejit.compile(model, (x,), free_batch=False)
    compare(model, fast, x)
    print(fast.explain(measure=True))


if __name__ == "__main__":
    main()
