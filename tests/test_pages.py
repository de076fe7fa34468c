"""Pages: their Python runs as written, their length, and where they link to.

The blocks of a page run in one process, in order, and share names, in a folder of their own that
holds `model.onnx` (64 inputs, 8 outputs) and `vad.sjit`. Set-up that readers need not see stands in
comments (`invisible-code-block`); a block that cannot run here says why (`skip: next`).
"""

import re
from pathlib import Path
from unittest import SkipTest

import pytest
from example_files import write_files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
MOST_WORDS = 1200
PYTHON = re.compile(r"^```python$", re.MULTILINE)
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


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)
def test_a_guide_is_short_and_begins_with_code(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= MOST_WORDS
    assert text.index("```") < len(text) / 3


def test_notes_do_not_link_to_guides() -> None:
    """Guides say what to do and link to what was measured; a loop of links says neither."""
    found = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in sorted(DOCS.rglob("*.md"))
        if path.relative_to(DOCS).parts[0] in {"notes", "kernels", "architecture.md"}
        for link in LINKS.findall(path.read_text())
        if (path.parent / link).resolve().is_relative_to(DOCS / "guides")
    ]
    assert not found, "\n".join(found)
