"""The broadcast family against the float64 oracle, and what it promises about bytes."""

from dataclasses import replace

import matvec_checks
import numpy as np
import pytest
from matvec_checks import block_weights, check, target_of, templates_of

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec

pytestmark = pytest.mark.parametrize("row", templates_of("broadcast"))


@pytest.fixture(params=[True, False], ids=["lines-once", "lines-twice"])
def halves(request, monkeypatch):
    """Whether two blocks of eight outputs share the load of their line."""

    def target(row):
        level = target_of(row)
        return replace(level, core=replace(level.core, halves_share_loads=request.param))

    monkeypatch.setattr(matvec_checks, "target_of", target)
    return request.param


def test_halves_load_their_lines_once_and_in_order(row, halves):
    """One of two halves in a line loads it where they share loads, in float32 and float16."""
    if row.isa != "avx512" or row.dtype is DType.BFLOAT16:
        pytest.skip("no masks, or two vectors a line")
    weights = block_weights((192, 300), 0.1)
    image = check(row, weights)
    lines = np.count_nonzero(weights) / 16
    name = "vcvtph2ps" if row.dtype is DType.FLOAT16 else ""
    listed = [text for text in image.listing() if name in text and "[rcx" in text]
    assert (len(listed) < int(1.1 * lines)) is halves
    spec = MatVec(*weights.shape, None, Activation.NONE, row.dtype)
    target = matvec_checks.target_of(row)
    for part in row.lower(spec, SparseMatrix(weights), target).tiles:
        assert bool(np.all(np.diff(part.steps.line) >= 0)) is halves


@pytest.mark.usefixtures("halves")
def test_pool_holds_little_but_weights(row):
    weights = block_weights((192, 256), 0.2)  # within L1, so without padding lines
    image = check(row, weights)
    weight_bytes = 4 if row.dtype is DType.FLOAT32 else 2
    assert image.pool_bytes <= 1.05 * weight_bytes * np.count_nonzero(weights)


@pytest.mark.parametrize("scale", [3e-5, 1e30])
def test_weights_at_the_ends_of_a_dtype(row, scale):
    """Subnormal float16, and the largest values of any."""
    largest = 65504 if row.dtype is DType.FLOAT16 else 3.3e38
    weights = block_weights((40, 30), 0.5) * np.float32(scale)
    check(row, np.clip(weights, -largest, largest))


def test_jumps_to_the_next_instruction_lie_close_together(row):
    image = check(row, block_weights((600, 300), 0.2))
    listed = [text.split(maxsplit=2) for text in image.listing()]
    jumps = [int(position, 16) for position, mnemonic, *_ in listed if mnemonic == "jmp"]
    steps = [int(position, 16) for position, mnemonic, *_ in listed if "fmadd" in mnemonic]
    assert max(np.diff([steps[0], *jumps, steps[-1]])) < 1500
    assert np.median(np.diff(jumps)) < 500
