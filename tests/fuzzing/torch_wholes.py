"""Whole numbers of random torch models: each row of WHOLES adds one of their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from fuzzing.torch_steps import Row, broadcasts, is_float, is_whole
from torch import Tensor

if TYPE_CHECKING:
    from fuzzing.torch_models import Growing


def whole_quotient(grow: Growing) -> None:
    """Quotients and remainders of whole numbers; where the divisor is 0 torch raises.

    The least number by -1 ends torch's process.
    """
    place = grow.any(is_whole)
    if place is None:
        return
    x = grow.values[place]
    name, function = grow.draw.choice(
        [
            ("//", torch.floor_divide),
            ("%", torch.remainder),
            ("fmod", torch.fmod),
            ("trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ]
    )
    number = grow.draw.choice([1, 2, 3, 7, -2, -5, 300, 2**33 + 1])
    if (x.new_ones(()) * number) != 0:
        grow.add(f"{name} {number}", lambda x: function(x, number), place)
    least = x.numel() and int(x.min()) == torch.iinfo(x.dtype).min
    other = grow.any(
        lambda y: (
            is_whole(y)
            and broadcasts(x, y)
            and not bool((y == 0).any() or (least and (y == -1).any()))
        )
    )
    if other is not None and not (grow.values[other].dim() == 0 < x.dim()):
        grow.add(name, function, place, other)


def bits(grow: Growing) -> None:
    """Work on bits, and shifts by any number."""
    place = grow.any(lambda x: not is_float(x))
    if place is None:
        return
    x = grow.values[place]
    functions: tuple[Callable[..., Tensor], ...] = (
        *(torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor),
        *(torch.bitwise_left_shift, torch.bitwise_right_shift),
    )
    function = grow.draw.choice(functions)
    other = grow.any(lambda y: not is_float(y) and broadcasts(x, y))
    if other is not None and grow.draw.random() < 0.5:
        grow.add(function.__name__, function, place, other)
        return
    number = grow.draw.choice([0, 1, 3, 5, 7, 31, 63])
    grow.add(f"{function.__name__} {number}", lambda x: function(x, number), place)


# A row as often as it is to be taken.
WHOLES: tuple[Row, ...] = (whole_quotient, whole_quotient, bits, bits)
