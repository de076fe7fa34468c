"""Models of whole numbers of every width: each result is torch's, to the bit and in its dtype."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

NARROW = [torch.int8, torch.uint8, torch.int16, torch.int32]
DTYPES = [*NARROW, torch.int64]


class Of(torch.nn.Module):
    """The results of several functions."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions
        self.eval()

    def forward(self, *inputs: Tensor) -> list[Any]:
        return [function(*inputs) for function in self.functions]


def edges(dtype: torch.dtype) -> Tensor:
    """Numbers at the ends of a dtype and around 0, each with each: (2, n)."""
    limits = torch.iinfo(dtype)
    numbers = {limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2, 0, 1, 3, 7}
    numbers |= {-1, -3, -7, 5, 100} if limits.min else {200, 5}
    return torch.tensor(list(itertools.product(sorted(numbers), repeat=2)), dtype=dtype).T


def equal(functions: list[Callable[..., Any]], *inputs: Tensor) -> None:
    """Raises AssertionError unless the compiled functions give what torch gives."""
    model = Of(*functions)
    compiled = sparsejit.compile(model, inputs, free_batch=False)
    for number, (found, wanted) in enumerate(zip(compiled(*inputs), model(*inputs), strict=True)):
        assert found.dtype is wanted.dtype, number
        assert torch.equal(found, wanted), (number, found[found != wanted], wanted[found != wanted])


ARITHMETIC: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y * y,
    lambda x, y: -x,
    lambda x, y: x.abs(),
    lambda x, y: x**3,
    lambda x, y: ~x,
    lambda x, y: (x + y) > y,
    lambda x, y: torch.maximum(x * 3, y),
    lambda x, y: (x * 3).float(),
    lambda x, y: (x + y).long() * 5,
    lambda x, y: torch.where(x > y, x + 1, y - 1),
    lambda x, y: x.sum(0),
    lambda x, y: (x + y).cumsum(0),
    lambda x, y: x.cumsum(0, dtype=x.dtype),
    lambda x, y: x.sum(0, dtype=x.dtype),
    lambda x, y: (x * y).amax(0),
    lambda x, y: (x * y).sort(0)[0],
    lambda x, y: torch.cat([x + 1, y]),
    lambda x, y: x.sign(),
    lambda x, y: x.any(0),
    lambda x, y: 2**y,
]
BITS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x & y,
    lambda x, y: x | 5,
    lambda x, y: x ^ y,
    lambda x, y: (x + y) ^ 0x55,
    lambda x, y: x << y,
    lambda x, y: x >> y,
    lambda x, y: x << 3,
    lambda x, y: (x + 1) >> 2,
    lambda x, y: 1 << y,
]
# Divisors are not 0.
QUOTIENTS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x // y,
    lambda x, y: x % y,
    lambda x, y: torch.fmod(x, y),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: x // 3,
    lambda x, y: x % 7,
    lambda x, y: torch.remainder(100, y),
    lambda x, y: (x + 100) // 3,
    lambda x, y: (x * y) % 5,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_wraps_around(dtype: torch.dtype) -> None:
    equal(ARITHMETIC, *edges(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_and_shifts(dtype: torch.dtype) -> None:
    equal(BITS, *edges(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quotients_and_remainders(dtype: torch.dtype) -> None:
    x, y = edges(dtype)
    if dtype in (torch.int32, torch.int64):  # torch ends the process where it divides these by -1
        x = x.clamp(min=torch.iinfo(dtype).min + 1)
    equal(QUOTIENTS, *(each[y != 0] for each in (x, y)))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_numbers_and_wider_scalars_take_the_dtype_of_tensors(dtype: torch.dtype) -> None:
    """300 is 44 beside a tensor of bytes, also where it is compared."""
    x, _ = edges(dtype)
    wide = torch.tensor(2**33 + 300)
    functions: list[Callable[..., Any]] = [
        lambda x: x < 300,
        lambda x: x == -1,
        lambda x: x > wide,
        lambda x: torch.maximum(x, wide),
        lambda x: x % 300,
        lambda x: x * 2**33,
        lambda x: x + 0.5,
    ]
    equal(functions, x)


@pytest.mark.parametrize("other", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mixed_widths_and_casts(dtype: torch.dtype, other: torch.dtype) -> None:
    x, y = edges(dtype)[0], edges(other)[0]
    count = min(len(x), len(y))

    def written(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z[1:] = y[1:]
        return z + 1

    functions: list[Callable[..., Any]] = [
        lambda x, y: x + y,
        lambda x, y: x * y,
        lambda x, y: x.to(other) + 1,
        lambda x, y: (x.to(other) * 300).to(dtype),
        lambda x, y: x.clone().copy_(y),
        lambda x, y: x.type_as(y) * 2,
        lambda x, y: torch.stack([x, y]) + 1,
        written,
    ]
    equal(functions, x[:count], y[:count])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_floats_become_what_torch_makes_of_them(dtype: torch.dtype) -> None:
    numbers = [0.0, -0.5, 1.9, -1.9, 127.9, 128.0, -129.0, 255.9, 256.0, 300.7, -300.7, 65537.0]
    numbers += [2147483520.0, 2147483648.0, -2147483648.0, 3e9, -3e9, 1e20, torch.inf, torch.nan]
    x = torch.tensor(numbers)
    equal([lambda x: x.to(dtype), lambda x: x.to(dtype) + 1, lambda x: x.type(dtype).float()], x)


def test_a_table_is_read_as_before() -> None:
    """Nothing is written for whole numbers that are indices only."""
    table = torch.nn.Embedding(9, 4).eval()
    model = sparsejit.compile(table, (torch.zeros(2, 3, dtype=torch.int32),))
    assert [type(node.op).__name__ for node in model.graph.nodes] == ["Embedding"]


def test_narrow_numbers_of_other_dtypes_are_taken_where_they_fit() -> None:
    x = torch.tensor([100, 27, -128], dtype=torch.int8)
    model = Of(lambda x: x + x)
    compiled = sparsejit.compile(model, (x,))
    for given in (x, x.long(), x.short()):
        assert torch.equal(compiled(given)[0], model(x)[0])
    found = compiled(x.numpy().astype(np.int32))[0]
    assert found.dtype == np.int8 and found.tolist() == model(x)[0].tolist()
    with pytest.raises(InvalidInput, match=r"int64 numbers beyond int8.*; give int8, or"):
        compiled(x.long() + 200)


def test_saved_models_keep_their_widths(tmp_path: Path) -> None:
    x = torch.tensor([[200, 100]], dtype=torch.uint8)
    model = Of(lambda x: x * 2, lambda x: x.float())
    compiled = sparsejit.compile(model, (x,), free_shapes=True)
    longer = torch.tensor([[200, 100, 255]], dtype=torch.uint8)
    assert torch.equal(compiled(longer)[0], model(longer)[0])
    compiled.save(tmp_path / "m.sjit")
    loaded = sparsejit.load(tmp_path / "m.sjit")
    for given in (x, longer):
        assert all(map(torch.equal, loaded(given), model(given)))


def test_division_by_zero_raises() -> None:
    x = torch.tensor([[5, -7]])
    model = sparsejit.compile(Of(lambda x, y: x // y), (x, x))
    assert model(x, x)[0].tolist() == [[1, 1]]
    with pytest.raises(InvalidInput, match="divided by 0; give"):
        model(x, torch.tensor([[1, 0]]))
    with pytest.raises(UnsupportedOperator, match="divides by zero; give other divisors"):
        sparsejit.compile(Of(lambda x: x % torch.tensor([3, 0])), (x,))


def test_products_of_whole_numbers_are_exact() -> None:
    x = torch.arange(6).reshape(2, 3) + (1 << 40)
    assert torch.equal(sparsejit.compile(Of(lambda x: x @ x.T), (x,))(x)[0], x @ x.T)
