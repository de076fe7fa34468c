"""A small network that tells handwritten digits apart, trained for `sparsejit prune`.

Run with `sparsejit prune examples/digits.py:workload --recipe examples/digits.yaml`.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from sparsejit.prune import Workload


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, classes = batch
    return cross_entropy(model(images), classes)


def workload() -> Workload:
    """The trained network and its data: 1078 digits to train on, 719 held out."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    classes = torch.tensor(digits.target)
    train, held_out, train_classes, held_out_classes = train_test_split(
        images, classes, test_size=0.4, random_state=0
    )
    batches = DataLoader(TensorDataset(train, train_classes), batch_size=64, shuffle=True)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(20):
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    def evaluate(model: nn.Module) -> dict[str, float]:
        right = model(held_out).argmax(dim=1) == held_out_classes
        return {"accuracy": right.float().mean().item()}

    return Workload(model, batches, loss, evaluate)
