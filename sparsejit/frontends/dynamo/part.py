"""A part of a captured module, compiled for the parameters and sizes that it is called with.

    symbols_of, known_sizes   sizes of shapes that dynamo leaves open, by the name of their symbol
    say_once                  warnings about nodes that are left to torch, once for each reason in
                              this process
    PartGraphs                graphs of a part for its parameters and sizes
    DynamoPart                the compiled function of torch tensors
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sparsejit.errors import InvalidInput, SparseJitError
from sparsejit.frontends import batch_axis
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.batch_axis import batch_first
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
from sparsejit.native.copying import SharedCode

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

def symbols_of(example: Any) -> set[str]:
    """Names of the symbols in the shape and strides of a fake tensor, or in a single size."""
    sizes = (*example.shape, *example.stride()) if is_tensor(example) else (example,)
    return {
        str(symbol)
        for size in sizes
        if hasattr(size, "node")
        for symbol in size.node.expr.free_symbols
    }


def example_numbers(sizes: Iterable[Any]) -> list[int]:
    """The numbers that sizes have in torch's example. `int(size)` would fix a size for good."""
    return [size if isinstance(size, int) else size.node.hint for size in sizes]


def known_sizes(given: Mapping[Node, Any]) -> dict[str, int]:
    """Numbers of the symbols by name, from the part's inputs that are sizes of one symbol alone."""
    return {
        str(node.meta["val"]): size
        for node, size in given.items()
        if isinstance(size, int) and symbols_of(node.meta.get("val")) == {str(node.meta["val"])}
    }


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


class PartCall(Protocol):
    """Ways to call a part's function: `run` takes arrays, `direct` arrays or tensors.

    They are as in `NativeCall`.
    """

    @property
    def run(self) -> Callable[..., list[Array]]: ...

    def direct(self, is_single: bool, torch: Any = None) -> Callable[..., Any] | None: ...


# Compiles a graph to a function of its inputs; the number is the samples of its tile, if any.
CompilePart = Callable[[Graph, int | None], PartCall]

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

        `constants` are the part's parameters, whose values the code holds.
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
            call = self._compile_part(*(tiled or (graph, None)))
        return _on_tensors(call, self._operands, self._module), tiled is not None

    def _tiled(self, graphs: _ModuleGraphs, sizes: Mapping[str, int]) -> tuple[Graph, int] | None:
        """The graph of one tile, samples that are computed together, and the number of these.

        Its batch is axis 0. None, with the reason in `why_not_free`, unless the batch is free and
        the only size that changes.
        """
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
        """The graph where the symbols, by name, have these sizes."""
        return graph_of(self._module, self._constants, sizes, self._arrays, self._names)

    def at_batch(self, sizes: Mapping[str, int], batch: int) -> Graph:
        """The graph where the only symbol in `sizes` has the size `batch`."""
        return self.at(dict.fromkeys(sizes, batch))


def _batch_of(value: Value) -> int | None:
    """The axis of an input that is as long as the first probe's batch; None without one."""
    return value.shape.index(batch_axis.PROBES[0]) if batch_axis.PROBES[0] in value.shape else None


def _is_worth(graph: Graph) -> bool:
    ops = [node.op for node in graph.nodes]
    computing = sum(not isinstance(op, _VIEWS) for op in ops)
    return computing >= LEAST_OPERATORS or any(isinstance(op, _LAYERS) for op in ops)


def _on_tensors(
    call: PartCall, operands: Sequence[int], module: GraphModule
) -> Callable[[Sequence[Any]], Any]:
    """Wrap a call: take the part's inputs, return tensors nested and strided like torch's own."""
    import torch

    (results,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    is_single = not isinstance(results, list | tuple)
    nodes: Any = [results] if is_single else results
    orders = [_axis_order(node.meta["val"]) for node in nodes]
    dtypes = [node.meta["val"].dtype for node in nodes]
    is_plain = not any(orders) and all(
        str(dtype)[6:] not in NOTED and not dtype.is_complex for dtype in dtypes
    )
    direct = call.direct(is_single, torch) if is_plain else None
    operands_of = _items_at(operands)

    def runner(inputs: Sequence[Any]) -> Any:
        given = operands_of(inputs)
        if direct is not None and (results := direct(*given)) is not None:
            return results
        tensors = [torch.from_numpy(array) for array in call.run(*map(_array, given))]
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
    """The tensor with the same shape and its axes laid out in memory in `order`.

    The outermost axis comes first. For an empty `order`, it is the tensor itself, not a copy.
    """
    if not order:
        return tensor
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(*back)


# Most sizes that a part is compiled for where its batch is not free. torch computes further ones.
MOST_SIZES = 8
# After this number of changes of parameters, each used for one call only, parameters count as
# changing at every call: the part is compiled again only after two calls without a change.
MOST_CHANGES = 3

# The function of a part's inputs.
Runner = Callable[[Sequence[Any]], Any]


def _items_at(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function of a sequence: its items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])


class DynamoPart(SharedCode):
    """A part of a captured module: calls native code for its ATen operators, or the module.

    `names` has the names of inputs that are parameters, by place. They are looked up at every call:
    other tensors, or other versions of them, are compiled again. `symbols` names the sizes that
    come before the inputs. If a part cannot be compiled, a warning says so once and torch runs it.
    """

    def __init__(
        self,
        module: GraphModule,
        names: Mapping[int, str],
        symbols: Sequence[str],
        compile_part: CompilePart,
    ) -> None:
        self._module = module
        self._constants = _items_at(tuple(names))
        self._graphs = PartGraphs(module, names, compile_part)
        used = {s for node in module.graph.nodes for s in symbols_of(node.meta.get("val"))}
        self._used = tuple(n for n, symbol in enumerate(symbols) if symbol in used)
        self._sizes = _items_at(self._used)
        self._symbols, self._count = symbols, len(symbols)
        self._models: dict[tuple[int, ...], _Weights] = {}
        self._lock = threading.Lock()
        self._is_torch = False

    def function(self) -> Callable[..., Any]:
        """Return `call(*sizes, *inputs)`, a plain function, which fx requires as a target."""

        count, call = self._count, self._call

        def sparsejit_part(*arguments: Any) -> Any:
            return call(arguments[:count], arguments[count:])

        return sparsejit_part

    def _call(self, numbers: Sequence[int], inputs: Sequence[Any]) -> Any:
        if self._is_torch:
            return self._module(*inputs)
        constants = self._constants(inputs)
        weights = self._models.get(tuple(map(id, constants)))
        if weights is None:
            weights = self._add(constants)
        compiled = weights.compiled(constants)
        if compiled is None:
            return self._module(*inputs)
        runner = compiled.any_batch or compiled.by_sizes.get(self._sizes(numbers))
        if runner is None:
            with self._lock:
                runner = self._made(compiled, constants, numbers)
        return runner(inputs)

    def _add(self, constants: Sequence[Any]) -> _Weights:
        """Add an entry for another model's parameters, for as long as they live."""
        key = tuple(map(id, constants))
        models = self._models

        def forget(_: Any) -> None:
            models.pop(key, None)

        return models.setdefault(key, _Weights([weakref.ref(t, forget) for t in constants]))

    def _made(
        self, compiled: _CompiledOnce, constants: Sequence[Any], numbers: Sequence[int]
    ) -> Runner:
        sizes = self._sizes(numbers)
        made = compiled.any_batch or compiled.by_sizes.get(sizes)  # by another thread
        if made is not None:
            return made
        if len(compiled.by_sizes) >= MOST_SIZES:
            say_once(
                f"further sizes of a part, which was compiled for {MOST_SIZES} sizes, since "
                f"{self._graphs.why_not_free}; pad inputs to fewer sizes"
            )
            return self._run_module
        known = {self._symbols[place]: numbers[place] for place in self._used}
        try:
            runner, is_free = self._graphs.compiled(constants, known)
        except NotWorth:
            self._is_torch = True
            return self._run_module
        except Exception as error:  # an error in sparsejit must not stop a model of torch
            say_once(described(error))
            runner, is_free = self._run_module, False
        if is_free:
            compiled.any_batch = runner
        else:
            compiled.by_sizes[sizes] = runner
        return runner

    def _run_module(self, inputs: Sequence[Any]) -> Any:
        return self._module(*inputs)


class _CompiledOnce:
    """Functions that were compiled for one set of parameter values: for any batch, or by sizes."""

    def __init__(self, stamps: Sequence[tuple[int, int]]) -> None:
        self.stamps = stamps
        self.any_batch: Runner | None = None
        self.by_sizes: dict[tuple[int, ...], Runner] = {}


class _Weights:
    """The parameters of one model, followed from version to version."""

    def __init__(self, references: Sequence[Any]) -> None:
        self._references = references  # kept, for their callbacks
        self._compiled: _CompiledOnce | None = None
        self._last: Sequence[tuple[int, int]] | None = None
        self._changes = 0

    def compiled(self, constants: Sequence[Any]) -> _CompiledOnce | None:
        """Functions for the present values of the parameters; new values have no function yet.

        Returns None if the values change at every call.
        """
        stamps = [(tensor._version, tensor.data_ptr()) for tensor in constants]
        known = self._compiled
        if known is not None and known.stamps == stamps:
            self._changes = 0
            return known
        last, self._last = self._last, stamps
        self._changes += known is not None
        if self._changes > MOST_CHANGES and stamps != last:
            say_once("parameters change at every call")
            return None
        self._compiled = _CompiledOnce(stamps)
        return self._compiled
