"""What floats become in steps of a scale, as floats again.

    y = (clip(round(x / scale) + shift, -128, 127) - shift) * scale
"""

import numpy as np

from sparsejit.ir.graph import Array
from sparsejit.ir.ops.pointwise import Chain, ChainStep

_LEAST, _LARGEST = -128.0, 127.0


def rounded_to_steps(
    shape: tuple[int, ...], scale: float, shift: int
) -> tuple[Chain, tuple[Array, ...]]:
    """The chain, and its operands behind x.

    As kernels do it multiplies by 1 / scale, which may round ties another way than a division.
    """
    step = np.float32(scale)
    functions: list[tuple[str, float | None]] = [
        ("mul", float(np.float32(1) / step)),
        ("round", None),
        *([("add", float(shift))] if shift else []),
        ("minimum", _LARGEST),
        ("maximum", _LEAST),
        *([("sub", float(shift))] if shift else []),
        ("mul", float(step)),
    ]
    numbers = sorted({number for _, number in functions if number is not None})
    steps: list[ChainStep] = []
    last, first_step = 0, 1 + len(numbers)
    for kind, number in functions:
        others = () if number is None else (1 + numbers.index(number),)
        steps.append(ChainStep(kind, (last, *others)))
        last = first_step + len(steps) - 1
    chain = Chain(shape, first_step, tuple(steps), (last,), "quantised")
    return chain, tuple(np.array(number, np.float32) for number in numbers)
