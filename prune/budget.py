"""Choice of the amount of each layer that keeps a model within a time, for the least loss.

    frontier   the least loss that each total time allows, by dynamic programming
    spend      the amounts for a budget
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from sparsejit.api.reports.shown import Shown, table_of
from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.files import atomic_path
from sparsejit.prune.latency import (
    LatencyTable,
    check_tradable,
    is_time,
    measurement_file,
    recall,
    remember,
    time_in_turn,
)
from sparsejit.prune.patterns import Pattern
from sparsejit.prune.prunable import FloatArray, Prunable

Array = npt.NDArray[np.float64]

# Sums kept after each layer. For 20 layers with 60 options each the search takes 0.4 s, and its
# best choices take 0.04 % longer than with four times this number.
_STATES = 4096


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LayerOptions:
    """The options of one layer.

    Attributes:
        times: time of each option, above 0 (n,)
        losses: loss of each option (n,)
        needs: the options that may be chosen only with one of the next layer that `fits`; None for
            none. An option of the last layer needs nothing.
        fits: the options that an option of the layer before may need; None for all
    """

    times: Array
    losses: Array
    needs: Flags | None = None
    fits: Flags | None = None


@dataclass(frozen=True)
class Frontier:
    """Every choice that no other beats in both time and loss, by rising time and falling loss.

    times, losses: sums over layers (n,). choices: number of each layer's option (n, layers).
    """

    times: Array
    losses: Array
    choices: npt.NDArray[np.intp]

    def within(self, time: float) -> int:
        """Index of the least loss that takes no longer than `time`; 0 where all take longer."""
        return max(int(np.searchsorted(self.times, time, "right")) - 1, 0)


def frontier(layers: Sequence[LayerOptions], states: int = _STATES) -> Frontier:
    """Choose one option of every layer, for every total time.

    Layer by layer, each sum so far is extended by each option, and beaten sums are dropped (the
    multiple-choice knapsack as dynamic programming over undominated states; Kellerer, Pferschy &
    Pisinger 2004, section 11.5). Times are added exactly, never rounded, so no choice takes longer
    than it says. Where more than `states` sums are left, the best of each of `states` spans of
    equal ratio is kept; otherwise the result is exact.
    """
    # Sums whose last option needs nothing, and sums whose last option needs one of the next layer.
    free = Frontier(np.zeros(1), np.zeros(1), np.zeros((1, 0), np.intp))
    needy = Frontier(np.zeros(0), np.zeros(0), np.zeros((0, 0), np.intp))
    for number, layer in enumerate(layers):
        every = np.ones(len(layer.times), bool)
        fits = every if layer.fits is None else layer.fits
        is_last = number == len(layers) - 1
        needs = ~every if layer.needs is None or is_last else layer.needs
        free, needy = (
            _extended(layer, [(free, own), (needy, own & fits)], states) for own in (~needs, needs)
        )
    return free


def _extended(
    layer: LayerOptions, some: Sequence[tuple[Frontier, Flags]], states: int
) -> Frontier:
    """Sums of time and loss with one more layer's options, without sums that another beats.

    `some` has frontiers over the layers before, and flags of the options that each allows.
    """
    times, losses, sums, options = [], [], [], []
    for number, (before, allowed) in enumerate(some):
        own = np.flatnonzero(allowed)
        times.append((before.times[:, None] + layer.times[own]).ravel())
        losses.append((before.losses[:, None] + layer.losses[own]).ravel())
        first = sum(len(each.times) for each, _ in some[:number])
        sums.append(np.repeat(first + np.arange(len(before.times)), len(own)))
        options.append(np.tile(own, len(before.times)))
    every_time, every_loss = np.concatenate(times), np.concatenate(losses)
    kept = _thinned(every_time, _undominated(every_time, every_loss), states)
    earlier = np.concatenate([before.choices for before, _ in some])
    choices = earlier[np.concatenate(sums)[kept]], np.concatenate(options)[kept]
    return Frontier(every_time[kept], every_loss[kept], np.column_stack(choices))


def _undominated(times: Array, losses: Array) -> npt.NDArray[np.intp]:
    """Indices of the choices that no other beats in both time and loss, by rising time."""
    if not len(times):
        return np.zeros(0, np.intp)
    order = np.lexsort((losses, times))
    least_before = np.minimum.accumulate(losses[order])[:-1]
    better = np.concatenate(([True], losses[order][1:] < least_before))
    return order[better]


def _thinned(times: Array, undominated: npt.NDArray[np.intp], states: int) -> npt.NDArray[np.intp]:
    if len(undominated) <= states:
        return undominated
    logs = np.log(times[undominated])
    span = np.digitize(logs, np.linspace(logs[0], logs[-1], states))
    # Least loss stands last in its span; the first of all is the least time, and stays.
    last = np.concatenate((span[1:] != span[:-1], [True]))
    last[0] = True
    return undominated[last]


# Steps between two measured amounts that layers may take; their times are interpolated.
_STEPS_BETWEEN = 8
# Share of the budget that a model may stay below it, and the most measurements to find one.
_TOLERANCE = 0.03
_TRIES = 16


@dataclass(frozen=True)
class TradeOff(Shown):
    """The amounts chosen for a budget, and the losses of other budgets.

    A loss is the sum over layers of -log of the share of squared weights that is left. The curves
    are as the latency table has them, times `measured_us` over the table's sum for `amounts`.

    Attributes:
        budget_us: allowed microseconds
        amounts: the share pruned of each target, by name
        measured_us: microseconds of all layers, pruned to `amounts`, one after another
        loss: the loss at `amounts`
        times_us: microseconds (n,), rising
        losses: the least loss (n,) for each of `times_us`
        uniform_times_us: microseconds (m,) with one amount for all layers
        uniform_losses: the loss (m,) for each of these
    """

    budget_us: float
    amounts: dict[str, float]
    measured_us: float
    loss: float
    times_us: FloatArray
    losses: FloatArray
    uniform_times_us: FloatArray
    uniform_losses: FloatArray

    def plot(self, path: str | Path) -> None:
        """Write a PNG: loss against time, chosen for each layer and uniform."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependency(
                "a plot needs matplotlib: pip install 'sparsejit[bench]'"
            ) from error

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(self.times_us, self.losses, label="amounts by layer")
        axes.plot(self.uniform_times_us, self.uniform_losses, "--", label="uniform amount")
        axes.axvline(self.budget_us, color="grey", linewidth=1)
        axes.plot(self.measured_us, self.loss, "ko", label=f"chosen for {self.budget_us:g} us")
        axes.set(xscale="log", xlabel="us, all layers in turn")
        axes.set(ylabel="-log of the squared weights left, summed over layers")
        axes.legend()
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=110)

    def __rich__(self) -> Table:
        title = f"{self.measured_us:.3g} of {self.budget_us:g} us"
        table = table_of(title, ["weight"], ["amount"])
        table.title_justify = "center"
        for name, amount in self.amounts.items():
            table.add_row(name, f"{amount:.2%}")
        return table


def check_budget(
    budget_us: float | None, amount: object | None, pattern: Pattern, allocation: str | None
) -> None:
    """Raise InvalidInput unless exactly one of budget and amount is given, and the rest fits."""
    if (budget_us is None) == (amount is None):
        raise InvalidInput(
            f"amount={amount} and budget_us={budget_us}: give one of them, the share to prune or "
            "the time to prune to"
        )
    if budget_us is None:
        return
    is_number = isinstance(budget_us, Real) and not isinstance(budget_us, bool)
    if not is_number or not 0 < budget_us < math.inf:
        raise InvalidInput(f"budget_us={budget_us!r}: give microseconds above 0")
    if allocation not in (None, "uniform"):
        raise InvalidInput(
            f"budget_us chooses the amount of each layer, as does allocation={allocation!r}: "
            "drop either"
        )
    check_tradable(pattern)


def spend(
    budget_us: float, layers: Mapping[str, Prunable], table: LatencyTable, pattern: str
) -> TradeOff:
    """Choose amounts whose compiled layers take `budget_us` together, one after another.

    The loss of a layer is -log of the share of its squared weights that is left: a layer passes
    on that share of its signal, and shares multiply from layer to layer. The times of the table do
    not quite add up to the model's time, so the model itself is measured, and another choice is
    made where it misses the budget.

    The choice is cached like the table: the same weights get the same amounts for a budget. A
    budget that the dense layers meet prunes nothing. Raises InvalidInput, with the least time that
    can be reached, for a budget below it.
    """
    grids = [_between(table.curve(name, pattern)[0]) for name in layers]
    options = [
        LayerOptions(np.interp(grid, *table.curve(name, pattern)), -np.log(layer.energy_left(grid)))
        for grid, (name, layer) in zip(grids, layers.items(), strict=True)
    ]
    best = frontier(options)

    def amounts_of(state: int) -> dict[str, float]:
        chosen = (grid[option] for grid, option in zip(grids, best.choices[state], strict=True))
        return {name: float(amount) for name, amount in zip(layers, chosen, strict=True)}

    def measure(state: int) -> float:
        return time_in_turn(layers, amounts_of(state), table.dtype)

    digests = [layer.digest() for layer in layers.values()]
    curve = (best.times.tobytes().hex(), best.losses.tobytes().hex())
    file = measurement_file("choice", str(budget_us), table.dtype, pattern, *digests, *curve)
    kept = _checked(recall(file), len(best.times))
    state, us = kept or _settle(best, budget_us, measure)
    if kept is None:
        remember(file, (state, us))
    scale = us / best.times[state]
    uniform_times, uniform_losses = _uniform(options, grids)
    return TradeOff(
        budget_us,
        amounts_of(state),
        us,
        float(best.losses[state]),
        best.times * scale,
        best.losses,
        uniform_times * scale,
        uniform_losses,
    )


def _checked(stored: Any, states: int) -> tuple[int, float] | None:
    """The state and its time from a cached value; None for any other value."""
    match stored:
        case [state, us] if type(state) is int and 0 <= state < states and is_time(us):
            return state, us
    return None


def _settle(best: Frontier, budget_us: float, measure: Callable[[int], float]) -> tuple[int, float]:
    """The state of least loss that was measured within the budget, and its time.

    The search narrows from both sides, because the time may jump where a model outgrows a cache.
    A slow moment of the machine may reject a state that fits, so states above are searched again.
    """
    affordable: dict[int, float] = {}
    top = len(best.times) - 1
    lower, upper = 0, top
    state = best.within(budget_us)
    for _ in range(_TRIES):
        us = measure(state)
        if us <= budget_us:
            affordable[state] = us
            lower = state + 1
        else:
            upper = state - 1
        if (1 - _TOLERANCE) * budget_us <= us <= budget_us:
            break
        if affordable and lower > upper:
            upper = top
            state, us = max(affordable.items())
        if lower > upper:
            break
        in_proportion = best.within(budget_us * best.times[state] / us)
        state = in_proportion if lower <= in_proportion <= upper else (lower + upper) // 2
    if affordable:
        return max(affordable.items())
    least = measure(0)
    if least > budget_us:
        raise InvalidInput(
            f"budget_us={budget_us:g} is out of reach: pruned as far as the table goes, these "
            f"layers take {least:.3g} us on this machine; give more, choose a faster pattern, "
            "or leave out layers"
        )
    return 0, least


def _between(measured: Sequence[float]) -> FloatArray:
    """The measured amounts, with interpolated ones in `_STEPS_BETWEEN` steps between neighbours."""
    places = np.linspace(0, len(measured) - 1, (len(measured) - 1) * _STEPS_BETWEEN + 1)
    return np.interp(places, np.arange(len(measured)), measured)


def _uniform(
    options: Sequence[LayerOptions], grids: Sequence[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Times and losses of one amount for all layers; a layer takes at most its largest amount."""
    shared = max(grids, key=lambda grid: grid[-1])
    paired = list(zip(grids, options, strict=True))
    times = sum((np.interp(shared, grid, o.times) for grid, o in paired), np.zeros(len(shared)))
    losses = sum((np.interp(shared, grid, o.losses) for grid, o in paired), np.zeros(len(shared)))
    return times, losses
