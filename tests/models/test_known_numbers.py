"""Sizes that buffers of one number decide: torch.export alone takes them for unknown."""

import pytest
import torch
from torch import Tensor, nn
from torch_models import checked

import sparsejit
from sparsejit.errors import InvalidInput


class Padded(nn.Module):
    """A convolution as EnCodec has it: its stride is a buffer, and its padding a tensor."""

    def __init__(self, count: str = "") -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 4, 2)
        self.last = nn.Buffer(torch.ones(2))
        self.stride = nn.Buffer(torch.tensor(2), persistent=False)
        self.total = nn.Buffer(torch.tensor(2))
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.ceil((x.shape[-1] - self.total) / self.stride).to(torch.int64)
        extra = frames * self.stride + self.total - x.shape[-1]
        if self.count == "in place":
            self.total.add_(1)
        if self.count == "assigned":
            self.total = self.total + 1
        most = max(self.total, extra)
        if x.shape[-1] <= most:
            x = nn.functional.pad(x, (0, int(most)))
        return self.conv(nn.functional.pad(x, (self.total, extra), mode="reflect"))


@pytest.mark.parametrize("length", [7, 8])
def test_sizes_are_computed_from_buffers(length: int) -> None:
    model = Padded().eval()
    exported = checked(model, torch.randn(2, 3, length))
    assert exported.batch_is_free
    assert type(model) is Padded
    assert list(dict(model.named_buffers())) == ["last", "stride", "total"]


@pytest.mark.parametrize("count", ["in place", "assigned"])
def test_a_model_that_counts_is_refused(count: str) -> None:
    model = Padded(count).eval()
    with pytest.raises(InvalidInput, match="cannot export this Padded"):
        sparsejit.compile(model, (torch.randn(2, 3, 8),))
    assert type(model) is Padded and model.total == 2
