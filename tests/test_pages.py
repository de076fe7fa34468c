"""Pages: their Python and C run as written, their length, and where they link to.

The blocks of a page run in one process, in order, and share names, in a folder of their own that
holds `model.onnx` (64 inputs, 8 outputs) and `vad.sjit`. Set-up that readers need not see stands in
comments (`invisible-code-block`); a block that cannot run here says why (`skip: next`).
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from unittest import SkipTest

import pytest
from example_files import write_files
from typer.main import get_command

from sparsejit.commands.cli import app
from sparsejit.planner.kernels import kernel_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
MOST_WORDS = 1200
MOST_COLUMNS = 80
PYTHON = re.compile(r"^```python$", re.MULTILINE)
C = re.compile(r"```c\n(.*?)```", re.DOTALL)
LINKS = re.compile(r"\]\(([^)#]+\.md)")
WITH_CODE = [path for path in sorted(DOCS.rglob("*.md")) if PYTHON.search(path.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sybil = pytest.importorskip("sybil", reason="no sybil: pip install sybil")
    markdown = pytest.importorskip("sybil.parsers.markdown")
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    parsers = [markdown.PythonCodeBlockParser(), markdown.SkipParser()]
    document = sybil.Sybil(parsers=parsers).parse(page)
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest:
            continue
    for block in C.findall(page.read_text()):
        check_c(block, tmp_path)


def check_c(program: str, folder: Path) -> None:
    """Build it with the files that the page's Python exported, and run it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    (folder / "main.c").write_text(program)
    subprocess.run([compiler, "main.c", "model.o", "-o", "main"], cwd=folder, check=True)
    subprocess.run([folder / "main"], check=True)


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)
def test_a_guide_is_short_and_begins_with_code(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= MOST_WORDS
    assert text.index("```") < len(text) / 3


@pytest.mark.parametrize("page", [*GUIDES, DOCS / "index.md"], ids=lambda path: path.stem)
def test_code_fits_a_page_of_1280_pixels(page: Path) -> None:
    blocks = re.findall(r"```(?:python|sh|c)\n(.*?)```", page.read_text(), re.DOTALL)
    wide = [line for block in blocks for line in block.splitlines() if len(line) > MOST_COLUMNS]
    assert not wide, "\n".join(wide)


def test_the_table_of_kernels_is_the_planner_s() -> None:
    page = (DOCS / "kernels" / "index.md").read_text()
    assert "\n".join(kernel_table()) in page


def test_notes_do_not_link_to_guides() -> None:
    """Guides say what to do and link to measurements; a loop of links says neither."""
    found = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in sorted(DOCS.rglob("*.md"))
        if path.relative_to(DOCS).parts[0] in {"notes", "kernels", "architecture.md"}
        for link in LINKS.findall(path.read_text())
        if (path.parent / link).resolve().is_relative_to(DOCS / "guides")
    ]
    assert not found, "\n".join(found)


def commands_of(page: Path) -> list[list[str]]:
    """The words of each line that calls sparsejit, without comments."""
    shell = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(shell).replace("\\\n", " ").splitlines()
    calls = (shlex.split(line, comments=True) for line in lines)
    return [words[1:] for words in calls if words and words[0] == "sparsejit"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_have_the_options_that_pages_give_them(page: Path) -> None:
    for words in commands_of(page):
        command = get_command(app)
        while inner := getattr(command, "commands", {}):
            assert words, command.name
            command = inner[words[0]] if words[0] in inner else inner["model"]  # bench MODEL
            words = words[1:]
        known = {name for each in command.params for name in each.opts} | {"--help"}
        given = [word.split("=")[0] for word in words if word.startswith("--")]
        assert set(given) <= known, f"{command.name}: {set(given) - known}"
