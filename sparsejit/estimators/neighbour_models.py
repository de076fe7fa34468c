"""Models that compare X with rows of their fit: neighbours, centres, and local outliers.

    distances to all rows -> the least, or all within a radius -> votes or means of their targets

Where rows are at the same distance, the first in the order of the fit are nearer.
"""

from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.double_values import (
    DOUBLE,
    KernelFunction,
    Metric,
    check_rows,
    dense_array,
    distances,
    double_formula,
    flat,
    inliers,
    log_shares,
    metric_of,
    place_of_largest,
    scaled_columns,
    second_of_two,
    single,
)
from sparsejit.estimators.kernel_models import centred_components
from sparsejit.estimators.model_table import Model, places
from sparsejit.estimators.writer import WIDE, EstimatorWriter, Write
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import reshaped, sliced
from sparsejit.frontends.writing.writer import Formula, Operand
from sparsejit.ir.ops.columns import Measure
from sparsejit.ir.ops.selection import ArgMax, BagKind, Embedding, EmbeddingBag, TopK
from sparsejit.ir.values import Array, Element, Value


def _rows_of(estimator: Any) -> tuple[Array, Metric]:
    """The rows of a fit, and the metric. Raises InvalidInput for a metric without code."""
    if not hasattr(estimator, "_fit_X"):
        raise InvalidInput(f"the {type(estimator).__name__} is not fitted; call its fit first")
    known = dense_array(estimator._fit_X)
    check_rows(estimator, known)
    parameters = estimator.effective_metric_params_
    return known, metric_of(estimator, estimator.effective_metric_, parameters, known.shape[1])


def _weighting(estimator: Any) -> bool:
    """Whether neighbours count by their distance. Raises InvalidInput for a function."""
    if callable(estimator.weights):
        raise InvalidInput(
            f"the {type(estimator).__name__} has weights that are a function; use 'uniform' or "
            "'distance'"
        )
    return bool(estimator.weights == "distance")


def inverse_distances(f: Formula, away: Operand, counts: Operand | None = None) -> Operand:
    """Weights in proportion to 1 / distance: rows at distance 0 count alone.

    `counts` is true for the elements of a row that count at all.
    """
    is_same = f("where", f("equal", away, 0.0), 1.0, 0.0)
    far = away if counts is None else f("where", counts, away, float("inf"))
    nearest = f("row_min", far)
    near = f("div", nearest, far)
    return f("where", f("equal", nearest, 0.0), is_same, near)


def _nearest(
    writer: EstimatorWriter, known: Array, metric: Metric, count: int
) -> tuple[Value, Value]:
    """The least reduced distances, float64, and the places of their rows, (batch, count)."""
    reduced = metric.reduced(writer, known)
    least, found = writer.at("nearest").many(TopK(count, least=True), reduced)
    return least, found


def _sum_of_neighbours(writer: EstimatorWriter, estimator: Any, table: Array) -> Value:
    """The sum of the rows of `table` (rows, columns) over the neighbours, float32.

    With weights, the last column of the table is 1, and so its sum is the sum of weights.
    """
    known, metric = _rows_of(estimator)
    reduced, found = _nearest(writer, known, metric, int(estimator.n_neighbors))
    rows = writer.constant(table, "targets")
    if not _weighting(estimator):
        return writer.at("neighbours").one(EmbeddingBag(BagKind.SUM), found, rows)
    f = double_formula(writer, "weights")
    weights = f.finish(inverse_distances(f, metric.finished(f, reduced)), shape=reduced.shape)
    bag = EmbeddingBag(BagKind.SUM, weighted=True)
    return writer.at("neighbours").one(bag, found, rows, single(writer, weights))


def _targets(estimator: Any) -> Array:
    """The targets of a regressor's rows, (rows, targets)."""
    y = np.asarray(estimator._y, np.float64)
    check_held(estimator, "its targets", y)
    return y.reshape(len(y), -1)


def _votes(estimator: Any) -> Array:
    """1 for the class of each row, (rows, classes). Raises InvalidInput for several outputs."""
    if estimator.outputs_2d_:
        raise InvalidInput(
            f"the {type(estimator).__name__} has several outputs of classes; fit one estimator "
            "for each"
        )
    return np.asarray(np.arange(len(estimator.classes_)) == np.ravel(estimator._y)[:, None], float)


def _neighbours_classifier(estimator: Any) -> dict[str, Write]:
    table = _votes(estimator)
    _rows_of(estimator)
    _weighting(estimator)

    def choose(writer: EstimatorWriter) -> Value:
        votes = _sum_of_neighbours(writer, estimator, table)
        return writer.at("predict").one(ArgMax(), votes)

    def shares(writer: EstimatorWriter) -> Value:
        votes = _sum_of_neighbours(writer, estimator, table)
        wide = scaled_columns(writer, votes, np.arange(table.shape[1]))
        f = double_formula(writer, "shares")
        return f.finish(f("div", wide, f("row_sum", wide)), shape=votes.shape)

    return {
        "predict": choose,
        "predict_proba": lambda writer: single(writer, shares(writer)),
        WIDE: lambda writer: second_of_two(writer, shares(writer)),
    }


def _neighbours_regressor(estimator: Any) -> dict[str, Write]:
    y = _targets(estimator)
    _rows_of(estimator)
    is_weighted, has_one_axis = _weighting(estimator), np.ndim(estimator._y) == 1
    middle = (y.max(axis=0) + y.min(axis=0)) / 2  # sums of float32 lose digits far from zero
    table = np.concatenate([y - middle, np.ones((len(y), 1))], axis=1)
    count, targets = int(estimator.n_neighbors), y.shape[1]

    def predict(writer: EstimatorWriter) -> Value:
        sums = _sum_of_neighbours(writer, estimator, table)
        of_targets = np.eye(targets, targets + 1)
        zeros = np.zeros(targets)
        total = writer.product_of(sums, of_targets, zeros, "sums")
        f = double_formula(writer, "mean")
        share: Operand = float(count)
        if is_weighted:
            share = writer.product_of(sums, np.eye(1, targets + 1, targets), np.zeros(1), "weights")
        base = writer.constant(middle, "middle", DOUBLE)
        found = single(writer, f.finish(f("add", f("div", total, share), base), shape=total.shape))
        return reshaped(writer, found, (writer.batch,)) if has_one_axis else found

    return {"predict": predict}


def _within(writer: EstimatorWriter, estimator: Any) -> Value:
    """The weight of each row of the fit, 0 beyond the radius: float64 (batch, rows)."""
    known, metric = _rows_of(estimator)
    reduced = metric.reduced(writer, known)
    f = double_formula(writer, "within")
    inside = _inside(f, estimator, metric, reduced)
    if not _weighting(estimator):
        return f.finish(f("where", inside, 1.0, 0.0), shape=reduced.shape)
    away = metric.finished(f, reduced)
    return f.finish(
        f("where", inside, inverse_distances(f, away, inside), 0.0), shape=reduced.shape
    )


def _inside(f: Formula, estimator: Any, metric: Metric, reduced: Operand) -> Operand:
    """Whether rows are within the radius of an estimator."""
    radius = float(estimator.radius)
    return f("less_equal", reduced, radius**2 if metric.is_root else radius * metric.divisor)


def _radius_graph(estimator: Any) -> Write:
    """The distance to each row of the fit within the radius, or 1; 0 for others."""
    known, metric = _rows_of(estimator)

    def write(writer: EstimatorWriter) -> Value:
        reduced = metric.reduced(writer, known)
        f = double_formula(writer, "graph")
        is_plain = estimator.mode == "connectivity"
        away: Operand = 1.0 if is_plain else metric.finished(f, reduced)
        return f.finish(f("where", _inside(f, estimator, metric, reduced), away, 0.0))

    return write


def _neighbours_graph(estimator: Any) -> Write:
    """The distance to each of the nearest rows of the fit, or 1; 0 for others."""
    known, metric = _rows_of(estimator)
    is_plain = estimator.mode == "connectivity"
    count = int(estimator.n_neighbors) + (not is_plain)

    def write(writer: EstimatorWriter) -> Value:
        away, found = _neighbours_of(writer, known, metric, count)
        near = single(writer, away)
        numbers = writer.constant(np.arange(len(known), dtype=np.float64)[None], "rows")
        made: Operand = 0.0
        for number in range(count):
            place = writer.cast(sliced(writer, found, 1, number, number + 1), Element.FLOAT32)
            own = 1.0 if is_plain else sliced(writer, near, 1, number, number + 1)
            f = writer.at("graph").formula("graph")
            shape = writer.batch, len(known)
            made = f.finish(f("where", f("equal", place, numbers), own, made), shape=shape)
        assert isinstance(made, Value)
        return made

    return write


def _neighbours_of(
    writer: EstimatorWriter, known: Array, metric: Metric, count: int
) -> tuple[Value, Value]:
    """The least distances, float64, and the places of their rows, (batch, count)."""
    reduced, found = _nearest(writer, known, metric, count)
    f = double_formula(writer, "distances")
    return f.finish(f("add", metric.finished(f, reduced), 0.0), shape=reduced.shape), found


def _geodesic_components(estimator: Any) -> Write:
    """The kernel components of an Isomap: of shortest paths over the nearest rows of the fit."""
    if estimator.n_neighbors is None:
        raise InvalidInput("the Isomap has a radius; fit it with n_neighbors")
    known, metric = _rows_of(estimator.nbrs_)
    paths = np.asarray(estimator.dist_matrix_, np.float64)
    check_rows(estimator, paths)
    check_held(estimator, "its distances", paths)
    weights, bias = centred_components(estimator.kernel_pca_)

    def write(writer: EstimatorWriter) -> Value:
        away, found = _neighbours_of(writer, known, metric, int(estimator.n_neighbors))
        table, shape = writer.constant(paths, "paths"), (writer.batch, len(known))
        least: Operand = float("inf")
        for number in range(away.shape[1]):
            place = sliced(writer, found, 1, number, number + 1)
            rows = reshaped(writer, writer.at("paths").one(Embedding(), place, table), shape)
            path = scaled_columns(writer, rows, np.arange(len(known)))
            own = sliced(writer, away, 1, number, number + 1)
            f = double_formula(writer, "shortest paths")
            least = f.finish(f("minimum", f("add", path, own), least), shape=shape)
        f = double_formula(writer, "kernels")
        kernels = f.finish(f("mul", f("square", least), -0.5))
        return writer.product_of(kernels, weights, bias, "components")

    return write


def _radius_classifier(estimator: Any) -> dict[str, Write]:
    table, classes = _votes(estimator), len(estimator.classes_)
    outlier = estimator.outlier_label_
    _rows_of(estimator)
    _weighting(estimator)
    if outlier is None:
        raise InvalidInput(
            "the RadiusNeighborsClassifier has no outlier_label, so that rows without neighbours "
            "raise an error; fit it with outlier_label='most_frequent' or a label"
        )
    own = np.flatnonzero(estimator.classes_ == np.ravel(outlier)[0])

    def shares(writer: EstimatorWriter) -> Value:
        inside = _within(writer, estimator)
        votes = writer.product_of(inside, table.T, np.zeros(classes), "votes")
        label = np.zeros((1, classes))
        label[0, own] = 1
        f = double_formula(writer, "shares")
        total = f("row_sum", votes)
        is_outlier = f("equal", total, 0.0)
        shared = f("div", votes, f("where", is_outlier, 1.0, total))
        instead = writer.constant(label, "outlier", DOUBLE)
        return f.finish(f("where", is_outlier, instead, shared), shape=votes.shape)

    def choose(writer: EstimatorWriter) -> Value:
        found = shares(writer)
        if len(own):
            return place_of_largest(writer, found)
        # A last column for the label of outliers, which is no class.
        weights = np.concatenate([np.eye(classes), -np.ones((1, classes))])
        bias = np.append(np.zeros(classes), 0.5)
        wide = writer.product_of(found, weights, bias, "with outliers")
        return place_of_largest(writer, wide)

    return {"predict": choose, "predict_proba": lambda writer: single(writer, shares(writer))}


def _radius_labels(estimator: Any) -> Array:
    outlier = np.asarray(np.ravel(estimator.outlier_label_)[:1], estimator.classes_.dtype)
    return np.concatenate([estimator.classes_, outlier])


def _radius_regressor(estimator: Any) -> dict[str, Write]:
    y = _targets(estimator)
    _rows_of(estimator)
    _weighting(estimator)
    has_one_axis = np.ndim(estimator._y) == 1

    def predict(writer: EstimatorWriter) -> Value:
        inside = _within(writer, estimator)
        sums = writer.product_of(inside, y.T, np.zeros(y.shape[1]), "sums")
        f = double_formula(writer, "mean")
        total = f.finish(f("row_sum", inside), shape=inside.shape)
        f = double_formula(writer, "mean")
        found = single(writer, f.finish(f("div", sums, total), shape=sums.shape))
        return reshaped(writer, found, (writer.batch,)) if has_one_axis else found

    return {"predict": predict}


def _local_outliers(estimator: Any) -> dict[str, Write]:
    """As in `_lof.py` of sklearn.neighbors: densities from distances that are at least theirs."""
    if not estimator.novelty:
        raise InvalidInput("the LocalOutlierFactor has novelty=False; fit it with novelty=True")
    known, metric = _rows_of(estimator)
    count = int(estimator.n_neighbors_)
    table = np.column_stack([estimator._distances_fit_X_[:, count - 1], estimator._lrd])
    check_held(estimator, "its densities", table)
    offset = float(estimator.offset_)

    def scores(writer: EstimatorWriter) -> Value:
        reduced, found = _nearest(writer, known, metric, count)
        rows = writer.one(Embedding(), found, writer.constant(table, "densities"))
        shape = writer.batch, count
        own = reshaped(writer, rows, (writer.batch, 2 * count))
        far, dense = (
            writer.product_of(own, np.eye(2 * count)[first::2], np.zeros(count), name)
            for first, name in ((0, "far"), (1, "dense"))
        )
        f = double_formula(writer, "local outlier factor")
        away = metric.finished(f, reduced)
        reach = f("mul", f("row_sum", f("maximum", away, far)), 1 / count)
        mean = f("mul", f("row_sum", dense), 1 / count)
        return f.finish(f("neg", f("mul", mean, f("add", reach, 1e-10))), shape=shape)

    return outlier_methods(scores, offset)


def outlier_methods(scores: Write, offset: float) -> dict[str, Write]:
    """Methods of a detector whose samples are inliers from scores of `offset` on."""

    def decisions(writer: EstimatorWriter) -> Value:
        found = scores(writer)
        f = double_formula(writer, "decisions")
        return f.finish(f("sub", found, offset))

    def as_row(writer: EstimatorWriter, values: Value) -> Value:
        return reshaped(writer, single(writer, values), (writer.batch,))

    return {
        "predict": lambda writer: inliers(writer, decisions(writer)),
        "decision_function": lambda writer: as_row(writer, decisions(writer)),
        "score_samples": lambda writer: as_row(writer, scores(writer)),
    }


def _nearest_centroid(estimator: Any) -> dict[str, Write]:
    """As in `_nearest_centroid.py`: centroids, and with unequal priors scores by scaled features.
    """
    features = estimator.centroids_.shape[1]
    metric = metric_of(estimator, estimator.metric, {}, features)
    prior = np.asarray(estimator.class_prior_, np.float64)
    centroids = dense_array(estimator.centroids_)
    spread = np.asarray(estimator.within_class_std_dev_, np.float64)
    scale = 1 / np.where(spread != 0, spread, 1)

    def scores(writer: EstimatorWriter) -> Value:
        x = scaled_columns(writer, writer.plain_columns(), np.arange(features), scale=scale)
        reduced = distances(writer, x, centroids * scale, metric.measure)
        f = double_formula(writer, "scores")
        squared = reduced if metric.is_root else f("square", reduced)
        return f.finish(
            f("sub", writer.constant(2 * np.log(prior)[None], "priors", DOUBLE), squared),
            shape=reduced.shape,
        )

    def nearest(writer: EstimatorWriter) -> Value:
        return place_of_least(writer, metric.reduced(writer, centroids))

    is_even = bool(np.isclose(prior, 1 / len(prior)).all())
    methods: dict[str, Write] = {
        "predict": nearest if is_even else lambda writer: place_of_largest(writer, scores(writer))
    }
    if hasattr(estimator, "decision_function"):
        methods |= score_methods(scores, len(prior))
    return methods


def score_methods(scores: Write, classes: int) -> dict[str, Write]:
    """Methods of scikit-learn's discriminants: the scores, and their softmax."""

    def decisions(writer: EstimatorWriter) -> Value:
        found = scores(writer)
        if classes != 2:
            return found
        return writer.product_of(found, np.array([[-1.0, 1.0]]), np.zeros(1), "decision")

    return {
        "decision_function": lambda writer: flat(writer, decisions(writer)),
        WIDE: decisions,
        "predict_proba": lambda writer: log_shares(writer, scores(writer), False),
        "predict_log_proba": lambda writer: log_shares(writer, scores(writer), True),
    }


def place_of_least(writer: EstimatorWriter, x: Value) -> Value:
    """The first of the least columns, int64 (batch,)."""
    f = double_formula(writer, "nearest")
    return place_of_largest(writer, f.finish(f("neg", x)))


def _propagated(estimator: Any) -> dict[str, Write]:
    """Label propagation: the distributions of the rows of the fit, weighted by a kernel."""
    known, table = dense_array(estimator.X_), dense_array(estimator.label_distributions_)
    check_rows(estimator, known)
    if callable(estimator.kernel):
        raise InvalidInput(
            f"the {type(estimator).__name__} has a kernel that is a function; use 'rbf' or 'knn'"
        )

    def sums(writer: EstimatorWriter) -> Value:
        if estimator.kernel == "rbf":
            near = KernelFunction("rbf", float(estimator.gamma)).of(writer, known)
            return writer.product_of(near, table.T, np.zeros(table.shape[1]), "distributions")
        count = int(estimator.n_neighbors)
        _, found = _nearest(writer, known, Metric(Measure.SQUARED), count)
        rows = writer.constant(table, "distributions")
        picked = writer.at("neighbours").one(EmbeddingBag(BagKind.SUM), found, rows)
        return scaled_columns(writer, picked, np.arange(table.shape[1]))

    def shares(writer: EstimatorWriter) -> Value:
        found = sums(writer)
        f = double_formula(writer, "shares")
        return f.finish(f("div", found, f("row_sum", found)), shape=found.shape)

    return {
        "predict": lambda writer: place_of_largest(writer, sums(writer)),
        "predict_proba": lambda writer: single(writer, shares(writer)),
    }


def _centres(estimator: Any) -> Array:
    name = "subcluster_centers_" if hasattr(estimator, "subcluster_centers_") else ""
    found = getattr(estimator, name or "cluster_centers_", None)
    if found is None:
        raise InvalidInput(f"the {type(estimator).__name__} is not fitted; call its fit(X) first")
    known = dense_array(found)
    check_rows(estimator, known)
    return known


def _clusters(estimator: Any) -> dict[str, Write]:
    known = _centres(estimator)
    if not len(known):
        raise InvalidInput(
            f"the {type(estimator).__name__} found no clusters; fit it with other parameters"
        )

    def nearest(writer: EstimatorWriter) -> Value:
        x = writer.plain_columns()
        return place_of_least(writer, distances(writer, x, known, Measure.SQUARED))

    return {"predict": nearest}


def _cluster_distances(estimator: Any) -> Write:
    known = _centres(estimator)

    def write(writer: EstimatorWriter) -> Value:
        near = distances(writer, writer.plain_columns(), known, Measure.SQUARED)
        f = double_formula(writer, "distances")
        return f.finish(f("sqrt", near))

    return write


def _bisecting(estimator: Any) -> dict[str, Write]:
    """The leaf of a tree of pairs of centres: the left one where it is at least as near.

    A leaf scores 1 for each pair on its path that chooses it, less the length of the path.
    """
    mean = np.asarray(getattr(estimator, "_X_mean", 0.0))
    pairs: list[tuple[Array, Array]] = []
    leaves: dict[int, dict[int, float]] = {}

    def walk(node: Any, path: dict[int, float]) -> None:
        if node.left is None:
            leaves[int(node.label)] = path
            return
        number = len(pairs)
        pairs.append((node.left.center + mean, node.right.center + mean))
        walk(node.left, {**path, number: 1.0})
        walk(node.right, {**path, number: -1.0})

    walk(estimator._bisecting_tree, {})
    count = len(pairs)
    if not count:
        return _clusters(estimator)
    known = np.array([left for left, _ in pairs] + [right for _, right in pairs])
    paths = [leaves[leaf] for leaf in sorted(leaves)]
    weights = np.array([[path.get(number, 0.0) for number in range(count)] for path in paths])
    lengths = np.array([-float(len(path)) for path in paths])
    apart = np.concatenate([-np.eye(count), np.eye(count)], axis=1)

    def predict(writer: EstimatorWriter) -> Value:
        near = distances(writer, writer.plain_columns(), known, Measure.SQUARED)
        gap = writer.product_of(near, apart, np.zeros(count), "gaps")
        f = double_formula(writer, "sides")
        side = f.finish(f("where", f("greater_equal", gap, 0.0), 1.0, -1.0), shape=gap.shape)
        chosen = writer.product_of(side, weights, lengths, "leaves", Element.FLOAT32)
        return writer.at("predict").one(ArgMax(), chosen)

    return {"predict": predict}


NEIGHBOUR_MODELS = {
    "KNeighborsClassifier": Model(_neighbours_classifier),
    "KNeighborsRegressor": Model(_neighbours_regressor),
    "RadiusNeighborsClassifier": Model(_radius_classifier, labels=_radius_labels),
    "RadiusNeighborsRegressor": Model(_radius_regressor),
    "LocalOutlierFactor": Model(_local_outliers),
    "Isomap": Model(transform=_geodesic_components),
    "KNeighborsTransformer": Model(transform=_neighbours_graph),
    "RadiusNeighborsTransformer": Model(transform=_radius_graph),
    **dict.fromkeys(("LabelPropagation", "LabelSpreading"), Model(_propagated)),
    "NearestCentroid": Model(_nearest_centroid),
    **dict.fromkeys(
        ("KMeans", "MiniBatchKMeans"),
        Model(_clusters, _cluster_distances, lambda each: places(len(_centres(each)))),
    ),
    "BisectingKMeans": Model(
        _bisecting, _cluster_distances, lambda each: places(len(_centres(each)))
    ),
    "MeanShift": Model(_clusters, labels=lambda each: np.arange(len(_centres(each)))),
    "AffinityPropagation": Model(_clusters, labels=lambda each: np.arange(len(_centres(each)))),
    "Birch": Model(
        _clusters, _cluster_distances, lambda each: np.asarray(each.subcluster_labels_)
    ),
}
