"""The words of pages and public docstrings, by the table at the end of docs/glossary.md."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from public_objects import public_objects
from typer.main import get_command

from sparsejit.commands.cli import app

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
    yield "CONTRIBUTING.md", (ROOT / "CONTRIBUTING.md").read_text(), False
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    yield "CHANGELOG.md", "\n".join(sections[1:3]), True  # unreleased, and the newest release


def docstrings() -> Iterator[tuple[str, str]]:
    for name, found in public_objects():
        if text := inspect.getdoc(found):
            yield name, text


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """What --help says of a command, of its options, and of the commands in it."""
    for text in (command.help, *(getattr(each, "help", None) for each in command.params)):
        yield name, text or ""
    for last, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {last}")


def found_in(name: str, text: str, for_users: bool) -> list[str]:
    prose = CODE.sub("", text)
    words = " ".join(prose.split())
    found = [f"{name}: begins with {match[1]!r}" for match in BEGINS_WITH_OF.finditer(prose)]
    for phrase, write, where in banned():
        if where == "all" or for_users:
            for match in re.finditer(rf"\b{re.escape(phrase)}\b", words, re.IGNORECASE):
                around = words[max(0, match.start() - 40) : match.end() + 30]
                found.append(f"{name}: {phrase!r} in '{around}'; write {write}")
    return found


def test_the_table_is_read() -> None:
    assert ("held to", "checked against", "all") in banned()
    assert found_in("x", "They are held to it. Of these, one is dear.", True) == [
        "x: begins with 'Of'",
        "x: 'held to' in 'They are held to it. Of these, one is dear.'; write checked against",
        "x: 'dear' in 'They are held to it. Of these, one is dear.'; write cost, costs more",
    ]


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page[0])
def test_pages_use_plain_words(page: tuple[str, str, bool]) -> None:
    found = found_in(*page)
    assert not found, "\n".join(found)


def test_public_docstrings_use_plain_words() -> None:
    found = [line for name, text in docstrings() for line in found_in(name, text, True)]
    assert not found, "\n".join(dict.fromkeys(found))


def test_help_uses_plain_words() -> None:
    texts = helps(get_command(app), "sparsejit")
    found = [line for name, text in texts for line in found_in(name, text, True)]
    assert not found, "\n".join(found)


def test_no_docstring_or_comment_begins_with_of() -> None:
    """In any room: who reads code wants the noun first, too."""
    rooms = [ROOT / name for name in ("sparsejit", "asm_templates", "prune", "perf", "examples")]
    sources = sorted({path.resolve() for room in rooms for path in room.rglob("*.py")})
    begins = re.compile(r'(?:"""|^\s*|[.!?:] |# )(Of|That of|Those of) ')
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if begins.search(line)
    ]
    assert len(sources) > 500
    assert not found, "\n".join(found)
