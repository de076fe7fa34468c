"""Marks of tests whose subject a level of instructions leaves out."""

import pytest

from sparsejit.machine.target import Target

WHERE_INT8_GAINS = pytest.mark.skipif(
    Target.detect().isa == "avx2", reason="int8 gains too little of layers so small without AVX-512"
)
