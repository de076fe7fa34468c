"""Operators of tensors that are known at compile time, computed by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.writing.unmapped import Unmapped
from sparsejit.ir.dtypes import SHORT_FLOATS


def computed(target: Any, args: Any, kwargs: Any, example: Any) -> Any:
    """Return an operator's result, computed in float32 where torch lacks it for short floats.

    `example` has the dtype of the result. Raises Unmapped with torch's message.
    """
    import torch

    with torch.no_grad():
        try:
            return target(*args, **kwargs)
        except Exception as error:  # of whatever type torch raises
            reason = str(error).partition("\n")[0]
        if not _is_short(example):
            raise Unmapped(reason)
        args, kwargs = each((args, kwargs), lambda x: x.float() if _is_short(x) else x)
        try:
            return target(*args, **kwargs).to(example.dtype)
        except Exception:  # as before
            raise Unmapped(reason) from None


def each(nest: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of lists, tuples and dicts with its leaves changed; tuples become lists."""
    if isinstance(nest, list | tuple):
        return [each(item, change) for item in nest]
    if isinstance(nest, dict):
        return {key: each(item, change) for key, item in nest.items()}
    return change(nest)


def _is_short(x: Any) -> bool:
    return is_tensor(x) and str(x.dtype).removeprefix("torch.") in SHORT_FLOATS
