"""The table of all estimators in the notes is the one that its command prints."""

import re
from pathlib import Path

import pytest

sklearn = pytest.importorskip("sklearn")
pytest.importorskip("treelite")
from sklearn.utils import all_estimators  # noqa: E402

from sparsejit.perf.estimators import markdown, shares, tried_estimators  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "notes" / "estimators.md"
# Estimators of each kind whose rows are computed again; one answers for no new rows.
AGAIN = ("DBSCAN", "IsolationForest", "LogisticRegression", "PCA", "Ridge", "StandardScaler")
pytestmark = pytest.mark.skipif(
    f"scikit-learn {sklearn.__version__}:" not in PAGE.read_text(),
    reason="the table is of another version of scikit-learn",
)


def test_the_table_has_every_estimator() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(name for name, _ in all_estimators())


def test_rows_are_as_the_command_prints_them() -> None:
    rows = tried_estimators(AGAIN)
    assert [row.name for row in rows] == sorted(AGAIN)
    page = PAGE.read_text().splitlines()
    for line in markdown(rows):
        assert not line.startswith("| `") or line in page
    assert shares(rows)["transformer"] == (2, 2)
    assert [row.name for row in rows if not row.is_asked] == ["DBSCAN"]


def test_no_estimator_of_the_table_is_wrong() -> None:
    assert "WRONG" not in PAGE.read_text()
