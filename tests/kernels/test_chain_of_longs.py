"""Functions of whole numbers in chains, at the ends of int64 and against Python's own."""

from __future__ import annotations

import numpy as np
import pytest
from test_chain import Operand, expected, isas, run, step

from sparsejit.ir.ops.pointwise import FUNCTIONS, Chain

EDGES_OF_LONGS = [0, 1, 2, 3, 7, 10, 63, 64, 65, 127, 128, 255, 256, 32768, 65535, 2**31 - 1, 2**31]
EDGES_OF_LONGS += [2**32 - 1, 2**32 + 1, 10**9 + 7, 2**52 + 1, 2**53 - 1, 2**53, 2**53 + 1]
EDGES_OF_LONGS += [2**54 + 3, 2**61 - 1, 2**62, 2**62 + 1, 2**63 - 513, 2**63 - 2, 2**63 - 1]


def exactly(kind: str, a: int, b: int) -> int:
    """A function of whole numbers by Python's own."""
    if kind == "quotient":
        size = abs(a) // abs(b) if b else 0
        return -size if (a < 0) != (b < 0) else size
    if kind.startswith("shift"):
        count = b if 0 <= b < 64 else 64
        return a << count if kind == "shift_left" else a >> count
    if kind.startswith("bitwise"):
        return {"and": a & b, "or": a | b, "xor": a ^ b}[kind[8:]]
    limits = np.iinfo(kind[3:])
    return (a - limits.min) % (1 << limits.bits) + limits.min


@isas
@pytest.mark.parametrize("kind", [kind for kind, each in FUNCTIONS.items() if each.whole])
def test_functions_of_longs_are_exact(kind: str, isa: str) -> None:
    generator = np.random.default_rng(8)
    edges = [*EDGES_OF_LONGS, *(-n for n in EDGES_OF_LONGS), -(2**63)]
    columns = [c.reshape(-1).copy() for c in np.meshgrid(edges, edges)]
    shifts = generator.integers(0, 63, (2, 40_000))
    drawn = generator.integers(-(2**63), 2**63, (2, 40_000)) >> shifts
    # Quotients that are whole, and those next to them.
    drawn[0, ::2] = drawn[1, ::2] * (drawn[0, ::2] >> 20) + generator.integers(-1, 2, 20_000)
    columns = [np.concatenate(pair) for pair in zip(columns, drawn, strict=True)]
    arity = FUNCTIONS[kind].arity
    chain = Chain(columns[0].shape, arity, (step(kind, *range(arity)),), (arity,))
    operands = [Operand(c) for c in columns[:arity]]
    (found,), (wanted,) = run(chain, operands, isa), expected(chain, operands)
    np.testing.assert_array_equal(found, wanted)
    for a, b, result in zip(*(c.tolist() for c in columns), found.tolist(), strict=True):
        assert (exactly(kind, a, b) - result) % 2**64 == 0, (a, b)
