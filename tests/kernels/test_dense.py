"""The dense family against the float64 oracle, and the size of its code."""

import pytest
from matvec_checks import block_weights, check, templates_of

from sparsejit.machine.target import Target

pytestmark = pytest.mark.parametrize("row", templates_of("dense"))


def test_weights_beyond_l2(row):
    weights = block_weights((530, 1000), 1.0)
    assert weights.nbytes / 2 > Target.named(row.isa).l2_bytes
    check(row, weights)


@pytest.mark.parametrize("groups", [1, 3, 5, 7, 16, 17])
def test_weights_from_l2_in_trips_of_any_size(row, groups):
    """Turns of 16, 18, 20, 21 and 16 vectors, where they are whole in runs of four lines."""
    rows = 16 * groups - 3
    image = check(row, block_weights((rows, 70_000 // rows), 1.0, block_rows=1))
    assert Target.named(row.isa).l1d_bytes < image.pool_bytes < Target.named(row.isa).l2_bytes / 2


def test_code_does_not_grow_with_inputs(row):
    few, many = (check(row, block_weights((64, size), 1.0)) for size in (64, 1024))
    assert many.code_bytes == few.code_bytes
