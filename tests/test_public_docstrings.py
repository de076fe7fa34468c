"""Public docstrings are complete: a line for each parameter, and for each field of a record."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from public_objects import public_objects

SECTION = re.compile(r"^(Args|Attributes):\n((?:    .*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+): \S", re.MULTILINE)
MOST_FIELDS_UNDOCUMENTED = 4


def documented(found: Any) -> list[str]:
    text = (inspect.getdoc(found) or "") + "\n"
    return [name for _, body in SECTION.findall(text) for name in ENTRY.findall(body)]


def parameters(found: Any) -> list[str]:
    found = getattr(found, "__func__", found)
    if not inspect.isfunction(found):
        return []
    return [name for name in inspect.signature(found).parameters if name not in {"self", "cls"}]


def missing(name: str, found: Any) -> Iterator[str]:
    """The parameters that its docstring leaves out, or names in vain."""
    if not found.__doc__:  # it inherits its docstring
        return
    lines = documented(found)
    if inspect.isclass(found) and is_dataclass(found):
        wanted = [each.name for each in fields(found) if not each.name.startswith("_")]
        needs_lines = len(wanted) > MOST_FIELDS_UNDOCUMENTED
    else:
        wanted = parameters(found)
        needs_lines = len(wanted) > 1
    if not wanted or not (lines or needs_lines):
        return
    yield from (f"{name}: {each} has no line" for each in wanted if each not in lines)
    yield from (f"{name}: there is no {each}" for each in lines if each not in wanted)


def test_every_parameter_has_a_line() -> None:
    found = [line for name, each in public_objects() for line in missing(name, each)]
    assert not found, "\n".join(found)


def test_every_public_class_has_a_docstring() -> None:
    found = [name for name, each in public_objects() if inspect.isclass(each) and not each.__doc__]
    assert not found, found
