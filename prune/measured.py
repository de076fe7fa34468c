"""Earlier measurements on this machine, kept in files of the user's cache directory."""

from pathlib import Path
from typing import Any

from sparsejit import lowering, passes
from sparsejit.errors import DamagedFile
from sparsejit.machine.target import Target
from sparsejit.planner import cache
from sparsejit.planner.calibration import calibrated
from sparsejit.prune import convolutions, in_model


def measurement_file(kind: str, *parts: str) -> Path:
    """A file named by `parts` and all else that decides a time: processor, compiler, method.

    `lowering` and `passes` count to the compiler, since convolutions need them.
    """
    target = calibrated(Target.detect())
    sets = " ".join(sorted(target.instruction_sets))
    rates = repr((target.core.rates, target.core.steps))
    method = "".join(Path(str(one.__file__)).read_text() for one in (convolutions, in_model))
    digest = cache.compiler_digest()
    digest += cache.source_digest(Path(str(room.__file__)).parent for room in (lowering, passes))
    return cache.cache_file(kind, target.model, sets, rates, digest, method, *parts)


def recall(file: Path) -> Any:
    """The remembered value; None where there is none, or the file is damaged."""
    try:
        return cache.recall(file)
    except DamagedFile:
        return None


def remember(file: Path, value: object) -> None:
    """Keep a value of JSON types, if the cache directory can be written to."""
    cache.remember(file, value)


def is_time(us: object) -> bool:
    """Whether a value from a file can be the microseconds of something that was measured."""
    return cache.is_number(us, 1e-6, 1e12)
