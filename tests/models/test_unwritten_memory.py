"""Operators that reserve memory: each element of it that an output shows was written first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch_models import Written

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.torch_export import export
from sparsejit.frontends.torch_export.decomposing import decomposed

Model = Callable[..., torch.Tensor]


def columns(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty(a.shape[0], 4)
    for n in range(4):
        out[:, n] = a[:, n] * b[:, 3 - n]
    return out


def blocks(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = a.new_empty(a.shape[0], 2, 4)
    out[:, 0, :4] = a[:, :4]
    out[:, 1, :2] = b[:, :2]
    out[:, 1, 2:] = b[:, 2:4] * 2
    return out.flatten(1)


def interleaved(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    out[..., ::2], out[..., 1::2] = a[..., ::2] * 2, b[..., 1::2]
    return out


def filled(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a).fill_(2.0) + b


def chosen(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty(5, 6)
    out[:, :3] = b[:, :3]
    return torch.where(torch.arange(6) < 3, out, a)


def whole_numbers(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty(5, 6, dtype=torch.int32)
    out.copy_(a > b)
    return out.sum(1)


def of_no_elements(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.empty(5, 0), a + b], 1)


def put_back(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As mixtures of experts put tokens back that they have sorted by expert."""
    _, order = torch.sort((a[:, 0] > b[:, 0]).long())
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0])
    return (a[order] * 2)[back]


def some_put_back(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    _, order = torch.sort(a[:, 0])
    back = torch.empty_like(order)
    back[order[:3]] = torch.arange(3)
    return b[back.clamp(0, 4)]


def half(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    out[:, :3] = b[:, :3]
    return out


def masked(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a > b, torch.empty(5, 6), a)


def summed(_: object, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b + torch.empty_strided((5, 6), (6, 1)).sum()


def two_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 6, generator=generator)


COVERED = (columns, blocks, interleaved, filled, chosen, whole_numbers, of_no_elements, put_back)


@pytest.mark.parametrize("forward", COVERED)
def test_memory_that_is_written_afterwards_needs_no_value(forward: Model) -> None:
    inputs = two_inputs()
    model = Written(forward).eval()
    found = sparsejit.compile(model, inputs)(*inputs)
    np.testing.assert_array_equal(found.numpy(), model(*inputs).numpy())


@pytest.mark.parametrize("forward", [columns, blocks, interleaved, filled])
def test_the_batch_stays_free(forward: Model) -> None:
    exported = export(Written(forward).eval(), two_inputs())
    assert exported.batch_is_free, exported.why_not_free


@pytest.mark.parametrize("forward", [half, masked, summed, some_put_back])
def test_memory_that_an_output_shows_is_refused_by_name(forward: Model) -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten.empty\w*\.\w+ \(leaves memory unwritten"):
        sparsejit.compile(Written(forward).eval(), two_inputs())


def test_decompositions_write_into_no_views() -> None:
    pair = two_inputs()
    parts = decomposed(torch.ops.aten.complex.default, pair, {}, lambda _: None)
    assert parts is not None
    targets = [node.target for node in parts[0].graph.nodes if node.op == "call_function"]
    assert targets
    assert not any(target._schema.is_mutable for target in targets)
