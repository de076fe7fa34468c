"""Assignment of weights to steps if a lane takes up to four products at once.

As in `covering`, but every lane may use four nonzeros a step, from either of two registers:

    bound = max(most that a lane has left, twice the sum over registers of the steps each needs)
    worth = sum over lanes of products * left**2 + _FALL * bound**2 for each register that falls

A register needs a quarter, rounded up, of the most that a lane has left there; it falls if it
needs a step less. Choices are close, so they are made with a little noise, several times over, and
each problem keeps its shortest schedule. See docs/kernels/gather.md.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.scheduling.covering import Covering, Demand, cover, covering, joined

PRODUCTS = 4  # of a lane in one step: bytes of a 32-bit lane
_NOISE = 0.02
# Worth of a register that needs a step less, in squares of the bound, in products.
_FALL = 16.0
# Problems advanced together: more amortises numpy's call overhead, fewer stay in the cache.
_PROBLEMS_AT_ONCE = 64

_IntArray = npt.NDArray[np.int32]
_Counts = npt.NDArray[np.float32]


def quad_schedule(demand: Demand, tries: int) -> Covering:
    """Return steps that serve all nonzeros, up to four a lane: the best of `tries` greedy choices.

    See the top of this file.
    """
    taken_shape = (demand.count.shape[1], PRODUCTS)
    return covering(
        demand,
        _PROBLEMS_AT_ONCE,
        taken_shape,
        lambda problems: _shortest(demand, problems, tries),
    )


def _shortest(demand: Demand, problems: _IntArray, tries: int) -> list[Covering]:
    """Return the steps of these problems, for each problem from the try with the fewest steps."""
    random = np.random.default_rng(0)

    def step(unfinished: _IntArray, left: _Counts, following: _IntArray) -> Covering:
        first, second = _best_pair(left, random)
        taken = _take(left, following, first, second)
        return Covering(unfinished, first, second, taken)

    covers = [cover(demand, problems, step) for _ in range(tries)]
    if tries == 1 or not covers[0]:
        return covers[0]
    attempt = np.repeat(np.arange(tries), [sum(len(p.problem) for p in c) for c in covers])
    parts = [part for cover in covers for part in cover]
    problem = np.concatenate([part.problem for part in parts]) - problems[0]
    steps = np.zeros((tries, len(problems)), np.int64)
    np.add.at(steps, (attempt, problem), 1)
    best = steps.argmin(axis=0)
    return [joined(parts, np.flatnonzero(attempt == best[problem]))]


def _best_pair(left: _Counts, random: np.random.Generator) -> tuple[_IntArray, _IntArray]:
    """Return each problem's two registers of the largest worth; see the top of this file.

    A lane takes four products at most, so counts above four need not be distinguished. A pair of
    registers stands for a single one if only one is left.
    """
    first, second = (part.astype(np.int32) for part in np.triu_indices(left.shape[2], 1))
    if not len(first):
        alone = np.zeros(len(left), np.int32)
        return alone, alone
    by_register = np.ascontiguousarray(np.minimum(left, PRODUCTS).swapaxes(1, 2))
    products = by_register[:, first]
    products += by_register[:, second]
    np.minimum(products, PRODUCTS, out=products)
    of_lane = left.sum(axis=2)
    value = np.matmul(products, np.square(of_lane)[:, :, None])[:, :, 0]
    needed = np.ceil(left.max(axis=1) / PRODUCTS)
    due = np.ascontiguousarray(_due(left).swapaxes(1, 2))
    both_fall = (due[:, first] + due[:, second]).max(axis=2) <= PRODUCTS
    falls = (needed[:, first] > 0).astype(np.float32) + (needed[:, second] > 0) - ~both_fall
    bound = np.maximum(of_lane.max(axis=1), PRODUCTS / 2 * needed.sum(axis=1))
    value += _FALL * np.square(bound)[:, None] * falls
    best = (value * (1 + _NOISE * random.random(value.shape, np.float32))).argmax(axis=1)
    return first[best], second[best]


def _due(left: _Counts) -> _Counts:
    """Return the nonzeros that each lane must take now so that its register needs a step less.

    `left`: nonzeros left, (problems, lanes, registers).
    """
    needed = np.ceil(left.max(axis=1, keepdims=True) / PRODUCTS)
    due: _Counts = np.maximum(left - PRODUCTS * (needed - 1), 0) * (left > 0)
    return due


def _take(left: _Counts, following: _IntArray, first: _IntArray, second: _IntArray) -> _IntArray:
    """Serve every lane from two registers, four nonzeros at most; return their numbers.

    Due nonzeros come first, then more from the register where the lane lags more: it lags more the
    nearer it is to the lane that has most left there. Free products are -1. `left` and `following`
    change.
    """
    row = np.arange(len(left))
    in_first, in_second = left[row, :, first], left[row, :, second]
    in_second = np.where((first == second)[:, None], 0, in_second)
    lag_first = in_first - in_first.max(axis=1, keepdims=True)
    lag_second = in_second - in_second.max(axis=1, keepdims=True)
    wanted = np.rint((PRODUCTS + lag_first - lag_second) / 2)
    due_first, due_second = (_due(part[:, :, None])[:, :, 0] for part in (in_first, in_second))
    both_fall = due_first + due_second <= PRODUCTS
    wanted = np.where(both_fall, np.clip(wanted, due_first, PRODUCTS - due_second), wanted)
    lowest = np.maximum(PRODUCTS - in_second, 0)
    from_first = np.minimum(np.clip(wanted, np.minimum(lowest, PRODUCTS), PRODUCTS), in_first)
    from_second = np.minimum(PRODUCTS - from_first, in_second)
    lanes = np.arange(left.shape[1])[None, :]
    here, there = (row[:, None], lanes, first[:, None]), (row[:, None], lanes, second[:, None])
    slot = np.arange(PRODUCTS, dtype=np.int32)
    taken_first = following[here][..., None] + slot
    taken_second = following[there][..., None] + slot - from_first[..., None].astype(np.int32)
    ends = from_first[..., None], (from_first + from_second)[..., None]
    taken = np.where(slot < ends[0], taken_first, np.where(slot < ends[1], taken_second, -1))
    left[here] -= from_first
    following[here] += from_first.astype(np.int32)
    left[there] -= from_second
    following[there] += from_second.astype(np.int32)
    return taken.astype(np.int32)
