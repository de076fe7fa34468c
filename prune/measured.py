"""What was measured on this machine earlier, kept in files of the user's cache directory."""

import json
from pathlib import Path
from typing import Any

from sparsejit.files import atomic_path
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import cache_file, known_rates
from sparsejit.planner.tuning import compiler_digest
from sparsejit.prune import in_model


def measurement_file(kind: str, *parts: str) -> Path:
    """Named by `parts` and all else that decides a time: processor, compiler, way of measuring."""
    target = Target.detect()
    sets = " ".join(sorted(target.instruction_sets))
    rates = repr(known_rates(target))
    method = Path(in_model.__file__).read_text()
    return cache_file(kind, target.model, sets, rates, compiler_digest(), method, *parts)


def recall(file: Path) -> Any:
    """What was remembered; None where nothing was, or the file is damaged."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def remember(file: Path, value: object) -> None:
    with atomic_path(file) as path:
        path.write_text(json.dumps(value, indent=1))
