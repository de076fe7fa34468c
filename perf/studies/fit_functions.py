"""Derive the tables of `asm_templates/pointwise/chain/coefficients.py` and print their errors.

    python -m sparsejit.perf.studies.fit_functions

    exp x      = 1 + x + x^2 P(x)                    on [-ln 2 / 2, ln 2 / 2]
    log(1 + x) = x - x^2 / 2 + x^3 P(x)              on [-1/4, 1/2]
    erf x      = x P(x^2) / Q(x^2)                   on [0, 4]

Each has the least largest relative error, by linear programs over Chebyshev nodes; coefficients
are then rounded to float32.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.special import erf

FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
_NODES = 2001
_SOLVER = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
_EXP_DEGREE, _LOG_DEGREE, _ERF_DEGREES = 4, 7, (5, 5)
_ERF_END = 4.0  # erf is 1 - 1.5e-8 there


def nodes(low: float, high: float) -> FloatArray:
    """Chebyshev nodes, denser towards both ends; never 0."""
    x = low + (high - low) * (0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, _NODES)))
    return x[x != 0]


def fit_rest(
    function: Callable[[FloatArray], FloatArray],
    start: Callable[[FloatArray], FloatArray],
    power: int,
    degree: int,
    ends: tuple[float, float],
) -> SingleArray:
    """P of function = start + x^power P(x), constant term first."""
    x = nodes(*ends)
    columns = np.stack([x ** (power + n) for n in range(degree + 1)], axis=1)
    wanted = function(x)
    columns, rest = columns / wanted[:, None], 1.0 - start(x) / wanted
    scale = np.abs(columns).max(axis=0)
    weights = 1e7  # errors near 1, which the solver's tolerances are meant for
    slack = np.ones((len(x), 1))
    solved = linprog(
        np.append(np.zeros(degree + 1), 1.0),
        A_ub=np.block([[weights * columns / scale, -slack], [-weights * columns / scale, -slack]]),
        b_ub=weights * np.concatenate([rest, -rest]),
        bounds=[(None, None)] * (degree + 2),
        method="highs-ds",
        options=_SOLVER,
    )
    return (solved.x[:-1] / scale).astype(np.float32)


def fit_erf() -> tuple[SingleArray, SingleArray]:
    """P and Q, Q(0) = 1: the linearised problem, weighted by the last round's Q."""
    x = nodes(0.0, _ERF_END)
    above, below = _ERF_DEGREES
    powers = (x[:, None] / _ERF_END) ** (2 * np.arange(max(above, below) + 1))
    slope = erf(x) / x
    last = np.ones(len(x))
    solution = np.zeros(above + below + 1)
    lawson = np.ones(len(x))
    for _ in range(200):
        weight = np.sqrt(lawson) / (last * slope)
        system = np.hstack([powers[:, : above + 1], -slope[:, None] * powers[:, 1 : below + 1]])
        solution = np.linalg.lstsq(weight[:, None] * system, weight * slope, rcond=None)[0]
        last = 1.0 + powers[:, 1 : below + 1] @ solution[above + 1 :]
        error = np.abs(powers[:, : above + 1] @ solution[: above + 1] / (last * slope) - 1.0)
        lawson *= error / error.max() + 1e-3
        lawson /= lawson.sum()
    scales = _ERF_END ** (-2.0 * np.arange(max(above, below) + 1))
    numerator = solution[: above + 1] * scales[: above + 1]
    denominator = np.append(1.0, solution[above + 1 :] * scales[1 : below + 1])
    return numerator.astype(np.float32), denominator.astype(np.float32)


def fit_exp() -> SingleArray:
    """P of exp x = 1 + x + x^2 P(x)."""
    half = np.log(2.0) / 2
    return fit_rest(np.exp, lambda x: 1 + x, 2, _EXP_DEGREE, (-half, half))


def fit_log() -> SingleArray:
    """P of log(1 + x) = x - x^2 / 2 + x^3 P(x)."""
    return fit_rest(np.log1p, lambda x: x - x * x / 2, 3, _LOG_DEGREE, (-0.25, 0.5))


def main() -> None:
    """Print coefficients and the errors they leave in exact arithmetic."""
    exp, log, (above, below) = fit_exp(), fit_log(), fit_erf()
    x = nodes(-np.log(2) / 2, np.log(2) / 2)
    found = 1 + x + x * x * np.polyval(exp[::-1].astype(np.float64), x)
    print("EXP", tuple(float(str(c)) for c in exp), np.abs(found / np.exp(x) - 1).max())
    x = nodes(-0.25, 0.5)
    found = x - x * x / 2 + x**3 * np.polyval(log[::-1].astype(np.float64), x)
    print("LOG", tuple(float(str(c)) for c in log), np.abs(found / np.log1p(x) - 1).max())
    x = nodes(0.0, _ERF_END)
    wide = [np.polyval(c[::-1].astype(np.float64), x * x) for c in (above, below)]
    print("ERF_NUMERATOR", tuple(float(str(c)) for c in above))
    print("ERF_DENOMINATOR", tuple(float(str(c)) for c in below))
    print("error of erf", np.abs(x * wide[0] / wide[1] / erf(x) - 1).max())


if __name__ == "__main__":
    main()
