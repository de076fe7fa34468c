"""The immediate family against the float64 oracle, and that its weights are immediates."""

from collections import Counter

import numpy as np
import pytest
from iced_x86 import Decoder, OpKind
from matvec_checks import block_weights, check, templates_of

pytestmark = pytest.mark.parametrize("row", templates_of("immediate"))

_IMMEDIATES = {OpKind.IMMEDIATE32, OpKind.IMMEDIATE32TO64}


def test_nearly_dense(row):
    for shape in ((1, 33), (33, 1), (17, 127), (127, 31)):
        check(row, block_weights(shape, 0.9, block_rows=1))
        check(row, block_weights(shape, 1.0))


@pytest.mark.parametrize("block_rows", [1, 8])
def test_every_weight_is_an_immediate(row, block_rows):
    weights = block_weights((100, 70), 0.2, block_rows)
    image = check(row, weights)
    decoded = Decoder(64, image.data[: image.code_bytes])
    found = Counter(
        instruction.immediate(operand) & 0xFFFFFFFF
        for instruction in decoded
        for operand in range(instruction.op_count)
        if instruction.op_kind(operand) in _IMMEDIATES
    )
    wanted = Counter(weights[weights != 0].view(np.uint32).tolist())
    assert not wanted - found
    assert image.pool_bytes <= 64
