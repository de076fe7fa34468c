"""Symbols of torch.export for sizes that values decide, such as u0 of x[mask]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.writing.missing import Missing
from sparsejit.frontends.writing.open_sizes import MaskSize, with_open_outputs
from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.graph import Graph

if TYPE_CHECKING:
    from torch.fx import Node

# Operators whose sizes are the result's shape; the result has the operand's elements.
_VIEWS = {"aten::view", "aten::reshape", "aten::_unsafe_view"}
# Operators that take a size as a number.
_ARITHMETIC = {f"aten::{name}" for name in ("add", "sub", "rsub", "mul", "div", "true_divide")}


class OpenSymbols:
    """The open size that each symbol stands for."""

    def __init__(self) -> None:
        self._sizes: dict[str, MaskSize] = {}

    def note(self, example: Any, size: MaskSize) -> None:
        """Tie the symbol in the shape of an example, or of the first of several, to a size."""
        first = example[0] if isinstance(example, list | tuple) else example
        for symbol in (name for n in first.shape for name in _symbols(n)):
            if symbol.startswith("u"):
                self._sizes[symbol] = size

    def bound(self, symbol: str) -> int | None:
        """The largest number that a symbol stands for; None for a symbol that is not open."""
        size = self._sizes.get(symbol)
        return None if size is None else size.bound

    def of(self, number: Any) -> MaskSize | None:
        """The open size of a torch number; None if it is not open.

        Raises Unmapped for a number that is computed from an open size.
        """
        found = [self._sizes[name] for name in _symbols(number) if name in self._sizes]
        if not found:
            return None
        if not number.node.expr.is_Symbol:
            raise Unmapped(f"computes {number.node.expr}, a size that values decide")
        return found[0]

    def operands(self, node: Node, operands: Any) -> Any:
        """The operands with open sizes replaced: by bounds in shapes, by counts in arithmetic.

        Raises Unmapped for any other operator that takes an open size.
        """
        found = [leaf for leaf in _leaves(operands) if isinstance(leaf, MaskSize)]
        if not found:
            return operands
        name = getattr(getattr(node.target, "_schema", None), "name", str(node.target))
        source: Any = node.args[0]
        shape = getattr(source.meta.get("val"), "shape", ()) if hasattr(source, "meta") else ()
        if name in _VIEWS and all(any(self.of(n) == size for n in shape) for size in found):
            return _replaced(operands, "bound")
        if name in _ARITHMETIC:
            return _replaced(operands, "count")
        raise Unmapped("takes a size that values decide")

    def finished(self, graph: Graph, examples: Sequence[Any]) -> tuple[Graph, list[Missing]]:
        """A graph with the numbers of its open sizes as outputs: see `with_open_outputs`.

        `examples` are torch's, one for each output. An output whose open sizes torch has on other
        axes is refused too.
        """
        made, missing = with_open_outputs(graph)
        for number, example in enumerate([] if missing else examples):
            axes = [axis for axis in made.open_axes if axis.output == number]
            found = {axis.axis: made.outputs[axis.size] for axis in axes}
            wanted = {
                axis: self._sizes[name].count
                for axis, n in enumerate(example.shape)
                for name in _symbols(n)
                if name in self._sizes
            }
            if found != wanted:
                text = f"values decide the size of output {number}, {list(example.shape)}"
                return graph, [Missing("mask", text, graph.outputs[number].origin)]
        return made, missing


def _symbols(number: Any) -> list[str]:
    """The names in a size of torch; none in a plain number."""
    expression = getattr(getattr(number, "node", None), "expr", None)
    return sorted(map(str, getattr(expression, "free_symbols", ())))


def _leaves(nest: Any) -> list[Any]:
    if isinstance(nest, MaskSize) or not isinstance(nest, list | tuple | dict):
        return [nest]
    items = nest.values() if isinstance(nest, dict) else nest
    return [leaf for item in items for leaf in _leaves(item)]


def _replaced(nest: Any, attribute: str) -> Any:
    if isinstance(nest, MaskSize):
        return getattr(nest, attribute)
    if isinstance(nest, list | tuple):
        return type(nest)(_replaced(item, attribute) for item in nest)
    if isinstance(nest, dict):
        return {key: _replaced(item, attribute) for key, item in nest.items()}
    return nest


def examples_of(output: Node) -> list[Any]:
    """The examples of all that an exported module returns, in order: tensors and constants."""
    nodes = _leaves(output.args[0])
    examples = [node.meta.get("val") if hasattr(node, "meta") else node for node in nodes]
    return _leaves(examples)  # a node may have several results
