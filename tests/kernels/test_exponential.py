"""The polynomial behind 2^t; the draws from softmax, in tests/voice, run it."""

import numpy as np

from sparsejit.asm_templates.pointwise.exponential import COEFFICIENTS
from sparsejit.perf.studies.fit_exp2 import fit_exp2, largest_relative_error


def test_the_polynomial_is_as_good_as_a_fresh_fit_and_monotone() -> None:
    coefficients = np.array(COEFFICIENTS, np.float32)
    fitted = fit_exp2(len(COEFFICIENTS) - 1)
    np.testing.assert_allclose(coefficients, fitted, rtol=1e-4)
    assert largest_relative_error(coefficients) < 1.1e-7
    assert largest_relative_error(coefficients) <= 1.05 * largest_relative_error(fitted)
    assert np.all(coefficients > 0), "Horner's scheme is monotone only for positive coefficients"
    below_one = np.float32(1.0) - np.float32(2.0**-24)
    for end in (below_one, np.float32(1.0)):
        assert np.polyval(coefficients[::-1], end) <= 2.0, "2^t steps down where floor(t) steps up"
