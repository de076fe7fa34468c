"""The share to prune of every layer and gate, from the user's `amount`."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real

from sparsejit.errors import InvalidInput
from sparsejit.prune.patterns import NofM, Pattern

# One share for all targets, or globs with a share each, or with one share a gate.
Amount = float | Mapping[str, float | Sequence[float]]


def check_amount(amount: Amount, pattern: Pattern) -> None:
    """Raise InvalidInput for a share outside [0, 1), or one that an N:M pattern contradicts."""
    for glob in amount if isinstance(amount, Mapping) else ():
        if not isinstance(glob, str):
            raise InvalidInput(f"amount has {glob!r}: give a share by globs, {{'fc*': 0.9}}")
    for share in _shares(amount):
        if not isinstance(share, Real) or isinstance(share, bool):
            raise InvalidInput(f"amount={share!r}: give the share to prune, 0.9 for 90 %")
        if not 0.0 <= share < 1.0:
            raise InvalidInput(
                f"amount={share} is outside [0, 1): give the share to prune, 0.9 for 90 %"
            )
        if isinstance(pattern, NofM) and abs(share - pattern.amount) > 1e-6:
            raise InvalidInput(
                f"amount={share} contradicts pattern={pattern.name!r}: give {pattern.amount:g}"
            )


def amounts_by_gate(
    amount: Mapping[str, float | Sequence[float]], gates: Mapping[str, int]
) -> dict[str, tuple[float, ...]]:
    """The shares of every target's gates, from the first glob that matches its name.

    Raises InvalidInput for a target without a glob, a glob without a target, and a wrong number
    of gates.
    """
    for glob in amount:
        if not any(fnmatchcase(name, glob) for name in gates):
            raise InvalidInput(
                f"amount has a glob {glob!r} that matches no target: drop it, or add the target"
            )
    chosen = {}
    for name, count in gates.items():
        share = next((s for glob, s in amount.items() if fnmatchcase(name, glob)), None)
        if share is None:
            raise InvalidInput(f"amount has no glob for the target {name}: add one")
        shares = tuple(share) if isinstance(share, Sequence) else (share,) * count
        if len(shares) != count:
            raise InvalidInput(
                f"amount gives {len(shares)} shares to {name}, which has {count} gates: "
                "give one for each, in torch's order, or one for all"
            )
        chosen[name] = shares
    return chosen


def _shares(amount: Amount) -> Iterable[float]:
    if not isinstance(amount, Mapping):
        yield amount
        return
    for share in amount.values():
        yield from share if isinstance(share, Sequence) else (share,)
