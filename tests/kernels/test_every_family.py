"""Every matrix-vector kernel against the float64 oracle: shapes, zeros, bias and activation."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import matvec_checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import (
    FloatArray,
    block_weights,
    check,
    scattered,
    square_weights,
    target_of,
    templates_of,
)

from sparsejit.asm_templates.broadcast import mixed
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir.spec import Activation

Weights = Callable[[tuple[int, int], float], FloatArray]
Surroundings = Callable[[pytest.MonkeyPatch], None]

OF_1, OF_4, OF_8, OF_16 = (partial(block_weights, block_rows=rows) for rows in (1, 4, 8, 16))
# Zeros that a family is made for; the others take any.
ZEROS: dict[str, tuple[Weights, ...]] = {
    "broadcast": (OF_8, OF_16),
    "broadcast-loop": (OF_8, OF_16),
    "broadcast-mixed": (OF_8, OF_16),
    "broadcast-4x4": (square_weights,),
    "broadcast-4x1": (OF_4,),
    "immediate": (OF_1, OF_8),
}
SPARSE = 0.03
DENSITIES = (0.0, SPARSE, 1.0)


def sharing_loads(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether two blocks of eight outputs share the load of their line."""

    def target(row: Template) -> matvec_checks.Target:
        level = target_of(row)
        return replace(level, core=replace(level.core, halves_share_loads=shared))

    monkeypatch.setattr(matvec_checks, "target_of", target)


def little_room(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of L1 that leaves small matrices to loops, all of them or in part."""
    for dtype in mixed.CODE_SHARES:
        monkeypatch.setitem(mixed.CODE_SHARES, dtype, share)


SURROUNDINGS: dict[str, tuple[Surroundings, ...]] = {
    "broadcast": tuple(partial(sharing_loads, shared) for shared in (True, False)),
    "broadcast-mixed": tuple(partial(little_room, share) for share in (0.0, 0.05)),
}
FAMILIES = dict.fromkeys(row.family for row in MATVEC_TEMPLATES)
ROWS = [row for family in FAMILIES for row in templates_of(family)]
every_row = pytest.mark.parametrize("row", ROWS)


def undisturbed(_: pytest.MonkeyPatch) -> None:
    """As it is."""


# Each row in each of the surroundings that matter to its family.
every_row_in_each = pytest.mark.parametrize(
    ("row", "around"),
    [
        pytest.param(*one.values, around, marks=one.marks, id=f"{one.id}-{number}")
        for one in ROWS
        for number, around in enumerate(SURROUNDINGS.get(one.values[0].family, (undisturbed,)))
    ],
)


@pytest.mark.parametrize("density", DENSITIES)
@every_row_in_each
def test_every_shape(
    row: Template, around: Surroundings, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    around(monkeypatch)
    if row.family == "immediate":
        density = min(density, 0.04)
    shapes = list(matvec_checks.shapes())
    if density == SPARSE:
        shapes += [(columns, rows) for rows, columns in shapes]
    for weights in ZEROS.get(row.family, (OF_1,)):
        for shape in shapes:
            check(row, weights(shape, density))


@pytest.mark.parametrize("activation", list(Activation))
@every_row_in_each
def test_bias_and_activation(
    row: Template, around: Surroundings, activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    around(monkeypatch)
    for weights in ZEROS.get(row.family, (OF_1,)):
        for shape in ((1, 7), (6, 9), (13, 40), (257, 33), (600, 20)):
            bias = np.linspace(-2, 2, shape[0], dtype=np.float32)
            check(row, weights(shape, 0.2), bias, activation)


@pytest.mark.parametrize("weights", [OF_1, OF_4, OF_8], ids=["1", "4", "8"])
@every_row_in_each
def test_zeros_that_it_is_not_made_for(
    row: Template, around: Surroundings, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    around(monkeypatch)
    check(row, weights((100, 170), 0.1))


@every_row
def test_few_inputs(row: Template) -> None:
    for weights in ZEROS.get(row.family, (OF_1,)):
        for in_features in range(1, 13):
            check(row, weights((39, in_features), 0.8))


@every_row_in_each
def test_empty_rows_and_columns(
    row: Template, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around(monkeypatch)
    for make in ZEROS.get(row.family, (OF_1,)):
        weights = make((200, 1000), 0.2)
        weights[16:56] = 0
        weights[:, 100:900] = 0
        weights[:, 77] = 0
        check(row, weights, np.ones(200, np.float32))


@settings(max_examples=10, deadline=None)
@given(
    out_features=st.integers(1, 300),
    in_features=st.integers(1, 900),
    density=st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]),
    biased=st.booleans(),
    activation=st.sampled_from(list(Activation)),
    seed=st.integers(0, 2**32 - 1),
)
@every_row
def test_random_layers(
    row: Template,
    out_features: int,
    in_features: int,
    density: float,
    biased: bool,
    activation: Activation,
    seed: int,
) -> None:
    bias = np.random.default_rng(seed).standard_normal(out_features, np.float32)
    weights = scattered((out_features, in_features), density, seed)
    check(row, weights, bias if biased else None, activation)
