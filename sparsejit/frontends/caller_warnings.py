"""Warnings that name the user's line, at any depth of calls within this package."""

import contextlib
import sys
import warnings
from pathlib import Path

_OURS = (str(Path(__file__).parents[1]), contextlib.__file__)


def warn_caller(text: str) -> None:
    """Warn at the nearest line outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
