"""Small numbers that no rule finds, by model type; and inputs that no signature tells."""

from __future__ import annotations

from typing import Any

# Entries that a small configuration has in place of its own.
CONFIGS: dict[str, dict[str, Any]] = {}

# Arguments beside those that the signature requires, by the case's name.
ARGUMENTS: dict[str, tuple[str, ...]] = {}

# Shapes of arguments, by the case's name and the argument's.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {}
