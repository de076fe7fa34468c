"""Random pipelines over columns of all types, against scikit-learn.

    case = make(seed)    columns of numbers, bools, words and text, with missing and unseen values,
                         as a frame, an array or a sparse matrix; steps and a model at random
    check(case)          "equal" in all methods, "refused" where scikit-learn refuses too, "refused
                         when compiled" or "when called" where it does not

A finding is a result that differs, or an answer where scikit-learn has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas
import xgboost
from fuzzing.neighbour_ties import explained
from fuzzing.text_pipelines import (
    COLOURS,
    FEWEST,
    LABEL_STEPS,
    TEXT_MODELS,
    TEXT_STEPS,
    Draw,
    each,
    of_labels,
    of_texts,
    one_of,
)
from scipy import sparse
from sklearn import (
    cluster,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    isotonic,
    linear_model,
    mixture,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.pipeline import make_pipeline, make_union

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.estimators.source import METHODS
from sparsejit.ir.values import Array

TOLERANCE = 2e-6  # of the largest number
TIED = 1e-6  # scores this near may swap a label
_CATEGORY = " category"  # ends the names of columns of pandas' categories
_SHARE_OF_OTHERS = 0.1  # of cases whose X are texts, or labels
_TEXTS = ("the cat sat", "a dog ran", "the dog sat down", "birds", "no words here", "")


# Steps for numbers without NaN, of any sign.
NUMBER_STEPS = each(
    lambda draw: preprocessing.StandardScaler(with_mean=bool(draw.integers(2))),
    lambda draw: preprocessing.MinMaxScaler(clip=bool(draw.integers(2))),
    lambda draw: preprocessing.MaxAbsScaler(),
    lambda draw: preprocessing.RobustScaler(),
    lambda draw: preprocessing.Normalizer(str(draw.choice(["l1", "l2", "max"]))),
    lambda draw: preprocessing.Binarizer(threshold=0.25),
    lambda draw: preprocessing.PolynomialFeatures(2, include_bias=bool(draw.integers(2))),
    lambda draw: preprocessing.SplineTransformer(n_knots=3, degree=2),
    lambda draw: preprocessing.QuantileTransformer(n_quantiles=10),
    lambda draw: preprocessing.PowerTransformer(),
    lambda draw: preprocessing.KBinsDiscretizer(3, encode="onehot-dense"),
    lambda draw: preprocessing.KBinsDiscretizer(3, encode="ordinal"),
    lambda draw: preprocessing.FunctionTransformer(np.log1p if draw.integers(2) else np.abs),
    lambda draw: feature_selection.SelectKBest(k=1),
    lambda draw: feature_selection.SelectPercentile(percentile=60),
    lambda draw: feature_selection.SelectFromModel(linear_model.Ridge(), threshold=-np.inf),
    lambda draw: feature_selection.VarianceThreshold(),
    lambda draw: decomposition.PCA(1, whiten=bool(draw.integers(2))),
    lambda draw: decomposition.FastICA(1, random_state=0),
    lambda draw: decomposition.TruncatedSVD(1, random_state=0),
    lambda draw: decomposition.KernelPCA(1, kernel="rbf"),
    lambda draw: make_union(preprocessing.MinMaxScaler(), decomposition.PCA(1)),
    lambda draw: TfidfTransformer(norm=[None, "l1", "l2"][draw.integers(3)]),
    lambda draw: discriminant_analysis.LinearDiscriminantAnalysis(),
)
# Steps that replace or mark NaN.
FILLS = each(
    lambda draw: impute.SimpleImputer(strategy=str(draw.choice(["mean", "median"]))),
    lambda draw: impute.SimpleImputer(add_indicator=True),
    lambda draw: impute.KNNImputer(n_neighbors=3),
    lambda draw: make_union(impute.SimpleImputer(), impute.MissingIndicator()),
)
WORD_STEPS = each(
    lambda draw: preprocessing.OneHotEncoder(handle_unknown="ignore"),
    lambda draw: preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    lambda draw: preprocessing.OneHotEncoder(drop="first"),
    lambda draw: preprocessing.OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=8
    ),
    lambda draw: preprocessing.OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=3
    ),
    lambda draw: preprocessing.OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1
    ),
    lambda draw: preprocessing.TargetEncoder(random_state=0),
)
_few = {"n_estimators": 3, "random_state": 0}
_light = {"n_estimators": 3, "n_jobs": 1, "verbose": -1}
_cat = {"iterations": 3, "thread_count": 1, "verbose": 0, "allow_writing_files": False}
CLASSIFIERS = each(
    lambda draw: linear_model.LogisticRegression(),
    lambda draw: linear_model.RidgeClassifier(),
    lambda draw: linear_model.SGDClassifier(random_state=0),
    lambda draw: svm.LinearSVC(),
    lambda draw: svm.SVC(kernel=str(draw.choice(["linear", "rbf", "poly", "sigmoid"]))),
    lambda draw: svm.NuSVC(nu=0.1),
    lambda draw: neighbors.KNeighborsClassifier(3),
    lambda draw: naive_bayes.GaussianNB(),
    lambda draw: naive_bayes.BernoulliNB(),
    lambda draw: discriminant_analysis.LinearDiscriminantAnalysis(),
    lambda draw: discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=0.5),
    lambda draw: neural_network.MLPClassifier([6], max_iter=20, random_state=0),
    lambda draw: tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    lambda draw: ensemble.RandomForestClassifier(**_few),
    lambda draw: ensemble.ExtraTreesClassifier(**_few),
    lambda draw: ensemble.GradientBoostingClassifier(**_few),
    lambda draw: ensemble.HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5),
    lambda draw: ensemble.AdaBoostClassifier(**_few),
    lambda draw: ensemble.BaggingClassifier(**_few),
    lambda draw: multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
    lambda draw: multiclass.OneVsOneClassifier(linear_model.LogisticRegression()),
    lambda draw: svm.SVC(probability=True, random_state=0),
    lambda draw: neighbors.RadiusNeighborsClassifier(2.0, outlier_label="most_frequent"),
    lambda draw: make_pipeline(preprocessing.MinMaxScaler(clip=True), naive_bayes.MultinomialNB()),
    lambda draw: make_pipeline(preprocessing.MinMaxScaler(clip=True), naive_bayes.ComplementNB()),
    lambda draw: make_pipeline(
        preprocessing.KBinsDiscretizer(3, encode="ordinal"),
        naive_bayes.CategoricalNB(min_categories=3),
    ),
    lambda draw: multiclass.OutputCodeClassifier(linear_model.LogisticRegression(), random_state=0),
    lambda draw: multioutput.MultiOutputClassifier(linear_model.LogisticRegression()),
    lambda draw: multioutput.ClassifierChain(linear_model.LogisticRegression()),
    lambda draw: xgboost.XGBClassifier(n_estimators=3, n_jobs=1),
    lambda draw: xgboost.XGBClassifier(booster="gblinear", n_estimators=3, n_jobs=1),
    lambda draw: lightgbm.LGBMClassifier(min_child_samples=5, **_light),
    lambda draw: catboost.CatBoostClassifier(**_cat),
)
REGRESSORS = each(
    lambda draw: linear_model.Ridge(),
    lambda draw: linear_model.HuberRegressor(),
    lambda draw: linear_model.TweedieRegressor(power=0),
    lambda draw: linear_model.RANSACRegressor(linear_model.Ridge(), random_state=0),
    lambda draw: svm.SVR(kernel=str(draw.choice(["linear", "rbf"]))),
    lambda draw: neighbors.KNeighborsRegressor(3),
    lambda draw: neural_network.MLPRegressor([6], max_iter=20, random_state=0),
    lambda draw: tree.DecisionTreeRegressor(max_depth=4, random_state=0),
    lambda draw: ensemble.RandomForestRegressor(**_few),
    lambda draw: ensemble.GradientBoostingRegressor(**_few),
    lambda draw: ensemble.HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5),
    lambda draw: ensemble.AdaBoostRegressor(**_few),
    lambda draw: ensemble.BaggingRegressor(**_few),
    lambda draw: svm.NuSVR(nu=0.3),
    lambda draw: svm.LinearSVR(random_state=0),
    lambda draw: make_pipeline(feature_selection.SelectKBest(k=1), isotonic.IsotonicRegression()),
    lambda draw: gaussian_process.GaussianProcessRegressor(alpha=0.1),
    lambda draw: multioutput.MultiOutputRegressor(linear_model.Ridge()),
    lambda draw: multioutput.RegressorChain(linear_model.Ridge()),
    lambda draw: TransformedTargetRegressor(
        linear_model.Ridge(), transformer=preprocessing.StandardScaler()
    ),
    lambda draw: cross_decomposition.PLSRegression(1),
    lambda draw: xgboost.XGBRegressor(n_estimators=3, n_jobs=1),
    lambda draw: xgboost.XGBRegressor(booster="gblinear", n_estimators=3, n_jobs=1),
    lambda draw: lightgbm.LGBMRegressor(
        min_child_samples=5, linear_tree=bool(draw.integers(2)), **_light
    ),
    lambda draw: catboost.CatBoostRegressor(**_cat),
)
OTHERS = each(
    lambda draw: cluster.KMeans(2, n_init=1, random_state=0),
    lambda draw: mixture.GaussianMixture(2, random_state=0),
    lambda draw: ensemble.IsolationForest(**_few),
    lambda draw: svm.OneClassSVM(),
    lambda draw: cluster.MiniBatchKMeans(2, n_init=1, random_state=0),
)
TABLES = (
    *(NUMBER_STEPS, FILLS, WORD_STEPS, TEXT_STEPS, LABEL_STEPS),
    *(CLASSIFIERS, REGRESSORS, OTHERS, TEXT_MODELS),
)
# Models of two targets, which fail with one; trees take two at times.
_OF_TWO = ("MultiOutput", "ClassifierChain", "RegressorChain")
_MAY_TAKE_TWO = ("DecisionTree", "RandomForest", "Ridge", "PLSRegression", "KNeighborsRegressor")
# Options of `predict`, by the start of a model's name.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "LGBM": [{"raw_score": True}, {"num_iteration": 2}, {"pred_leaf": True}],
    "XGB": [{"output_margin": True}],
}
# Models that take NaN themselves.
_TAKE_NAN = (
    *("RandomForest", "ExtraTrees", "DecisionTree", "HistGradient", "IsolationForest"),
    *("XGB", "LGBM", "CatBoost"),
)


@dataclass(frozen=True, eq=False)
class PipelineCase:
    """A fitted pipeline, and rows to try it on."""

    seed: int
    estimator: Any
    rows: Any

    @property
    def title(self) -> str:
        kind = type(self.rows).__name__
        return f"{self.seed} on {kind}{self.rows.shape}: " + " ".join(str(self.estimator).split())


def make(seed: int) -> PipelineCase:
    """The case of a seed. Draws until scikit-learn fits the pipeline."""
    draw = np.random.default_rng(seed)
    while True:
        if draw.random() < _SHARE_OF_OTHERS:
            made = of_texts(draw) if draw.integers(2) else of_labels(draw)
            if made is not None:
                return PipelineCase(seed, *made)
            continue
        table, y = _table(draw)
        kinds = {name: column.dtype.kind for name, column in table.items()}
        is_numbers = all(kind in "fib" for kind in kinds.values())
        form = str(draw.choice(["frame", "array", "sparse"])) if is_numbers else "frame"
        given = _formed(table, form)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                estimator, target = _estimator(draw, table, y, form)
                estimator.fit(given, target)
            except (AttributeError, IndexError, TypeError, ValueError):
                continue
        return PipelineCase(seed, estimator, _formed(_rows(draw, table), form))


def _table(draw: Draw) -> tuple[dict[str, Array], Array]:
    """Columns by name, and a score that depends on them."""
    count = int(draw.integers(FEWEST, 120))
    numbers = {
        f"n{n}": draw.standard_normal(count).round(3) for n in range(int(draw.integers(1, 5)))
    }
    score = sum(numbers.values()) + 0.2 * draw.standard_normal(count)
    table: dict[str, Array] = {}
    for name, column in numbers.items():
        kind = str(draw.choice(["float64", "float64", "float32", "int64"]))
        table[name] = (column.round() if kind == "int64" else column).astype(kind)
    if draw.random() < 0.2:
        table["flag"] = score > 0
    if draw.integers(2):
        for number in range(int(draw.integers(1, 3))):
            places = draw.integers(0, len(COLOURS) - number, count)
            name = f"w{number}{'' if draw.integers(4) else _CATEGORY}"
            table[name] = np.array(COLOURS, object)[places]
            score = score + 0.3 * places
        if draw.random() < 0.3:
            table["text"] = np.array(_TEXTS, object)[draw.integers(0, len(_TEXTS), count)]
    if draw.random() < 0.3:
        for name, column in table.items():
            has_some = name.startswith("w") and draw.random() < 0.4
            if column.dtype.kind == "f" or has_some:
                column[draw.random(count) < 0.1] = np.nan
    return table, np.asarray(score)


def _rows(draw: Draw, table: Mapping[str, Array]) -> dict[str, Array]:
    """Rows that were fitted, and others near them, with words that were not seen."""
    count = int(draw.choice([1, 7, 40]))
    chosen = draw.integers(0, len(next(iter(table.values()))), count)
    made = {name: column[chosen].copy() for name, column in table.items()}
    for name, column in made.items():
        moved = draw.random(count) < 0.3
        if column.dtype.kind == "f":
            column[moved] = draw.standard_normal(int(moved.sum())).round(2)
        elif name.startswith("w") and draw.random() < 0.3:
            column[moved] = "unseen"
        elif name == "text":
            column[moved] = "a cat that flew"
    return made


def _formed(table: Mapping[str, Array], form: str) -> Any:
    if form == "frame":
        frame = pandas.DataFrame(dict(table))
        categories = [name for name in table if name.endswith(_CATEGORY)]
        return frame.astype(dict.fromkeys(categories, "category"))
    array = np.stack([*table.values()], axis=1)
    return sparse.csr_matrix(array) if form == "sparse" else array


def _number_steps(draw: Draw, has_nan: bool) -> list[Any]:
    fills = [one_of(draw, FILLS)] if has_nan else []
    return fills + [one_of(draw, NUMBER_STEPS) for _ in range(int(draw.choice([0, 1, 1, 2])))]


def _estimator(
    draw: Draw, table: Mapping[str, Array], score: Array, form: str
) -> tuple[Any, Array | None]:
    """A pipeline that is not fitted, and its target."""
    numbers = [name for name, column in table.items() if column.dtype.kind in "fib"]
    words = [name for name in table if name.startswith("w")]
    has_nan = any(bool(pandas.isna(table[name]).any()) for name in numbers)
    kinds = [CLASSIFIERS, CLASSIFIERS, REGRESSORS, OTHERS]
    model = one_of(draw, kinds[int(draw.integers(len(kinds)))])
    takes_nan = type(model).__name__.startswith(_TAKE_NAN) and bool(draw.integers(2))
    steps = _number_steps(draw, has_nan and not takes_nan)
    if len(numbers) < len(table):
        parts = [("numbers", make_pipeline(*steps) if steps else "passthrough", numbers)]
        if words:
            parts.append(("words", _word_steps(draw, table, words), words))
        if "text" in table:
            parts.append(("text", one_of(draw, TEXT_STEPS), "text"))
        steps = [ColumnTransformer(parts, sparse_threshold=float(draw.choice([0.0, 0.3])))]
    estimator = make_pipeline(*steps, model)
    if form == "frame" and "text" not in table and draw.random() < 0.1:
        estimator.set_output(transform="pandas")
    return estimator, _target(draw, model, score)


def _target(draw: Draw, model: Any, score: Array) -> Array:
    kind = type(model).__name__
    takes_two = kind.startswith(_MAY_TAKE_TWO) and draw.random() < 0.2
    has_two = kind.startswith(_OF_TWO) or takes_two
    classifies = hasattr(model, "predict_proba") or hasattr(model, "decision_function")
    if not (classifies or "Classifi" in kind):
        return np.stack([score, np.abs(score)], axis=1) if has_two else score
    if has_two:
        return np.stack([score > 0, np.abs(score) > 1], axis=1).astype(int)
    classes = int(draw.choice([2, 3]))
    target = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    names = np.array(["cherry", "apple", "date"])
    return names[target] if draw.integers(2) else target


def _word_steps(draw: Draw, table: Mapping[str, Array], words: list[str]) -> Any:
    encoder = one_of(draw, WORD_STEPS)
    has_missing = any(pandas.isna(table[name]).any() for name in words)
    if has_missing and draw.integers(2):
        filled = impute.SimpleImputer(strategy="most_frequent")
        return make_pipeline(filled, encoder)
    return encoder


def check(case: PipelineCase) -> str:
    """The outcome. Raises AssertionError for a difference, and whatever else comes."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            compiled = sparsejit.compile(case.estimator)
        except InvalidInput:
            return "refused when compiled"
        methods = [name for name in METHODS if hasattr(case.estimator, name)]
        held = [name for name in methods if hasattr(compiled, name)]
        assert held, f"{case.title} has none of {methods}"
        asked = [(name, {}) for name in held] + [
            ("predict", options)
            for start, every in OPTIONS.items()
            for options in every
            if type(_last(case.estimator)).__name__.startswith(start)
        ]
        outcomes = [_compared(case, compiled, *each) for each in asked]
    return min(outcomes, key=("refused when called", "refused", "equal").index)


def _last(estimator: Any) -> Any:
    """The model at the end of pipelines, which may be inside of each other."""
    return _last(estimator[-1]) if hasattr(estimator, "steps") else estimator


def _compared(case: PipelineCase, compiled: Any, method: str, options: dict[str, Any]) -> str:
    try:
        wanted = getattr(case.estimator, method)(case.rows, **options)
    except (TypeError, ValueError) as refusal:
        try:
            getattr(compiled, method)(case.rows, **options)
        except InvalidInput:
            return "refused"
        raise AssertionError(f"{case.title}.{method}: scikit-learn refuses: {refusal}") from None
    try:
        found = getattr(compiled, method)(case.rows, **options)
    except InvalidInput:
        return "refused when called"
    if isinstance(wanted, list):
        for own, other in zip(found, wanted, strict=True):
            _assert_same(case, method, own, other)
    else:
        _assert_same(case, method, found, wanted, not options)
    return "equal"


def _assert_same(
    case: PipelineCase, method: str, found: Any, wanted: Any, has_ties: bool = True
) -> None:
    where = f"{case.title}.{method}"
    one, other = _dense(found), _dense(wanted)
    assert one.shape == other.shape, f"{where} has shape {one.shape}, not {other.shape}"
    if other.dtype.kind != "f":  # labels
        wrong = (one != other).reshape(len(other), -1).any(axis=1)
        if has_ties and wrong.any():
            wrong &= ~_tied(case, other)
        wrong = _unexplained(case, method, one, wrong)
        assert not wrong.any(), f"{where} chooses {int(wrong.sum())} others of {len(other)}"
        return
    finite = np.isfinite(other) & ((other > -12) | (method != "predict_log_proba"))
    size = max(float(np.abs(other[finite]).max(initial=0.0)), 1e-3)
    if method == "decision_function":  # of outliers: a score less an offset
        offset = np.abs(getattr(_last(case.estimator), "offset_", 0.0))
        size = max(size, float(np.max(offset)))
    away = np.abs(np.where(finite, one, 0.0) - np.where(finite, other, 0.0)) / size
    if method == "predict_log_proba" and other.dtype == np.float32:
        # The library takes logarithms of probabilities that it rounded.
        away -= np.finfo(np.float32).eps / np.exp(np.where(finite, other, 0.0)) / size
    wrong = (away > TOLERANCE).reshape(len(other), -1).any(axis=1)
    wrong = _unexplained(case, method, one, wrong)
    error = float(away[wrong].max(initial=0.0))
    assert not wrong.any(), f"{where} differs by {error:.1e} of the largest"


def _unexplained(case: PipelineCase, method: str, found: Array, wrong: Array) -> Array:
    """The wrong rows that no choice among neighbours at the same distance explains.

    A `KNNImputer` chooses donors for missing numbers, often among many at the same distance.
    """
    if "KNNImputer" in case.title:
        wrong = wrong & ~pandas.isna(pandas.DataFrame(_dense(case.rows))).any(axis=1).to_numpy()
    last = _last(case.estimator)
    if not (wrong.any() and type(last).__name__.startswith("KNeighbors")):
        return wrong
    before = case.estimator[:-1]
    columns = before.transform(case.rows) if len(before) else case.rows
    left = wrong.copy()
    left[wrong] = ~explained(last, _dense(columns)[wrong], method, found[wrong])
    return left


def _dense(result: Any) -> Array:
    return np.asarray(result.toarray() if hasattr(result, "toarray") else result)


def _tied(case: PipelineCase, wanted: Array) -> Array:
    """Rows whose two best scores are the same to a millionth, for any of several targets."""
    for method in ("decision_function", "predict_proba", "score_samples"):
        if not hasattr(case.estimator, method):
            continue
        scores = getattr(case.estimator, method)(case.rows)
        if isinstance(scores, list):
            return np.any([_near(np.asarray(each)) for each in scores], axis=0)
        if wanted.ndim == 2 and wanted.shape[1] > 1:
            # A score of each target, or the probability of its second class.
            middle = 0.5 if method == "predict_proba" else 0.0
            return np.any([_near(each - middle) for each in np.asarray(scores).T], axis=0)
        return _near(np.asarray(scores, np.float64))
    return np.zeros(len(wanted), bool)


def _near(scores: Array) -> Array:
    pair = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else np.sort(scores, axis=1)
    near = np.abs(pair[:, -1] - pair[:, -2])
    return np.asarray(near <= TIED * max(1.0, float(np.abs(scores).max())))
