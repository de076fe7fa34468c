"""Floats rounded to steps of a scale, as floats.

    y = (clip(round(x / scale) + shift, -128, 127) - shift) * scale
"""

from collections.abc import Callable

import numpy as np

from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain, ChainStep, Pointwise
from sparsejit.ir.quantised_steps import QuantisedSteps, fits_steps
from sparsejit.ir.values import Array, Value
from sparsejit.passes.chain_steps import as_chain

_LEAST, _LARGEST = -128.0, 127.0


def rounded_to_steps(
    shape: tuple[int, ...], scale: float, shift: int
) -> tuple[Chain, tuple[Array, ...]]:
    """The chain that rounds x to steps, and its operands behind x.

    Like kernels, it multiplies by 1 / scale, which may round ties differently from a division.
    """
    functions = _functions(scale, shift)
    numbers = sorted({number for _, number in functions if number is not None})
    steps: list[ChainStep] = []
    last, first_step = 0, 1 + len(numbers)
    for kind, number in functions:
        others = () if number is None else (1 + numbers.index(number),)
        steps.append(ChainStep(kind, (last, *others)))
        last = first_step + len(steps) - 1
    chain = Chain(shape, first_step, tuple(steps), (last,), "quantised")
    return chain, tuple(np.array(number, np.float32) for number in numbers)


def _functions(scale: float, shift: int) -> list[tuple[str, float | None]]:
    step = np.float32(scale)
    return [
        ("mul", float(np.float32(1) / step)),
        ("round", None),
        *([("add", float(shift))] if shift else []),
        ("minimum", _LARGEST),
        ("maximum", _LEAST),
        *([("sub", float(shift))] if shift else []),
        ("mul", float(step)),
    ]


def steps_of(
    node: Node | None, number_of: Callable[[Value], float | None]
) -> tuple[Value, QuantisedSteps] | None:
    """The operand of a chain of `rounded_to_steps`, and the steps; None for any other node."""
    source, found = functions_of(node, number_of)
    if source is None or not found or found[-1][0] != "mul":
        return None
    shift = dict(found[:-1]).get("sub", 0.0)
    scale = found[-1][1]
    if not fits_steps(scale, int(shift)):
        return None
    functions = _functions(scale, int(shift))
    if found != [(kind, 0.0 if number is None else number) for kind, number in functions]:
        return None
    return source, QuantisedSteps(scale, int(shift))


def functions_of(
    node: Node | None, number_of: Callable[[Value], float | None]
) -> tuple[Value | None, list[tuple[str, float]]]:
    """A value and the functions applied to it in a row, each with one number at most.

    Returns None and an empty list for any other node. `number_of` returns a constant's number.
    """
    if node is None or not isinstance(node.op, Pointwise | Chain) or len(node.outputs) != 1:
        return None, []
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    numbers = [number_of(value) for value in node.inputs]
    if numbers.count(None) != 1:
        return None, []
    last, found = numbers.index(None), []
    value = node.inputs[last]
    for place, step in enumerate(chain.steps, len(numbers)):
        first, *others = step.arguments
        if first != last or len(others) > 1 or max(others, default=0) >= len(numbers):
            return None, []
        number = numbers[others[0]] if others else 0.0
        if number is None:
            return None, []
        found.append((step.kind, number))
        last = place
    return value, found if chain.results == (last,) else []
