"""Numbers that models return beside tensors: sizes, and those that a call decides."""

import numpy as np
import pytest
import torch

import sparsejit
from sparsejit.errors import InvalidInput


class WithSizes(torch.nn.Module):
    """Doubled, and the sizes of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[int], int]:
        return 2 * x, list(x.shape), x.shape[0] * 3


class WithItem(torch.nn.Module):
    """A number of Python that only a call tells."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        return x, x.sum().item()


class WithScalar(torch.nn.Module):
    """The same as a tensor without axes."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.sum()


def test_sizes_are_those_of_the_example() -> None:
    x = torch.rand(2, 3)
    fast = sparsejit.compile(WithSizes().eval(), (x,))
    doubled, sizes, number = fast(x)
    np.testing.assert_allclose(doubled, 2 * x)
    assert (sizes, number) == ([2, 3], 6)
    assert not fast.batch_is_free
    with pytest.raises(InvalidInput, match="give"):
        fast(torch.rand(3, 3))


@pytest.mark.parametrize("free", [False, True])
def test_a_number_that_a_call_decides_is_refused(free: bool) -> None:
    with pytest.raises(InvalidInput, match=r"returns the number item.*return a tensor"):
        sparsejit.compile(WithItem().eval(), (torch.rand(2, 3),), free_batch=free)


def test_a_tensor_without_axes_is_returned() -> None:
    x = torch.rand(2, 3)
    _, total = sparsejit.compile(WithScalar().eval(), (x,))(x)
    assert total.shape == ()
    np.testing.assert_allclose(total, x.sum(), rtol=1e-6)
