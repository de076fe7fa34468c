"""A part of the samples of torch's own operator tests: each is equal to torch, or refused.

The whole sweep is `python tests/opinfo.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("expecttest")
sys.path.append(str(Path(__file__).parents[1]))

from operator_database import batches, left_out, samples
from operator_database.page import IN_PART, PAGE, REFUSED, SUPPORTED, groups_of
from torch.testing._internal.common_methods_invocations import op_db

# Samples of an entry by dtype, spread over its first ones; of bool where it takes no float32.
MOST = {"float32": 1, "int64": 1, "bool": 1}
# Every other entry is tried in float32, the entries between in int64.
CHOSEN = {"float32": slice(0, None, 2), "int64": slice(1, None, 2), "bool": slice(None)}
AMONG = 12
ENTRIES_A_BATCH = 40
AGAIN = "run tests/opinfo.py with --out FILE, --again where there is one, then with --page FILE"
LEAST_SHARE = 0.88
# The share of supported entries whose first samples are; others have an equal one behind them.
LEAST_AMONG_SUPPORTED = 0.8


@cache
def groups() -> dict[str, list[str]]:
    return groups_of(PAGE.read_text())


def parts() -> Iterator[tuple[str, str, int]]:
    """(group, dtype, number of the first entry) of each batch."""
    for group in (SUPPORTED, IN_PART, REFUSED):
        for dtype in MOST:
            for first in range(0, len(groups()[group]), ENTRIES_A_BATCH):
                yield group, dtype, first


@pytest.mark.parametrize(("group", "dtype", "first"), list(parts()))
def test_samples_are_equal_or_refused(group: str, dtype: str, first: int) -> None:
    names = groups()[group][first : first + ENTRIES_A_BATCH][CHOSEN[dtype]]
    cases = {
        name: batches.cases_of(samples.samples(name, dtype, MOST[dtype], AMONG))
        for name in names
        if dtype in samples.dtypes_of(name)
        and (dtype != "bool" or "float32" not in samples.dtypes_of(name))
    }
    owner = {id(case): name for name, own in cases.items() for case in own}
    found = batches.outcomes([case for own in cases.values() for case in own])
    wrong = [
        f"{owner[id(each.case)]}:{dtype}: {each.case.sample}: {each.kind}: {each.text}"
        for each in found
        if each.kind not in (batches.EQUAL, batches.REFUSED)
    ]
    assert not wrong, "\n".join(wrong)
    equal = {owner[id(each.case)] for each in found if each.kind == batches.EQUAL}
    decided = {name for name, own in cases.items() if own and samples.dtypes_of(name)[0] == dtype}
    if group == REFUSED:
        assert not equal & decided, f"supported now; {AGAIN}: {sorted(equal & decided)}"
    if group == SUPPORTED:
        refused = decided - equal
        assert len(refused) <= (1 - LEAST_AMONG_SUPPORTED) * len(decided), sorted(refused)


def test_the_page_has_every_entry() -> None:
    listed = [name for group in (SUPPORTED, IN_PART, REFUSED) for name in groups()[group]]
    assert len(listed) == len(set(listed))
    deciding = {"float32", "int64", "bool"}
    assert set(listed) == {n for n in samples.entries() if deciding & set(samples.dtypes_of(n))}
    reasons = [op.formatted_name for op in op_db if left_out.reason(op.formatted_name)]
    assert sorted(groups()["Left out"]) == sorted(reasons)


def test_enough_is_supported() -> None:
    supported, *others = (groups()[group] for group in (SUPPORTED, IN_PART, REFUSED))
    share = len(supported) / (len(supported) + sum(map(len, others)))
    assert share >= LEAST_SHARE
    assert f"{len(supported)} of" in PAGE.read_text() and f"{100 * share:.1f} %" in PAGE.read_text()
