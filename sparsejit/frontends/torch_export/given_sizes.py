"""What a torch model, or an exported program, says of its arguments and of their sizes."""

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
    """An axis of a program's input that may change: its symbol, and the bounds that it has."""

    input_name: str
    axis: int
    symbol: str
    least: int
    most: int | None


def is_program(model: Any) -> bool:
    """Whether it is what torch.export.export made."""
    exporting = sys.modules.get("torch.export")
    return exporting is not None and isinstance(model, exporting.ExportedProgram)


def exported_examples(model: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a program was exported with; None for all else, and where it has none."""
    given = model.example_inputs if is_program(model) else None
    return None if given is None else (tuple(given[0]), dict(given[1]))


def names_of_places(model: Any, args: Sequence[Any]) -> list[str]:
    """How a module names its first arguments.

    Raises InvalidInput for more than it takes, and for those that have no names of their own.
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
    """The axes of its inputs that have a symbol."""
    for name, example in user_inputs(program):
        for axis, size in enumerate(example.shape):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is not None and expression.is_Symbol:
                bounds = program.range_constraints.get(expression)
                ends: tuple[Any, Any] = (bounds.lower, bounds.upper) if bounds else (0, None)
                least, most = (int(n) if _is_whole(n) else None for n in ends)
                yield ProgramSize(name, axis, str(expression), least or 0, most)


def has_polynomial_sizes(program: ExportedProgram) -> bool:
    """Whether sums and products alone make all sizes in it of its symbols: no minimum, no rest."""
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
    """The number of each symbol of a program where its inputs are these."""
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
    """The tensors that a call gives, as the program has them."""
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in wanted and is_tensor(node.meta.get("val")):
            yield node.name, node.meta["val"]
