"""Models whose batch is found by reading them for two large ones: free, or fixed with a reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_models import Written, checked

import sparsejit

ROWS = torch.tensor([[4, 7, 9, 2, 1], [5, 3, 1, 1, 1], [8, 8, 8, 8, 8], [6, 1, 1, 1, 1]])
CUBE = torch.randn(4, 3, 5)
PLACES = torch.randint(0, 5, (4, 2, 6))


torch.manual_seed(0)


def positions(self: nn.Module, ids: Tensor) -> Tensor:
    """As RoBERTa has them: words are counted, padding is not."""
    mask = (ids != 1).int()
    numbers = (torch.cumsum(mask, 1).type_as(mask) * mask).long() + 1
    kinds = torch.gather(self.kinds.expand(ids.shape[0], -1), 1, numbers)
    return self.words(ids) + self.words(numbers) + self.words(kinds)


def of_words(forward: Callable[..., Any]) -> nn.Module:
    model = Written(forward, words=nn.Embedding(16, 8))
    model.kinds = nn.Buffer(torch.arange(64)[None] % 2)
    return model


# From a name to a model and the inputs of four samples.
FREE: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "positions of words": (of_words(positions), (ROWS,)),
    "elements of the last axis": (
        Written(lambda self, x, places: torch.gather(x, -1, places)),
        (CUBE[:, :2], PLACES),
    ),
    "elements of a middle axis, of fewer rows": (
        Written(lambda self, x, places: torch.gather(x, 1, places % 3)),
        (CUBE, PLACES[:, :, :4]),
    ),
    "whole numbers": (
        Written(lambda self, x, places: torch.gather(x, 1, places[:, 0] % 5) * 2),
        (ROWS, PLACES),
    ),
    "truths": (
        Written(lambda self, x, places: torch.gather(x > 0, 2, places[:, :2])),
        (CUBE, PLACES),
    ),
    "rows of one sorted by another": (
        Written(lambda self, x: torch.gather(x, -1, torch.topk(x.square(), 3).indices)),
        (CUBE,),
    ),
    "a query for all samples": (
        Written(
            lambda self, x: self.pool(self.query[0].repeat(x.shape[0], 1, 1), x, x)[0],
            pool=nn.MultiheadAttention(8, 2, batch_first=True),
            query=nn.ParameterList([torch.randn(1, 1, 8)]),
        ),
        (torch.randn(4, 5, 8),),
    ),
}
FIXED: dict[str, Callable[..., Any]] = {
    "a table of few samples": lambda self, x: x + self.kinds[0, torch.arange(x.shape[0])][:, None],
    "another sample's elements": lambda self, x: torch.gather(x, 0, (x > 0).long() * 0),
}


@pytest.mark.parametrize("examples", [1, 2, 4])
@pytest.mark.parametrize("name", FREE)
def test_samples_stay_apart(name: str, examples: int) -> None:
    model, inputs = FREE[name]
    exported = checked(model, *(x[:examples] for x in inputs))
    assert exported.batch_is_free, exported.why_not_free


@pytest.mark.parametrize("examples", [1, 2, 4])
@pytest.mark.parametrize("name", FIXED)
def test_the_example_s_batch_is_compiled(name: str, examples: int) -> None:
    model, x = of_words(FIXED[name]), CUBE[:examples, 0]
    exported = checked(model, x)
    assert not exported.batch_is_free and exported.why_not_free


def test_arguments_that_no_signature_names_have_a_batch() -> None:
    """torch.export wants a name for each argument that has a size that may change."""
    model = Written(lambda self, x, scale: x * scale).eval()
    compiled = sparsejit.compile(model, (CUBE[:2],), example_kwargs={"scale": CUBE[:2]})
    assert compiled.batch_is_free and "forward" not in vars(model)
    torch.testing.assert_close(compiled(CUBE, scale=CUBE), CUBE * CUBE)


@pytest.mark.parametrize("examples", [1, 3])
def test_codes_may_lie_before_the_batch(examples: int) -> None:
    """As a codec's quantiser has them: a table for each code, and the sum of its rows."""
    books = nn.ModuleList(nn.Embedding(16, 6) for _ in range(4))
    model = Written(
        lambda self, codes: sum(book(row) for book, row in zip(self.books, codes, strict=True)).mT,
        books=books,
    ).eval()
    codes = torch.randint(0, 16, (4, 5, 7))
    compiled = sparsejit.compile(model, (codes[:, :examples],))
    assert compiled.batch_axes is not None and compiled.batch_axes.inputs == (1,)
    for rows in (1, 2, 5):
        with torch.no_grad():
            torch.testing.assert_close(compiled(codes[:, :rows]), model(codes[:, :rows]))
