"""The pages of the site, and explain's own, in a browser as wide as a phone or a laptop."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from headless_browser import OpenPage, chromium

import sparsejit

ROOT = Path(__file__).parents[1]
PHONE, LAPTOP = 390, 1280


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings", reason="no mkdocs: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings_handlers", reason="no mkdocs: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True)
    return folder


def test_no_page_of_the_site_scrolls_to_the_side(site: Path) -> None:
    with chromium() as browser:
        widths = {
            page.relative_to(site).as_posix(): OpenPage(browser, page, PHONE).needed_width()
            for page in sorted(site.rglob("*.html"))
        }
    assert len(widths) > 30
    assert not {page: width for page, width in widths.items() if width > PHONE}


def test_figures_and_signatures_fit_a_laptop(site: Path) -> None:
    with chromium() as browser:
        cut = {
            page.relative_to(site).as_posix(): OpenPage(browser, page, LAPTOP).cut_blocks()
            for page in sorted(site.rglob("*.html"))
        }
    assert not {page: blocks for page, blocks in cut.items() if blocks}


def test_explain_s_page_does_not_scroll_to_the_side(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(np.eye(64, dtype=np.float32))
    (tmp_path / "page.html").write_text(kernel.explain().html())
    with chromium() as browser:
        assert OpenPage(browser, tmp_path / "page.html", PHONE).needed_width() <= PHONE
