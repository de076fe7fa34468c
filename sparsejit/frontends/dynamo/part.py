"""A part of a captured module, compiled for the parameters and sizes that it is called with."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.dynamo.notices import described, say_once
from sparsejit.frontends.dynamo.part_graphs import CompilePart, NotWorth, PartGraphs
from sparsejit.frontends.dynamo.sizes import symbols_of
from sparsejit.native.copying import SharedCode

if TYPE_CHECKING:
    from torch.fx import GraphModule

# Most sizes that a part is compiled for where its batch is not free. torch computes further ones.
MOST_SIZES = 8
# After this number of changes of parameters, each used for one call only, parameters count as
# changing at every call: the part is compiled again only after two calls without a change.
MOST_CHANGES = 3

# The function of a part's inputs.
Runner = Callable[[Sequence[Any]], Any]


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
        self._places = tuple(names)
        self._graphs = PartGraphs(module, names, compile_part)
        used = {s for node in module.graph.nodes for s in symbols_of(node.meta.get("val"))}
        self._used = tuple(n for n, symbol in enumerate(symbols) if symbol in used)
        self._symbols, self._count = symbols, len(symbols)
        self._models: dict[tuple[int, ...], _Weights] = {}
        self._lock = threading.Lock()
        self._is_torch = False

    def function(self) -> Callable[..., Any]:
        """Return `call(*sizes, *inputs)`, a plain function, which fx requires as a target."""

        def sparsejit_part(*arguments: Any) -> Any:
            return self._call(arguments[: self._count], arguments[self._count :])

        return sparsejit_part

    def _call(self, numbers: Sequence[int], inputs: Sequence[Any]) -> Any:
        if self._is_torch:
            return self._module(*inputs)
        constants = [inputs[place] for place in self._places]
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

    def _sizes(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(numbers[place] for place in self._used)

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
    """Functions that were compiled for one set of parameter values."""

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
        """Functions for these values, empty if they are new; None if they change at every call."""
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
