"""Weights of one layer with zeros, chosen by second order and refitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sparsejit.prune.patterns import Pattern
from sparsejit.prune.second_order import (
    InverseFactor,
    choose_by_second_order,
    damped,
    inverse_factor,
    refit_survivors,
)
from sparsejit.whole_numbers import ceil_div

_DAMPING = 0.01
_SAMPLED = 128  # outputs that the errors of a layer are measured on
# Batches of columns if the error alone is needed: it is 1 to 2 % larger than with 48, in half of
# the time (768 and 3072 inputs, 15 to 85 % of zeros).
_FEW_BATCHES = 16
# Most multiply-adds of an exact refit; beyond, the weights of the choice itself are taken.
_MOST_REFIT = 1e11


def squared_error(weight: Tensor, other: Tensor, hessian: Tensor) -> float:
    """The mean square of the difference of outputs with two weights, summed over outputs.

    `hessian` is the mean of z zT over the inputs z.
    """
    change = weight - other
    return max(float(((change @ hessian) * change).sum()), 0.0)


def sampled_rows(rows: int, pattern: Pattern, gates: int) -> Tensor:
    """Sampled outputs, int64 (n,), spread evenly in whole groups of a pattern, alike in each gate.

    The share of error that zeros cause in 64 rows is within 1 % of the share in 768.
    """
    each = rows // gates
    groups = ceil_div(each, pattern.rows)
    chosen = torch.linspace(0, groups - 1, min(groups, ceil_div(_SAMPLED, gates * pattern.rows)))
    found = chosen.round().long()[:, None] * pattern.rows + torch.arange(pattern.rows)
    found = found[found < each]
    return torch.cat([found + gate * each for gate in range(gates)])


def factors_by_window(
    seen: Tensor, patterns: Mapping[str, Pattern]
) -> Iterator[tuple[InverseFactor, dict[str, Pattern]]]:
    """For each window of the patterns, the inverse factor of a Hessian, and its patterns.

    `seen` is the Hessian. A window is the number of inputs that blocks lie within.
    """
    firm = damped(seen, _DAMPING)
    for window in dict.fromkeys(pattern.window for pattern in patterns.values()):
        own = {name: each for name, each in patterns.items() if each.window == window}
        yield inverse_factor(firm, window), own


def choices_by_amount(
    weight: Tensor,
    factor: InverseFactor,
    held: Tensor,
    pattern: Pattern,
    amounts: Sequence[float],
    gates: int,
) -> list[tuple[Tensor, float]]:
    """For each share of zeros, weights with zeros, and their outputs' squared error.

    The error is a mean over rows, summed over outputs. `factor` is of the Hessian of the rows that
    zeros are chosen by, `held` the Hessian of the held-back rows that errors are measured on: few
    rows can be fitted exactly, and say nothing of others.
    """
    found = []
    for amount in amounts:
        counts = block_counts(weight, pattern, amount, gates)
        made = weight
        if any(counts):
            made = choose_by_second_order(weight, factor, pattern, counts, _FEW_BATCHES).weights
        found.append((made, squared_error(weight, made, held)))
    return found


def with_zeros(
    weight: Tensor, hessian: Tensor, wanted: Tensor, pattern: Pattern, amount: float, gates: int
) -> Tensor:
    """The weights (out, in) with that share of zeros whose outputs are nearest the wanted ones.

    `hessian` is the mean of z zT, `wanted` (out, in) the mean of the wanted outputs times z.
    """
    counts = block_counts(weight, pattern, amount, gates)
    firm = damped(hessian, _DAMPING)
    target = wanted + weight @ (firm - hessian)  # damping keeps the given weights
    adapted = torch.cholesky_solve(target.T, torch.linalg.cholesky(firm)).T
    if not any(counts):
        return adapted
    zeros = choose_by_second_order(adapted, firm, pattern, counts)
    if float((~zeros.pruned).sum(1).double().pow(3).sum()) / 3 > _MOST_REFIT:
        return zeros.weights
    return refit_survivors(target, firm, zeros.pruned)


def block_counts(weight: Tensor, pattern: Pattern, amount: float, gates: int) -> list[int]:
    """The number of blocks of each gate that a share of zeros takes."""
    return [round(amount * pattern.count(len(weight) // gates, weight.shape[1]))] * gates
