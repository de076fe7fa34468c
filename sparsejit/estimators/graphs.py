"""Fitted estimators of scikit-learn as graphs, one for each method that predicts.

    steps of a pipeline -> hidden layers of a perceptron -> scores -> result of the method

Ensembles write their parts, each from X on, and combine the parts' results. `predict` of a
classifier returns places in `classes_`, since labels may have any type; for several labels it
returns a bool for each. Parameters are rounded to float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.catboost_models import columns_of_catboost, is_catboost, read_catboost
from sparsejit.estimators.category_hashes import HashColumns
from sparsejit.estimators.column_steps import (
    COLUMN_STEPS,
    SELECTORS,
    each_step,
    inner_steps,
    is_identity,
    parts_of,
)
from sparsejit.estimators.ensembles import MethodsOf
from sparsejit.estimators.exact_scaling import COMPARING, GIVEN, SCALERS, has_scaler
from sparsejit.estimators.forest_bags import read_bag
from sparsejit.estimators.forest_contributions import contribution_methods
from sparsejit.estimators.forest_pipelines import BEFORE_FORESTS, behind
from sparsejit.estimators.forest_reading import ReadForest, has_frame_categories, read_forest
from sparsejit.estimators.forest_rounds import BY_OPTION
from sparsejit.estimators.forests import (
    FORESTS,
    features_of,
    forest_methods,
    forest_sum,
    is_forest,
    isolation_methods,
    optional_methods,
    read_isolation,
    wide_scores,
)
from sparsejit.estimators.inputs import EstimatorInput, Refusals, word_columns_of
from sparsejit.estimators.label_encoders import LABEL_ENCODERS, column_of_labels
from sparsejit.estimators.left_out_zeros import LeftOut, left_out_of
from sparsejit.estimators.lifting import REPLACED, NumberColumn, lifted
from sparsejit.estimators.linear_boosters import is_linear_booster, read_linear_booster
from sparsejit.estimators.linear_models import LINEAR, PERCEPTRONS, linear_methods
from sparsejit.estimators.meta_estimators import bag_methods, meta_methods
from sparsejit.estimators.own_models import MODELS, as_step
from sparsejit.estimators.parts import (
    DECOMPOSITIONS,
    ENSEMBLES,
    MAPPING,
    Link,
    Stack,
    TakenColumns,
    chains_of,
    columns_of,
    held,
    is_bag_of_trees,
    is_mixing,
    is_pipeline,
    linear_map,
    steps_of,
)
from sparsejit.estimators.text import VECTORISERS, TextColumn, TextReader, text_of
from sparsejit.estimators.text_columns import texts_of_columns
from sparsejit.estimators.traced_functions import is_function, read_function
from sparsejit.estimators.transformers import WRITTEN
from sparsejit.estimators.writer import MOST_DOUBLES, EstimatorWriter, Write
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, Element, TensorType, Value

_KNOWN = LINEAR | frozenset(SCALERS) | frozenset(MODELS)
_ISOLATION = "IsolationForest"
# Steps that may stand before them, columnwise ones first; each has a graph of its own too.
_APART = frozenset(SCALERS) | SELECTORS | COLUMN_STEPS | {"SimpleImputer"} | WRITTEN.keys()
_STEPS = _APART | DECOMPOSITIONS | MAPPING
_OF_ONE_COLUMN = LABEL_ENCODERS.keys() | {"IsotonicRegression"}
_OWN = {TakenColumns.__name__}  # steps that no library has

# Steps that compute other numbers.
_COMPUTING = DECOMPOSITIONS | MAPPING | {
    *("Normalizer", "PolynomialFeatures", "PowerTransformer"),
    *("FunctionTransformer", "QuantileTransformer", "SplineTransformer"),
}

# The element of X, and whether X is sparse.
XKind: TypeAlias = tuple[Element, bool]


@dataclass(frozen=True, eq=False)
class ReadEstimator:
    """Everything that graphs need of a fitted estimator; fitting it again does not change this.

    `input` has the rules for X. `writes` has functions that write the methods, from X on, for X of
    each element that `input` reads, and for a sparse X if `input` reads it twice. `rounds` is the
    number of boosting rounds of a single forest, `numbers` are columns of codes behind X.
    """

    input: EstimatorInput
    writes: Mapping[XKind, Mapping[str, Write]]
    rounds: int = 0
    numbers: Sequence[NumberColumn] = ()

    def graphs(
        self, batch: int, element: Element = Element.FLOAT32, is_sparse: bool = False
    ) -> dict[str, Graph]:
        """A graph for each method that predicts, or transforms, by its name.

        The input X (batch, width of `input`) is of that element, float32 or, if `input` reads it,
        float64; a sparse X is twice as wide. Outputs have the shapes of the method's results, as
        float32, except for `predict`: a classifier returns int64 places in `classes_` (batch,), or
        bool (batch, labels) for several labels; an isolation forest int64 1 or -1 (batch,).
        """
        graphs = {}
        for method, write in self.writes[element, is_sparse].items():
            x = TensorType((batch, self.input.width), element)
            writer = EstimatorWriter(x, is_sparse, self.numbers, self.input.refusals.guards)
            graphs[method] = writer.finish(writer.guarded(write(writer)))
        return graphs


def read_estimator(estimator: Any) -> ReadEstimator:
    """Read an estimator. Raises InvalidInput if it is not fitted, or has no graph."""
    given, estimator = estimator, held(estimator)
    text = text_of(estimator)
    counted, texts = texts_of_columns(estimator)
    counted = column_of_labels(counted) if text is None else text.estimator
    first = chains_of(counted)[0][0]
    for chain in chains_of(counted):
        _check_kind(chain[-1], _KNOWN | _STEPS | REPLACED)
        _check_edges(chain, "")
    features = features_of(first.estimator if isinstance(first, Stack) else first)
    found, hashed = lifted(counted, features), _hashes_of(chains_of(counted))
    if hashed is not None:
        found = replace(found, words=hashed.columns)
    chains = chains_of(found.estimator)
    forests: _Forests = {}
    for chain in chains:
        _check_chain(chain)
        if is_forest(chain[-1]) and id(chain[-1]) not in forests:
            forests[id(chain[-1])] = _forest_of(chain)
    reads_float64 = any(_reads_float64(chain, forests) for chain in chains)
    is_column = type(estimator).__name__ in _OF_ONE_COLUMN
    is_dense = is_column or bool(texts)
    left_out = LeftOut.REFUSED if is_dense else left_out_of(chains, found.width)
    rules = EstimatorInput(
        type(estimator).__name__,
        "+".join(sorted({type(chain[-1]).__module__.split(".")[0] for chain in chains})),
        features,
        _names_of(estimator),
        reads_float64,
        Refusals.of(chains, found),
        left_out,
        found.reads_codes or not any(has_frame_categories(chain[-1]) for chain in chains),
        word_columns_of(found, chains) if hashed is None else hashed,
        None if text is None else text.reader,
        is_column,
        None if texts else _required(estimator, features),
    )
    rules = _with_texts(rules, texts, estimator)
    if text is not None:
        _check_text(text.reader, rules, chains[0][-1])
    elements = (Element.FLOAT32, *([Element.FLOAT64] if reads_float64 else []))
    writes = {}
    for kind in product(elements, (False, *([True] if left_out is LeftOut.BOTH else []))):
        methods = _methods_behind(forests, TensorType((1, found.width), kind[0]), kind[1])
        made = methods(found.estimator, ())
        names = [name for name in made if name in BY_OPTION or hasattr(given, name)]
        writes[kind] = {name: made[name] for name in names}
    last = forests.get(id(chains[0][-1])) if len(chains) == 1 else None
    return ReadEstimator(rules, writes, 0 if last is None else last.rounds, found.numbers)


def _hashes_of(chains: Sequence[Sequence[Any]]) -> HashColumns | None:
    """The columns of hashes of a model of CatBoost. Raises InvalidInput unless it stands alone."""
    every = [columns_of_catboost(chain[-1]) for chain in chains]
    if len(every) > 1 or len(chains[0]) > 1:
        if any(each is not None for each in every):
            raise InvalidInput(
                "a model of CatBoost with categories stands behind other steps, or beside other "
                "estimators; compile it by itself"
            )
        return None
    return every[0]


def _with_texts(
    rules: EstimatorInput, texts: tuple[TextColumn, ...], estimator: Any
) -> EstimatorInput:
    """The rules for X of an estimator of X, counts and codes."""
    if not texts:
        return rules
    if "xgboost" in rules.library and any(each.reader.alternates for each in texts):
        raise InvalidInput(
            "XGBoost takes a zero that hashes leave where signs cancel otherwise than a missing "
            "one; fit the HashingVectorizer with alternate_sign=False"
        )
    assert rules.words is not None  # texts are read as no numbers
    features = rules.features - sum(each.reader.width for each in texts)
    is_read = rules.words.is_read[:features].copy()
    is_read[[each.feature for each in texts]] = False
    words = replace(rules.words, features=features, is_read=is_read)
    return replace(
        rules,
        features=features,
        names=_names_of(estimator),
        refusals=rules.refusals.beside(texts, features),
        words=words,
        required=_required(estimator, features),
        text_columns=texts,
    )


def _required(estimator: Any, features: int) -> Array | None:
    """The features that a first ColumnTransformer chooses by name; None for another first step."""
    first = estimator
    while is_pipeline(first):
        first = held(first.steps[0][1])
    if type(first).__name__ != "ColumnTransformer" or not hasattr(first, "feature_names_in_"):
        return None
    parts = [part.columns for part in parts_of(first, features)]
    return np.unique(np.concatenate([np.arange(0), *parts]))


def _check_text(reader: TextReader, rules: EstimatorInput, last: Any) -> None:
    """Raise InvalidInput where a model does not take counts of texts as other numbers."""
    if rules.left_out is not LeftOut.ZERO:
        raise InvalidInput(
            f"the {type(last).__name__} takes zeros of a sparse matrix for missing, or takes none; "
            "let another model read counts of texts"
        )
    is_counted = not (reader.weights or reader.norm)
    if is_counted and np.isfinite(rules.refusals.least).any():
        raise InvalidInput(
            f"the {rules.name} gives whole counts to a sampler, which rounds its results down to "
            "whole numbers; use a TfidfVectorizer"
        )


# Forests as they are read, by id of their estimators.
_Forests = dict[int, ReadForest]


def _forest_of(chain: Sequence[Any]) -> ReadForest:
    """Read a chain's forest. Raises InvalidInput behind columns that are not exact enough."""
    *before, last = chain
    kind = type(last).__name__
    if any(getattr(step, "method", "") == "box-cox" for step in each_step(before)):
        raise InvalidInput(
            f"the PowerTransformer before the {kind} has method='box-cox', which refuses numbers "
            "that are not positive; fit it with method='yeo-johnson'"
        )
    forest = _read(last)
    mixing = [step for step in before if is_mixing(step)]
    for link in [step for step in mixing if isinstance(step, Link)]:
        if not (link.is_exact and forest.rounds_x):
            raise InvalidInput(
                f"the {kind} in a {type(link.estimator).__name__} compares predictions of other "
                "estimators to the last bit; make a linear model or a perceptron its estimator"
            )
        mixing.remove(link)
    if any(isinstance(step, Stack) for step in mixing):
        raise InvalidInput(
            f"the {kind} compares the predictions of other estimators to the last bit; make a "
            "linear model or a perceptron the final estimator"
        )
    if forest.linear is not None and any(is_mixing(step) for step in before):
        raise InvalidInput(
            f"the {kind} has linear trees, or is linear, and would multiply predictions or "
            "components in float32; fit it to X without such steps before"
        )
    if forest.linear is not None and before and not np.isnan(forest.missing):
        raise InvalidInput(
            f"the {kind} is linear, follows other steps, and has missing={forest.missing}; fit it "
            "with NaN for missing values"
        )
    for step in mixing:
        name = type(step).__name__
        if name in MAPPING:
            raise InvalidInput(
                f"the {kind} compares the columns of the {name} to the last bit; make a linear "
                "model or a perceptron the final estimator"
            )
        if not forest.rounds_x or linear_map(step)[0].size > MOST_DOUBLES:
            raise InvalidInput(
                f"the {kind} compares the float64 results of the {name}, whose last bit depends "
                "on the batch; let a forest of scikit-learn or XGBoost take it"
            )
        if step.components_.dtype != np.float64:
            raise InvalidInput(
                f"the {name} was fitted to float32, in which its products depend on the batch, and "
                f"the {kind} compares them; fit them to X.astype(np.float64)"
            )
    return forest


def _read(estimator: Any) -> ReadForest:
    """Read the trees of an estimator or booster."""
    if is_bag_of_trees(estimator):
        return read_bag(estimator)
    if is_catboost(estimator):
        return read_catboost(estimator)
    if type(estimator).__name__ == _ISOLATION:
        return read_isolation(estimator)
    if is_linear_booster(estimator):
        return read_linear_booster(estimator)
    return read_forest(estimator)


def _reads_float64(chain: Sequence[Any], forests: _Forests) -> bool:
    """Whether results depend on float64, as sums of large numbers that cancel do.

    The sums of a perceptron do not cancel so.
    """
    *before, last = chain
    rounds = is_forest(last) and forests[id(last)].rounds_x
    return bool(before) or not (rounds or type(last).__name__ in PERCEPTRONS)


def _methods_behind(forests: _Forests, x: TensorType, is_sparse: bool) -> MethodsOf:
    """A function that returns an estimator's methods behind steps, for X of the type x."""

    def methods_of(estimator: Any, before: Sequence[Any]) -> Mapping[str, Write]:
        estimator = held(estimator)
        if is_pipeline(estimator):
            own, last = steps_of(estimator)
            return methods_of(last, [*before, *map(as_step, own)])
        if type(estimator).__name__ in ENSEMBLES and not is_bag_of_trees(estimator):
            return meta_methods(estimator, before, methods_of)
        if not is_forest(estimator):
            return _behind(before, _own_methods(estimator))
        mixing = [number for number, step in enumerate(before) if is_mixing(step)]
        first = mixing[-1] + 1 if mixing else 0
        kind = x
        if mixing:
            kind = TensorType((1, columns_of(before[first - 1])), Element.FLOAT64)
        whole = is_sparse and not mixing  # behind a mixing step X is dense
        forest = behind(before[first:], kind, forests[id(estimator)], whole)
        if forest.linear is not None:
            linear = replace(forest.linear, steps=tuple(before[first:]))
            forest = replace(forest, linear=linear)
        if type(estimator).__name__ == _ISOLATION:
            return _behind(before[:first], isolation_methods(estimator, forest), whole)
        if is_bag_of_trees(estimator):
            of_bag = bag_methods(estimator, lambda writer: forest_sum(writer, forest))
            return _behind(before[:first], of_bag, whole)
        methods = forest_methods(estimator, forest) | optional_methods(estimator, forest)
        methods |= wide_scores(estimator, forest) | contribution_methods(estimator, forest)
        return _behind(before[:first], methods, whole)

    return methods_of


def _behind(
    steps: Sequence[Any], methods: Mapping[str, Write], is_whole: bool = False
) -> dict[str, Write]:
    """Functions that write each method of an estimator, after the steps before it."""

    def behind_all(write: Write) -> Write:
        def whole(writer: EstimatorWriter) -> Value:
            writer.begin(steps, is_whole)
            return write(writer)

        return whole

    return {name: behind_all(write) for name, write in methods.items()}


def _names_of(estimator: Any) -> tuple[Any, ...] | None:
    """The column names of the fit; None if there were none, or the library made them up."""
    names = getattr(estimator, "feature_names_in_", None)
    if is_catboost(estimator):
        names = estimator.feature_names_
        if [*names] == [str(number) for number in range(len(names))]:
            return None
    if names is None or [*names] == [f"Column_{n}" for n in range(len(names))]:
        return None
    return tuple(names)


def _check_chain(chain: Sequence[Any]) -> None:
    """Raise InvalidInput for a step or estimator that has no graph at its place in the chain."""
    *before, last = chain
    _check_kind(last, _KNOWN | _STEPS)
    features_of(last)
    mixing = [number for number, step in enumerate(before) if is_mixing(step)]
    first = mixing[-1] + 1 if mixing else 0
    _check_before(before[:first], _STEPS)
    apart = BEFORE_FORESTS | COLUMN_STEPS if is_forest(last) else _APART
    _check_before(before[first:], apart | DECOMPOSITIONS | MAPPING)
    inside = apart if is_forest(last) else apart | DECOMPOSITIONS | MAPPING
    _check_before(_inside([*before, last]), inside)
    passing = [number for number in mixing if isinstance(before[number], Stack)]
    if passing and before[passing[-1]].passes_x and passing[-1] + 1 < len(before):
        raise InvalidInput(
            f"the {type(before[passing[-1]].estimator).__name__} has passthrough=True, with steps "
            "before the final estimator; give a final estimator without steps"
        )


def _check_edges(steps: Sequence[Any], computed_by: str) -> str:
    """Return the name of a step that computes numbers, of these or before, else "".

    Raises InvalidInput for a step that compares such numbers: the last bit decides at its edges.
    """
    scaled_by = ""
    for step in steps:
        kind = type(step).__name__
        computed_by = computed_by or (scaled_by if COMPARING.get(kind) == GIVEN else "")
        if is_function(step):
            compares = bool(computed_by or scaled_by) and read_function(step).jumps
            computed_by = computed_by or scaled_by
        else:
            compares = kind in COMPARING
        if compares and computed_by and getattr(step, "binarize", 0.0) is not None:
            raise InvalidInput(
                f"the {kind} compares the results of the {computed_by} to the last bit; put it "
                f"before the {computed_by}, or leave it out"
            )
        inner = getattr(step, "transformers_", getattr(step, "transformer_list", ()))
        found = [_check_edges(inner_steps(each[1]), computed_by) for each in inner]
        scaled_by = scaled_by or (kind if has_scaler(step) else "")
        exact = is_identity(step) or (is_function(step) and read_function(step).is_exact)
        own = kind if kind in _COMPUTING and not exact else ""
        computed_by = computed_by or own or next(filter(None, found), "")
    return computed_by


def _check_kind(estimator: Any, known: frozenset[str]) -> None:
    """Raise InvalidInput unless an estimator is a forest, or of scikit-learn and known by name."""
    is_own = type(estimator).__module__.split(".")[0] == "sklearn"
    if not is_forest(estimator) and not (is_own and type(estimator).__name__ in known):
        raise _no_graph(estimator)


def _inside(steps: Sequence[Any]) -> list[Any]:
    """The steps inside of ColumnTransformers."""
    own = [step for step in steps if not isinstance(step, Stack)]
    return [step for step in each_step(own) if not any(step is each for each in own)]


def _check_before(steps: Sequence[Any], fitting: frozenset[str]) -> None:
    """Raise InvalidInput for steps that are none of `fitting`, or whose options have no graph."""
    kinds = [type(step).__name__ for step in steps if not isinstance(step, Stack)]
    if odd := [kind for kind in kinds if kind not in fitting]:
        raise InvalidInput(
            f"{', '.join(odd)} cannot stand before the last step; there "
            f"{', '.join(sorted(fitting - _OWN))} can: transform X with the others first"
        )


def _no_graph(estimator: Any) -> InvalidInput:
    library, kind = type(estimator).__module__.split(".")[0], type(estimator).__name__
    others = FORESTS.get(library) or FORESTS["sklearn"]
    known = others
    if library not in FORESTS or library == "sklearn":
        known = _KNOWN | _STEPS | REPLACED | VECTORISERS | ENSEMBLES | others
    return InvalidInput(
        f"{type(estimator).__module__}.{kind} has no graph; leave it to its own predict, or "
        f"use one of {', '.join(sorted(known - _OWN))}, alone or in a Pipeline"
    )


def _own_methods(estimator: Any) -> dict[str, Write]:
    """Functions that write each method of an estimator from the current columns, by name."""
    kind = type(estimator).__name__
    if kind in DECOMPOSITIONS and not getattr(estimator, "whiten", False):
        check_held(estimator, "its results", np.sqrt(estimator.explained_variance_))
    if kind in MODELS:
        return MODELS[kind].all_methods(estimator)
    if kind in _STEPS - LINEAR:
        step = as_step(estimator)
        return {"transform": lambda writer: _transform(writer, step)}
    return linear_methods(estimator)


def _transform(writer: EstimatorWriter, step: Any) -> Value:
    writer.transform(step)
    found = writer.columns()
    if is_function(step) and read_function(step).is_flat:
        return reshaped(writer, found, (writer.batch,))
    return found
