"""The immediate family against the float64 oracle, and that its weights are immediates."""

from collections import Counter

import numpy as np
import pytest
from iced_x86 import Decoder, OpKind
from matvec_checks import block_weights, check, shapes, templates_of

from sparsejit.ir.spec import Activation

pytestmark = pytest.mark.parametrize("row", templates_of("immediate"))

_IMMEDIATES = {OpKind.IMMEDIATE32, OpKind.IMMEDIATE32TO64}


@pytest.mark.parametrize(("density", "block_rows"), [(0.0, 1), (0.04, 1), (0.04, 8)])
def test_every_shape(row, density, block_rows):
    for shape in shapes():
        check(row, block_weights(shape, density, block_rows))


def test_nearly_dense(row):
    for shape in ((1, 33), (33, 1), (17, 127), (127, 31)):
        check(row, block_weights(shape, 0.9, block_rows=1))
        check(row, block_weights(shape, 1.0))


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("block_rows", [1, 8])
def test_bias_and_activation(row, activation, block_rows):
    for shape in ((13, 40), (257, 33), (300, 20)):
        bias = np.linspace(-2, 2, shape[0], dtype=np.float32)
        check(row, block_weights(shape, 0.2, block_rows), bias, activation)


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
