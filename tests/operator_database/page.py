"""The page of the documentation that says how many of torch's entries are supported."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from operator_database import left_out

PAGE = Path(__file__).parents[2] / "docs" / "notes" / "operator_tests.md"
SUPPORTED, IN_PART, REFUSED = "Supported", "Supported in part", "Refused"
# Dtypes that decide, the first that an entry takes.
_DECIDING = ("float32", "int64", "bool")

_INTRODUCTION = """\
# torch's own operator tests

torch tests its operators and modules with samples of its own: arguments of many shapes, without
axes, without elements, with strides. `python tests/opinfo.py` compiles each as a module whose
tensors are inputs, and compares it with torch in float64. Where that is refused, all tensors but
the first become weights. A sample is equal to torch, or refused by `UnsupportedOperator` or
`InvalidInput`; `tests/models/test_opinfo.py` runs a part of them with the other tests. This page
is made by `python tests/opinfo.py --page FILE` from the rows that a sweep left in the file.

An entry is supported where at least half of its samples are equal, in the first dtype that it
takes of float32, int64 and bool; in part where fewer are.

"""


def state_of(row: Mapping[str, Any]) -> str:
    """The words of a row of the sweep about its entry."""
    equal = row["counts"].get("equal", 0) + row["with_weights"]
    if not equal:
        return REFUSED
    return SUPPORTED if 2 * equal >= row["samples"] else IN_PART


def page_of(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> str:
    """The page for rows of a sweep; `names` are the whole operator database's."""
    taken = [row for row in rows if row["samples"]]
    found = {(row["name"], row["dtype"]): row for row in taken}
    states: dict[str, str] = {}
    for name in dict.fromkeys(row["name"] for row in taken):
        first = next((found[name, d] for d in _DECIDING if (name, d) in found), None)
        if first is not None:
            states[name] = state_of(first)
    groups: dict[str, list[str]] = {SUPPORTED: [], IN_PART: [], REFUSED: []}
    for name, state in states.items():
        groups[state].append(name)
    share = 100 * len(groups[SUPPORTED]) / len(states)
    lines = [
        _INTRODUCTION,
        f"**{len(groups[SUPPORTED])} of {len(states)} entries are supported: {share:.1f} %.**\n",
        _by_dtype(taken),
    ]
    for state, members in groups.items():
        lines += [f"## {state}\n", f"{_listed(members)}\n"]
    lines += ["## Left out\n", "Entries without use in inference.\n", _left_out(names)]
    return "\n".join(lines)


def _by_dtype(rows: Sequence[Mapping[str, Any]]) -> str:
    titles = ("dtype", "entries", "supported", "in part", "refused", "samples", "equal")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        own = [row for row in rows if row["dtype"] == dtype]
        states = [state_of(row) for row in own]
        equal = sum(row["counts"].get("equal", 0) + row["with_weights"] for row in own)
        counts = [states.count(state) for state in (SUPPORTED, IN_PART, REFUSED)]
        cells = [dtype, len(own), *counts, sum(row["samples"] for row in own), equal]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _listed(names: Iterable[str]) -> str:
    text = " ".join(f"`{name}`" for name in names)
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def _left_out(names: Iterable[str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name in names:
        if text := left_out.reason(name):
            reasons.setdefault(text, []).append(f"`{name}`")
    rows = [f"| {text} | {' '.join(members)} |" for text, members in reasons.items()]
    return "\n".join(["| reason | entries |", "|---|---|", *rows]) + "\n"


def groups_of(text: str) -> dict[str, list[str]]:
    """The names under each heading of the page."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {heading: re.findall(r"`([^`]+)`", body) for heading, body in pairs}
