"""Pages: their code runs as pasted, their length, and where they link to."""

import re
import shlex
import shutil
from codeop import compile_command
from importlib.metadata import metadata
from pathlib import Path

import pytest
from pasted_page import NEEDS, blocks_of, paste
from typer.main import get_command

from sparsejit import __version__
from sparsejit.commands.cli import COMMANDS, app
from sparsejit.planner.kernels import kernel_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
MOST_WORDS = 1200
MOST_COLUMNS = 80
MOST_LEFT_OUT = 17
LINKS = re.compile(r"\]\(([^)#]+\.md)")
EXTRAS = re.compile(r"(?:sparsejit|\.)\[([\w,]+)\]")
IMPORTS = re.compile(r"^ *(?:import|from) (\w+)", re.MULTILINE)
MORE_PACKAGES = {"estimators": ["treelite"]}  # of extras that a page installs and does not import
WITH_CODE = [
    page for page in PAGES if {each.language for each in blocks_of(page)} & {"python", "sh"}
]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda path: path.stem)
def test_code_runs_as_pasted(page: Path, tmp_path: Path) -> None:
    blocks = [each for each in blocks_of(page) if not each.needs]
    code = "\n".join(each.text for each in blocks if each.language == "python")
    for package in [*IMPORTS.findall(code), *MORE_PACKAGES.get(page.stem, [])]:
        pytest.importorskip(package)
    for language, compiler in (("c", "cc"), ("cpp", "c++")):
        if any(each.language == language for each in blocks) and shutil.which(compiler) is None:
            pytest.skip(f"no {compiler}: apt-get install g++")
    done = paste(page, tmp_path)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    needs = [each.needs for page in WITH_CODE for each in blocks_of(page) if each.needs]
    assert set(needs) == NEEDS
    assert len(needs) <= MOST_LEFT_OUT, len(needs)


def test_no_code_hides_from_the_reader_or_the_test() -> None:
    """No set-up in comments, no command in a block that shows output."""
    hidden = [page.name for page in PAGES if "<!---" in page.read_text()]
    commands = [
        each.where
        for page in PAGES
        for each in blocks_of(page)
        if not each.language and re.search(r"^sparsejit [a-z]|^>>> ", each.text, re.MULTILINE)
    ]
    assert not hidden + commands


def test_one_place_says_where_the_project_lives_for_whom_and_which_version() -> None:
    readme = (ROOT / "README.md").read_text()
    (project,) = re.findall(r"\[start:project\] -->(.*?)<!-- --8<-- \[end", readme, re.DOTALL)
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", project, re.MULTILINE))
    assert set(rows) == {"for", "version", "source"}
    assert rows["version"].split(",")[0] == __version__
    assert '--8<-- "README.md:project"' in (DOCS / "index.md").read_text()
    places = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "pyproject.toml"]
    assert [path.name for path in places if rows["source"] in path.read_text()] == ["README.md"]


def test_pages_install_extras_that_exist() -> None:
    found = {
        extra
        for page in PAGES
        for names in EXTRAS.findall(page.read_text())
        for extra in names.split(",")
    }
    assert found
    assert found <= set(metadata("sparsejit").get_all("Provides-Extra") or [])


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


@pytest.mark.parametrize("page", [*GUIDES, ROOT / "README.md"], ids=lambda path: path.stem)
def test_code_can_be_pasted_into_an_interpreter_line_by_line(page: Path) -> None:
    """A blank line ends a body there, and a statement behind a body needs one."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        waiting: list[str] = []
        for line in (*block.splitlines(), ""):
            waiting.append(line)
            if compile_command("\n".join(waiting), symbol="single") is not None:
                waiting = []
        assert not waiting, waiting


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
        command = COMMANDS[words[0]].load(words[0]) if words[0] in COMMANDS else get_command(app)
        words = words[1:] if words[0] in COMMANDS else words
        while inner := getattr(command, "commands", {}):
            assert words, command.name
            command = inner[words[0]] if words[0] in inner else inner["model"]  # bench MODEL
            words = words[1:]
        known = {name for each in command.params for name in each.opts} | {"--help"}
        given = [word.split("=")[0] for word in words if word.startswith("--")]
        assert set(given) <= known, f"{command.name}: {set(given) - known}"
