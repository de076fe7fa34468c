"""Operators of ai.onnx.ml on numbers: random nodes of each row.

tests/models/test_onnx_ml.py has the ones on strings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fuzzing.onnx_growing import ML, OnnxGrowing
from onnx.numpy_helper import from_array

Maker = Callable[[OnnxGrowing], Any]
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def _rows(grow: OnnxGrowing, dtypes: tuple[str, ...] = ("float32",)) -> str:
    return grow.tensor("fi", (2, 2), fits=lambda a: a.size > 0 and a.dtype.name in dtypes)


_NUMBERS = ("float32", "int32", "int64")


def _floats(grow: OnnxGrowing, *shape: int) -> list[float]:
    return [float(n) for n in grow.array(shape, np.float32).ravel()]


def _add(grow: OnnxGrowing, name: str, inputs: list[str], results: int = 1, **given: Any) -> None:
    grow.add(f"{ML}.{name}", inputs, results, **given)


def _extractor(grow: OnnxGrowing) -> None:
    x = grow.tensor("fi", (1, 2), fits=lambda a: a.size > 0)
    width = grow.values[x].shape[-1]
    places = grow.numbers.integers(0, width, grow.draw.randint(1, 4))
    _add(grow, "ArrayFeatureExtractor", [x, grow.longs(places)])


def _binarizer(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", (1, 3), fits=lambda a: a.dtype == np.float32)
    _add(grow, "Binarizer", [x], threshold=grow.draw.choice((0.0, 0.5, -1.25)))


def _vectorizer(grow: OnnxGrowing) -> None:
    x = grow.input(grow.array((3, 2), grow.draw.choice(("float32", "int64"))))
    other = grow.input(grow.array((3, 4), grow.values[x].dtype))
    _add(grow, "FeatureVectorizer", [x, other], inputdimensions=[2, 4])


def _imputer(grow: OnnxGrowing) -> None:
    x = _rows(grow, ("float32", "int64"))
    count = grow.draw.choice((1, grow.values[x].shape[1]))
    if grow.values[x].dtype == np.int64:
        given = {"replaced_value_int64": 1, "imputed_value_int64s": [7] * count}
    else:
        replaced = grow.draw.choice((0.0, float("nan"), 1.5))
        given = {"replaced_value_float": replaced, "imputed_value_floats": _floats(grow, count)}
    _add(grow, "Imputer", [x], **given)


def _encoder(grow: OnnxGrowing) -> None:
    x = grow.tensor("fi", (1, 3), fits=lambda a: a.dtype.name in ("float32", "int64"))
    kind = "float" if grow.values[x].dtype == np.float32 else "int64"
    keys = grow.draw.sample(range(-3, 4), grow.draw.randint(1, 5))
    given = {f"keys_{kind}s": keys, "values_int64s": [n * 10 for n in range(len(keys))]}
    if grow.flag():
        given = {f"keys_{kind}s": keys, "values_floats": _floats(grow, len(keys))}
    _add(grow, "LabelEncoder", [x], **given)


def _one_hot(grow: OnnxGrowing) -> None:
    x = grow.tensor("fi", (1, 2), fits=lambda a: a.dtype.name in ("float32", "int64"))
    categories = grow.draw.sample(range(-4, 5), grow.draw.randint(1, 6))
    _add(grow, "OneHotEncoder", [x], cats_int64s=categories, zeros=1)


def _normalizer(grow: OnnxGrowing) -> None:
    x = _rows(grow, _NUMBERS)
    if grow.draw.choice(("MAX", "other")) == "MAX" and (grow.values[x].max(-1) > 0.1).all():
        _add(grow, "Normalizer", [x], norm="MAX")
    _add(grow, "Normalizer", [x], norm=grow.draw.choice(("L1", "L2")))


def _scaler(grow: OnnxGrowing) -> None:
    x = _rows(grow, (*_NUMBERS, "float64"))
    count = grow.draw.choice((1, grow.values[x].shape[1]))
    _add(grow, "Scaler", [x], offset=_floats(grow, count), scale=_floats(grow, count))


def _linear(grow: OnnxGrowing, name: str, **given: Any) -> None:
    x = _rows(grow)
    width, rows = grow.values[x].shape[1], given.pop("rows")
    given |= {"coefficients": _floats(grow, rows, width), "intercepts": _floats(grow, rows)}
    transform = grow.draw.choice(_TRANSFORMS)
    _add(grow, name, [x], 1 if name == "LinearRegressor" else 2, post_transform=transform, **given)


def _linear_regressor(grow: OnnxGrowing) -> None:
    targets = grow.draw.randint(1, 3)
    _linear(grow, "LinearRegressor", rows=targets, targets=targets)


def _linear_classifier(grow: OnnxGrowing) -> None:
    classes = grow.draw.randint(2, 4)
    rows = 1 if classes == 2 and grow.flag() else classes
    labels = grow.draw.sample(range(9), classes)
    _linear(grow, "LinearClassifier", rows=rows, classlabels_ints=labels)


def _kernel(grow: OnnxGrowing) -> dict[str, Any]:
    kind = grow.draw.choice(("LINEAR", "POLY", "RBF", "SIGMOID"))
    degree = float(grow.draw.choice((2, 3)))
    return {"kernel_type": kind, "kernel_params": [0.25, 0.5, degree]}


def _svm_regressor(grow: OnnxGrowing) -> None:
    x = _rows(grow)
    width, count = grow.values[x].shape[1], grow.draw.choice((0, 3))
    given = _kernel(grow) if count else {"kernel_type": "LINEAR", "kernel_params": [0.0] * 3}
    given |= {"n_supports": count, "support_vectors": _floats(grow, count or 1, width)}
    given |= {"coefficients": _floats(grow, count or width), "rho": _floats(grow, 1)}
    _add(grow, "SVMRegressor", [x], **given, **grow.some(one_class=grow.flag()))


def _svm_classifier(grow: OnnxGrowing) -> None:
    x = _rows(grow)
    classes, width = grow.draw.randint(2, 4), grow.values[x].shape[1]
    counts = [grow.draw.randint(1, 3) for _ in range(classes)]
    pairs = classes * (classes - 1) // 2
    given = _kernel(grow) | {
        "vectors_per_class": counts,
        "support_vectors": _floats(grow, sum(counts), width),
        "coefficients": _floats(grow, classes - 1, sum(counts)),
        "rho": _floats(grow, pairs),
        "classlabels_ints": grow.draw.sample(range(9), classes),
        "post_transform": grow.draw.choice(("NONE", "LOGISTIC", "SOFTMAX")),
    }
    if grow.draw.random() < 0.3:
        given |= {"prob_a": [-abs(n) for n in _floats(grow, pairs)], "prob_b": _floats(grow, pairs)}
    _add(grow, "SVMClassifier", [x], 2, **given)


def _tree(grow: OnnxGrowing, features: int, depth: int) -> list[tuple[Any, ...]]:
    """Nodes in order: (feature, value, mode, true child, false child); a leaf has no mode."""
    nodes: list[tuple[Any, ...]] = []

    def grown(depth: int) -> int:
        number = len(nodes)
        nodes.append(())
        if depth == 0 or (number and grow.draw.random() < 0.2):
            nodes[number] = (0, 0.0, "LEAF", 0, 0)
            return number
        value = round(2 * float(grow.numbers.uniform(-3, 3))) / 2
        feature, mode = grow.draw.randrange(features), grow.draw.choice(_MODES)
        nodes[number] = (feature, value, mode, grown(depth - 1), grown(depth - 1))
        return number

    grown(depth)
    return nodes


def _forest(grow: OnnxGrowing, x: str, targets: list[int], each: bool, kind: str) -> dict[str, Any]:
    """Attributes of trees whose leaves have a weight of each target, or of one in turn."""
    features = grow.values[x].shape[1]
    trees = [_tree(grow, features, grow.draw.randint(1, 3)) for _ in range(grow.draw.randint(1, 4))]
    rows = [(n, place, *node) for n, tree in enumerate(trees) for place, node in enumerate(tree)]
    ids, places, feature, values, modes, true, false = map(list, zip(*rows, strict=True))
    leaves = [
        (tree, place, target)
        for tree, place, mode in zip(ids, places, modes, strict=True)
        if mode == "LEAF"
        for target in (targets if each else [targets[tree % len(targets)]])
    ]
    weights = _floats(grow, len(leaves))
    if grow.flag():
        weights = [abs(weight) / 8 + 0.01 for weight in weights]
    owners, of_nodes, of_targets = map(list, zip(*leaves, strict=True))
    return {
        "nodes_treeids": ids, "nodes_nodeids": places, "nodes_featureids": feature,
        "nodes_values": values, "nodes_modes": modes, "nodes_truenodeids": true,
        "nodes_falsenodeids": false, f"{kind}_treeids": owners, f"{kind}_nodeids": of_nodes,
        f"{kind}_ids": of_targets, f"{kind}_weights": weights,
        **grow.some(nodes_missing_value_tracks_true=[grow.flag() for _ in ids]),
    }  # fmt: skip


def _tree_regressor(grow: OnnxGrowing) -> None:
    x, targets = _rows(grow, ("float32", "float64")), grow.draw.randint(1, 3)
    aggregate = grow.draw.choice(("SUM", "AVERAGE", "MIN", "MAX"))
    given = _forest(grow, x, list(range(targets)), bool(grow.flag()), "target")
    given |= grow.some(base_values=_floats(grow, targets), aggregate_function=aggregate)
    transform = grow.draw.choice(_TRANSFORMS)
    _add(grow, "TreeEnsembleRegressor", [x], n_targets=targets, post_transform=transform, **given)


def _tree_classifier(grow: OnnxGrowing) -> None:
    x, classes = _rows(grow, ("float32", "int64")), grow.draw.randint(2, 4)
    is_single = classes == 2 and grow.flag()
    targets = [0] if is_single else list(range(classes))
    given = _forest(grow, x, targets, bool(grow.flag()), "class")
    given |= grow.some(base_values=_floats(grow, classes if not is_single else 1))
    labels = grow.draw.sample(range(9), classes)
    transform = grow.draw.choice(_TRANSFORMS)
    given |= {"classlabels_int64s": labels, "post_transform": transform}
    _add(grow, "TreeEnsembleClassifier", [x], 2, **given)


def _tree_ensemble(grow: OnnxGrowing) -> None:
    x, targets = _rows(grow), grow.draw.randint(1, 2)
    features = grow.values[x].shape[1]
    nodes, weights, of_targets, roots = [], [], [], []

    def grown(depth: int) -> tuple[int, bool]:
        if not depth:
            weights.append(float(grow.numbers.uniform(-2, 2)))
            of_targets.append(grow.draw.randrange(targets))
            return len(weights) - 1, True
        number, mode = len(nodes), grow.draw.randrange(6)  # ONNX Runtime misreads sets of members
        nodes.append([])
        value = round(2 * float(grow.numbers.uniform(-3, 3))) / 2
        true, false = grown(depth - 1), grown(depth - 1)
        nodes[number] = [grow.draw.randrange(features), value, mode, *true, *false]
        return number, False

    for _ in range(grow.draw.randint(1, 3)):
        roots.append(grown(grow.draw.randint(1, 3))[0])
    feature, values, modes, true, true_leaf, false, false_leaf = map(list, zip(*nodes, strict=True))
    given = {
        "nodes_splits": from_array(np.array(values, np.float32)),
        "nodes_modes": from_array(np.array(modes, np.uint8)),
        "leaf_weights": from_array(np.array(weights, np.float32)),
    }
    _add(
        grow, "TreeEnsemble", [x], nodes_featureids=feature, nodes_truenodeids=true,
        nodes_falsenodeids=false, nodes_trueleafs=[int(n) for n in true_leaf],
        nodes_falseleafs=[int(n) for n in false_leaf], leaf_targetids=of_targets,
        tree_roots=roots, n_targets=targets, aggregate_function=grow.draw.choice((0, 1)),
        post_transform=0, **given,
    )  # fmt: skip


ROWS: dict[str, Maker] = {
    f"{ML}.ArrayFeatureExtractor": _extractor,
    f"{ML}.Binarizer": _binarizer,
    f"{ML}.FeatureVectorizer": _vectorizer,
    f"{ML}.Imputer": _imputer,
    f"{ML}.LabelEncoder": _encoder,
    f"{ML}.LinearClassifier": _linear_classifier,
    f"{ML}.LinearRegressor": _linear_regressor,
    f"{ML}.Normalizer": _normalizer,
    f"{ML}.OneHotEncoder": _one_hot,
    f"{ML}.SVMClassifier": _svm_classifier,
    f"{ML}.SVMRegressor": _svm_regressor,
    f"{ML}.Scaler": _scaler,
    f"{ML}.TreeEnsemble": _tree_ensemble,
    f"{ML}.TreeEnsembleClassifier": _tree_classifier,
    f"{ML}.TreeEnsembleRegressor": _tree_regressor,
}
