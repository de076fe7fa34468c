"""Which estimators of the installed scikit-learn compile: each fitted, compiled and compared.

    tried_estimators    every estimator of `all_estimators`, with its outcome
    markdown            the table of them, and shares of each kind

An estimator is fitted with its defaults to few rows. All its methods that compiled estimators have
must give what the library gives: labels exactly, other numbers within 2e-6 of the largest.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.compiling import compile_model
from sparsejit.errors import SparseJitError
from sparsejit.estimators.source import METHODS
from sparsejit.ir.values import Array

_ROWS, _FEATURES = 80, 4
_CLOSE = 2e-6  # of the largest number
# Parameters that most estimators have, so that each is fitted in a moment, always alike.
_SMALL = {"n_estimators": 5, "random_state": 0, "n_init": 1, "cv": 2}
# Kinds by scikit-learn's names of them, in the order of the table.
KINDS = ("classifier", "regressor", "clusterer", "outlier_detector", "transformer", "other")
_TITLES = {
    "classifier": "classifiers",
    "regressor": "regressors",
    "clusterer": "clusterers",
    "outlier_detector": "outlier detectors",
    "transformer": "transformers",
    "other": "others",
}


@dataclass(frozen=True)
class TriedEstimator:
    """An estimator: its kind, and the methods that compile, or the reason why none does."""

    name: str
    kind: str
    methods: tuple[str, ...]
    reason: str = ""

    @property
    def is_asked(self) -> bool:
        """Whether it answers for new rows at all."""
        return self.reason != _NO_METHOD


_NO_METHOD = "has no method for new rows"


def _linear() -> tuple[Any, Any]:
    from sklearn.linear_model import LogisticRegression, Ridge

    return LogisticRegression(), Ridge()


def _parts(name: str) -> dict[str, Any]:
    """Arguments of an estimator that has no defaults, or whose defaults do not fit few rows."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    classifier, regressor = _linear()
    last = classifier if "Classifi" in name else regressor
    if name in ("GridSearchCV", "HalvingGridSearchCV"):
        return {"estimator": classifier, "param_grid": {"C": [1.0, 2.0]}}
    if name in ("RandomizedSearchCV", "HalvingRandomSearchCV"):
        return {"estimator": classifier, "param_distributions": {"C": [1.0, 2.0]}}
    given: dict[str, dict[str, Any]] = {
        "ColumnTransformer": {"transformers": [("a", StandardScaler(), [0, 1])]},
        "FeatureUnion": {"transformer_list": [("a", StandardScaler()), ("b", MinMaxScaler())]},
        "FrozenEstimator": {"estimator": classifier.fit(*_numbers())},
        "Pipeline": {"steps": [("a", StandardScaler()), ("b", classifier)]},
        "SparseCoder": {"dictionary": np.eye(_FEATURES)},
        "GaussianRandomProjection": {"n_components": 2},
        "SparseRandomProjection": {"n_components": 2},
        "LocalOutlierFactor": {"novelty": True},
        "SelfTrainingClassifier": {"estimator": classifier},
        "SequentialFeatureSelector": {"estimator": classifier, "n_features_to_select": 2},
    }
    if name.startswith(("Voting", "Stacking")):
        return {"estimators": [("a", last), ("b", type(last)())]}
    if name in ("RFE", "RFECV", "SelectFromModel"):
        return {"estimator": classifier}
    return given.get(name, {"estimator": last})


# Estimators that are given arguments, though they have defaults.
_GIVEN = (
    *("GaussianRandomProjection", "LocalOutlierFactor", "SelfTrainingClassifier"),
    "SparseRandomProjection",
)
_OF_TWO_CLASSES = ("FixedThresholdClassifier", "TunedThresholdClassifierCV")
_OF_POSITIVES = ("CategoricalNB", "ComplementNB", "MultinomialNB", "SkewedChi2Sampler")
_OF_MISSING = ("KNNImputer", "MissingIndicator")
_OF_TWO_TARGETS = ("CCA", "PLSCanonical", "PLSRegression", "PLSSVD")


def _numbers() -> tuple[Array, Array]:
    """X, and three classes of it."""
    x = np.random.default_rng(3).standard_normal((_ROWS, _FEATURES)).round(3)
    return x, np.digitize(x[:, 0] + x[:, 1], [-0.6, 0.6])


def _data(name: str, estimator: Any) -> tuple[Any, Any]:
    """X and y for a fit, by the tags of the estimator."""
    from sklearn.utils import get_tags

    tags, (x, y) = get_tags(estimator), _numbers()
    if tags.input_tags.positive_only or name in _OF_POSITIVES:
        x = np.abs(x) + 0.1
    if name == "CategoricalNB":
        x = x.round()
    if name in _OF_MISSING:
        x[np.random.default_rng(4).random(x.shape) < 0.1] = np.nan
    if tags.input_tags.string and not tags.input_tags.two_d_array:
        return [f"{'red' if n % 2 else 'blue'} word{n % 3}" for n in range(_ROWS)], y
    if tags.input_tags.dict:
        return [{"a": float(n % 3), "b": float(n % 5)} for n in range(_ROWS)], y
    if name in ("LabelBinarizer", "LabelEncoder"):
        return y, None
    if name == "KernelCenterer":
        return x @ x.T, None
    if name in _OF_TWO_CLASSES:
        return x, (y > 1).astype(int)
    if name == "MultiLabelBinarizer":
        return [[int(label)] for label in y], None
    if name == "IsotonicRegression":
        return x[:, 0], x[:, 1]
    multiple = tags.target_tags.multi_output and not tags.target_tags.single_output
    if multiple or name in _OF_TWO_TARGETS:
        both = np.stack([x[:, 0], x[:, 1]], axis=1)
        return x, (np.stack([y, y > 1], axis=1) if tags.classifier_tags else both)
    if tags.regressor_tags is not None:
        target = 2 * x[:, 0] + x[:, 1]
        return x, np.abs(target) + 0.1 if tags.target_tags.positive_only else target
    return x, y


def _made(name: str, kind: type) -> Any:
    parameters = inspect.signature(kind).parameters
    needs = any(
        each.default is inspect.Parameter.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        for each in parameters.values()
    )
    made = kind(**_parts(name)) if needs or name in _GIVEN else kind()
    made.set_params(**{n: v for n, v in _SMALL.items() if n in parameters})
    return made


def _kind_of(estimator: Any) -> str:
    from sklearn.utils import get_tags

    found = get_tags(estimator).estimator_type
    if found in KINDS:
        return str(found)
    return "transformer" if hasattr(estimator, "transform") else "other"


def _differs(name: str, got: Any, wanted: Any) -> str:
    """A word about a difference, "" where there is none."""
    if hasattr(wanted, "toarray"):
        wanted = wanted.toarray()
    if hasattr(got, "toarray"):
        got = got.toarray()
    if isinstance(wanted, list):
        return "" if _agree(got, wanted) else f"{name} differs"
    wanted, got = np.asarray(wanted), np.asarray(got)
    if got.shape != wanted.shape:
        return f"{name} has shape {got.shape}, not {wanted.shape}"
    if wanted.dtype.kind != "f":
        same = np.array_equal(got, wanted)
        return "" if same else f"{name} differs in {np.count_nonzero(got != wanted)} places"
    size = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    near = np.allclose(got, wanted, rtol=0.0, atol=_CLOSE * max(size, 1e-30), equal_nan=True)
    return "" if near else f"{name} differs by {np.nanmax(np.abs(got - wanted)) / size:.0e}"


def _agree(got: Sequence[Any], wanted: Sequence[Any]) -> bool:
    pairs = zip(got, wanted, strict=True)
    return all(not _differs("", one, other) for one, other in pairs)


def _outcome(fitted: Any, x: Any) -> tuple[tuple[str, ...], str]:
    """The methods that compile and agree, or the reason of a refusal."""
    methods = [name for name in METHODS if hasattr(fitted, name)]
    if not methods:
        return (), _NO_METHOD
    try:
        compiled = compile_model(fitted)
    except SparseJitError as error:
        return (), _refusal(fitted, error)
    held = []
    for name in methods:
        if not hasattr(compiled, name):
            continue
        wanted = getattr(fitted, name)(x)
        try:
            found = getattr(compiled, name)(x)
        except SparseJitError as error:
            return (), _refusal(fitted, error)
        if difference := _differs(name, found, wanted):
            return (), f"WRONG: {difference}"
        held.append(name)
    return tuple(held), "" if held else f"has no {', '.join(methods)} when compiled"


def _refusal(fitted: Any, error: Exception) -> str:
    """The reason in a message, without its remedy and the estimator's own name."""
    own = f"{type(fitted).__module__}.{type(fitted).__name__} "
    reason = str(error).splitlines()[0].partition("; ")[0].removeprefix(own)
    return reason.removeprefix(f"the {type(fitted).__name__} ")


def tried(name: str, kind: type) -> TriedEstimator:
    """Fit an estimator, compile it, and compare its methods."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        estimator = _made(name, kind)
        own = _kind_of(estimator)
        x, y = _data(name, estimator)
        fitted = estimator.fit(x) if y is None else estimator.fit(x, y)
        return TriedEstimator(name, own, *_outcome(fitted, x))


def tried_estimators(names: Iterable[str] | None = None) -> list[TriedEstimator]:
    """All estimators of the installed scikit-learn, or the ones of these names."""
    from sklearn.utils import all_estimators

    wanted = None if names is None else set(names)
    return [tried(*each) for each in all_estimators() if wanted is None or each[0] in wanted]


def shares(rows: Sequence[TriedEstimator]) -> Mapping[str, tuple[int, int]]:
    """For each kind the number of estimators that compile, and of all that answer for new rows."""
    return {
        kind: (
            sum(bool(row.methods) for row in rows if row.kind == kind),
            sum(row.is_asked for row in rows if row.kind == kind),
        )
        for kind in KINDS
    }


def markdown(rows: Sequence[TriedEstimator]) -> list[str]:
    """The shares, and the table of all estimators, in Markdown."""
    import sklearn

    head = ["| kind | compile | of | |", "|---|---|---|---|"]
    lines = [f"scikit-learn {sklearn.__version__}:", "", *head]
    for kind, (held, asked) in shares(rows).items():
        lines.append(f"| {_TITLES[kind]} | {held} | {asked} | {100 * held // max(asked, 1)} % |")
    for kind in KINDS:
        title = _TITLES[kind].capitalize()
        lines += ["", f"## {title}", "", "| estimator | compiled |", "|---|---|"]
        for row in rows:
            if row.kind == kind:
                shown = ", ".join(f"`{name}`" for name in row.methods)
                reason = row.reason.replace("|", "/")
                lines.append(f"| `{row.name}` | {shown or f'no: {reason}'} |")
    return lines
