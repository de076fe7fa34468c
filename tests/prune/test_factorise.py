"""Products of sparse factors: what is of a kind is found, errors are true, modules compile."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.prune import factorise
from sparsejit.prune.factor_kinds import KINDS


def normal(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


def block_diagonal(blocks: np.ndarray) -> np.ndarray:
    return torch.block_diag(*torch.from_numpy(blocks)).numpy()


def shuffle(rows: int, columns: int) -> np.ndarray:
    """The permutation that transposes (rows, columns)."""
    return np.eye(rows * columns)[np.arange(rows * columns).reshape(rows, columns).T.ravel()]


def a_monarch() -> np.ndarray:
    left, right = (np.random.default_rng(n).standard_normal((8, 8, 8)) for n in range(2))
    turn = shuffle(8, 8)
    return turn.T @ block_diagonal(left) @ turn @ block_diagonal(right)


def a_butterfly() -> np.ndarray:
    """As a fast Fourier transform has them, with random weights."""
    whole, generator = np.eye(64), np.random.default_rng(2)
    for half in (1, 2, 4, 8, 16, 32):
        level = np.zeros((64, 64))
        for row in range(64):
            level[row, row], level[row, row ^ half] = generator.standard_normal(2)
        whole = level @ whole
    return whole


def a_block_circulant() -> np.ndarray:
    first = np.random.default_rng(3).standard_normal((2, 3, 16))
    lag = (np.arange(16)[:, None] - np.arange(16)) % 16
    return first[..., lag].transpose(0, 2, 1, 3).reshape(32, 48)


def a_low_rank_plus_sparse() -> np.ndarray:
    whole = normal(128, 2, 4) @ normal(2, 128, 5)
    whole[np.random.default_rng(6).integers(0, 128, 100), np.arange(100)] += 30
    return whole


OF_A_KIND = {
    "monarch": (a_monarch, 0.26),
    "butterfly": (a_butterfly, 0.19),
    "block-circulant": (a_block_circulant, 1.0),
    "low-rank-plus-sparse": (a_low_rank_plus_sparse, 0.2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_a_kind_are_factorised(kind: str) -> None:
    make, density = OF_A_KIND[kind]
    found = factorise(make(), kind, error=1e-2)
    assert found.relative_error < 1e-2
    assert found.density <= density


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(
    rows=st.sampled_from([1, 7, 16, 24, 64]),
    columns=st.sampled_from([1, 12, 16, 64]),
    error=st.sampled_from([1.0, 0.5, 0.1, 0.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_error_is_true_and_bounded(
    kind: str, rows: int, columns: int, error: float, seed: int
) -> None:
    weights = normal(rows, columns, seed)
    found = factorise(weights, kind, error)
    product = found.factors[0].astype(np.float64)
    for factor in found.factors[1:]:
        product = product @ factor
    if found.rest is not None:
        product = product + found.rest
    true = np.linalg.norm(weights - product) / np.linalg.norm(weights)
    assert found.relative_error == pytest.approx(true, abs=1e-12)
    assert true <= max(error, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_more_error_allows_fewer_weights(kind: str) -> None:
    weights = normal(64, 64)
    counts = [factorise(weights, kind, error).nnz for error in (1.0, 0.8, 0.4, 0.0)]
    assert counts == sorted(counts)
    assert counts[0] < weights.size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 16])
def test_the_module_is_the_product_and_compiles(kind: str, batch: int) -> None:
    found = factorise(normal(64, 64), kind)
    bias, x = torch.randn(64), torch.randn(batch, 64)
    module = found.as_module(bias).eval()
    wanted = x.double() @ torch.from_numpy(found.matrix()).T + bias
    fast = sparsejit.compile(module, example_inputs=(x,))
    assert torch.allclose(module(x).double(), wanted, rtol=1e-4, atol=1e-4)
    assert torch.allclose(fast(x).double(), wanted, rtol=1e-4, atol=1e-4)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'monarch'"):
        factorise(normal(4, 4), "monarchs")
    with pytest.raises(InvalidInput, match="error=2"):
        factorise(normal(4, 4), error=2)
    with pytest.raises(InvalidInput, match="shape"):
        factorise(np.ones(4))
    with pytest.raises(InvalidInput, match="all zero"):
        factorise(np.zeros((4, 4)))
    with pytest.raises(InvalidInput, match="a bias of shape"):
        factorise(normal(4, 4)).as_module(torch.zeros(5))
