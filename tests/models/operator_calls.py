"""The cases of the operator table as calls that can be exported."""

from __future__ import annotations

from typing import Any

import operator_cases
import tensor_cases
import torch
import view_cases
from operator_cases import Call, Known
from torch import fx


def is_there(row: str) -> bool:
    """Whether the operator is registered: another library's is where this is imported."""
    namespace, packet, _ = row.split(".")
    return hasattr(getattr(torch.ops, namespace), packet)


GROUPS = (
    *(operator_cases.CASES, operator_cases.MORE, tensor_cases.PRODUCTS, tensor_cases.EXPERTS),
    tensor_cases.REDUCTIONS,
    *(tensor_cases.NORMALISATIONS, view_cases.VIEWS, view_cases.SELECTIONS, view_cases.POOLINGS),
    view_cases.ORDERED,
)
CALLS = [
    (row, each)
    for group in GROUPS
    for row, calls in group.items()
    if is_there(row)
    for each in calls
]


def overload(row: str) -> Any:
    namespace, packet, name = row.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), name)


def as_array(x: torch.Tensor) -> Any:
    """As a graph takes it: whole numbers as int64."""
    array = x.numpy()
    return array.astype("int64") if array.dtype.kind in "iu" else array


def as_module(row: str, each: Call) -> tuple[fx.GraphModule, dict[str, torch.Tensor], list[Any]]:
    """The call as an exported graph, its constants, and its inputs."""
    graph, constants, inputs = fx.Graph(), {}, []

    def placed(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [placed(item) for item in x]
        if not isinstance(x, Known | torch.Tensor):
            return x
        node = graph.placeholder(f"x{len(constants) + len(inputs)}")
        if isinstance(x, Known):
            constants[node.name] = x.tensor
        else:
            node.meta["val"] = x
            inputs.append(x)
        return node

    def plain(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [plain(item) for item in x]
        return x.tensor if isinstance(x, Known) else x

    args = tuple(placed(x) for x in each.args)
    kwargs = {key: placed(x) for key, x in each.kwargs.items()}
    node = graph.call_function(overload(row), args, kwargs)
    named = {key: plain(x) for key, x in each.kwargs.items()}
    node.meta["val"] = overload(row)(*map(plain, each.args), **named)
    graph.output(node)
    # Placeholders come first.
    return fx.GraphModule({}, graph), constants, inputs
