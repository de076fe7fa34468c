"""The words of pages, docstrings, comments and messages, by the end of docs/glossary.md."""

import ast
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
ROOMS = ("asm_templates", "sparsejit", "prune", "perf", "examples", "tests")
COMMENTS = re.compile(r"(?:^[ ]*# .*\n)+|  # .*$", re.MULTILINE)
# A pronoun or a preposition in the place of the noun.
FIRST_WORD = re.compile(r"\A\s*(?:What|Where|How|That|Those)\b")
PHRASES = re.compile(
    r"\b(?:so\s+many|(?:those|that)\s+of|(?:of|to|for|by|in|with|from)\s+what)\b", re.IGNORECASE
)
SENTENCE_WITH_OF = re.compile(r"(?:^|[.!?:]\s|\n\n|\n[-*] |\| )Of\b")


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
    """The texts in --help of a command, of its options, and of the commands in it."""
    for text in (command.help, *(getattr(each, "help", None) for each in command.params)):
        yield name, text or ""
    for last, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {last}")


def without_noun(text: str, *more: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The line and the words of each phrase in text, apart from code, that lacks a noun."""
    prose = CODE.sub(lambda code: "``" + "\n" * code[0].count("\n"), text)
    for pattern in (PHRASES, SENTENCE_WITH_OF, *more):
        for match in pattern.finditer(prose):
            yield prose.count("\n", 0, match.start()), " ".join(match[0].split())


def found_in(name: str, text: str, for_users: bool, *more: re.Pattern[str]) -> list[str]:
    words = " ".join(CODE.sub("", text).split())
    lacking = without_noun(text, *more)
    found = [f"{name}:{line + 1}: {phrase!r}; name the noun" for line, phrase in lacking]
    for phrase, write, where in banned():
        if where == "all" or for_users:
            for match in re.finditer(rf"\b{re.escape(phrase)}\b", words, re.IGNORECASE):
                around = words[max(0, match.start() - 40) : match.end() + 30]
                found.append(f"{name}: {phrase!r} in '{around}'; write {write}")
    return found


def message(node: ast.AST) -> str | None:
    """A string as it stands in the source, `...` for each value in it; None for no string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(message(each) or "..." for each in node.values)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring, message of a raised exception, and comment, with its first line."""
    for node in ast.walk(ast.parse(source)):
        strings = ast.walk(node) if isinstance(node, ast.Raise) else [getattr(node, "value", None)]
        if isinstance(node, ast.Raise | ast.Expr):
            yield from ((each.lineno, text) for each in strings if (text := message(each)))
    for block in COMMENTS.finditer(source):
        text = re.sub(r"^[ ]*# ?", "", block[0], flags=re.MULTILINE)
        yield source.count("\n", 0, block.start()) + 1, text


def test_the_table_is_read() -> None:
    assert ("held to", "checked against", "all") in banned()
    assert found_in("x", "They are held to it. Of these, one is dear.", True) == [
        "x:1: '. Of'; name the noun",
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
    given = helps(get_command(app), "sparsejit")
    found = [line for name, text in given for line in found_in(name, text, True, FIRST_WORD)]
    assert not found, "\n".join(found)


def test_phrases_without_a_noun_are_found() -> None:
    lines = (
        '"""Steps, by\n',
        'what they read, `so many`."""\n',
        "# So many\n",
        "# rows.\n",
        "x: int = 1  ",
        "# Those of x.\n",
        '"""What x is."""\n',
        'raise ValueError(f"{x} is of"\n',
        '    f" what {x!r} reads")\n',
    )
    found = [
        (number + line, phrase)
        for number, text in texts("".join(lines))
        for line, phrase in without_noun(text, FIRST_WORD)
    ]
    assert sorted(set(found)) == [
        (1, "by what"),
        (3, "So many"),
        (5, "Those"),
        (5, "Those of"),
        (6, "What"),
        (7, "of what"),
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_comments_and_messages_name_the_noun(room: str) -> None:
    sources = sorted({path.resolve() for path in (ROOT / room).rglob("*.py")})
    found = [
        f"{path.relative_to(ROOT)}:{number + line}: {phrase!r}; name the noun"
        for path in sources
        for number, text in texts(path.read_text())
        for line, phrase in without_noun(text, FIRST_WORD)
    ]
    assert sources
    assert not found, "\n".join(dict.fromkeys(found))
