"""In what order the steps of several sums follow each other, and how many accumulators each has.

A sum's steps are spread evenly over those of all sums, and where an accumulator's turn would come
again before the last addition to it has ended, it shares its steps with others:

    steps        a b a c a b a c ...       half of them are those of sum a,
    accumulators 0 2 1 3 0 2 1 3 ...       which has two accumulators
"""

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.integer]


def turns(problem: _Numbers) -> tuple[_Numbers, npt.NDArray[np.float64]]:
    """Of steps in order of problem: the number within its problem, and when it is due, 0 to 1."""
    begin = np.searchsorted(problem, problem)
    end = np.searchsorted(problem, problem, side="right")
    turn = np.arange(len(problem)) - begin
    return turn, (turn + 0.5) / (end - begin)


def accumulators_of(steps: _Numbers, registers: int, apart: int) -> _Numbers:
    """How many of so many accumulators each sum gets, by its number of steps.

    So many that `apart` steps lie between two that add to the same, as far as registers go.
    """
    ways: _Numbers = np.maximum(1, -(-apart * steps // max(int(steps.sum()), 1)))
    while ways.sum() > registers:
        ways[np.where(ways > 1, steps / np.maximum(ways - 1, 1), np.inf).argmin()] -= 1
    return ways
