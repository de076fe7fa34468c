"""Results of compiled code beside torch's: in float64, and in the dtype of the sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

# Allowed error by dtype of a result: relative to the element, and to the largest element.
TOLERANCES = {
    torch.float64: (2e-5, 1e-5),  # computed in float32
    torch.float32: (2e-5, 1e-5),
    torch.float16: (3e-3, 1e-3),
    torch.bfloat16: (2e-2, 8e-3),
}
# An error that torch makes itself may be made this many times over.
MARGIN = 4.0
_LARGEST = float(np.finfo(np.float32).max)
MOST_SLACK = 1e-3  # of the largest element


def in_float64(x: Any) -> Any:
    """A tensor or module of floats in float64; all else as it is."""
    if isinstance(x, torch.Tensor):
        wide = torch.complex128 if x.is_complex() else torch.float64
        return x.to(wide) if x.is_floating_point() or x.is_complex() else x
    return x


def difference(found: Any, plain: torch.Tensor, exact: torch.Tensor | None) -> str:
    """The difference of a compiled result from torch's, empty where it is within tolerance.

    Each element is compared with torch's float64 (`exact`) and with torch's own dtype (`plain`).
    Calls without tensors return numpy's arrays, which have float32 for bfloat16.
    """
    got = torch.as_tensor(found)
    if isinstance(found, np.ndarray) and plain.dtype is torch.bfloat16:
        got = got.bfloat16() if torch.equal(got, got.bfloat16().float()) else got
    if got.shape != plain.shape:
        return f"shape {list(got.shape)}, torch {list(plain.shape)}"
    if got.dtype != plain.dtype:
        return f"dtype {got.dtype}, torch {plain.dtype}"
    if exact is not None and exact.shape != plain.shape:
        exact = None
    ours, own = (np.asarray(x.detach().to(torch.float64)) for x in (got, plain))
    wide = own if exact is None else np.asarray(exact.detach().to(plain.dtype).to(torch.float64))
    if plain.dtype in TOLERANCES:
        bad = _far(ours, wide, own, plain.dtype) & _far(ours, own, own, plain.dtype)
    else:
        bad = (ours != own) & (ours != wide)
    if not bad.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    values = f"{ours[at]:.9g}, torch {own[at]:.9g}, in float64 {wide[at]:.9g}"
    return f"{int(bad.sum())} of {bad.size} elements; at {list(at)}: {values}"


def _far(ours: Any, wanted: Any, own: Any, dtype: torch.dtype) -> Any:
    """Which elements are neither within tolerance nor the same infinity or NaN."""
    relative, of_largest = TOLERANCES[dtype]
    finite = np.isfinite(wanted)
    largest = float(np.abs(wanted[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        error = np.abs(own - wanted)
    slack = MARGIN * float(error[np.isfinite(error)].max(initial=0.0))
    bound = relative * np.abs(wanted) + of_largest * min(largest, 1e30)
    bound += min(slack, MOST_SLACK * largest)
    same = (ours == wanted) | (np.isnan(ours) & np.isnan(wanted))
    # float64 is computed in float32, which ends here.
    same |= (np.abs(wanted) > _LARGEST) & (np.abs(ours) >= _LARGEST) & ((ours > 0) == (wanted > 0))
    with np.errstate(invalid="ignore"):
        return ~(same | (finite & (np.abs(ours - wanted) <= bound)))


def differences(
    found: Sequence[Any],
    plain: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor] | None,
    any_places: bool = False,
) -> str:
    """The first difference among the tensors of a result; whole numbers after the first may be
    any where `any_places` says so.
    """
    if len(found) != len(plain):
        return f"{len(found)} tensors, torch {len(plain)}"
    wide = exact if exact is not None and len(exact) == len(plain) else [None] * len(plain)
    for number, (got, own, like) in enumerate(zip(found, plain, wide, strict=True)):
        if number and any_places and got.shape == own.shape:
            continue
        if text := difference(got, own, like):
            return f"output {number}: {text}" if len(plain) > 1 else text
    return ""
