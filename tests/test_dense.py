"""The dense family against the float64 oracle, and the size of its code."""

import numpy as np
import pytest
from matvec_checks import block_weights, check, shapes, templates_of

from sparsejit.spec import Activation
from sparsejit.target import Target

pytestmark = pytest.mark.parametrize(("emit", "isa"), templates_of("dense"))


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_every_shape(emit, isa, density):
    for shape in shapes():
        check(emit, isa, block_weights(shape, density, block_rows=1))


def test_weights_beyond_l2(emit, isa):
    weights = block_weights((530, 500), 1.0)
    assert weights.nbytes > Target.named(isa).l2_bytes
    check(emit, isa, weights)


@pytest.mark.parametrize("activation", list(Activation))
def test_bias_and_activation(emit, isa, activation):
    for shape in ((13, 40), (257, 33), (600, 20)):
        bias = np.linspace(-2, 2, shape[0], dtype=np.float32)
        check(emit, isa, block_weights(shape, 0.2), bias, activation)


def test_code_does_not_grow_with_inputs(emit, isa):
    few, many = (check(emit, isa, block_weights((64, size), 1.0)) for size in (64, 1024))
    assert many.code_bytes == few.code_bytes
