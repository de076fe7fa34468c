"""Warnings about nodes that are left to torch, once for each reason in this process."""

import warnings

from sparsejit.errors import SparseJitError

_said: set[str] = set()


def say_once(reason: str, place: str = "") -> None:
    """Warn of a reason and the first place where it occurs; the same reason only once."""
    if reason not in _said:
        _said.add(reason)
        at = f"  # {place}" if place else ""
        warnings.warn(f"sparsejit leaves this to torch: {reason}{at}", stacklevel=2)


def described(error: Exception) -> str:
    """Message of an error; an error that is not of sparsejit's own types is a fault in it."""
    if isinstance(error, SparseJitError):
        return str(error)
    return f"sparsejit fails to compile a part, please report it: {error!r}"


def forget_notices() -> None:
    """Forget the warnings so far, so that each reason is warned of again."""
    _said.clear()
