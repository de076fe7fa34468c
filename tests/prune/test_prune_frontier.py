"""The dynamic programme that chooses amounts for a time budget."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsejit.prune.budget import LayerOptions, frontier


@st.composite
def tables(draw: st.DrawFn) -> list[LayerOptions]:
    """The first option of a layer needs nothing and fits all."""
    numbers = st.integers(1, 12)
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 4))
        exactly = st.lists(numbers, min_size=size, max_size=size)
        flags = st.lists(st.booleans(), min_size=size - 1, max_size=size - 1)
        needs, fits = (
            draw(st.none() | flags.map(lambda some, first=first: np.array([first, *some], bool)))
            for first in (False, True)
        )
        times, losses = (np.array(draw(exactly), float) for _ in range(2))
        layers.append(LayerOptions(times, losses, needs, fits))
    return layers


def every_choice(layers: list[LayerOptions]) -> list[tuple[float, float]]:
    indices = (
        chosen
        for chosen in itertools.product(*(range(len(layer.times)) for layer in layers))
        if all(
            layer.needs is None or not layer.needs[i] or after.fits is None or after.fits[j]
            for (layer, i), (after, j) in itertools.pairwise(zip(layers, chosen, strict=True))
        )
    )
    return [
        (
            sum(layer.times[i] for layer, i in zip(layers, chosen, strict=True)),
            sum(layer.losses[i] for layer, i in zip(layers, chosen, strict=True)),
        )
        for chosen in indices
    ]


@given(tables())
@settings(max_examples=200)
def test_the_frontier_is_what_trying_everything_finds(layers: list[LayerOptions]) -> None:
    best = frontier(layers)
    everything = every_choice(layers)
    for budget in range(1, 50):
        within = [loss for time, loss in everything if time <= budget]
        if within:
            state = best.within(budget)
            assert best.times[state] <= budget
            assert best.losses[state] == min(within)
        else:
            assert best.within(budget) == 0 and best.times[0] > budget


@given(tables(), st.integers(2, 5))
def test_sums_are_those_of_the_choices_also_where_states_are_few(
    layers: list[LayerOptions], states: int
) -> None:
    best = frontier(layers, states)
    assert (np.diff(best.times) > 0).all() and (np.diff(best.losses) < 0).all()
    assert best.times[0] == min(time for time, _ in every_choice(layers))
    for state, chosen in enumerate(best.choices):
        picked = list(zip(layers, chosen, strict=True))
        assert best.times[state] == sum(layer.times[i] for layer, i in picked)
        assert best.losses[state] == sum(layer.losses[i] for layer, i in picked)


def test_few_states_come_close_to_many() -> None:
    random = np.random.default_rng(0)
    amounts = np.linspace(0, 0.99, 60)
    layers = [
        LayerOptions(scale * (1.01 - amounts), -np.log(1 - amounts) * random.uniform(0.5, 2))
        for scale in random.uniform(0.1, 10, 20)
    ]
    budgets = np.geomspace(0.02, 0.9, 30) * sum(layer.times[0] for layer in layers)
    few, many = frontier(layers, 500), frontier(layers, 4000)
    for budget in budgets:
        one_percent_more = few.within(1.01 * budget)
        assert few.losses[one_percent_more] <= 1.01 * many.losses[many.within(budget)]


