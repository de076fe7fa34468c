"""The page of the notes that says which models of transformers compile, from recorded outcomes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers_models.catalogue import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "notes" / "transformers.md"
EXPORTED = ("equal", "refused", "finding")
_HEAD = """# Models of transformers

`python tests/transformers_sweep.py --record --page` wrote this page. The command builds each
model class of the registry of transformers {version} from a small configuration with random
weights, exports it with torch.export, compiles it, and compares every output with torch in
float64, for 2 rows, and for 1 and 5 where the batch is free. The kind `encoder` has the encoders
of models that have a decoder too. Texts come with an attention mask and padding.

{run} of the registry's classes and their parts were tried.

**{equal} of the {exported} that torch.export can export compile and agree: {share}.**

| kind | tried | built | exported | compiled and equal | share | free batch |
|---|--:|--:|--:|--:|--:|--:|
"""
_REASONS = """
A class whose configuration could not be shrunk, or whose inputs could not be made from its
signature, is not built and not counted. torch.export refuses a class that reads numbers of its
tensors in Python, for instance to choose a branch.
"""


def latest(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest row of each case, in the order of kinds and names."""
    newest = {row["name"]: row for row in rows}
    return sorted(newest.values(), key=lambda row: (KINDS.index(row["kind"]), row["name"]))


def share(rows: Sequence[Mapping[str, Any]]) -> float:
    """Cases that are equal, of those that torch.export can export."""
    statuses = Counter(row["status"] for row in rows)
    return statuses["equal"] / (sum(statuses[each] for each in EXPORTED) or 1)


def built(rows: Sequence[Mapping[str, Any]]) -> int:
    """The number of cases that have a model."""
    return sum(row["status"] != "not built" for row in rows)


def page(rows: Sequence[Mapping[str, Any]], version: str) -> str:
    """The page of these rows, one a case."""
    lines = [_line(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    lines.append(_line("all", rows))
    counts = _counts(rows)
    head = _HEAD.format(version=version, share=_percent(share(rows)), **counts)
    failed = [row for row in rows if row["status"] in EXPORTED[1:]]
    parts = [
        head + "\n".join(filter(None, lines)) + "\n" + _REASONS,
        "## Not compiled\n\n" + _table(failed),
        "## Compiled for one batch\n\n"
        + _table([row for row in rows if row["status"] == "equal" and row["text"]]),
        "## Compiled for any batch\n\n"
        + _names(row for row in rows if row["status"] == "equal" and not row["text"]),
        "## Refused by torch.export\n\n"
        + _names(row for row in rows if row["status"] == "not exported"),
        "## Not built\n\n" + _names(row for row in rows if row["status"] == "not built"),
    ]
    return "\n".join(parts)


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    equal = [row for row in rows if row["status"] == "equal"]
    return {
        "run": len(rows),
        "built": built(rows),
        "exported": sum(row["status"] in EXPORTED for row in rows),
        "equal": len(equal),
        "free": sum(not row["text"] for row in equal),
    }


def _line(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    found = _counts(rows)
    numbers = (
        len(rows),
        found["built"],
        found["exported"],
        found["equal"],
        _percent(share(rows)),
        found["free"],
    )
    return f"| {kind} | {' | '.join(map(str, numbers))} |"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "| class | reason |\n|---|---|\n"
    return head + "".join(f"| {_title(row)} | {_reason(row['text'])} |\n" for row in rows)


def _names(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(map(_title, rows)) + ".\n"


def _title(row: Mapping[str, Any]) -> str:
    _, _, part = row["name"].partition(".")
    return f"`{row['model_class']}.{part}`" if part else f"`{row['model_class']}`"


def _reason(text: str) -> str:
    """The message as code, without places in files, which differ between machines."""
    plain = re.sub(r"\s*#\s.*?(?= aten\.| leave them|$)", ";", text)
    plain = plain.split("; leave them")[0].split(" leave them")[0]
    plain = plain.replace("|", "/").replace("`", "'").strip(" ;")
    return f"`{plain[:160]}`"
