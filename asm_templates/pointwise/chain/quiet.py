"""Search for maxima that need not propagate NaN, since it reaches all results of a row anyway.

    softmax    x has a NaN: exp(x - max) has it there for any max, so its sum is NaN, and so is
               every quotient by that sum
"""

from collections.abc import Sequence
from dataclasses import replace

from sparsejit.asm_templates.pointwise.chain.typed import REDUCTIONS, ChainValue

_QUIET = {"row_max": "row_max_of_numbers", "row_min": "row_min_of_numbers"}
_STOPS = {  # functions that may turn NaN into something else
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "where"),
    *("logical_and", "logical_or", "logical_not", "to_float32", "to_int64", "load", "constant"),
}


def quieten(values: Sequence[ChainValue], ends: Sequence[int]) -> list[ChainValue]:
    """Return the values, with row_max and row_min that ignore NaN where no result changes."""
    return [
        replace(value, kind=_QUIET[value.kind])
        if value.kind in _QUIET and _reaches_all(values, ends, value.arguments[0])
        else value
        for value in values
    ]


def _reaches_all(values: Sequence[ChainValue], ends: Sequence[int], source: int) -> bool:
    """Whether a NaN in any element of `source` makes the whole row of all ends NaN, by a sum."""
    if values[source].per_row:
        return False
    in_place, in_row = {source}, set[int]()
    for number, value in enumerate(values):
        arguments = set(value.arguments)
        if value.kind in ("row_sum", "row_dot"):
            if arguments & (in_place | in_row):
                in_row.add(number)
        elif value.kind not in _STOPS and value.kind not in REDUCTIONS:
            if arguments & in_row:
                in_row.add(number)
            elif arguments & in_place:
                in_place.add(number)
    return all(end in in_row for end in ends)
