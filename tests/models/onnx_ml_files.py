"""Files of fitted estimators in ONNX: kinds of skl2onnx, onnxmltools, and CatBoost's own export.

    KINDS    how each is made, by name
    made     the file and the X for which it is compared
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
import skl2onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import (
    calibration,
    cluster,
    compose,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

from sparsejit.ir.values import Array

ROWS, FEATURES = 200, 5
_random = np.random.default_rng(5)
X = _random.standard_normal((ROWS, FEATURES)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
WHOLE = _random.integers(0, 4, (ROWS, 3))
MISSING = np.where(_random.random(X.shape) < 0.1, np.float32(np.nan), X)
WORDS = np.array(["red", "green", "blue"], object)[_random.integers(0, 3, (ROWS, 2))]
PAIR = (X[:, 0] + X[:, 1] > 0).astype(int)
TRIPLE = np.digitize(X[:, 0] + X[:, 2], [-0.7, 0.7])
NAMES = np.array(["none", "some", "many"])[TRIPLE]
REAL = 2 * X[:, 0] + X[:, 1]
TWO = np.stack([REAL, X[:, 2] - X[:, 3]], axis=1)


class Kind(NamedTuple):
    """An estimator, the X and y of its fit, and options of its conversion."""

    estimator: Any
    x: Array = X
    y: Array = TRIPLE
    options: Any = None


_of_reals = partial(Kind, y=REAL)
_of_counts = partial(Kind, x=POSITIVE, y=np.abs(REAL) + 0.1)
_trees = {"n_estimators": 4, "max_depth": 4, "random_state": 1}
_two_parts = [
    ("line", linear_model.Ridge()),
    ("tree", tree.DecisionTreeRegressor(max_depth=3)),
]
# Estimators of skl2onnx by name.
ESTIMATORS: dict[str, Kind] = {
    "logistic regression of words": Kind(linear_model.LogisticRegression(), y=NAMES),
    "logistic regression of two": Kind(linear_model.LogisticRegression(), y=PAIR),
    "logistic regression without dicts": Kind(
        linear_model.LogisticRegression(), options={"zipmap": False}
    ),
    "logistic regression in columns": Kind(
        linear_model.LogisticRegression(), y=NAMES, options={"zipmap": "columns"}
    ),
    "linear regression": _of_reals(linear_model.LinearRegression()),
    "ridge of two": Kind(linear_model.Ridge(), y=TWO),
    "poisson": _of_counts(linear_model.PoissonRegressor()),
    "tweedie": _of_counts(linear_model.TweedieRegressor(power=1.5)),
    "ransac": _of_reals(linear_model.RANSACRegressor(random_state=1)),
    "sgd": Kind(linear_model.SGDClassifier(random_state=1)),
    "perceptron": Kind(linear_model.Perceptron(random_state=1)),
    "linear support": Kind(svm.LinearSVC()),
    "support of radial functions": Kind(svm.SVC(), y=NAMES),
    "support of two": Kind(svm.SVC(kernel="poly"), y=PAIR),
    "support of sigmoids": Kind(svm.NuSVC(kernel="sigmoid")),
    "support of coupled pairs": Kind(svm.SVC(probability=True, random_state=1)),
    "support regression": _of_reals(svm.SVR()),
    "support of one class": Kind(svm.OneClassSVM()),
    "tree": Kind(tree.DecisionTreeClassifier(max_depth=4, random_state=1), y=NAMES),
    "tree regression": _of_reals(tree.DecisionTreeRegressor(max_depth=4, random_state=1)),
    "forest": Kind(ensemble.RandomForestClassifier(**_trees)),
    "forest of two words": Kind(ensemble.RandomForestClassifier(**_trees), y=NAMES[PAIR * 1]),
    "forest regression of two": Kind(ensemble.RandomForestRegressor(**_trees), y=TWO),
    "extra trees": Kind(ensemble.ExtraTreesClassifier(**_trees)),
    "boosting": Kind(ensemble.GradientBoostingClassifier(**_trees)),
    "boosting of two": Kind(ensemble.GradientBoostingClassifier(**_trees), y=PAIR),
    "boosting regression": _of_reals(ensemble.GradientBoostingRegressor(**_trees)),
    "ada": Kind(ensemble.AdaBoostClassifier(n_estimators=3, random_state=1)),
    "bagging": Kind(ensemble.BaggingClassifier(n_estimators=3, random_state=1)),
    "voting": _of_reals(ensemble.VotingRegressor(_two_parts)),
    "stacking": _of_reals(ensemble.StackingRegressor(_two_parts)),
    "neighbours": Kind(neighbors.KNeighborsClassifier(3)),
    "neighbours regression": _of_reals(neighbors.KNeighborsRegressor(3)),
    "gaussian bayes": Kind(naive_bayes.GaussianNB()),
    "multinomial bayes": Kind(naive_bayes.MultinomialNB(), x=POSITIVE),
    "categorical bayes": Kind(naive_bayes.CategoricalNB(), x=WHOLE),
    "discriminant": Kind(discriminant_analysis.LinearDiscriminantAnalysis()),
    "quadratic discriminant": Kind(discriminant_analysis.QuadraticDiscriminantAnalysis()),
    "perceptron of layers": Kind(neural_network.MLPClassifier([8], max_iter=20, random_state=1)),
    "calibrated": Kind(calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2)),
    "one against rest": Kind(multiclass.OneVsRestClassifier(linear_model.LogisticRegression())),
    "one against one": Kind(multiclass.OneVsOneClassifier(linear_model.LogisticRegression())),
    "several outputs": Kind(multioutput.MultiOutputRegressor(linear_model.Ridge()), y=TWO),
    "several classifiers": Kind(
        multioutput.MultiOutputClassifier(linear_model.LogisticRegression()),
        y=np.stack([PAIR, TRIPLE], axis=1),
    ),
    "gaussian process": _of_reals(gaussian_process.GaussianProcessRegressor(alpha=10.0)),
    "least squares": Kind(cross_decomposition.PLSRegression(2), y=TWO),
    "means": Kind(cluster.KMeans(3, n_init=1, random_state=1)),
    "mixture": Kind(mixture.GaussianMixture(2, random_state=1)),
    "scaler": Kind(preprocessing.StandardScaler()),
    "normalizer": Kind(preprocessing.Normalizer("l1")),
    "binarizer": Kind(preprocessing.Binarizer(threshold=0.3)),
    "polynomials": Kind(preprocessing.PolynomialFeatures(2)),
    "power": Kind(preprocessing.PowerTransformer()),
    "bins": Kind(preprocessing.KBinsDiscretizer(4, encode="onehot-dense")),
    "components": Kind(decomposition.PCA(3)),
    "kernel components": Kind(decomposition.KernelPCA(3, kernel="rbf")),
    "best columns": Kind(feature_selection.SelectKBest(k=2)),
    "imputer": Kind(impute.SimpleImputer(), x=MISSING),
    "one hot of words": Kind(
        preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False), x=WORDS
    ),
    "one hot of numbers": Kind(preprocessing.OneHotEncoder(sparse_output=False), x=WHOLE),
    "places of words": Kind(preprocessing.OrdinalEncoder(), x=WORDS),
    "scaled components": Kind(
        pipeline.make_pipeline(
            preprocessing.StandardScaler(), decomposition.PCA(3), linear_model.LogisticRegression()
        )
    ),
    "filled forest": Kind(
        pipeline.make_pipeline(impute.SimpleImputer(), ensemble.RandomForestClassifier(**_trees)),
        x=MISSING,
    ),
    "words to a model": Kind(
        pipeline.make_pipeline(
            compose.make_column_transformer(
                (preprocessing.OneHotEncoder(handle_unknown="ignore"), [0, 1])
            ),
            linear_model.LogisticRegression(),
        ),
        x=WORDS,
        y=NAMES,
    ),
}


def of_estimator(kind: Kind) -> Any:
    """The file that skl2onnx makes of a fitted estimator."""
    x = kind.x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = kind.estimator.fit(x, kind.y)
        types = {"O": StringTensorType, "i": Int64TensorType}
        if x.dtype.kind in types:
            given: dict[str, Any] = {
                "initial_types": [("X", types[x.dtype.kind]([None, x.shape[1]]))]
            }
        else:
            given = {"X": x[:1]}
        return skl2onnx.to_onnx(fitted, options=kind.options, **given)


def _xgboost(name: str, y: Array, **given: Any) -> Any:
    import xgboost
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    fitted = getattr(xgboost, name)(n_estimators=4, max_depth=4, **given).fit(MISSING, y)
    return convert_xgboost(fitted, initial_types=[("X", FloatTensorType([None, FEATURES]))])


def _lightgbm(name: str, y: Array, **given: Any) -> Any:
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    fitted = getattr(lightgbm, name)(n_estimators=4, verbose=-1, **given).fit(MISSING, y)
    return convert_lightgbm(fitted, initial_types=[("X", FloatTensorType([None, FEATURES]))])


def _catboost(name: str, y: Array) -> Any:
    import catboost

    with TemporaryDirectory() as folder:
        made = getattr(catboost, name)(
            iterations=4, verbose=0, allow_writing_files=False, thread_count=1
        )
        path = Path(folder) / "made.onnx"
        made.fit(MISSING, y).save_model(str(path), format="onnx")
        return onnx.load(str(path))


# Files of boosters by name.
BOOSTERS: dict[str, Callable[[], Any]] = {
    "xgboost of two": partial(_xgboost, "XGBClassifier", PAIR),
    "xgboost of three": partial(_xgboost, "XGBClassifier", TRIPLE),
    "xgboost regression": partial(_xgboost, "XGBRegressor", REAL),
    "xgboost of counts": partial(
        _xgboost, "XGBRegressor", np.abs(REAL), objective="count:poisson"
    ),
    "lightgbm of two": partial(_lightgbm, "LGBMClassifier", PAIR),
    "lightgbm of three": partial(_lightgbm, "LGBMClassifier", TRIPLE),
    "lightgbm regression": partial(_lightgbm, "LGBMRegressor", REAL),
    "catboost of two": partial(_catboost, "CatBoostClassifier", PAIR),
    "catboost of words": partial(_catboost, "CatBoostClassifier", NAMES),
    "catboost regression": partial(_catboost, "CatBoostRegressor", REAL),
}
KINDS = (*ESTIMATORS, *BOOSTERS)


def made(name: str) -> tuple[Any, Array]:
    """A file, and the X for which it is compared."""
    logging.disable(logging.WARNING)
    try:
        if name in BOOSTERS:
            return BOOSTERS[name](), MISSING
        return of_estimator(ESTIMATORS[name]), ESTIMATORS[name].x
    finally:
        logging.disable(logging.NOTSET)


def of_columns() -> tuple[Any, list[Array]]:
    """A file with an input for each column of a frame, and the columns: floats, words, numbers."""
    import pandas

    columns = {"size": X[:, 0], "colour": WORDS[:, 0], "count": WHOLE[:, 0]}
    frame = pandas.DataFrame(columns)
    model = pipeline.make_pipeline(
        compose.make_column_transformer(
            (preprocessing.StandardScaler(), ["size"]),
            (preprocessing.OneHotEncoder(handle_unknown="ignore"), ["colour"]),
            ("passthrough", ["count"]),
        ),
        ensemble.GradientBoostingClassifier(**_trees),
    ).fit(frame, NAMES)
    types = (FloatTensorType([None, 1]), StringTensorType([None, 1]), Int64TensorType([None, 1]))
    file = skl2onnx.to_onnx(model, initial_types=list(zip(columns, types, strict=True)))
    return file, [column.reshape(-1, 1) for column in columns.values()]
