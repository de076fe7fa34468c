"""A transformer encoder of four layers with pruned products, as one native function.

Run with `python examples/transformer.py`.
"""

import torch
from comparing import compare, prune_by_magnitude
from torch import nn

import sparsejit


def main() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
    prune_by_magnitude(model, 0.9)
    x = torch.randn(1, 32, 256)  # one sequence of 32 tokens
    fast = sparsejit.compile(model, (x,))
    compare(model, fast, x)
    print(fast)
    print(fast.explain(measure=True))


if __name__ == "__main__":
    main()
