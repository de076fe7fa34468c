"""The words of pages and public docstrings, by the table at the end of docs/glossary.md."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sparsejit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GLOSSARY = DOCS / "glossary.md"
FOR_DEVELOPERS = {"notes", "kernels", "architecture.md"}
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
BEGINS_WITH_OF = re.compile(r"(?:^|[.!?:]\s|\n\n|\n[-*] |\| )(Of|That of|Those of)\b")


def banned() -> list[tuple[str, str, str]]:
    """Each phrase, what to write, and where: `all` or `users'`."""
    table = GLOSSARY.read_text().split("| not | write | in |")[1]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ")]
    return [
        (phrase.strip(), write.strip(), where.strip())
        for phrases, write, where in rows
        for phrase in phrases.split(",")
    ]


def pages() -> Iterator[tuple[str, str, bool]]:
    """The name of each page, its words, and whether it is for users."""
    for path in [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]:
        text = path.read_text()
        if path == GLOSSARY:
            text = text.split("## Words that we do not use")[0]
        inside = path.is_relative_to(DOCS) and path.relative_to(DOCS).parts[0] in FOR_DEVELOPERS
        yield path.relative_to(ROOT).as_posix(), text, not inside
    unreleased = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    yield "CHANGELOG.md", unreleased, True


def public_objects() -> Iterator[tuple[str, Any]]:
    """What the API pages show: names, or all names of a module."""
    shown = re.findall(r"^::: (\S+)", "\n".join(p.read_text() for p in DOCS.glob("api/*.md")), re.M)
    for name in [*shown, *(f"sparsejit.{name}" for name in sparsejit.__all__)]:
        found = resolved(name)
        yield name, found
        if inspect.isclass(found) or inspect.ismodule(found):
            for member in vars(found):
                if not member.startswith("_"):
                    yield f"{name}.{member}", getattr(found, member)


def resolved(name: str) -> Any:
    room, _, last = name.rpartition(".")
    if hasattr(module := import_module(room), last):
        return getattr(module, last)
    return import_module(name)


def docstrings() -> Iterator[tuple[str, str]]:
    for name, found in public_objects():
        ours = (getattr(found, "__module__", None) or name).startswith("sparsejit")
        if ours and (text := inspect.getdoc(found)):
            yield name, text


def without_code(text: str) -> str:
    return CODE.sub("", text)


def found_in(name: str, text: str, for_users: bool) -> list[str]:
    words = " ".join(without_code(text).split())
    found = [f"{name}: begins with {match[1]!r}" for match in BEGINS_WITH_OF.finditer(without_code(text))]
    for phrase, write, where in banned():
        if where == "all" or for_users:
            for match in re.finditer(rf"\b{re.escape(phrase)}\b", words, re.IGNORECASE):
                around = words[max(0, match.start() - 40) : match.end() + 30]
                found.append(f"{name}: {phrase!r} in '{around}'; write {write}")
    return found


def test_the_table_is_read() -> None:
    assert ("held to", "checked against", "all") in banned()
    assert found_in("x", "Figures are held to float64. Of these, one is dear.", True) == [
        "x: begins with 'Of'",
        "x: 'held to' in 'Figures are held to float64. Of these, one is dea'; write checked against",
        "x: 'dear' in 's are held to float64. Of these, one is dear.'; write cost, costs more",
    ]


@pytest.mark.parametrize("name, text, for_users", list(pages()), ids=lambda value: str(value)[:40])
def test_pages_use_plain_words(name: str, text: str, for_users: bool) -> None:
    found = found_in(name, text, for_users)
    assert not found, "\n".join(found)


def test_public_docstrings_use_plain_words() -> None:
    found = [line for name, text in docstrings() for line in found_in(name, text, True)]
    assert not found, "\n".join(dict.fromkeys(found))
