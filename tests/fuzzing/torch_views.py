"""Views, joined tensors, and what is written in place: rows of VIEWS add to a growing program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from fuzzing.torch_steps import Row, axis_for, fills, is_bool, is_number
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from fuzzing.torch_models import Growing


def _views(grow: Growing, x: Tensor) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    draw, axis = grow.draw, axis_for(grow, x)
    length = x.shape[axis]
    first, end = sorted(draw.randint(0, length) for _ in range(2))
    step = draw.choice([1, 1, 2, 3])
    rest = list(range(1, x.dim()))
    draw.shuffle(rest)
    axes = [0, *rest] if draw.random() < 0.85 else draw.sample(range(x.dim()), x.dim())
    inner = tuple(x.shape[1:])
    times, shift = draw.choice([1, 2, 3]), draw.randint(-3, 3)

    def sliced(x: Tensor) -> Tensor:
        return x[(slice(None),) * (axis % x.dim()) + (slice(first, end, step),)]

    found: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        (f"slice {axis} {first}:{end}:{step}", sliced),
        (f"permute {axes}", lambda x: x.permute(axes)),
        ("flatten", lambda x: x.flatten(1)),
        ("reshape", lambda x: x.reshape(x.shape[0], -1)),
        (f"unsqueeze {axis}", lambda x: x.unsqueeze(axis)),
        ("unsqueeze -1", lambda x: x.unsqueeze(-1)),
        (f"flip {axis}", lambda x: x.flip(axis)),
        (f"roll {shift} {axis}", lambda x: x.roll(shift, axis)),
        (f"repeat {times}", lambda x: x.repeat(1, *([times] * (x.dim() - 1)))),
        (f"repeat_interleave {times}", lambda x: x.repeat_interleave(times, axis)),
        ("contiguous", lambda x: x.contiguous()),
        ("expand", lambda x: x.unsqueeze(1).expand(-1, times, *inner)),
        ("stack", lambda x: torch.stack([x, x], axis)),
        ("pad", lambda x: functional.pad(x, (times, 1), value=2)),
        ("narrow", lambda x: x.narrow(axis, first, end - first)),
        (f"chunk {axis}", lambda x: x.chunk(2, axis)[-1]),
        (f"split {axis}", lambda x: x.split(2, axis)[0]),
        ("ones_like", torch.ones_like),
    ]
    if length and axis % x.dim():
        found.append((f"select {axis} {first % length}", lambda x: x.select(axis, first % length)))
        chosen = [draw.randrange(length) for _ in range(draw.randint(1, 4))]
        index = torch.tensor(chosen)
        found.append((f"index_select {chosen}", lambda x: x.index_select(axis, index.clone())))
    if axis % x.dim():  # the batch stays, also where it is one sample: docs/notes/models.md
        found.append((f"squeeze {axis}", lambda x: x.squeeze(axis)))
    if x.dim() > 2:
        found += [
            ("transpose", lambda x: x.transpose(1, 2)),
            ("tril", torch.tril),
            ("triu", lambda x: torch.triu(x, shift)),
        ]
    if x.dim() > 1 and inner[-1] % 2 == 0:
        found.append(("halves", lambda x: x.reshape(*x.shape[:-1], 2, -1)))
    return found


def view(grow: Growing) -> None:
    place = grow.any(lambda x: x.dim() > 0)
    assert place is not None
    name, function = grow.draw.choice(_views(grow, grow.values[place]))
    grow.add(name, function, place)


def join(grow: Growing) -> None:
    place = grow.any(lambda x: x.dim() > 1)
    if place is None:
        return
    axis = axis_for(grow, grow.values[place], 0.05)
    shape = list(grow.values[place].shape)
    del shape[axis]

    def fits(y: Tensor) -> bool:
        other = list(y.shape)
        if len(other) != len(shape) + 1:
            return False
        del other[axis]
        return other == shape

    other = grow.any(fits)
    if other is not None:
        grow.add(f"cat {axis}", lambda x, y: torch.cat([x, y], axis), place, other)


def in_place(grow: Growing) -> None:
    """A value made by a step, or a part of it, is written into."""
    first = len(grow.inputs) if grow.draw.random() < 0.9 else 0
    places = [n for n, x in enumerate(grow.values) if n >= first and x.dim() > 0]
    if not places:
        return
    place = grow.draw.choice(places[-4:])
    x = grow.values[place]
    other = grow.any(lambda y: fills(y, x) and (is_number(y) or is_bool(x)))
    mask = grow.any(lambda m: is_bool(m) and fills(m, x))
    number = grow.draw.choice([0, 1, 2, -3])
    axis = axis_for(grow, x)
    first_element = grow.draw.randint(0, x.shape[axis])
    part = (slice(None),) * (axis % x.dim()) + (slice(first_element, None),)

    def write_part(x: Tensor) -> Tensor:
        x[part] = number
        return x

    def add_to_part(x: Tensor) -> Tensor:
        x[part].add_(number)
        return x

    def copy_part(x: Tensor, y: Tensor) -> Tensor:
        x[part] = y[part]
        return x

    rows: list[tuple[str, Any, tuple[int, ...]]] = [
        ("relu_", lambda x: x.relu_(), (place,)),
        (f"add_ {number}", lambda x: x.add_(number), (place,)),
        (f"mul_ {number}", lambda x: x.mul_(number), (place,)),
        (f"clamp_ {number}", lambda x: x.clamp_(min=number), (place,)),
        (f"x[{axis}: {first_element}:] = {number}", write_part, (place,)),
        (f"x[{axis}: {first_element}:] += {number}", add_to_part, (place,)),
        ("zero_", lambda x: x.zero_(), (place,)),
    ]
    if other is not None:
        rows += [
            ("add_", lambda x, y: x.add_(y), (place, other)),
            ("mul_", lambda x, y: x.mul_(y), (place, other)),
            ("copy_", lambda x, y: x.copy_(y), (place, other)),
            (f"x[{axis}: {first_element}:] = y", copy_part, (place, other)),
        ]
    if mask is not None:
        rows.append(("masked_fill_", lambda x, m: x.masked_fill_(m, number), (place, mask)))
    name, function, used = grow.draw.choice(rows)
    grow.add(name, function, *used, in_place=True)


# A row as often as it is to be taken.
VIEWS: tuple[Row, ...] = (view, view, view, view, join, in_place, in_place, in_place)
