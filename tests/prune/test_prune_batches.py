"""A workload's batches: the same order whatever else is drawn, and after resuming."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from sparsejit.errors import InvalidInput
from sparsejit.prune.run import Batches


class Drawn:
    """Batches that draw as they go, a pass of three."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.rand(2) for _ in range(3))


@given(taken=st.integers(0, 8), drawn=st.lists(st.integers(0, 5), min_size=12, max_size=12))
@settings(max_examples=50)
def test_batches_do_not_depend_on_what_else_is_drawn(taken: int, drawn: list[int]) -> None:
    plain = Batches(Drawn(), seed=4)
    expected = [next(plain) for _ in range(12)]
    torch.manual_seed(0)
    first = Batches(Drawn(), seed=4)
    got = [next(first) for _ in range(taken)]
    resumed = Batches(Drawn(), seed=4)
    resumed.restore(first.position())
    for count in drawn[taken:]:
        torch.rand(count)
        got.append(next(resumed))
    assert torch.equal(torch.stack(got), torch.stack(expected))
    assert len(torch.unique(torch.cat(expected))) == 24
    other = next(Batches(Drawn(), seed=5))
    assert not torch.equal(other, expected[0])


@pytest.mark.parametrize("own", [False, True])
def test_a_loader_goes_on_in_its_second_pass(own: bool) -> None:
    def batches() -> Batches:
        generator = torch.Generator() if own else None
        return Batches(DataLoader(range(20), 6, shuffle=True, generator=generator), seed=1)

    whole = batches()
    expected = [next(whole).tolist() for _ in range(12)]
    passes = [[each for batch in expected[i : i + 4] for each in batch] for i in (0, 4)]
    assert [sorted(one) for one in passes] == [[*range(20)]] * 2
    assert expected[:4] != expected[4:8]
    first, second = batches(), batches()
    got = [next(first).tolist() for _ in range(6)]
    second.restore(first.position())
    assert got + [next(second).tolist() for _ in range(6)] == expected


def test_batches_that_end() -> None:
    with pytest.raises(InvalidInput, match="in pass 1: give an iterable that can start again"):
        next(Batches([], seed=0))
    once = Batches(iter([1, 2]), seed=0)
    assert [next(once), next(once)] == [1, 2]
    with pytest.raises(InvalidInput, match="nothing in pass 2"):
        next(once)
