"""Chains of float64 against numpy: functions to the last places, reductions, and conversions."""

import numpy as np
import pytest
from chain_checks import Operand, expected, run, step
from runnable import LEVELS

from sparsejit.asm_templates.pointwise.row_chain.doubles import DOUBLE_FUNCTIONS
from sparsejit.ir.ops.pointwise import FUNCTIONS, ROW_REDUCTIONS, Chain
from sparsejit.ir.values import Array

SHAPES = ((1, 1), (3, 5), (4, 16), (2, 37), (1, 200))
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-310, 1e300, -1e300, 709.7, -745.0)
_LAST_PLACES = 4e-16


def numbers(kind: str, shape: tuple[int, ...], count: int) -> list[Array]:
    """Operands of a function over many magnitudes, the first with special values."""
    generator = np.random.default_rng(len(kind) + shape[1])
    found = [
        generator.standard_normal(shape) * 10 ** generator.uniform(-3, 3, shape)
        for _ in range(count)
    ]
    first = found[0].reshape(-1)
    if first.size > 2 * len(SPECIAL):
        first[: len(SPECIAL)] = SPECIAL
    if count > 1:
        found[1][0] = found[0][0]
    return found


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("kind", [kind for kind in DOUBLE_FUNCTIONS if kind in FUNCTIONS])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_function_is_exact_to_the_last_places(
    isa: str, kind: str, shape: tuple[int, ...]
) -> None:
    count = FUNCTIONS[kind].arity
    operands = numbers(kind, shape, count)
    if kind == "where":
        operands[0] = operands[0] > 0
    chain = Chain(shape, count, (step(kind, *range(count)),), (count,))
    given = [Operand(each) for each in operands]
    (found,), (wanted,) = run(chain, given, isa), expected(chain, given)
    np.testing.assert_allclose(found, wanted, rtol=_LAST_PLACES, atol=0)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("kind", ROW_REDUCTIONS)
@pytest.mark.parametrize("shape", [*SHAPES, (50, 3), (33, 7), (5, 1000)])
def test_rows_are_reduced(isa: str, kind: str, shape: tuple[int, ...]) -> None:
    """The operand is reduced, then numbers that its reduction gives; one row has NaN."""
    x = np.random.default_rng(shape[1]).standard_normal(shape)
    x[-1, -1] = np.nan
    steps = step("square", 0), step(kind, 1), step("sub", 0, 2), step("exp", 3), step(kind, 4)
    chain = Chain(shape, 1, steps, (2, 4, 5))
    given = [Operand(x)]
    for found, wanted in zip(run(chain, given, isa), expected(chain, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_truths_of_comparisons_choose(isa: str, shape: tuple[int, ...]) -> None:
    a, b = numbers("less", shape, 2)
    chain = Chain(shape, 2, (step("less", 0, 1), step("where", 2, 0, 1)), (2, 3))
    given = [Operand(a), Operand(b)]
    for found, wanted in zip(run(chain, given, isa), expected(chain, given), strict=True):
        np.testing.assert_array_equal(found, wanted)
