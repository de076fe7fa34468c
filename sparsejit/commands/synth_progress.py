"""The progress bar of `sparsejit synth`, on stderr where that is a terminal."""

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sparsejit.commands.console import error_console


class SpeakingBar(Progress):
    """One bar; nothing is drawn to a file or a pipe."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        drawn = error_console.is_terminal
        super().__init__(*columns, console=error_console, transient=True, disable=not drawn)
        self._bar = self.add_task("")

    def begin(self, what: str, total: int | None) -> None:
        """Start over, for so many frames or files, or for an unknown number of them."""
        self.reset(self._bar, description=what, total=total)

    def step(self, done: int = 1) -> None:
        """So many more are done."""
        self.advance(self._bar, done)
