"""Estimators that contain others, as chains of steps from X to an estimator that predicts.

    Pipeline([scaler, VotingClassifier([a, Pipeline([PCA, b])])])  ->  [scaler, a], [scaler, PCA, b]

Behind a step that mixes columns, no column depends on one column of X alone. Such steps are
decompositions, and `Stack`: the predictions that a stacking estimator's final estimator reads, or,
behind X, an estimator of a chain (`Link`). A `TakenColumns` is before estimators that read some
columns of X, as parts of a BaggingClassifier do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

VOTES = frozenset({"VotingClassifier", "VotingRegressor"})
STACKS = frozenset({"StackingClassifier", "StackingRegressor"})
CALIBRATED = frozenset({"CalibratedClassifierCV"})
BAGS = frozenset({"BaggingClassifier", "BaggingRegressor"})
ADAPTIVE = frozenset({"AdaBoostClassifier", "AdaBoostRegressor"})
EMBEDDINGS = frozenset({"RandomTreesEmbedding"})
CHAINS = frozenset({"ClassifierChain", "RegressorChain"})
# Estimators made of others that read their X: the attribute that has these, a list or one.
MADE_OF = {
    **dict.fromkeys((*VOTES, *STACKS, *BAGS, *ADAPTIVE, *EMBEDDINGS, *CHAINS), "estimators_"),
    **dict.fromkeys(CALIBRATED, "calibrated_classifiers_"),
    **dict.fromkeys(("OneVsOneClassifier", "OneVsRestClassifier"), "estimators_"),
    **dict.fromkeys(("MultiOutputClassifier", "MultiOutputRegressor"), "estimators_"),
    "OutputCodeClassifier": "estimators_",
    "TransformedTargetRegressor": "regressor_",
    **dict.fromkeys(("FixedThresholdClassifier", "TunedThresholdClassifierCV"), "estimator_"),
}
ENSEMBLES = frozenset(MADE_OF)
_CONSTANT = "_ConstantPredictor"  # of a label that all samples of a fit have, or none
DECOMPOSITIONS = frozenset({"IncrementalPCA", "PCA", "TruncatedSVD"})
# Single trees, and forests of such trees.
SINGLE_TREES = {
    "DecisionTreeClassifier": "RandomForestClassifier",
    "DecisionTreeRegressor": "RandomForestRegressor",
    "ExtraTreeClassifier": "ExtraTreesClassifier",
    "ExtraTreeRegressor": "ExtraTreesRegressor",
}
# Models of `own_models.MODELS` whose columns others may read.
MAPPING = frozenset(
    """
    AdditiveChi2Sampler BernoulliRBM BisectingKMeans Birch CCA FactorAnalysis FastICA
    FeatureAgglomeration GaussianRandomProjection Isomap KMeans KNNImputer KNeighborsTransformer
    KernelCenterer KernelPCA LinearDiscriminantAnalysis MiniBatchKMeans MiniBatchSparsePCA
    NeighborhoodComponentsAnalysis Nystroem PLSCanonical PLSRegression PLSSVD
    PolynomialCountSketch RBFSampler RadiusNeighborsTransformer SkewedChi2Sampler SparsePCA
    SparseRandomProjection TfidfTransformer
    """.split()
)
# Estimators that predict with an inner estimator, and its attribute.
_HOLDERS = {
    "FrozenEstimator": "estimator",
    **dict.fromkeys(
        ("GridSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV", "RandomizedSearchCV"),
        "best_estimator_",
    ),
    **dict.fromkeys(("RANSACRegressor", "SelfTrainingClassifier"), "estimator_"),
}


@dataclass(frozen=True, eq=False)
class Stack:
    """A step from X to the predictions of a stacking estimator's first estimators.

    `writes` write the predictions, each float32 (batch, columns), from X on; `before` are the steps
    between X and the columns of X that it passes on.
    """

    estimator: Any
    before: tuple[Any, ...] = ()
    writes: tuple[Callable[[Any], Any], ...] = ()

    @property
    def passes_x(self) -> bool:
        """Whether columns of X follow the predictions."""
        return bool(self.estimator.passthrough)


@dataclass(frozen=True, eq=False)
class Link(Stack):
    """A step from X to columns of X, as float64, and predictions of a chain's first estimators.

    It returns `n_features_out` columns, of which the last `predicted` are predictions.
    """

    predicted: int = 0
    n_features_out: int = 0

    @property
    def passes_x(self) -> bool:
        """False: columns of X precede the predictions, and no step is between."""
        return False

    @property
    def is_exact(self) -> bool:
        """Whether predictions are labels, or numbers of single leaves, to the last bit."""
        if hasattr(self.estimator, "classes_"):
            return getattr(self.estimator, "chain_method_", "predict") == "predict"
        first = self.estimator.estimators_[: self.predicted]
        return all(_kind(part) in SINGLE_TREES for part in first)


@dataclass(frozen=True, eq=False)
class TakenColumns:
    """A step that takes columns by number, which may repeat.

    With `is_checked` it refuses values that are missing or infinite.
    """

    columns: Array
    n_features_in_: int
    is_checked: bool = False

    def get_support(self, indices: bool = True) -> Array:
        """The numbers of the columns, as selectors of scikit-learn have them."""
        return self.columns


@dataclass(frozen=True, eq=False)
class Mapped:
    """A step of `MAPPING`, and the function that writes its columns from the current ones."""

    step: Any
    write: Callable[[Any], Any]

    @property
    def columns(self) -> int:
        return columns_of(self.step)


def columns_of(step: Any) -> int:
    """The number of columns of a step that mixes columns."""
    if isinstance(step, Link):
        return step.n_features_out
    if isinstance(step, Mapped):
        return step.columns
    count = getattr(step, "_n_features_out", None)
    if count is not None:
        return int(count)
    return len(step.get_feature_names_out())


def is_pipeline(estimator: Any) -> bool:
    return _kind(estimator) == "Pipeline"


def is_mixing(step: Any) -> bool:
    """Whether a column of the step's result may depend on several columns."""
    return isinstance(step, Stack | Mapped) or _kind(step) in DECOMPOSITIONS | MAPPING


def held(estimator: Any) -> Any:
    """The estimator that predicts: this one, or the one that a search or FrozenEstimator holds."""
    while (name := _HOLDERS.get(_kind(estimator))) is not None:
        if not hasattr(estimator, name):
            raise InvalidInput(
                f"the {_kind(estimator)} has no {name}; fit it, with refit=True, first"
            )
        estimator = getattr(estimator, name)
    return estimator


def parts_of_ensemble(estimator: Any) -> list[Any]:
    """The fitted estimators that read an ensemble's X. Raises InvalidInput if it is not fitted."""
    kind = _kind(estimator)
    if not hasattr(estimator, MADE_OF[kind]):
        raise InvalidInput(f"the {kind} is not fitted; call its fit(X, y) first")
    found = getattr(estimator, MADE_OF[kind])
    if kind in CALIBRATED:
        return [each.estimator for each in found]
    return list(found) if isinstance(found, list | tuple) else [found]


def is_constant(part: Any) -> bool:
    """Whether a part predicts one number, whatever X is."""
    return _kind(part) == _CONSTANT


def steps_and_parts(estimator: Any) -> list[tuple[list[Any], Any]]:
    """The parts of an ensemble, each with the steps that the ensemble puts before it."""
    kind, parts = _kind(estimator), parts_of_ensemble(estimator)
    if kind in BAGS:
        return [
            (_taken(estimator, columns), part)
            for columns, part in zip(estimator.estimators_features_, parts, strict=True)
        ]
    every = np.arange(getattr(estimator, "n_features_in_", 0))
    if kind in CHAINS:
        links = [Link(estimator, (), (), n, len(every) + n) for n in range(len(parts))]
        return [([link], part) for link, part in zip(links, parts, strict=True)]
    if kind in ADAPTIVE:
        return [([TakenColumns(every, len(every), True)], part) for part in parts]
    return [([], part) for part in parts]


def _taken(estimator: Any, columns: Any) -> list[Any]:
    features, numbers = int(estimator.n_features_in_), np.asarray(columns)
    if np.array_equal(numbers, np.arange(features)):
        return []
    return [TakenColumns(numbers, features)]


def targets_of(estimator: Any) -> tuple[tuple[Array, ...] | None, bool]:
    """The classes of each column of y, None for one column, and whether probabilities are apart.

    A chain of classifiers predicts numbers, and the probabilities of all columns as one array.
    """
    last = held(estimator)
    while is_pipeline(last):
        last = held(last.steps[-1][1])
    classes = getattr(last, "classes_", None)
    if not isinstance(classes, list):
        return None, False
    targets = [np.asarray(each) for each in classes]
    is_chain = _kind(last) in CHAINS
    dtype = np.dtype(np.float64) if is_chain else np.result_type(*targets)
    return tuple(each.astype(dtype) for each in targets), not is_chain


def is_bag_of_trees(estimator: Any) -> bool:
    """Whether an estimator is made of single trees alone, which are read as one forest."""
    if _kind(estimator) not in BAGS | ADAPTIVE | EMBEDDINGS:
        return False
    return all(_kind(part) in SINGLE_TREES for part in parts_of_ensemble(estimator))


def steps_of(pipeline: Any) -> tuple[list[Any], Any]:
    """The steps before the last of a pipeline, with the steps of inner pipelines, and the last."""
    stages = [held(stage) for _, stage in pipeline.steps if stage not in (None, "passthrough")]
    if not stages:
        raise InvalidInput("the Pipeline has no steps; add a scaler or an estimator")
    before = []
    for stage in stages[:-1]:
        inner, last = steps_of(stage) if is_pipeline(stage) else ([], stage)
        before += [*inner, last]
    return before, stages[-1]


def chains_of(estimator: Any) -> list[list[Any]]:
    """Every chain of steps from X to an estimator that predicts, also inside of stacks.

    Raises InvalidInput for an estimator that is not fitted.
    """
    estimator = held(estimator)
    if is_pipeline(estimator):
        before, last = steps_of(estimator)
        return [[*before, *chain] for chain in chains_of(last)]
    if _kind(estimator) in STACKS:
        behind = [[Stack(estimator), *chain] for chain in chains_of(estimator.final_estimator_)]
    elif _kind(estimator) in ENSEMBLES and not is_bag_of_trees(estimator):
        behind = []
    else:
        return [[estimator]]
    for before, part in steps_and_parts(estimator):
        if not is_constant(part):
            behind += [[*before, *chain] for chain in chains_of(part)]
    if not behind:
        raise InvalidInput(
            f"each label of the {_kind(estimator)} is the same for all samples of its fit; give "
            "labels that differ"
        )
    return behind


def linear_map(step: Any) -> tuple[Array, Array]:
    """A decomposition's weights (components, features) and bias, float64.

    Computed as in `_base.py` and `_truncated_svd.py` of sklearn.decomposition.
    """
    weights = np.asarray(step.components_, np.float64)
    bias = np.zeros(len(weights))
    if _kind(step) != "TruncatedSVD":
        bias = -(np.asarray(step.mean_, np.float64) @ weights.T)
        if step.whiten:
            spread = np.sqrt(np.asarray(step.explained_variance_))
            spread = np.maximum(spread, np.finfo(spread.dtype).eps).astype(np.float64)
            weights, bias = weights / spread[:, None], bias / spread
    return weights, bias


def _kind(estimator: Any) -> str:
    """The name of the estimator's class; empty for libraries other than scikit-learn."""
    kind = type(estimator)
    return kind.__name__ if kind.__module__.split(".")[0] == "sklearn" else ""
