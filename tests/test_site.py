"""The pages of the site, and explain's own, in a browser as wide as a phone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from headless_browser import OpenPage, chromium

import sparsejit

ROOT = Path(__file__).parents[1]
PHONE = 390


def test_no_page_of_the_site_scrolls_to_the_side(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="no mkdocs: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings_handlers", reason="no mkdocs: pip install '.[docs]'")
    with chromium() as browser:
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", tmp_path]
        subprocess.run(build, cwd=ROOT, check=True)
        widths = {
            page.relative_to(tmp_path).as_posix(): OpenPage(browser, page, PHONE).needed_width()
            for page in sorted(tmp_path.rglob("*.html"))
        }
    assert len(widths) > 30
    assert not {page: width for page, width in widths.items() if width > PHONE}


def test_explain_s_page_does_not_scroll_to_the_side(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(np.eye(64, dtype=np.float32))
    (tmp_path / "page.html").write_text(kernel.explain().html())
    with chromium() as browser:
        assert OpenPage(browser, tmp_path / "page.html", PHONE).needed_width() <= PHONE
