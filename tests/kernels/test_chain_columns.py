"""Chains that reduce features of which columns follow each other: vectors lie across columns."""

import numpy as np
import pytest
from chain_checks import EXACT, LENGTHS, Operand, expected, floats, is_exact, lowered, run, step
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.ir.ops.pointwise import FUNCTIONS, ROW_REDUCTIONS, Chain
from sparsejit.ir.ops.row_chains import layer_norm, log_softmax, softmax
from sparsejit.machine.target import Target
from sparsejit.runtime.guard_pages import EDGES

isas = pytest.mark.parametrize("isa", LEVELS)
TURNED = (0, 2, 1)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Chain, list[Operand]]:
    """A random graph with reductions over features that lie further apart than rows do."""
    rows, length = draw(st.sampled_from((16, 48))), draw(st.sampled_from(LENGTHS))
    shape = (draw(st.sampled_from((1, 3))), rows, length)
    operands = []
    for number in range(draw(st.integers(1, 4))):
        sides = st.sampled_from((shape, (1, 1, length), (1, rows, 1), (1, 1, 1)))
        kept = shape if number == 0 else draw(sides)
        stored = floats(number, (kept[0], kept[2], kept[1])).round()
        known = stored.size == 1 and draw(st.booleans())
        operands.append(Operand(stored, TURNED, known))
    steps = [step(draw(st.sampled_from([*ROW_REDUCTIONS])), 0)]
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([*EXACT, *ROW_REDUCTIONS]))
        pool = st.integers(0, len(operands) + len(steps) - 1)
        arity = 1 if kind in ROW_REDUCTIONS else FUNCTIONS[kind].arity
        steps.append(step(kind, *(draw(pool) for _ in range(arity))))
    made = st.integers(len(operands), len(operands) + len(steps) - 1)
    results = draw(st.lists(made, min_size=1, max_size=2, unique=True))
    return Chain(shape, len(operands), tuple(steps), tuple(results)), operands


@isas
@settings(max_examples=80)
@given(case=columns(), edge=st.sampled_from(EDGES))
def test_random_chains_of_columns(
    isa: str, case: tuple[Chain, list[Operand]], edge: str
) -> None:
    chain, operands = case
    if not is_exact(chain, operands):
        return
    found = run(chain, operands, isa, edge, axes=TURNED)
    for result, wanted in zip(found, expected(chain, operands), strict=True):
        np.testing.assert_array_equal(result, wanted)


@isas
@pytest.mark.parametrize("length", [1, 3, 16, 33, 257, 1000])
def test_vectors_lie_across_columns(length: int, isa: str) -> None:
    """Columns that are no whole vectors are walked one by one, where that is possible."""
    target = Target.named(isa)
    for rows, is_across in ((16, True), (64, True), (15, False), (17, False)):
        shape = (1, rows, length)
        x = Operand(floats(length, (1, length, rows), 4.0), TURNED)
        inverse, epsilon = (
            Operand(np.full(1, v, np.float32), known=True) for v in (1 / length, 1e-5)
        )
        weight, bias = Operand(floats(1, (length,))), Operand(floats(2, (length,)))
        for chain, operands in (
            (softmax(shape), [x]),
            (log_softmax(shape), [x]),
            (layer_norm(shape, True, True), [x, inverse, epsilon, weight, bias]),
        ):
            assert lowered(chain, operands, target, TURNED).is_across is is_across
            (wanted,) = expected(chain, operands)
            for edge in EDGES:
                (found,) = run(chain, operands, isa, edge, axes=TURNED)
                np.testing.assert_allclose(found, wanted, rtol=5e-6, atol=5e-6)


@isas
@pytest.mark.parametrize("kind", ROW_REDUCTIONS)
def test_reductions_of_columns_spread_nan(kind: str, isa: str) -> None:
    for length in (2, 7, 40, 300):
        x = floats(1, (1, length, 16))
        x[0, np.arange(16) % length, np.arange(16)] = np.nan
        chain = Chain((1, 16, length), 1, (step(kind, 0),), (1,))
        assert np.isnan(run(chain, [Operand(x, TURNED)], isa, axes=TURNED)[0]).all()
