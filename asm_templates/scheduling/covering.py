"""Assignment of weights to steps: the covering problem behind the permute kernels.

A problem is one set of rows, a lane each, in one window (the part of x that is in registers). In a
step every lane may use one of its row's nonzeros, provided that its input is in the one register
(AVX2) or one of the two registers (AVX-512) that the step names:

    bound = max(most that a lane has left, half the sum over registers of the most left there)
    worth = sum over the lanes served of left**2 + _FALL * bound**2 for each register that falls

The bound is the fewest steps in which the rest of a problem can be served; a step's worth ranks
pairs of registers.

One register: register r needs one step for each nonzero of its fullest lane; nothing to choose.
Two: a greedy covering, all problems advancing together. A step takes the pair of the largest worth;
a register falls if all its fullest lanes are served. A lane that both registers can serve takes
from the one in which it is nearer to that register's fullest lane. See docs/kernels/gather.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from sparsejit.whole_numbers import ceil_div

IntArray = npt.NDArray[np.int32]
_FloatArray = npt.NDArray[np.float32]

# Problems advanced together: more amortises numpy's call overhead, fewer stay in the cache.
_PROBLEMS_AT_ONCE = 256
# Worth of a register that falls, in squares of the bound. From 0.5 to 4 the steps of six matrices
# differ by less than 0.5 %.
_FALL = 2.0


@dataclass(frozen=True)
class Windows:
    """The cutting of x into `number` windows, each held in `width` registers at a time.

    `registers` hold all of x; the last window may have fewer.
    """

    registers: int
    number: int
    width: int

    @classmethod
    def of(cls, in_features: int, register_inputs: int, most_registers: int) -> "Windows":
        """Return windows as equal as can be, of at most `most_registers` registers each."""
        registers = ceil_div(in_features, register_inputs)
        number = ceil_div(registers, most_registers)
        return cls(registers, number, ceil_div(registers, number))

    def registers_of(self, window: int) -> range:
        """Return the numbers of a window's registers, counted over all registers of x."""
        return range(window * self.width, min((window + 1) * self.width, self.registers))


@dataclass(frozen=True)
class Demand:
    """The nonzeros that steps must serve: for each lane, how many lie in each register of x.

    `count` is this number, `start` the number of the first of them. Both have shape (problems,
    lanes, registers); problems are ordered by window, then by set of rows. Nonzeros are numbered in
    row-major order of the matrix.
    """

    count: IntArray
    start: IntArray

    @classmethod
    def of(cls, used: npt.NDArray[np.bool_], lanes: int, width: int, window: int) -> "Demand":
        """Return the demand of a mask (rows, in_features), `lanes` rows a problem.

        A register holds `width` inputs and a window `window` registers. Rows must be a multiple
        of `lanes`, in_features one of `width * window`.
        """
        rows, columns = used.shape
        count = used.reshape(rows, columns // width, width).sum(axis=2, dtype=np.int32)
        start = (np.cumsum(count) - count.ravel()).astype(np.int32)
        shape = (rows // lanes, lanes, columns // (width * window), window)
        return cls(*(_by_problem(array.reshape(shape)) for array in (count, start)))


@dataclass(frozen=True)
class Covering:
    """The steps of a schedule, by problem, then by time: registers named, and nonzeros taken.

    `problem`, `first`, `second` (registers): shape (steps,); registers are counted within the
    window. `taken`: (steps, lanes), the number of the nonzero that a lane uses, -1 if it is idle;
    or (steps, lanes, products), if a lane may use several.
    """

    problem: IntArray
    first: IntArray
    second: IntArray
    taken: IntArray


def one_register_schedule(demand: Demand) -> Covering:
    """Schedule every register in turn, until its fullest lane is served."""
    steps = registers_in_turn(demand, 1)
    return replace(steps, taken=steps.taken[..., 0])


def registers_in_turn(demand: Demand, products: int) -> Covering:
    """Schedule every register in turn, `products` nonzeros a lane and step, until none is left."""
    problems, _, window = demand.count.shape
    repeats = ceil_div(demand.count.max(axis=1).ravel(), products)
    cell = np.repeat(np.arange(problems * window, dtype=np.int32), repeats)
    problem, register = cell // window, cell % window
    turn = np.arange(len(cell)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    number = turn[:, None, None] * products + np.arange(products)
    count, start = (part[problem, :, register, None] for part in (demand.count, demand.start))
    taken = np.where(number < count, start + number, -1)
    return Covering(problem, register, register, taken.astype(np.int32))


def two_register_schedule(demand: Demand) -> Covering:
    """Return steps of two registers each that serve all nonzeros, chosen greedily.

    See the top of this file.
    """
    lanes = demand.count.shape[1]
    return covering(
        demand, _PROBLEMS_AT_ONCE, (lanes,), lambda problems: cover(demand, problems, _step)
    )


def covering(
    demand: Demand,
    at_once: int,
    taken_shape: tuple[int, ...],
    steps_of: Callable[[IntArray], list[Covering]],
) -> Covering:
    """Return the steps of all problems in order; `steps_of` schedules `at_once` at a time.

    `taken_shape` is the shape of a step's nonzeros.
    """
    problems, nothing = len(demand.count), np.zeros(0, np.int32)
    parts = [Covering(nothing, nothing, nothing, np.zeros((0, *taken_shape), np.int32))]
    for begin in range(0, problems, at_once):
        end = min(begin + at_once, problems)
        parts += steps_of(np.arange(begin, end, dtype=np.int32))
    order = np.argsort(np.concatenate([part.problem for part in parts]), kind="stable")
    return joined(parts, order)


def joined(parts: list[Covering], chosen: npt.NDArray[np.integer]) -> Covering:
    """Return the chosen steps of all parts, in that order."""
    return Covering(
        *(
            np.concatenate([getattr(part, field.name) for part in parts])[chosen]
            for field in fields(Covering)
        )
    )


def cover(
    demand: Demand,
    problems: IntArray,
    step: Callable[[IntArray, _FloatArray, IntArray], Covering],
) -> list[Covering]:
    """Call `step` until no problem has nonzeros left; return its results, one for each call.

    `step(problems, left, following)` serves lanes of the unfinished problems once: it lowers
    `left`, advances `following`, both (problems, lanes, registers), and returns its choice.
    """
    left = demand.count[problems].astype(np.float32)
    following = demand.start[problems]
    parts: list[Covering] = []
    while True:
        unfinished = left.any(axis=(1, 2))
        if not unfinished.all():
            left, following = left[unfinished], following[unfinished]
            problems = problems[unfinished]
        if not len(problems):
            return parts
        parts.append(step(problems, left, following))


def _step(problems: IntArray, left: _FloatArray, following: IntArray) -> Covering:
    first, second = _best_pair(left)
    return Covering(problems, first, second, _take(left, following, first, second))


def _best_pair(left: _FloatArray) -> tuple[IntArray, IntArray]:
    """Return each problem's two registers of the largest worth; see the top of this file."""
    window = left.shape[2]
    most = left.max(axis=1)
    of_lane = left.sum(axis=2)
    bound = np.maximum(of_lane.max(axis=1), most.sum(axis=1) / 2)
    served = (left > 0).astype(np.float32)
    worth = served * np.square(of_lane)[:, :, None]
    alone = worth.sum(axis=1)
    shared = np.matmul(worth.transpose(0, 2, 1), served)
    fullest = served * (left == most[:, None])
    # A lane that is the fullest in both registers can be served in only one of them.
    blocked = np.matmul(fullest.transpose(0, 2, 1), fullest) > 0
    value = (_FALL * np.square(bound))[:, None] * (most > 0) + alone
    union = value[:, :, None] + value[:, None, :] - shared
    union -= blocked * (_FALL * np.square(bound))[:, None, None]
    best = union.reshape(len(left), -1).argmax(axis=1).astype(np.int32)
    return best // window, best % window


def _take(left: _FloatArray, following: IntArray, first: IntArray, second: IntArray) -> IntArray:
    """Serve lanes with nonzeros left in either register: lower `left`, advance `following`.

    Return the number of the nonzero that each lane takes, -1 for none.
    """
    row = np.arange(len(left))
    in_first, in_second = left[row, :, first], left[row, :, second]
    lag_first = in_first - in_first.max(axis=1, keepdims=True)
    lag_second = in_second - in_second.max(axis=1, keepdims=True)
    from_second = (in_first == 0) | ((in_second > 0) & (lag_second > lag_first))
    register = np.where(from_second, second[:, None], first[:, None])
    busy = np.where(from_second, in_second, in_first) > 0
    place = (row[:, None], np.arange(left.shape[1])[None, :], register)
    taken = np.where(busy, following[place], -1)
    left[place] -= busy
    following[place] += busy
    return taken


def _by_problem(array: IntArray) -> IntArray:
    """Turn (sets of rows, lanes, windows, registers) into (problems, lanes, registers)."""
    sets, lanes, windows, registers = array.shape
    return array.transpose(2, 0, 1, 3).reshape(windows * sets, lanes, registers)
