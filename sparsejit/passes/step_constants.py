"""Constants along time, such as sums of windows: a start, then one period a step.

c (T,)  = 4 2 1 3  1 3  1 3  ...  5        table[0] = 4 2      steps 0, 1, 2, ... read the rows
step 2                                ->   table[1] = 1 3      0, 1, 1, ...

Where the end differs, as the last sums of windows do, a stream is too late to reach it.
"""

from __future__ import annotations

import numpy as np

from sparsejit.ir.values import Array
from sparsejit.whole_numbers import ceil_div


def rows_of_steps(long: Array, short: Array, period: int, delay: int) -> Array | None:
    """The frames (axis 0) of each step, of which all later steps have the last: (steps, period, .).

    The model has these constants at two lengths. `delay` counts the frames before the first one.
    None for constants that do not repeat, or whose end a stream would reach.
    """
    apart = long[period:] != long[:-period]
    differs = np.flatnonzero(apart.reshape(len(apart), -1).any(axis=1))
    bounds = np.array([-1, *differs, len(apart)])
    widest = int(np.argmax(np.diff(bounds)))
    first, end = int(bounds[widest]) + 1, int(bounds[widest + 1]) + period
    steady = len(short) - (len(long) - end)
    if end - first < 2 * period or steady < first + period or len(long) - end > delay:
        return None
    if not np.array_equal(long[:steady], short[:steady]):
        return None
    steps = ceil_div(first + delay, period) + 1
    places = np.arange(steps * period) - delay
    places = np.where(places < end, places, first + (places - first) % period)
    return long[np.maximum(places, 0)].reshape(steps, period, *long.shape[1:])
