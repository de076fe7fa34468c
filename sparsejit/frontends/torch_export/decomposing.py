"""Exported graphs without writes into tensors, and torch's decompositions of operators.

    functionalised   a program rewritten so that it does not write into tensors
    decomposed       torch's decomposition of an operator into others
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.torch_export.own_tensors import (
    KEEP_KIND,
    changes_itself,
    check_apart,
    own_tensor,
    writes,
    written_tensors,
)
from sparsejit.frontends.torch_export.tracing import first_line
from sparsejit.frontends.writing.complex_values import Complex
from sparsejit.ir.values import Value

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

def functionalised(program: ExportedProgram) -> ExportedProgram:
    """Return the program without operators that change their operands.

    An in-place operator whose operand nothing else reads needs no change: it is mapped as the
    operator that is not in place.
    """
    writing = [node for node in program.graph_module.graph.nodes if writes(node)]
    if all(map(_is_harmless, writing)):
        return program
    for node in writing:
        _check_written(node)
    check_apart(program, written_tensors(program))
    with warnings.catch_warnings(), _explicit_conversions(program, writing):
        warnings.simplefilter("ignore")
        try:
            return program.run_decompositions({})
        except Exception as error:  # of whatever type torch raises
            for name in filter(None, (own_tensor(program, node) for node in writing)):
                is_buffer = name in program.graph_signature.inputs_to_buffers.values()
                raise changes_itself(name, KEEP_KIND if is_buffer else "") from error
            raise InvalidInput(
                f"torch cannot write this model without changes in place: {first_line(error)}; "
                "write it with operators that return a new tensor"
            ) from error


@contextmanager
def _explicit_conversions(program: ExportedProgram, writing: Iterable[Node]) -> Iterator[None]:
    """Context in which copies into the model's tensors have their dtypes and sizes.

    torch lets what reads a buffer read the tensor that was copied into it, as it was before.
    """
    import torch

    aten = torch.ops.aten
    changed: list[tuple[Node, Any, list[Node]]] = []
    for node in writing:
        if node.target is not aten.copy_.default or own_tensor(program, node) is None:
            continue
        written, source = cast("tuple[Any, Any]", node.args[:2])
        wanted, made = written.meta["val"], cast("list[Node]", [])
        for target, rest, named in (
            (aten._to_copy.default, (), {"dtype": wanted.dtype}),
            (aten.expand.default, (list(wanted.shape),), {}),
        ):
            own = made[-1] if made else source
            value = target(own.meta["val"], *rest, **named)
            if (value.dtype, value.shape) != (own.meta["val"].dtype, own.meta["val"].shape):
                with node.graph.inserting_before(node):
                    made.append(node.graph.call_function(target, (own, *rest), named))
                made[-1].meta = {**node.meta, "val": value}
        if made:
            node.update_arg(1, made[-1])
            changed.append((node, source, made))
    try:
        yield
    finally:
        for node, source, made in changed:
            node.update_arg(1, source)
            for one in reversed(made):
                node.graph.erase_node(one)


def _check_written(node: Node) -> None:
    """Raise InvalidInput for a write into elements that share memory: torch would sum them.

    A size that no input decides counts as 1.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    for argument, declared in zip(node.args, node.target._schema.arguments, strict=False):  # type: ignore[union-attr]
        if declared.alias_info is None or not declared.alias_info.is_write:
            continue
        tensor = argument.meta["val"]  # type: ignore[union-attr]
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        if any(guard_or_false(n > 1) and guard_or_false(step == 0) for n, step in sizes):
            raise InvalidInput(
                f"{node.target} changes {argument} in place, which expand made of fewer elements; "
                "write into a clone() of it"
            )


def _is_harmless(node: Node) -> bool:
    """Whether an in-place operator's operand has no other reader and shares no memory."""
    name = node.target._schema.name  # type: ignore[union-attr]
    written: Any = node.args[0]
    return name.endswith("_") and len(written.users) == 1 and _is_fresh(written)


# Composites that return a new tensor, although their schemas do not show it.
_FRESH = ("linear", "conv1d", "conv2d", "batch_norm", "layer_norm", "group_norm", "matmul")


def _is_fresh(node: Node) -> bool:
    import torch

    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    if schema.is_mutable:
        return _is_harmless(node)
    if schema.name.split("::")[-1] in _FRESH:
        return True
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    aliases = any(result.alias_info is not None for result in schema.returns)
    return not aliases and not node.target.has_kernel_for_dispatch_key(composite)  # type: ignore[union-attr]


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
