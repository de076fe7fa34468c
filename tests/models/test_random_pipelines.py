"""Random pipelines over columns of all types answer as scikit-learn, or refuse."""

from collections import Counter

import pytest

for name in ("treelite", "pandas"):
    pytest.importorskip(name)
from fuzzing.pipelines import check, make  # noqa: E402

SEEDS = range(60)
# `python tests/fuzz.py --kinds pipelines --cases 2000 --minutes 60` has more.
_FEWEST_EQUAL = 4


@pytest.mark.filterwarnings("ignore")
def test_pipelines_equal_scikit_learn() -> None:
    outcomes = Counter(check(make(seed)) for seed in SEEDS)
    assert outcomes["equal"] >= _FEWEST_EQUAL, outcomes
