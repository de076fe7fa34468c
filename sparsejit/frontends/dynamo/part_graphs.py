"""Graphs of a part for its parameters and sizes, and the compiled function of torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends import batch_axis
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.batch_first import batch_first
from sparsejit.frontends.dynamo.sizes import example_numbers
from sparsejit.frontends.torch_export import graph_of
from sparsejit.ir.dtypes import COMPLEX, NOTED, SHORT_FLOATS, as_pairs
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import SamplesMixed
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Origin, Value
from sparsejit.lowering.tiles import samples_a_tile

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

# Compiles a graph to a function of its inputs; the number is the samples of its tile, if any.
CompilePart = Callable[[Graph, int | None], Callable[..., list[Array]]]

# A call costs about as much as this many operators of torch on small tensors.
LEAST_OPERATORS = 4
_LAYERS = (Linear, Convolution, Recurrence)
_VIEWS = (Reshape, Permute, Slice, Expand, Concat, Pad)


class NotWorth(Exception):
    """A part is so small that torch computes it as fast."""


class PartGraphs:
    """Makes graphs of a part's module; `names` has the inputs that are parameters, by place."""

    def __init__(
        self, module: GraphModule, names: Mapping[int, str], compile_part: CompilePart
    ) -> None:
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.why_not_free = "it was compiled for one batch"
        self._module, self._compile_part = module, compile_part
        self._constants = [placeholders[place].name for place in names]
        self._names = {placeholders[place].name: Origin(name) for place, name in names.items()}
        self._operands = [
            place
            for place, node in enumerate(placeholders)
            if place not in names and is_tensor(node.meta.get("val"))
        ]

    def compiled(
        self, constants: Sequence[Any], sizes: Mapping[str, int]
    ) -> tuple[Callable[[Sequence[Any]], Any], bool]:
        """Compile a function of the part's inputs; return it, and whether it takes any batch.

        Raises NotWorth, and sparsejit's errors for operators that it cannot compile.
        """
        import torch

        with torch.inference_mode(False), torch.no_grad():
            # Copies: the code must not change with the parameters, nor read them while it is made.
            tensors = [tensor.detach().clone() for tensor in constants]
            graphs = _ModuleGraphs(
                self._module, dict(zip(self._constants, tensors, strict=True)), self._names
            )
            graph = graphs.at(sizes)
            if not _is_worth(graph):
                raise NotWorth
            tiled = self._tiled(graphs, sizes)
            run = self._compile_part(*(tiled or (graph, None)))
        return _on_tensors(run, self._operands, self._module), tiled is not None

    def _tiled(self, graphs: _ModuleGraphs, sizes: Mapping[str, int]) -> tuple[Graph, int] | None:
        """The graph of one tile and its samples, where the only free size is the batch."""
        if len(sizes) != 1:
            self.why_not_free = f"{len(sizes)} sizes change" if sizes else self.why_not_free
            return None
        try:
            few, many = (graphs.at_batch(sizes, batch) for batch in batch_axis.PROBES)
            axes = batch_axis.checked_axes(few, many, list(map(_batch_of, few.inputs)))
            (batch,) = sizes.values()
            tile = samples_a_tile(graphs.at_batch(sizes, 1), batch)
            return batch_first(graphs.at_batch(sizes, tile), axes), tile
        except (SamplesMixed, InvalidInput) as error:  # or a batch that dynamo has ruled out
            self.why_not_free = str(error)
            return None


class _ModuleGraphs:
    """Graphs of one module and its constants for several sizes."""

    def __init__(
        self,
        module: GraphModule,
        constants: Mapping[str, torch.Tensor],
        names: Mapping[str, Origin],
    ) -> None:
        self._module, self._constants, self._names = module, constants, names
        self._arrays: dict[str, Array] = {}

    def at(self, sizes: Mapping[str, int]) -> Graph:
        """Graph for these values of the symbols."""
        return graph_of(self._module, self._constants, sizes, self._arrays, self._names)

    def at_batch(self, sizes: Mapping[str, int], batch: int) -> Graph:
        """Graph for another value of the only symbol."""
        return self.at(dict.fromkeys(sizes, batch))


def _batch_of(value: Value) -> int | None:
    """Batch axis of an input of the first probe; None without one."""
    return value.shape.index(batch_axis.PROBES[0]) if batch_axis.PROBES[0] in value.shape else None


def _is_worth(graph: Graph) -> bool:
    ops = [node.op for node in graph.nodes]
    computing = sum(not isinstance(op, _VIEWS) for op in ops)
    return computing >= LEAST_OPERATORS or any(isinstance(op, _LAYERS) for op in ops)


def _on_tensors(
    run: Callable[..., list[Array]], operands: Sequence[int], module: GraphModule
) -> Callable[[Sequence[Any]], Any]:
    """Wrap `run`: take the part's inputs, return tensors nested and strided like torch's own."""
    import torch

    (results,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    is_single = not isinstance(results, list | tuple)
    nodes: Any = [results] if is_single else results
    orders = [_axis_order(node.meta["val"]) for node in nodes]
    dtypes = [node.meta["val"].dtype for node in nodes]
    is_plain = not any(orders) and all(
        str(dtype)[6:] not in NOTED and not dtype.is_complex for dtype in dtypes
    )
    from_numpy = torch.from_numpy

    def runner(inputs: Sequence[Any]) -> Any:
        tensors = [from_numpy(array) for array in run(*[_array(inputs[n]) for n in operands])]
        if not is_plain:
            typed = [
                (torch.view_as_complex(each) if dtype.is_complex else each).to(dtype)
                for each, dtype in zip(tensors, dtypes, strict=True)
            ]
            tensors = [_strided(*pair) for pair in zip(typed, orders, strict=True)]
        return tensors[0] if is_single else tensors

    return runner


def _array(tensor: Any) -> Array:
    plain = tensor.detach() if tensor.requires_grad else tensor
    if str(plain.dtype)[6:] in SHORT_FLOATS:
        plain = plain.float()
    array: Array = plain.resolve_conj().resolve_neg().numpy()
    if array.dtype.name in COMPLEX:
        return as_pairs(array)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array


def _axis_order(example: Any) -> list[int]:
    """The axes from the largest stride to the least; empty for row-major order."""
    sizes, strides = map(example_numbers, (example.shape, example.stride()))
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    order = sorted(long, key=lambda axis: -strides[axis])
    if order == long:
        return []
    return order + [axis for axis, size in enumerate(sizes) if size == 1]


def _strided(tensor: Any, order: Sequence[int]) -> Any:
    """Copy a tensor so that its axes lie in memory in that order."""
    if not order:
        return tensor
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(*back)
