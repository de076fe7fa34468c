"""A matrix as a product of sparse factors."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsejit.errors import InvalidInput, suggest
from sparsejit.prune.factor_kinds import KINDS

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Factorisation:
    """W ~ factors[0] @ factors[1] @ ... + rest: float32, W (out, in), zeros where nothing is kept.

    `relative_error` is |W - product| / |W| in Frobenius norm, of these float32 factors.
    """

    kind: str
    factors: tuple[FloatArray, ...]
    rest: FloatArray | None
    relative_error: float

    @property
    def nnz(self) -> int:
        """Number of weights that are not zero, of all factors."""
        parts = self.factors if self.rest is None else (*self.factors, self.rest)
        return sum(int(np.count_nonzero(part)) for part in parts)

    @property
    def density(self) -> float:
        """Weights that are not zero, of all factors, over the number of weights of W."""
        return self.nnz / (self.factors[0].shape[0] * self.factors[-1].shape[1])

    def matrix(self) -> npt.NDArray[np.float64]:
        """The product of the factors, plus the rest, (out, in)."""
        product = reduce(np.matmul, (factor.astype(np.float64) for factor in self.factors))
        return product if self.rest is None else product + self.rest

    def as_module(self, bias: Tensor | None = None) -> nn.Module:
        """A module in place of nn.Linear: linear layers in a row, and one beside them for the rest.

        bias (out,) or none. `sparsejit.compile` makes one function of the module.
        """
        layers = [_linear(factor) for factor in reversed(self.factors)]
        chain = nn.Sequential(*layers)
        last = layers[-1] if self.rest is None else _linear(self.rest)
        if bias is not None:
            if bias.shape != (last.out_features,):
                raise InvalidInput(
                    f"a bias of shape {tuple(bias.shape)}; give one of {last.out_features} outputs"
                )
            last.bias = nn.Parameter(bias.detach().clone())
        return chain if self.rest is None else ChainAndRest(chain, last)


class ChainAndRest(nn.Module):
    """Module for chain(x) + rest(x): the product of sparse factors, and the rest of the matrix."""

    def __init__(self, chain: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.chain, self.rest = chain, rest

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.chain(x) + self.rest(x)
        return result


def factorise(
    weights: Tensor | npt.ArrayLike, kind: str = "monarch", error: float = 1.0
) -> Factorisation:
    """The sparsest factors of a kind whose relative error is at most `error`.

    Each kind tries its sparsest form first, and ends with one that is exact. So an error of 1 gives
    the sparsest; 0 may give back the matrix itself, except for rounding, of which 1e-6 is allowed.

    Args:
        weights: (out, in), finite and not all zero
        kind: "monarch", "butterfly", "block-circulant" or "low-rank-plus-sparse"
        error: the largest relative error in Frobenius norm, 0 to 1

    Raises:
        InvalidInput: another kind, an error out of range, or weights that are no such matrix
    """
    if kind not in KINDS:
        raise InvalidInput(f"kind={kind!r}; {suggest(kind, KINDS)}")
    if not 0 <= error <= 1:
        raise InvalidInput(f"error={error}; give a share of the norm from 0 to 1")
    exact = _checked(weights)
    norm, best = np.linalg.norm(exact), None
    for factors, rest in KINDS[kind](exact):
        single = tuple(factor.astype(np.float32) for factor in factors)
        beside = None if rest is None else rest.astype(np.float32)
        best = Factorisation(kind, single, beside, 0.0)
        found = float(np.linalg.norm(exact - best.matrix()) / norm)
        best = Factorisation(kind, single, beside, found)
        if found <= max(error, 1e-6):
            break
    assert best is not None
    return best


def _checked(weights: Tensor | npt.ArrayLike) -> npt.NDArray[np.float64]:
    plain = weights.detach().cpu().numpy() if isinstance(weights, Tensor) else weights
    exact = np.asarray(plain, np.float64)
    if exact.ndim != 2 or 0 in exact.shape:
        raise InvalidInput(f"weights of shape {exact.shape}; give a matrix (out, in)")
    if not np.isfinite(exact).all() or not exact.any():
        raise InvalidInput("the weights are not finite or all zero; give trained ones")
    return exact


def _linear(factor: FloatArray) -> nn.Linear:
    layer = nn.Linear(factor.shape[1], factor.shape[0], bias=False)
    layer.weight = nn.Parameter(torch.from_numpy(np.ascontiguousarray(factor)))
    return layer
