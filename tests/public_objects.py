"""Everything public that has a docstring, for tests of these."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import sparsejit

API_PAGES = Path(__file__).parents[1] / "docs" / "api"


def public_objects() -> Iterator[tuple[str, Any]]:
    """The objects that the pages of the API show and `sparsejit` exports, with their members."""
    shown = "\n".join(page.read_text() for page in sorted(API_PAGES.glob("*.md")))
    names = re.findall(r"^::: (\S+)", shown, re.MULTILINE)
    for name in dict.fromkeys([*names, *(f"sparsejit.{each}" for each in sparsejit.__all__)]):
        found = _resolved(name)
        yield name, found
        for member, value in vars(found).items() if _has_members(found) else ():
            if not member.startswith("_") and _is_ours(value):
                yield f"{name}.{member}", value


def _resolved(name: str) -> Any:
    room, _, last = name.rpartition(".")
    if hasattr(module := import_module(room), last):
        return getattr(module, last)
    return import_module(name)


def _has_members(found: Any) -> bool:
    return inspect.isclass(found) or inspect.ismodule(found)


def _is_ours(value: Any) -> bool:
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)  # of a class method
    return (getattr(value, "__module__", None) or "").startswith("sparsejit")
