"""Steps of random torch models: each row of STEPS adds a step to a growing program.

A step that jumps where its operand hardly differs is added only where no operand is near a jump.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from fuzzing.torch_models import Growing

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)
NEAR = 2e-3
NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)
Row = Callable[["Growing"], Any]


def random_input(draw: random.Random, batch: int) -> Tensor:
    """Floats, integers small and large, or truths; (batch, ...) of up to three more axes."""
    shape = [batch, *(draw.choice(SIZES) for _ in range(draw.choice([0, 1, 1, 2, 2, 3])))]
    while torch.Size(shape).numel() > 4096:
        shape.pop()
    kinds = ["float", "float", "float", "eighths", "int", "large", "narrow", "narrow", "bool"]
    kind = draw.choice(kinds)
    if kind == "bool":
        return torch.rand(shape) > 0.5
    if kind == "int":
        return torch.randint(-9, 10, shape)
    if kind == "large":
        return torch.randint(-(2**62), 2**62, shape) >> torch.randint(0, 50, shape)
    if kind == "narrow":
        dtype = draw.choice(NARROW)
        limits = torch.iinfo(dtype)
        if draw.random() < 0.4:
            return torch.randint(max(-9, limits.min), 10, shape, dtype=dtype)
        return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype)
    values = torch.randn(shape)
    return (8 * values).round() / 8 if kind == "eighths" else values


def is_float(x: Tensor) -> bool:
    return x.is_floating_point()


def is_bool(x: Tensor) -> bool:
    return x.dtype is torch.bool


def is_whole(x: Tensor) -> bool:
    return not is_float(x) and not is_bool(x)


def is_number(x: Tensor) -> bool:
    return not is_bool(x)


def apart(x: Tensor, y: Any) -> bool:
    """Whether no pair of floats is near."""
    if not is_float(x) and not (isinstance(y, Tensor) and is_float(y)) and not isinstance(y, float):
        return True
    gaps = (x.double() - (y.double() if isinstance(y, Tensor) else y)).abs()
    return not gaps.numel() or bool(gaps.min() > NEAR)


def has_gaps(x: Tensor, dim: int) -> bool:
    """Whether no two elements along an axis are near; of whole numbers, none are equal."""
    ordered = x.sort(dim).values
    gaps = ordered.narrow(dim, 1, max(x.shape[dim] - 1, 0)) - ordered.narrow(
        dim, 0, max(x.shape[dim] - 1, 0)
    )
    return not gaps.numel() or bool(gaps.min() > (NEAR if is_float(x) else 0))


UNARY: dict[str, Callable[[Tensor], bool]] = {
    **dict.fromkeys(("neg", "abs", "square", "tanh", "sigmoid"), is_number),
    **dict.fromkeys(("sin", "cos"), lambda x: bool((x.double().abs() < 1e5).all())),
    **dict.fromkeys(("relu", "exp", "expm1", "erf"), is_number),
    **{
        name: lambda x: bool(((x - x.round()).abs() > NEAR).all()) or not is_float(x)
        for name in ("floor", "ceil", "trunc")
    },
    "round": lambda x: not is_float(x) or bool(((x - x.floor() - 0.5).abs() > NEAR).all()),
    "sign": lambda x: apart(x, 0.0),
    "sqrt": lambda x: bool((x > 0.01).all()),
    "rsqrt": lambda x: bool((x > 0.01).all()),
    "log": lambda x: bool((x > 0.01).all()),
    "log1p": lambda x: bool((x > -0.9).all()),
    "reciprocal": lambda x: bool((x.abs() > 0.05).all()),
    "logical_not": lambda x: not is_float(x) or apart(x, 0.0),
    "bitwise_not": lambda x: not is_float(x),
    "isnan": is_float,
}

_OF_BOOLS = ("logical_not", "bitwise_not")


def unary(grow: Growing) -> None:
    name = grow.draw.choice(list(UNARY))
    place = grow.any(lambda x: (is_number(x) or name in _OF_BOOLS) and UNARY[name](x))
    if place is not None:
        grow.add(name, getattr(torch, name), place)


ACTIVATIONS = (
    *("gelu", "silu", "softplus", "elu", "leaky_relu", "relu6", "hardswish", "hardsigmoid"),
    *("hardtanh", "mish", "logsigmoid", "celu", "selu", "softsign", "tanhshrink"),
)


def activation(grow: Growing) -> None:
    name = grow.draw.choice(ACTIVATIONS)
    place = grow.any(is_float)
    if place is not None:
        grow.add(name, getattr(functional, name), place)


def _partner(grow: Growing, x: Tensor) -> int | None:
    """The place of a value that broadcasts with x."""
    return grow.any(lambda y: broadcasts(x, y))


def broadcasts(x: Tensor, y: Tensor) -> bool:
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return False
    return True


def binary(grow: Growing) -> None:
    place = grow.any()
    assert place is not None
    other = _partner(grow, grow.values[place])
    name = grow.draw.choice(["add", "sub", "mul", "maximum", "minimum", "mul", "add"])
    if other is not None:
        pair = [place, other]
        grow.draw.shuffle(pair)
        grow.add(name, getattr(torch, name), *pair)


def divide(grow: Growing) -> None:
    place = grow.any(lambda x: bool((x.abs() > 0.05).all()) if is_float(x) else False)
    other = grow.any()
    if place is not None and other is not None:
        grow.add("div", torch.div, other, place)


def with_number(grow: Growing) -> None:
    """x and a Python number, on either side."""
    place = grow.any(is_number)
    if place is None:
        return
    whole = is_whole(grow.values[place])
    wholes = [0, 1, -1, 2, 3, 300, 2**24 + 1, 2**40 + 1]
    number = grow.draw.choice(wholes if whole else [0, 1, 2, 0.5, -1.25, 3])
    name = grow.draw.choice(["add", "sub", "rsub", "mul", "clamp_min", "clamp_max"])
    if grow.draw.random() < 0.1:
        number = 0.5
    function = getattr(torch, name)
    grow.add(f"{name} {number}", lambda x: function(x, number), place)


def power(grow: Growing) -> None:
    place = grow.any(is_number)
    number = grow.draw.choice([0, 1, 2, 3])
    if place is not None:
        grow.add(f"pow {number}", lambda x: x**number, place)


def compare(grow: Growing) -> None:
    place = grow.any()
    assert place is not None
    x = grow.values[place]
    name = grow.draw.choice(["eq", "ne", "lt", "le", "gt", "ge"])
    other = _partner(grow, x)
    if other is not None and apart(x, grow.values[other]):
        grow.add(name, getattr(torch, name), place, other)
        return
    number = grow.draw.choice([0, 1, 0.5] if is_float(x) else [0, 1, 0.5, -3, 300])
    if apart(x, float(number)):
        function = getattr(torch, name)
        grow.add(f"{name} {number}", lambda x: function(x, number), place)


def logic(grow: Growing) -> None:
    place = grow.any(is_bool)
    if place is None:
        return
    other = grow.any(lambda y: is_bool(y) and broadcasts(grow.values[place], y))
    name = grow.draw.choice(["logical_and", "logical_or", "logical_xor", "bitwise_and"])
    if other is not None:
        grow.add(name, getattr(torch, name), place, other)


def where(grow: Growing) -> None:
    place = grow.any(is_bool)
    if place is None:
        return
    one = grow.any(lambda y: broadcasts(grow.values[place], y))
    other = grow.any(lambda y: broadcasts(grow.values[place], y))
    if one is not None and other is not None:
        grow.add("where", torch.where, place, one, other)


def masked_fill(grow: Growing) -> None:
    place, number = grow.any(is_number), grow.draw.choice([0, 1, -3])
    if place is None:
        return
    mask = grow.any(lambda m: is_bool(m) and fills(m, grow.values[place]))
    if mask is not None:
        grow.add(f"masked_fill {number}", lambda x, m: x.masked_fill(m, number), place, mask)


def fills(mask: Tensor, x: Tensor) -> bool:
    return broadcasts(mask, x) and torch.broadcast_shapes(mask.shape, x.shape) == x.shape


def cast(grow: Growing) -> None:
    usual = (torch.float32, torch.float32, torch.int64, torch.bool)
    dtype = grow.draw.choice([*usual, *NARROW])
    place = grow.any()
    assert place is not None
    x = grow.values[place]
    steady = not is_float(x) or dtype is torch.float32 or UNARY["trunc"](x)
    if dtype is torch.bool:
        steady = not is_float(x) or apart(x, 0.0)
    if steady and (not x.numel() or is_bool(x) or bool(x.double().abs().max() < 2**62)):
        grow.add(f"to {str(dtype)[6:]}", lambda x: x.to(dtype), place)


def axis_for(grow: Growing, x: Tensor, may_be_first: float = 0.15) -> int:
    """An axis of x, seldom the first, which would mix samples."""
    if x.dim() < 2 or grow.draw.random() < may_be_first:
        return 0
    axis = grow.draw.randrange(1, x.dim())
    return axis if grow.draw.random() < 0.5 else axis - x.dim()


def reduce(grow: Growing) -> None:
    name = grow.draw.choice(["sum", "mean", "amax", "amin", "any", "all", "var", "logsumexp"])
    place = grow.any(lambda x: x.dim() > 1)
    if place is None:
        return
    x = grow.values[place]
    keep = grow.draw.random() < 0.4
    axes: Any = axis_for(grow, x)
    if name in ("sum", "mean", "amax", "amin") and x.dim() > 2 and grow.draw.random() < 0.3:
        axes = (1, 2)
    if name in ("any", "all") and is_float(x) and not apart(x, 0.0):
        return
    function = getattr(torch, name)
    grow.add(f"{name} {axes} {keep}", lambda x: function(x, dim=axes, keepdim=keep), place)


def place_of(grow: Growing) -> None:
    """argmax and argmin, of equal whole numbers too."""
    place = grow.any(lambda x: x.dim() > 1 and is_number(x))
    if place is None:
        return
    x, keep = grow.values[place], grow.draw.random() < 0.4
    axis = axis_for(grow, x)
    name = grow.draw.choice(["argmax", "argmin"])
    if x.numel() and (is_whole(x) or has_gaps(x, axis)):
        function = getattr(torch, name)
        grow.add(f"{name} {axis} {keep}", lambda x: function(x, dim=axis, keepdim=keep), place)


def order(grow: Growing) -> None:
    place = grow.any(lambda x: x.dim() > 1 and is_number(x) and x.numel() < 1000)
    if place is None:
        return
    x, down = grow.values[place], grow.draw.random() < 0.5
    axis, which = axis_for(grow, x), grow.draw.randrange(2)
    if not x.numel() or not has_gaps(x, axis):
        return
    if grow.draw.random() < 0.5:
        grow.add(
            f"sort {axis} {down} [{which}]",
            lambda x: torch.sort(x, dim=axis, descending=down, stable=True)[which],
            place,
        )
    else:
        count = grow.draw.randint(1, x.shape[axis])
        grow.add(
            f"topk {count} {axis} {down} [{which}]",
            lambda x: torch.topk(x, count, dim=axis, largest=down)[which],
            place,
        )


def cumulative(grow: Growing) -> None:
    place = grow.any(lambda x: x.dim() > 1)
    if place is not None:
        axis = axis_for(grow, grow.values[place])
        grow.add(f"cumsum {axis}", lambda x: torch.cumsum(x, axis), place)


def softmax(grow: Growing) -> None:
    place = grow.any(lambda x: x.dim() > 1 and is_float(x))
    if place is not None:
        axis = axis_for(grow, grow.values[place])
        function = grow.draw.choice([torch.softmax, torch.log_softmax])
        grow.add(f"{function.__name__} {axis}", lambda x: function(x, axis), place)


def quotient(grow: Growing) -> None:
    """Floored division and remainders of floats, by numbers and tensors."""
    place, number = grow.any(is_float), grow.draw.choice([0.75, -1.5, 3.0])
    if place is None:
        return
    x = grow.values[place] / number
    if not UNARY["trunc"](x):
        return
    rows: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("//", lambda x: x // number),
        ("%", lambda x: x % number),
        ("fmod", lambda x: torch.fmod(x, number)),
        ("trunc", lambda x: torch.div(x, number, rounding_mode="trunc")),
    ]
    name, function = grow.draw.choice(rows)
    grow.add(f"{name} {number}", function, place)


def mixed(grow: Growing) -> None:
    """Functions of several operands, or of whole axes with care for infinities."""
    place = grow.any(lambda x: is_float(x) and x.dim() > 1)
    if place is None:
        return
    axis = axis_for(grow, grow.values[place])
    other = _partner(grow, grow.values[place])
    mask = grow.any(lambda m: is_bool(m) and fills(m, grow.values[place]))
    rows: list[tuple[str, Callable[..., Tensor], tuple[int, ...]]] = [
        (f"std {axis}", lambda x: x.std(axis), (place,)),
        (f"norm {axis}", lambda x: x.norm(dim=axis), (place,)),
        (f"prod {axis}", lambda x: x.prod(axis), (place,)),
        ("clamp", lambda x: x.clamp(-0.5, 1.5), (place,)),
        ("lerp", lambda x: x.lerp(x * 2, 0.75), (place,)),
        (f"normalize {axis}", lambda x: functional.normalize(x, dim=axis), (place,)),
    ]
    if other is not None and is_float(grow.values[other]):
        rows += [
            ("addcmul", lambda x, y: torch.addcmul(x, y, y, value=0.5), (place, other)),
            ("dot", lambda x, y: (x * y).sum(-1), (place, other)),
        ]
    if mask is not None:
        rows.append(
            (
                f"masked softmax {axis}",
                lambda x, m: x.masked_fill(m, -torch.inf).softmax(axis).nan_to_num(),
                (place, mask),
            )
        )
    name, function, places = grow.draw.choice(rows)
    grow.add(name, function, *places)


# A row as often as it is to be taken.
STEPS: tuple[Row, ...] = (
    *(unary, unary, activation, binary, binary, binary, divide, with_number, with_number, power),
    *(compare, compare, logic, where, where, masked_fill, cast, cast, reduce, reduce, place_of),
    *(order, cumulative, softmax, quotient, mixed, mixed, mixed),
)
