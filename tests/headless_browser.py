"""Debian's Chromium without a window. A test that asks for it is skipped where it is not there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_DURATIONS = """Promise.all([...document.querySelectorAll('audio')].map(audio => new Promise(
  (resolve, reject) => {
    const answer = () => resolve(audio.duration)
    audio.readyState > 0 ? answer() : audio.addEventListener('loadedmetadata', answer)
    audio.error ? reject(audio.error.message)
      : audio.addEventListener('error', () => reject(audio.error.message))
  })))"""


class OpenPage:
    """A page opened from disk in a window of some width, in CSS pixels."""

    def __init__(self, browser: Any, path: Path, width: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.width = width
        self._page = browser.new_page(viewport={"width": width, "height": 740})
        self._page.on("console", lambda message: self.complaints.append(message.text))
        self._page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._page.on("request", lambda request: self.requests.append(request.url))
        self._page.goto(path.resolve().as_uri())

    def durations(self) -> list[float]:
        """Seconds of each player, once the browser has read its sound."""
        return self._page.evaluate(_DURATIONS)

    def open_details(self) -> None:
        """Unfold all that can be."""
        self._page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")

    def needed_width(self) -> int:
        """The width that the document takes; more than the window means scrolling sideways."""
        return self._page.evaluate("document.documentElement.scrollWidth")

    def cut_blocks(self) -> list[str]:
        """The start of each block of code that is wider than its box, and so has to be scrolled."""
        return self._page.evaluate(
            "[...document.querySelectorAll('pre > code')]"
            ".filter(one => one.scrollWidth > one.clientWidth)"
            ".map(one => one.textContent.slice(0, 60))"
        )

    def picture_sizes(self) -> list[list[int]]:
        """Pixels of each picture as the browser decoded it; zeros where it could not."""
        return self._page.evaluate(
            "[...document.images].map(image => [image.naturalWidth, image.naturalHeight])"
        )


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser, for `OpenPage`."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no browser: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        try:
            yield browser
        finally:
            browser.close()
