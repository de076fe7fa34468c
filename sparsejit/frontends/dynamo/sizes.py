"""Sizes of shapes that dynamo leaves open, by the name of their symbol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.arrays import is_tensor

if TYPE_CHECKING:
    from torch.fx import Node


def symbols_of(example: Any) -> set[str]:
    """The symbols in a fake tensor's shape or in a size."""
    sizes = (*example.shape, *example.stride()) if is_tensor(example) else (example,)
    return {
        str(symbol)
        for size in sizes
        if hasattr(size, "node")
        for symbol in size.node.expr.free_symbols
    }


def example_numbers(sizes: Iterable[Any]) -> list[int]:
    """Sizes in torch's example. `int(size)` would fix the size for good."""
    return [size if isinstance(size, int) else size.node.hint for size in sizes]


def known_sizes(given: Mapping[Node, Any]) -> dict[str, int]:
    """Values of the symbols that are inputs themselves."""
    return {
        str(node.meta["val"]): size
        for node, size in given.items()
        if isinstance(size, int) and symbols_of(node.meta.get("val")) == {str(node.meta["val"])}
    }
