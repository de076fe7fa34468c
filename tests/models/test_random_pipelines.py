"""Random pipelines over columns of all types answer as scikit-learn, or refuse."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

for name in ("treelite", "pandas", "catboost", "lightgbm", "xgboost"):
    pytest.importorskip(name)
from fuzzing.neighbour_ties import explained  # noqa: E402
from fuzzing.pipelines import TABLES, check, make  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor  # noqa: E402

SEEDS = range(60)
# `python tests/fuzz.py --kinds pipelines --cases 2000 --minutes 60` has more.
_FEWEST_EQUAL = 4
NAMES = """
    OneHotEncoder OrdinalEncoder TargetEncoder LabelBinarizer LabelEncoder KBinsDiscretizer
    Binarizer Normalizer PolynomialFeatures SplineTransformer QuantileTransformer PowerTransformer
    FunctionTransformer SimpleImputer KNNImputer MissingIndicator FeatureUnion SelectKBest
    SelectPercentile SelectFromModel VarianceThreshold PCA KernelPCA FastICA TruncatedSVD
    TfidfTransformer CountVectorizer TfidfVectorizer HashingVectorizer
    SVC NuSVC SVR NuSVR OneClassSVM LinearSVC LinearSVR KNeighborsClassifier KNeighborsRegressor
    GaussianNB BernoulliNB MultinomialNB ComplementNB CategoricalNB LinearDiscriminantAnalysis
    QuadraticDiscriminantAnalysis KMeans MiniBatchKMeans GaussianMixture GaussianProcessRegressor
    AdaBoostClassifier AdaBoostRegressor BaggingClassifier BaggingRegressor DecisionTreeRegressor
    OneVsRestClassifier OneVsOneClassifier OutputCodeClassifier MultiOutputClassifier
    MultiOutputRegressor ClassifierChain RegressorChain TransformedTargetRegressor TweedieRegressor
    IsotonicRegression RANSACRegressor PLSRegression
    LGBMClassifier LGBMRegressor XGBClassifier XGBRegressor CatBoostClassifier CatBoostRegressor
""".split()


@pytest.mark.filterwarnings("ignore")
def test_pipelines_equal_scikit_learn() -> None:
    outcomes = Counter(check(make(seed)) for seed in SEEDS)
    assert outcomes["equal"] >= _FEWEST_EQUAL, outcomes


def test_every_estimator_is_drawn() -> None:
    draw = np.random.default_rng(0)
    made = [maker(draw) for table in TABLES for maker in table.values()]
    found = {type(each).__name__ for one in made for each in _inner(one)}
    assert not set(NAMES) - found


def _inner(estimator: Any) -> list[Any]:
    steps = getattr(estimator, "steps", getattr(estimator, "transformer_list", []))
    return [estimator, *(each for _, step in steps for each in _inner(step))]


ROWS = np.array([[0.0], [1.0], [1.0], [1.0], [5.0]])
TARGETS = np.array([0, 0, 1, 1, 1])


def test_only_ties_explain_other_neighbours() -> None:
    """Row 0 has one sure neighbour and two of three at the same distance; row 5 has no ties."""
    x = np.array([[0.0], [5.0]])
    model = KNeighborsClassifier(3).fit(ROWS, TARGETS)
    shares = {method: getattr(model, method)(x) for method in ("predict", "predict_proba")}
    for answer, wanted in (([2 / 3, 1 / 3], True), ([1 / 3, 2 / 3], True), ([1, 0], False)):
        found = np.array([answer, shares["predict_proba"][1]])
        assert explained(model, x, "predict_proba", found).tolist() == [wanted, True]
    far = KNeighborsClassifier(2).fit(np.array([[0.0], [1.0], [3.0]]), [0, 1, 1])
    assert not explained(far, x[:1], "predict", np.array([0]))[0]
    regressor = KNeighborsRegressor(3).fit(ROWS, TARGETS)
    several = KNeighborsRegressor(3).fit(ROWS, np.stack([TARGETS, 3 * TARGETS], axis=1))
    for answer, wanted in ((1 / 3, True), (2 / 3, True), (0.5, False)):
        assert explained(regressor, x[:1], "predict", np.array([answer]))[0] == wanted
        both = np.array([[answer, 3 * answer]])
        assert explained(several, x[:1], "predict", both)[0] == wanted
