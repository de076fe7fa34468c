"""Estimators made of others against scikit-learn: bags, AdaBoost, labels apart, outputs, chains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from runnable import LEVELS

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.estimators.parts import CALIBRATED, ENSEMBLES, STACKS, VOTES

pytest.importorskip("treelite")
pandas = pytest.importorskip("pandas")
from scipy.sparse import csr_matrix  # noqa: E402
from sklearn import ensemble, linear_model, multiclass, multioutput, svm, tree  # noqa: E402
from sklearn.base import clone  # noqa: E402
from sklearn.compose import TransformedTargetRegressor  # noqa: E402
from sklearn.feature_selection import SelectKBest  # noqa: E402
from sklearn.model_selection import (  # noqa: E402
    FixedThresholdClassifier,
    TunedThresholdClassifierCV,
)
from sklearn.multiclass import OneVsRestClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier, MLPRegressor  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import MinMaxScaler, StandardScaler  # noqa: E402
from sklearn.semi_supervised import SelfTrainingClassifier  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(0)
SAMPLES, FEATURES = 120, 5
X = RNG.standard_normal((SAMPLES, FEATURES)).astype(np.float32).astype(np.float64)
SCORE = X[:, 0] + np.sin(3 * X[:, 1]) + 0.3 * RNG.standard_normal(SAMPLES)
TWO = np.array(["no", "yes"])[(SCORE > 0).astype(int)]
FOUR = np.array(list("dbca"))[np.digitize(SCORE, [-1, 0, 1])]
LABELS = np.stack([SCORE > 0, X[:, 2] > 0, X[:, 3] > 0.5], axis=1).astype(int)
SEVERAL = np.stack([np.digitize(SCORE, [-1, 0, 1]), 7 * (X[:, 2] > 0)], axis=1)
TARGETS = np.stack([SCORE, X[:, 1] ** 2, -SCORE], axis=1)

LOGISTIC, VECTORS = linear_model.LogisticRegression(), svm.LinearSVC(random_state=0)
TREE = tree.DecisionTreeClassifier(max_depth=3, random_state=0)
SCALED = make_pipeline(StandardScaler(), LOGISTIC)
FOREST = ensemble.RandomForestClassifier(4, max_depth=3, random_state=0)
NETWORK = MLPClassifier((4,), max_iter=3, random_state=0)
CLASSIFIERS = [LOGISTIC, VECTORS, TREE, SCALED, FOREST, NETWORK]
ALL_PROBABLE = [LOGISTIC, TREE, SCALED, FOREST]
RIDGE, BRANCHES = linear_model.Ridge(), tree.DecisionTreeRegressor(max_depth=3, random_state=0)
REGRESSORS = [
    RIDGE,
    BRANCHES,
    make_pipeline(MinMaxScaler(), RIDGE),
    ensemble.GradientBoostingRegressor(n_estimators=3, random_state=0),
    MLPRegressor(hidden_layer_sizes=(4,), max_iter=3, random_state=0),
]
STEPS = [
    [],
    [StandardScaler()],
    [MinMaxScaler(), SelectKBest(k=3)],
]
share, flag = st.sampled_from([0.5, 1.0]), st.booleans()
few = st.integers(1, 13)


def _of(kind: Any, parts: list[Any], **more: Any) -> Any:
    """A strategy that makes `kind` of one of the parts, with other parameters at random."""
    return st.builds(kind, st.sampled_from(parts), **more)


# For each kind: a strategy, and the targets of its fits.
CASES: dict[str, tuple[Any, list[Any]]] = {
    "BaggingClassifier": (
        _of(
            ensemble.BaggingClassifier, [None, *CLASSIFIERS], n_estimators=few,
            max_features=share, bootstrap_features=flag, max_samples=share, random_state=few,
        ),
        [TWO, FOUR],
    ),
    "BaggingRegressor": (
        _of(
            ensemble.BaggingRegressor, [None, *REGRESSORS], n_estimators=few,
            max_features=share, bootstrap_features=flag, random_state=few,
        ),
        [SCORE],
    ),
    "AdaBoostClassifier": (
        _of(
            ensemble.AdaBoostClassifier, [None, TREE, LOGISTIC], n_estimators=few,
            learning_rate=share, random_state=few,
        ),
        [TWO, FOUR],
    ),
    "AdaBoostRegressor": (
        _of(
            ensemble.AdaBoostRegressor, [None, BRANCHES, RIDGE], n_estimators=few,
            loss=st.sampled_from(["linear", "square", "exponential"]), random_state=few,
        ),
        [SCORE],
    ),
    "OneVsRestClassifier": (
        _of(OneVsRestClassifier, [*CLASSIFIERS, RIDGE]), [TWO, FOUR, LABELS]
    ),
    "OneVsOneClassifier": (_of(multiclass.OneVsOneClassifier, CLASSIFIERS), [TWO, FOUR]),
    "OutputCodeClassifier": (
        _of(
            multiclass.OutputCodeClassifier, CLASSIFIERS,
            code_size=st.sampled_from([1.0, 2.5]), random_state=few,
        ),
        [FOUR],
    ),
    "MultiOutputClassifier": (
        _of(multioutput.MultiOutputClassifier, CLASSIFIERS), [LABELS, SEVERAL]
    ),
    "MultiOutputRegressor": (_of(multioutput.MultiOutputRegressor, REGRESSORS), [TARGETS]),
    "ClassifierChain": (
        st.one_of(
            _of(
                multioutput.ClassifierChain, [LOGISTIC, VECTORS, TREE, NETWORK, FOREST],
                order=st.sampled_from([None, "random"]), random_state=few,
            ),
            _of(
                multioutput.ClassifierChain, [LOGISTIC, SCALED],
                chain_method=st.sampled_from(["predict_proba", "decision_function"]),
            ),
        ),
        [LABELS, 3 * LABELS],
    ),
    "RegressorChain": (
        _of(
            multioutput.RegressorChain, [RIDGE, BRANCHES, REGRESSORS[2]],
            order=st.sampled_from([None, [2, 0, 1]]),
        ),
        [TARGETS],
    ),
    "TransformedTargetRegressor": (
        st.one_of(
            _of(
                TransformedTargetRegressor, REGRESSORS,
                transformer=st.sampled_from([None, StandardScaler(), MinMaxScaler((-1, 1))]),
            ),
            _of(
                TransformedTargetRegressor, REGRESSORS, func=st.just(np.log1p),
                inverse_func=st.just(np.expm1),
            ),
        ),
        [SCORE - SCORE.min()],
    ),
    "RANSACRegressor": (
        _of(linear_model.RANSACRegressor, [RIDGE], min_samples=st.just(20)),
        [SCORE],
    ),
    "SelfTrainingClassifier": (
        _of(SelfTrainingClassifier, ALL_PROBABLE), [np.where(SCORE > 1, -1, LABELS[:, 0])]
    ),
    "FixedThresholdClassifier": (
        _of(
            FixedThresholdClassifier, ALL_PROBABLE,
            threshold=st.sampled_from(["auto", 0.3]), pos_label=st.sampled_from(["no", "yes"]),
        ),
        [TWO],
    ),
    "TunedThresholdClassifierCV": (
        _of(TunedThresholdClassifierCV, ALL_PROBABLE, cv=st.just(2)),
        [TWO],
    ),
    "RandomTreesEmbedding": (
        st.builds(
            ensemble.RandomTreesEmbedding, n_estimators=few, random_state=few, sparse_output=flag
        ),
        [SCORE],
    ),
    "trees of several outputs": (
        st.sampled_from(
            [
                TREE,
                FOREST,
                tree.ExtraTreeClassifier(random_state=0),
                ensemble.ExtraTreesClassifier(3, random_state=0),
            ]
        ),
        [SEVERAL, LABELS, np.array(list("xyz"))[LABELS]],
    ),
}


def test_every_kind_is_tried() -> None:
    assert CASES.keys() >= ENSEMBLES - (VOTES | STACKS | CALIBRATED)


KINDS_OF_X = ["array", "frame", "csr", "narrow"]


def _given(x: Any, kind: str) -> Any:
    if kind == "frame":
        return pandas.DataFrame(x)
    if kind == "csr":
        return csr_matrix(x)
    return x.astype(np.float32) if kind == "narrow" else x


def _lists(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _tied(estimator: Any, x: Any) -> Any:
    """True for rows in which two classes are as probable to 1e-6."""
    scores = None
    for name in ("decision_function", "predict_proba"):
        if hasattr(estimator, name):
            try:
                scores = [np.asarray(each) for each in _lists(getattr(estimator, name)(x))]
            except (AttributeError, NotImplementedError, ValueError):
                continue
            break
    if scores is None:
        return np.zeros(x.shape[0], bool)
    tied = np.zeros(x.shape[0], bool)
    for each in scores:
        several = each.ndim == 2 and each.shape[1] > 1
        two = np.sort(each, axis=1)[:, -2:] if several else np.stack([-each, each], axis=-1)
        tied |= np.abs(np.diff(two.reshape(len(tied), -1), axis=1)).min(axis=1) < 1e-6
    return tied


def _check(estimator: Any, compiled: Any, x: Any) -> None:
    """Every method of the compiled estimator returns what the estimator's own returns."""
    for name in compiled.methods:
        try:
            wanted = _lists(getattr(estimator, name)(x))
        except (TypeError, ValueError) as error:
            if hasattr(x, "toarray") and "contains NaN" in str(error):
                continue  # trees take NaN of dense rows alone
            with pytest.raises(InvalidInput):
                getattr(compiled, name)(x)
            continue
        wanted = [each.toarray() if hasattr(each, "toarray") else each for each in wanted]
        found = _lists(getattr(compiled, name)(x))
        assert [each.shape for each in found] == [each.shape for each in wanted], name
        for one, other in zip(found, wanted, strict=True):
            if name == "predict" and hasattr(estimator, "classes_"):
                assert one.dtype == other.dtype
                apart = (one != other).reshape(len(one), -1).any(axis=1)
                assert not (apart & ~_tied(estimator, x)).any()
                continue
            finite = np.isfinite(other)
            assert np.array_equal(np.isfinite(one), finite), name
            largest = max(1.0, np.abs(other[finite]).max(initial=0.0))
            assert np.abs(one[finite] - other[finite]).max(initial=0.0) <= 2e-6 * largest, name


@pytest.mark.parametrize("kind", CASES)
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_it_equals_scikit_learn(kind: str, data: st.DataObject) -> None:
    strategy, targets = CASES[kind]
    last = clone(data.draw(strategy))
    steps = data.draw(st.sampled_from(STEPS))
    y = data.draw(st.integers(0, len(targets) - 1))
    estimator = make_pipeline(*map(clone, steps), last) if steps and targets[y].ndim == 1 else last
    estimator.fit(X, targets[y])
    example, level = data.draw(st.sampled_from([None, X[:40]])), data.draw(st.sampled_from(LEVELS))
    compiled = sparsejit.compile(estimator, example, target=level)
    own = {name for name in sparsejit.estimators.source.METHODS if hasattr(estimator, name)}
    if "Chain" not in kind:  # some have methods that raise an error for any X
        assert set(compiled.methods) == own
    rows = X[RNG.integers(0, SAMPLES, 30)]
    rows[::3] = np.round(rows[::3], 1)
    if data.draw(st.booleans()):
        rows[RNG.random(rows.shape) < 0.1] = data.draw(st.sampled_from([np.nan, np.inf]))
    rows = rows[: data.draw(st.sampled_from([1, 30]))]
    _check(estimator, compiled, _given(rows, data.draw(st.sampled_from(KINDS_OF_X))))


FILES = {
    "several outputs": (FOREST, SEVERAL),
    "words": (multioutput.MultiOutputClassifier(TREE), np.array(list("xyz"))[LABELS]),
    "chain": (multioutput.ClassifierChain(SCALED), LABELS),
    "bag": (ensemble.BaggingClassifier(random_state=0), FOUR),
    "target": (TransformedTargetRegressor(RIDGE, func=np.log1p, inverse_func=np.expm1), SCORE + 9),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_same_methods(tmp_path: Path, name: str) -> None:
    estimator, y = FILES[name]
    compiled = sparsejit.compile(clone(estimator).fit(X, y))
    compiled.save(tmp_path / "e.sjit")
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    assert loaded.methods == compiled.methods
    for method in loaded.methods:
        found = zip(
            _lists(getattr(loaded, method)(X)), _lists(getattr(compiled, method)(X)), strict=True
        )
        for one, other in found:
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "forests in a chain": (
        multioutput.RegressorChain(ensemble.RandomForestRegressor(2)), TARGETS, "to the last bit"
    ),
    "a function of the user's own": (
        TransformedTargetRegressor(RIDGE, func=np.exp, inverse_func=lambda y: np.log(y)),
        SCORE,
        "inverse_func",
    ),
    "sparse labels": (OneVsRestClassifier(LOGISTIC), csr_matrix(LABELS), "sparse labels"),
    "the same label everywhere": (
        OneVsRestClassifier(LOGISTIC), np.ones_like(LABELS), "is the same for all samples"
    ),
    "words in a chain": (
        multioutput.ClassifierChain(TREE), np.array(list("xyz"))[LABELS], "fit it to numbers"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_says_why(name: str) -> None:
    estimator, y, words = REFUSED[name]
    try:
        estimator = clone(estimator).fit(X, y)
    except (TypeError, ValueError):
        pytest.skip("the library refuses it too")
    with pytest.raises(InvalidInput, match=words):
        sparsejit.compile(estimator)


def test_single_trees_are_one_forest() -> None:
    estimator = ensemble.BaggingClassifier(n_estimators=20, random_state=0).fit(X, FOUR)
    report = str(sparsejit.compile(estimator).explain("predict_proba"))
    assert "20 trees" in report


def test_many_votes_are_added() -> None:
    """More estimators than a chain reads arrays."""
    parts = [(f"p{n}", linear_model.LogisticRegression(C=10.0**-n)) for n in range(15)]
    for voting in ("hard", "soft"):
        votes = ensemble.VotingClassifier(parts, voting=voting).fit(X, FOUR)
        assert np.array_equal(sparsejit.compile(votes).predict(X), votes.predict(X))


def test_a_constant_label_is_predicted() -> None:
    labels = LABELS.copy()
    labels[:, 1] = 1
    for part in (LOGISTIC, TREE):
        estimator = OneVsRestClassifier(part).fit(X, labels)
        _check(estimator, sparsejit.compile(estimator), X)


def test_equal_weights_are_counted_as_the_library_counts_them() -> None:
    estimator = ensemble.AdaBoostRegressor(BRANCHES, n_estimators=10, random_state=0)
    estimator.fit(X, SCORE)
    for weight in (0.1, 1.0, 1 / 3):
        estimator.estimator_weights_ = np.full(len(estimator.estimators_), weight)
        _check(estimator, sparsejit.compile(estimator), X)
