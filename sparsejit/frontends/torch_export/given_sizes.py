"""Names, examples and sizes of the arguments of a torch model or an exported program."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import is_tensor

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class ProgramSize(NamedTuple):
    """An axis of a program's input whose size may change: its symbol, and the size's bounds."""

    input_name: str
    axis: int
    symbol: str
    least: int
    most: int | None


def is_program(model: Any) -> bool:
    """Whether the model is an ExportedProgram of torch."""
    exporting = sys.modules.get("torch.export")
    return exporting is not None and isinstance(model, exporting.ExportedProgram)


def exported_examples(model: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A program's example inputs; None for other models, and for a program without examples."""
    given = model.example_inputs if is_program(model) else None
    return None if given is None else (tuple(given[0]), dict(given[1]))


def names_of_places(model: Any, args: Sequence[Any]) -> list[str]:
    """The names of a module's first arguments.

    Raises InvalidInput for more arguments than the module names, and for a module with *args.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    if any(each.kind is each.VAR_POSITIONAL for each in parameters) or len(args) > len(named):
        raise InvalidInput(
            f"dynamic_shapes names arguments, and {type(model).__name__}.forward has no name for "
            f"each of {len(args)}; use free_shapes=True"
        )
    return named[: len(args)]


def sizes_of_program(program: ExportedProgram) -> Iterator[ProgramSize]:
    """Yield the axes of a program's inputs whose size is a symbol."""
    for name, example in user_inputs(program):
        for axis, size in enumerate(example.shape):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is not None and expression.is_Symbol:
                bounds = program.range_constraints.get(expression)
                ends: tuple[Any, Any] = (bounds.lower, bounds.upper) if bounds else (0, None)
                least, most = (int(n) if _is_whole(n) else None for n in ends)
                yield ProgramSize(name, axis, str(expression), least or 0, most)


def has_polynomial_sizes(program: ExportedProgram) -> bool:
    """Whether all sizes in a program are polynomials of its symbols: no minimum, no remainder."""
    from torch.utils._pytree import tree_leaves

    for node in program.graph.nodes:
        for leaf in tree_leaves(node.meta.get("val")):
            for size in (leaf, *getattr(leaf, "shape", ())):
                expression = getattr(getattr(size, "node", None), "expr", None)
                if expression is not None and not expression.is_polynomial():
                    return False
    return True


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) or bool(getattr(number, "is_Integer", False))


def symbols_of_examples(
    program: ExportedProgram, args: Any, kwargs: Mapping[str, Any]
) -> dict[str, int]:
    """The number of each symbol of a program for these inputs."""
    from torch.utils._pytree import tree_leaves

    shapes = [tuple(leaf.shape) for leaf in tree_leaves((args, kwargs)) if is_tensor(leaf)]
    names = [name for name, _ in user_inputs(program)]
    by_name = dict(zip(names, shapes, strict=False))
    return {
        each.symbol: by_name[each.input_name][each.axis]
        for each in sizes_of_program(program)
        if len(by_name.get(each.input_name, ())) > each.axis
    }


def user_inputs(program: ExportedProgram) -> Iterator[tuple[str, Any]]:
    """Yield the name and the example in the program of each tensor that a call passes."""
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in wanted and is_tensor(node.meta.get("val")):
            yield node.name, node.meta["val"]
