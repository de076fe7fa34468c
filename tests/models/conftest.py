"""For tests of torch models: random numbers that repeat, and layers as their modules write them."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _repeatable_and_by_the_book() -> Iterator[None]:
    """torch's fused layers leave zeros where a padding mask is set, its modules do not."""
    torch.manual_seed(5)
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)
