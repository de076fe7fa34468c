"""What is left to torch is said once for each reason, in this process."""

import warnings

from sparsejit.errors import SparseJitError

_said: set[str] = set()


def say_once(reason: str, place: str = "") -> None:
    """Warn of it and the first place where it was met, unless it was said before."""
    if reason not in _said:
        _said.add(reason)
        at = f"  # {place}" if place else ""
        warnings.warn(f"sparsejit leaves this to torch: {reason}{at}", stacklevel=2)


def described(error: Exception) -> str:
    """What to say of an error; one that is not of sparsejit's own is a fault in it."""
    if isinstance(error, SparseJitError):
        return str(error)
    return f"a part at which sparsejit fails, please report it: {error!r}"


def forget_notices() -> None:
    """Say everything again from here on."""
    _said.clear()
