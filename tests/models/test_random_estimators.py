"""Random estimators of every kind answer as the libraries that fitted them."""

import pytest

for name in ("treelite", "lightgbm", "xgboost"):
    pytest.importorskip(name)
from fuzzing.estimator_kinds import ENSEMBLE_KINDS, KINDS  # noqa: E402
from fuzzing.estimators import (  # noqa: E402
    FIRST_OF_ENSEMBLES,
    FIRST_OF_SPARSE,
    check,
    make,
)
from fuzzing.model_kinds import MODEL_KINDS  # noqa: E402

from sparsejit.estimators import graphs  # noqa: E402
from sparsejit.estimators.exact_scaling import SCALERS  # noqa: E402
from sparsejit.estimators.forests import FORESTS  # noqa: E402
from sparsejit.estimators.parts import CALIBRATED, STACKS, VOTES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


# Once wrong: powers of float32 on thresholds or too large, frames of several dtypes, and what
# calibration makes of the last bits of scores.
WRONG = (368, 479, 536, 1135, 1239, 1551, 81275)


# The odd ones are of estimators made of others.
LATER = range(FIRST_OF_ENSEMBLES, FIRST_OF_ENSEMBLES + 2 * len(ENSEMBLE_KINDS))


# Odd ones have steps that return sparse matrices, or take one.
SPARSE = range(FIRST_OF_SPARSE + 1, FIRST_OF_SPARSE + 25, 2)


@pytest.mark.parametrize("seed", [*range(len(KINDS)), *WRONG, *LATER, *SPARSE])
def test_it_equals_its_library(seed: int) -> None:
    assert check(make(seed)) in ("equal", "refused", "refused for its rounding", "cannot be equal")


def test_every_kind_is_tried() -> None:
    """Scalers stand before others, and boosters inside of them.

    CatBoost, and other estimators made of others, have tests of their own.
    """
    forests = (kinds for library, kinds in FORESTS.items() if library != "catboost")
    supported = graphs._KNOWN.union(*forests, VOTES, STACKS, CALIBRATED) - SCALERS.keys()
    tried = {kind.name for kind in (*KINDS, *ENSEMBLE_KINDS, *MODEL_KINDS)}
    assert tried == supported - {"Booster"}
