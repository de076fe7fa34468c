"""Which weight is multiplied in which step: the covering problem behind the permute kernels.

A problem is one row group (as many rows as a vector has lanes) in one window (the part of x that
is in registers). In a step every lane may use one of its row's nonzeros, provided that its input
is in the one register (AVX2) or one of the two registers (AVX-512) that the step names. Few steps
means few idle lanes.

One register: register r needs as many steps as the lane with most nonzeros there; nothing to
choose. Two registers: a greedy covering, all problems advancing together. A step takes the pair
with the largest sum of remaining(lane) ** 2 over the lanes that it serves, because the lane with
most left bounds what is to come; a lane served by both registers takes from the one in which it
is nearer to that register's fullest lane. On 256x256 at 90 % that needs 574 steps where the
bound (fullest lane, half the sum of the registers' fullest lanes) is 567.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.matrix import SparseMatrix

IntArray = npt.NDArray[np.int32]

# Problems advanced together: more amortises numpy's call overhead, fewer stay in the cache.
_PROBLEMS_AT_ONCE = 256


@dataclass(frozen=True)
class Schedule:
    """Steps in order of problem (window-major, then row group), then of time.

    `problem`, `first`, `second`: shape (steps,); registers are counted within the window.
    `taken`: (steps, lanes), which nonzero of the matrix a lane uses (row-major count), -1: idle.
    """

    problem: IntArray
    first: IntArray
    second: IntArray
    taken: IntArray


@dataclass(frozen=True)
class Demand:
    """How many nonzeros each lane has in each register of a window, and the first of them.

    Both arrays have shape (problems, lanes, registers).
    """

    count: IntArray
    start: IntArray


def demand(matrix: SparseMatrix, lanes: int, window: int) -> Demand:
    """The demand of a matrix cut into groups of `lanes` rows and windows of `window` registers."""
    groups = -(-matrix.out_features // lanes)
    registers = -(-matrix.in_features // lanes)
    windows = -(-registers // window)
    used = padded(matrix.dense != 0, groups * lanes, windows * window * lanes)
    count = used.reshape(groups * lanes, windows * window, lanes).sum(axis=2, dtype=np.int32)
    start = (np.cumsum(count) - count.ravel()).astype(np.int32)
    shape = (groups, lanes, windows, window)
    return Demand(*(_by_problem(array.reshape(shape)) for array in (count, start)))


def padded(array: npt.NDArray[np.bool_], rows: int, columns: int) -> npt.NDArray[np.bool_]:
    """The array with False rows and columns appended up to (rows, columns)."""
    result = np.zeros((rows, columns), bool)
    result[: array.shape[0], : array.shape[1]] = array
    return result


def _by_problem(array: IntArray) -> IntArray:
    groups, lanes, windows, window = array.shape
    return array.transpose(2, 0, 1, 3).reshape(windows * groups, lanes, window)


def one_register_schedule(wanted: Demand) -> Schedule:
    """Every register in turn, until its fullest lane is served."""
    problems, _, window = wanted.count.shape
    repeats = wanted.count.max(axis=1).ravel()
    cell = np.repeat(np.arange(problems * window, dtype=np.int32), repeats)
    problem, register = cell // window, cell % window
    turn = np.arange(len(cell)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    count, start = wanted.count[problem, :, register], wanted.start[problem, :, register]
    taken = np.where(turn[:, None] < count, start + turn[:, None], -1)
    return Schedule(problem, register, register, taken.astype(np.int32))


def two_register_schedule(wanted: Demand) -> Schedule:
    """A greedy covering; see the top of this file."""
    problems = len(wanted.count)
    parts = [
        part
        for begin in range(0, problems, _PROBLEMS_AT_ONCE)
        for part in _cover(wanted, np.arange(begin, min(begin + _PROBLEMS_AT_ONCE, problems)))
    ]
    if not parts:
        lanes = wanted.count.shape[1]
        nothing = np.zeros(0, np.int32)
        return Schedule(nothing, nothing, nothing, np.zeros((0, lanes), np.int32))
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Schedule(*(column[order].astype(np.int32) for column in joined))


def _cover(wanted: Demand, problems: npt.NDArray[np.int64]) -> list[tuple[npt.NDArray, ...]]:
    """One tuple (problem, first, second, taken) of arrays per point in time."""
    left = wanted.count[problems].astype(np.float32)
    following = wanted.start[problems].copy()
    steps = []
    while True:
        open_problems = left.any(axis=(1, 2))
        if not open_problems.all():
            left, following = left[open_problems], following[open_problems]
            problems = problems[open_problems]
        if not len(problems):
            return steps
        first, second = _best_pair(left)
        taken = _take(left, following, first, second)
        steps.append((problems, first, second, taken))


def _best_pair(left: npt.NDArray[np.float32]) -> tuple[npt.NDArray, npt.NDArray]:
    """Per problem, the two registers whose union of lanes is worth most."""
    window = left.shape[2]
    served = (left > 0).astype(np.float32)
    worth = served * np.square(left.sum(axis=2))[:, :, None]
    single = worth.sum(axis=1)
    both = np.matmul(worth.transpose(0, 2, 1), served)
    union = single[:, :, None] + single[:, None, :] - both
    best = union.reshape(len(left), -1).argmax(axis=1)
    return best // window, best % window


def _take(
    left: npt.NDArray[np.float32], following: IntArray, first: npt.NDArray, second: npt.NDArray
) -> IntArray:
    """Serve every lane that has something in either register; returns the nonzeros, -1: idle."""
    row = np.arange(len(left))
    in_first, in_second = left[row, :, first], left[row, :, second]
    lag_first = in_first - in_first.max(axis=1, keepdims=True)
    lag_second = in_second - in_second.max(axis=1, keepdims=True)
    prefer_second = (in_first == 0) | ((in_second > 0) & (lag_second > lag_first))
    register = np.where(prefer_second, second[:, None], first[:, None])
    busy = np.where(prefer_second, in_second, in_first) > 0
    place = (row[:, None], np.arange(left.shape[1])[None, :], register)
    taken = np.where(busy, following[place], -1)
    left[place] -= busy
    following[place] += busy
    return taken
