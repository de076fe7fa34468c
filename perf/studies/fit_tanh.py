"""Derive the rational function of `asm_templates/shared/activation.py` and print its errors.

    python -m sparsejit.perf.studies.fit_tanh

tanh x is approximated by x P(x^2) / Q(x^2) on [0, END], P(0) = Q(0) = 1, with the least largest
absolute error (Remez's exchange). As both constant terms are 1, the relative error vanishes
towards zero. The coefficients are then rounded to float32. Last comes the limit that inputs are
clamped to: a float at which the float32 arithmetic gives 1, and below which it never gives more.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
Coefficients = tuple[SingleArray, SingleArray]  # of P and of Q, constant terms first

# Degrees in x^2, so degrees 7 and 8 in x. Of all degrees that stay within 5e-7 in float32 these
# take the fewest multiply-adds. Degrees 9 and 6 take as many and err by 1.5 times as much.
DEGREES = 3, 4
END = 8.0  # tanh is 1 - 2.3e-7 there: where float32 results reach 1
_NODES = 20_001
_EXCHANGES = 50
_SETTLED = 1.0001  # ratio of largest to smallest extremum at which the error counts as level


def fit_tanh() -> Coefficients:
    """The coefficients of the table in `activation.py`, rounded to float32."""
    numerator, denominator = minimax(*DEGREES, END)
    return numerator.astype(np.float32), denominator.astype(np.float32)


def minimax(above: int, below: int, end: float) -> tuple[FloatArray, FloatArray]:
    """Coefficients of P, of degree `above` in x^2, and Q, of degree `below`, on [0, end].

    Raises InvalidInput where the exchange does not settle.
    """
    count = above + below + 1
    points = _towards_ends(count + 1, end)
    nodes = _towards_ends(_NODES, end)
    for _ in range(_EXCHANGES):
        numerator, denominator = _levelled(points, above, below, end)
        error = _quotient(nodes, numerator, denominator) - np.tanh(nodes)
        extrema = _alternating(error, count)
        if len(extrema) < count:
            break
        points, heights = nodes[extrema], np.abs(error[extrema])
        if heights.max() <= _SETTLED * heights.min():
            return numerator, denominator
    raise InvalidInput(
        f"no best rational of degrees {2 * above + 1} and {2 * below} up to {end} was found; "
        "try a smaller interval or other degrees"
    )


def _towards_ends(count: int, end: float) -> FloatArray:
    """`count` numbers in [0, end] without 0, denser towards both ends, as extrema lie."""
    return end * (0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, count)))[1:]


def _levelled(
    points: FloatArray, above: int, below: int, end: float
) -> tuple[FloatArray, FloatArray]:
    """The coefficients whose error at `points` is E, -E, E, ... with one E.

    x P = (tanh x + s E) Q is linear in P, Q and E once Q beside E is the last round's.
    """
    # In powers of (x / end)^2 the equations are far better conditioned than in powers of x^2.
    powers = (points[:, None] / end) ** (2 * np.arange(1, max(above, below) + 1))
    slope = np.tanh(points) / points
    signs = (-1.0) ** np.arange(len(points)) / points
    q, level = np.zeros(below), np.inf
    for _ in range(_EXCHANGES):
        last = -signs * (1.0 + powers[:, :below] @ q)
        system = np.column_stack([powers[:, :above], -slope[:, None] * powers[:, :below], last])
        *solution, new_level = np.linalg.solve(system, slope - 1.0)
        p, q = np.array(solution[:above]), np.array(solution[above:])
        if abs(new_level - level) <= 1e-9 * abs(new_level):
            break
        level = new_level
    scales = end ** (-2.0 * np.arange(1, max(above, below) + 1))
    return np.append(1.0, p * scales[:above]), np.append(1.0, q * scales[:below])


def _alternating(error: FloatArray, count: int) -> list[int]:
    """Places of at most `count` extrema of alternating sign; the lower end of too many goes."""
    runs = np.split(np.arange(len(error)), np.flatnonzero(np.diff(np.sign(error))) + 1)
    extrema = [int(run[np.argmax(np.abs(error[run]))]) for run in runs]
    while len(extrema) > count:
        lower_first = abs(error[extrema[0]]) < abs(error[extrema[-1]])
        extrema = extrema[1:] if lower_first else extrema[:-1]
    return extrema


def _quotient(x: FloatArray, numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    square = x * x
    return x * np.polyval(numerator[::-1], square) / np.polyval(denominator[::-1], square)


def largest_error(numerator: SingleArray, denominator: SingleArray) -> float:
    """Absolute, of float32 coefficients in exact arithmetic, over [0, END]."""
    x = np.linspace(0.0, END, 1 << 20)
    wide = numerator.astype(np.float64), denominator.astype(np.float64)
    return float(np.max(np.abs(_quotient(x, *wide) - np.tanh(x))))


def find_limit(numerator: SingleArray, denominator: SingleArray) -> np.float32:
    """The largest float up to END with xP = Q in float32, and xP <= Q at every smaller float.

    Raises InvalidInput where there is none.
    """
    first, last = np.array([END - 1.0, END], np.float32).view(np.int32)
    x = np.arange(first, last, dtype=np.int32).view(np.float32)
    square = x * x
    excess = x * _horner(square, numerator) - _horner(square, denominator)
    above = np.flatnonzero(excess > 0)
    below = excess[: above[0]] if len(above) else excess
    level = np.flatnonzero(below == 0)
    if not len(level):
        raise InvalidInput("this rational does not reach 1 before it exceeds 1; fit another END")
    return np.float32(x[level[-1]])


def _horner(square: SingleArray, coefficients: SingleArray) -> SingleArray:
    """The polynomial by fused multiply-adds: each product exact, each sum rounded to float32."""
    value = np.full_like(square, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        # 64 bits hold a product of two float32; they round the sum first, which shows in one of
        # 2^40 results.
        value = (value.astype(np.longdouble) * square + coefficient).astype(np.float32)
    return value


def main() -> None:
    """Print coefficients, limit and error."""
    numerator, denominator = fit_tanh()
    print("numerator  ", tuple(float(str(c)) for c in numerator))
    print("denominator", tuple(float(str(c)) for c in denominator))
    print("limit      ", find_limit(numerator, denominator))
    print(f"largest error {largest_error(numerator, denominator):.2e}")


if __name__ == "__main__":
    main()
