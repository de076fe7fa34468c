"""A pruned perceptron, 784-512-512-10, as one native function.

Run with `python examples/mlp.py`.
"""

import torch
from comparing import compare, prune_by_magnitude
from torch import nn

import sparsejit


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    prune_by_magnitude(model, 0.9)
    for batch in (1, 64):
        x = torch.randn(batch, 784)
        # Any batch would do; it is fastest for the example's.
        fast = sparsejit.compile(model, (x,))
        compare(model, fast, x)
    print(fast.explain(measure=True))


if __name__ == "__main__":
    main()
