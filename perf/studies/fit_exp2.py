"""Derive the polynomial of `asm_templates/pointwise/exponential.py` and print its error.

    python -m sparsejit.perf.studies.fit_exp2

p(f) = 1 + c1 f + ... + c5 f^5 approximates 2^f on [0, 1] with p(1) = 2, minimising the largest
relative error: a linear program over Chebyshev nodes. The coefficients are then rounded to
float32, the last one towards zero, so that p(1) does not exceed 2 in float32 arithmetic.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

DEGREE = 5
_NODES = 4001
_SOLVER = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def fit_exp2(degree: int) -> npt.NDArray[np.float32]:
    """Coefficients of 2^f on [0, 1], constant term first: (degree + 1,) float32."""
    f = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, _NODES))
    powers = np.stack([f**n for n in range(1, degree + 1)], axis=1) / np.exp2(f)[:, None]
    wanted = 1.0 - np.exp2(-f)
    slack = np.ones((_NODES, 1))
    solution = linprog(
        np.append(np.zeros(degree), 1.0),
        A_ub=np.block([[powers, -slack], [-powers, -slack]]),
        b_ub=np.concatenate([wanted, -wanted]),
        A_eq=np.append(np.ones(degree), 0.0)[None],
        b_eq=[1.0],
        method="highs-ds",
        options=_SOLVER,
    )
    rounded = np.append(1.0, solution.x[:-1]).astype(np.float32)
    while np.polyval(rounded[::-1], np.float32(1.0)) > 2.0:
        rounded[-1] = np.nextafter(rounded[-1], np.float32(0.0))
    return rounded


def largest_relative_error(coefficients: npt.NDArray[np.float32]) -> float:
    """Of the polynomial in exact arithmetic, over [0, 1]."""
    f = np.linspace(0.0, 1.0, 1 << 20)
    approximation = np.polyval(coefficients[::-1].astype(np.float64), f)
    return float(np.max(np.abs(approximation / np.exp2(f) - 1.0)))


def main() -> None:
    """Print coefficients and error."""
    coefficients = fit_exp2(DEGREE)
    print(tuple(float(str(c)) for c in coefficients))
    print(f"largest relative error {largest_relative_error(coefficients):.2e}")


if __name__ == "__main__":
    main()
