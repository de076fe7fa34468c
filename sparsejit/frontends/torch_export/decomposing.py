"""torch's decomposition of an operator into others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.torch_export.mutation import writes
from sparsejit.frontends.writing.complex_values import Complex
from sparsejit.ir.values import Value

if TYPE_CHECKING:
    from torch.fx import GraphModule


# Operators whose decompositions in torch differ from torch itself, and for which arguments.
_WRONG: dict[str, Callable[[Sequence[Any], Mapping[str, Any]], bool]] = {
    # Counts elements behind the last target.
    "aten::multilabel_margin_loss_forward": lambda args, named: True,
    # Gives one sample an axis.
    "aten::multi_margin_loss": lambda args, named: len(args[0].shape) < 2,
    # Truncates whole numbers that float32 has rounded, and keeps the fractions of their ends.
    "aten::linspace": lambda args, named: not getattr(named.get("dtype"), "is_floating_point", 1),
}


def decomposed(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dtype_of: Callable[[Value], Any],
) -> tuple[GraphModule, list[Any]] | None:
    """A module of other operators that does the same, and its arguments; None if there is none.

    `dtype_of` returns the numpy dtype of a value.
    """
    import torch
    from torch._decomp import get_decompositions
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._pytree import tree_flatten, tree_unflatten

    is_wrong = _WRONG.get(target._schema.name)
    if is_wrong is not None and is_wrong(args, kwargs):
        return None
    flat, spec = tree_flatten((list(args), dict(kwargs)))
    places = [n for n, x in enumerate(flat) if isinstance(x, Value | Complex) or is_tensor(x)]

    def call(*tensors: Any) -> Any:
        filled = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = tree_unflatten(filled, spec)
        return target(*positional, **named)

    given = [flat[place] for place in places]
    try:
        with FakeTensorMode(), torch.no_grad():
            fakes = [_fake(x, dtype_of) for x in given]
            table: Any = get_decompositions([target])
            module = make_fx(call, table, tracing_mode="fake")(*fakes)
            if any(map(writes, module.graph.nodes)):  # into views of memory from `empty`
                pure = torch.func.functionalize(module, remove="mutations")
                module = make_fx(pure, tracing_mode="fake")(*fakes)
    except Exception:  # whatever torch raises for operands that it does not decompose
        return None
    if any(node.target is target for node in module.graph.nodes):
        return None
    return module, given


def _fake(x: Any, dtype_of: Callable[[Value], Any]) -> Any:
    import torch

    if isinstance(x, Complex):
        return torch.empty(x.shape, dtype=torch.complex64)
    dtype = x.dtype if is_tensor(x) else getattr(torch, str(dtype_of(x)))
    return torch.empty(x.shape, dtype=dtype)
