"""Suggestions to make a model faster, as data, text and a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sparsejit.api.shown import counted, table_of

if TYPE_CHECKING:
    from rich.table import Table

_MOST_NAMES = 4


@dataclass(frozen=True)
class Suggestion:
    """A suggested change to some layers.

    Attributes:
        layers: the names of the layers
        change: the change, in words
        how: the argument or call that makes the change
        saved_ns: nanoseconds of one run that the change is predicted to save
        share: the same as a share of the whole's measured time, 0 to 1
        risk: the side effects to check first
    """

    layers: tuple[str, ...]
    change: str
    how: str
    saved_ns: float
    share: float
    risk: str


@dataclass(frozen=True)
class Advice:
    """Suggestions, the greatest gain first; none where nothing is worth it. `print` shows them.

    Each gain is predicted for the change alone: gains for the same layers do not add up.

    Attributes:
        suggestions: the suggested changes
        whole_ns: nanoseconds of one run, measured
        samples: the number of samples of one run
        least_share: gains below this share of `whole_ns` are left out
    """

    suggestions: tuple[Suggestion, ...]
    whole_ns: float
    samples: int
    least_share: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [self._heading()]
        for each in self.suggestions:
            lines += [
                f"{each.share:6.1%}  {each.saved_ns:10,.0f} ns  {each.change}: {_names(each)}",
                f"        {each.how}",
                f"        {each.risk}",
            ]
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.text import Text

        table = table_of(Text(self._heading()), (), ("saves", "ns"), lines=True)
        for heading in ("change", "layers", "how", "risk"):
            table.add_column(heading)
        for each in self.suggestions:
            cells = [f"{each.share:.1%}", f"{each.saved_ns:,.0f}", each.change]
            table.add_row(*(Text(cell) for cell in [*cells, _names(each), each.how, each.risk]))
        return table

    def _heading(self) -> str:
        run = f"{self.whole_ns:,.0f} ns a run of {counted(self.samples, 'sample')}"
        if not self.suggestions:
            return f"{run}: no change saves {self.least_share:.0%} of this time"
        return f"{run}; changes that would save time, each by itself:"


def _names(suggestion: Suggestion) -> str:
    """Return the names of the layers, the first four if there are more."""
    names, more = suggestion.layers[:_MOST_NAMES], len(suggestion.layers) - _MOST_NAMES
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
