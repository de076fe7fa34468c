"""Makers of attention masks against their definitions, key by key."""

import pytest

from sparsejit.attention_masks import block, causal, fixed, local, strided
from sparsejit.errors import InvalidInput

# The condition for a query at place i to see a key at place j, as the papers say it.
CASES = {
    "causal": (causal(7), lambda i, j: j <= i),
    "local": (local(9, window=4), lambda i, j: i - 2 <= j <= i + 2),
    "local causal": (local(9, 3, is_causal=True), lambda i, j: i - 3 < j <= i),
    "strided": (strided(11, stride=3), lambda i, j: i - 3 <= j <= i or (i > j and not (i - j) % 3)),
    "strided two-sided": (
        strided(11, 4, is_causal=False),
        lambda i, j: abs(i - j) <= 4 or not (i - j) % 4,
    ),
    "fixed": (fixed(13, 4, c=1), lambda i, j: j <= i and (j // 4 == i // 4 or j % 4 in {3})),
    "fixed two-sided": (
        fixed(13, 5, c=2, is_causal=False),
        lambda i, j: j // 5 == i // 5 or j % 5 in {3, 4},
    ),
    "block": (block(10, size=4), lambda i, j: i // 4 == j // 4),
    "block causal": (block(10, 4, is_causal=True), lambda i, j: i // 4 == j // 4 and j <= i),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mask_is_what_its_paper_says(name: str) -> None:
    mask, allows = CASES[name]
    assert mask.dtype == bool
    wanted = [[bool(allows(i, j)) for j in range(len(mask))] for i in range(len(mask))]
    assert mask.tolist() == wanted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: causal(0), "length is 0"),
        (lambda: causal(2.5), "length is 2.5"),
        (lambda: local(8, 3), "window is 3; give an even number"),
        (lambda: local(8, 0, is_causal=True), "window is 0"),
        (lambda: strided(8, 0), "stride is 0"),
        (lambda: strided(8, True), "stride is True"),
        (lambda: fixed(8, 4, c=5), "c is 5, above stride 4"),
        (lambda: fixed(8, 4, c=0), "c is 0"),
        (lambda: block(8, -1), "size is -1"),
    ],
)
def test_values_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()
