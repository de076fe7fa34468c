"""Samples of torch's own operator tests: each a call, as a module of its tensors."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from operator_database import left_out
from torch.utils._pytree import tree_flatten, tree_unflatten

DTYPES = ("float32", "int64", "bool", "float16", "bfloat16")
# Larger tensors test memory, not operators.
MOST_ELEMENTS = 1 << 14
# torch does not say which of equal elements these name.
_ANY_PLACES = {"topk", "kthvalue", "median", "nanmedian", "mode", "masked.median"}
# These sort equal elements in an order of their own, unless they are told to keep it.
_SORTING, _SORTING_TAKES = {"sort", "argsort"}, ("dim", "descending")


@dataclass
class Sample:
    """A call of a function: the nest of its arguments, with tensors at `places` of its leaves."""

    number: int
    function: Callable[..., Any]
    leaves: list[Any]
    spec: Any
    is_strided: bool = False
    any_places: bool = False  # whole numbers among the results are places of any of equal elements
    places: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.places = [n for n, x in enumerate(self.leaves) if isinstance(x, torch.Tensor)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The arguments that are tensors."""
        return [self.leaves[place] for place in self.places]

    def call(self, tensors: Sequence[torch.Tensor], function: Any = None) -> list[torch.Tensor]:
        """The tensors that the function returns for these tensors, complex ones as pairs."""
        filled = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = tree_unflatten(filled, self.spec)
        result = (function or self.function)(*args, **kwargs)
        return [_real(x) for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]

    def __str__(self) -> str:
        args, kwargs = tree_unflatten([_short(x) for x in self.leaves], self.spec)
        named = [f"{key}={value}" for key, value in kwargs.items()]
        stride = " strided" if self.is_strided else ""
        return f"#{self.number}{stride} ({', '.join([*map(str, args), *named])})"


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


class _Text(str):
    def __repr__(self) -> str:
        return str(self)


def _short(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x if isinstance(x, bool | int | float | str | None) else _Text(str(x)[:80])
    return _Text(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}")


@cache
def operators() -> dict[str, Any]:
    """Entries of the operator database by name, those left out of inference excepted."""
    from torch.testing._internal.common_methods_invocations import op_db

    named = {op.formatted_name: op for op in op_db}
    return {name: op for name, op in named.items() if not left_out.reason(name)}


@cache
def modules() -> dict[str, Any]:
    """Entries of the module database by name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def entries() -> list[str]:
    """The names of all entries."""
    return [*operators(), *modules()]


def dtypes_of(name: str) -> list[str]:
    """The dtypes that an entry takes, among those tested."""
    if name in modules():
        found = modules()[name].dtypes
        found = {*found, torch.float16, torch.bfloat16} if torch.float32 in found else found
    else:
        found = operators()[name].supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if getattr(torch, dtype) in found]


def samples(
    name: str, dtype: str, most: int | None = None, among: int | None = None
) -> list[Sample]:
    """Samples of an entry, `most` of them spread over the first `among`; the same in every process.

    Every third has tensors that are not contiguous.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        make = _of_module if name in modules() else _of_operator
        made = islice(make(name, getattr(torch, dtype)), among)
        found = [each for each in made if _is_small(each)]
        found = _spread(found, most)
        return [_strided(each) if each.number % 3 == 2 else each for each in found]


def _spread(found: list[Sample], most: int | None) -> list[Sample]:
    if most is None or len(found) <= most:
        return found
    return [found[n * len(found) // most] for n in range(most)]


def _is_small(sample: Sample) -> bool:
    return all(x.numel() <= MOST_ELEMENTS and x.layout is torch.strided for x in sample.tensors)


def _of_operator(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    op = operators()[name]
    found = islice(op.sample_inputs("cpu", dtype, requires_grad=False), 200)
    if op.reference_inputs_func is not None:
        more = islice(op.reference_inputs("cpu", dtype, requires_grad=False), 100)
        found = chain(found, more)
    for number, each in enumerate(found):
        args, kwargs = (each.input, *each.args), dict(each.kwargs)
        if op.name in _SORTING:
            args, kwargs = args[:1], {**dict(zip(_SORTING_TAKES, args[1:], strict=False)), **kwargs}
            kwargs["stable"] = True
        leaves, spec = tree_flatten((args, kwargs))
        yield Sample(number, op.op, leaves, spec, any_places=op.name in _ANY_PLACES)


def _of_module(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    info = modules()[name]
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=False, training=False
    )
    for number, each in enumerate(made):
        if each.forward_input is None:
            continue
        given = each.constructor_input
        module = info.module_cls(*given.args, **given.kwargs).to(dtype).eval()
        leaves, spec = tree_flatten((tuple(each.forward_input.args), each.forward_input.kwargs))
        yield Sample(number, module, leaves, spec)


def _strided(sample: Sample) -> Sample:
    """The same with every tensor in every second element of a larger one."""
    leaves = list(sample.leaves)
    for place in sample.places:
        x = leaves[place]
        if x.ndim:
            leaves[place] = x.repeat_interleave(2, -1)[..., ::2]
    return replace(sample, leaves=leaves, is_strided=True)
