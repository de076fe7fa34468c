"""Number of samples that run at a time: tiles of a batch, and last layers of several samples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparsejit.planner.cheapest_row import TableRow, cheapest, choose, priced

# A larger tile is kept if it takes less than this share of the time of smaller tiles.
_MOST_OF_SMALLER = 0.9
# Least share of a sample's time to save: the end's code, but not weights as data, exists twice.
LEAST_SAVED = 0.02
_ALONE = "each sample alone"


class TileTime(NamedTuple):
    """The samples of a tile, and the predicted nanoseconds of all of them."""

    samples: int
    ns: float


def least_ns(samples: int, tiles: Sequence[TileTime]) -> float:
    """Least nanoseconds of `samples` in these tiles, smallest first; a tile may lack samples."""
    *smaller, last = tiles
    whole, rest = divmod(samples, last.samples)
    if not rest:
        return whole * last.ns
    rows = [priced("a tile", last.ns)]
    if smaller:
        rows.append(priced("smaller tiles", least_ns(rest, smaller)))
    return whole * last.ns + cheapest(rows, rest).price


def tiles_that_pay(tiles: Iterable[TileTime]) -> list[TileTime]:
    """The tiles that are worth their code, the smallest first."""
    kept: list[TileTime] = []
    for tile in sorted(tiles):
        if not kept or _pays(tile, kept):
            kept.append(tile)
    return kept


def _pays(tile: TileTime, smaller: Sequence[TileTime]) -> bool:
    name = f"a tile of {tile.samples}"
    rows = (
        priced("smaller tiles", least_ns(tile.samples, smaller), margin=_MOST_OF_SMALLER),
        priced(name, tile.ns),
    )
    return choose(f"batches of {tile.samples}", rows, tile).name == name


def fewest_samples(tile: TileTime, smaller: Sequence[TileTime]) -> int:
    """Fewest samples for which a whole tile beats `smaller` tiles, given smallest first."""
    rows: tuple[TableRow[int, float], ...] = (
        TableRow("smaller tiles", lambda rest: least_ns(rest, smaller)),
        TableRow("a tile", lambda rest: tile.ns),
    )
    slower = (
        rest for rest in range(1, tile.samples) if cheapest(rows, rest).name == "smaller tiles"
    )
    return max(slower, default=0) + 1


class EndTimes(NamedTuple):
    """Times of a model's last layers: for several samples together, and for one alone."""

    together: TileTime
    alone_ns: float

    @property
    def fewest(self) -> int:
        """The least number of samples for which running them at once is faster."""
        samples, ns = self.together
        return min(int(ns / self.alone_ns) + 1, samples)

    @property
    def saved_ns(self) -> float:
        """Nanoseconds saved for each sample by running the last layers of several at once."""
        return self.alone_ns - self.together.ns / self.together.samples


def plan_end(ends: Mapping[str, EndTimes], sample_ns: float) -> str | None:
    """Name of the end (last layers for several samples) that saves most; None if all save little.

    `sample_ns` is the time of a sample without one.
    """
    rows = [priced(name, sample_ns - each.saved_ns) for name, each in ends.items()]
    rows.append(priced(_ALONE, sample_ns, margin=1 - LEAST_SAVED))
    name = choose("last layers", rows, None).name
    return None if name == _ALONE else name
