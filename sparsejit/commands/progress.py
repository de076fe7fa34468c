"""The progress of a command on stderr: a bar on a terminal, elsewhere nothing or a few lines."""

import math
import time

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sparsejit.commands.console import error_console


class ProgressBar(Progress):
    """One bar.

    seconds_a_line: seconds between printed lines where no bar can be drawn; None prints none.
    """

    def __init__(self, seconds_a_line: float | None = None) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._drawn = error_console.is_terminal
        super().__init__(*columns, console=error_console, transient=True, disable=not self._drawn)
        self._bar = self.add_task("")
        self._seconds_a_line = seconds_a_line
        self._printed = -math.inf

    def begin(self, what: str, total: float | None = None) -> None:
        """Start over, with `total` steps, or None for an unknown number of steps."""
        self.reset(self._bar, description=what, total=total)

    def step(self, done: int = 1) -> None:
        """Add `done` steps."""
        self.advance(self._bar, done)

    def show(self, text: str, done: float, total: float | None = 1.0) -> None:
        """Show a text and the share done; without a terminal, print the text where it is due."""
        self.update(self._bar, description=text, completed=done, total=total)
        if self._drawn or self._seconds_a_line is None:
            return
        now = time.monotonic()
        if now - self._printed >= self._seconds_a_line or done == total:
            error_console.print(text)
            self._printed = now
