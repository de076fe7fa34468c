"""Models with mathematics of their own at random: classes, parameters, and data that they take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.ir.values import Array

Parameters = Callable[[np.random.Generator], dict[str, Any]]


@dataclass(frozen=True)
class ModelKind:
    """A class of scikit-learn, its parameters at random, and its data.

    `target`: "classes", "two", "numbers", "several" numbers, "positive" ones, or "none". `data`:
    "plain" numbers, "missing" ones but in the first column, "counts", "codes" of categories, a
    "kernel" of samples, or one column, of "one" number or of "labels".
    """

    path: str
    target: str = "none"
    parameters: Parameters = lambda generator: {}
    data: str = "plain"
    is_sparse: bool = False  # fits a sparse matrix, as it predicts one

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def make(self, generator: np.random.Generator) -> Any:
        """An estimator that is not fitted."""
        module, _, name = self.path.rpartition(".")
        found = getattr(importlib.import_module(f"sklearn.{module}"), name)
        return found(**self.parameters(generator))

    def columns(self, generator: np.random.Generator, samples: int, features: int) -> Array:
        """X (samples, features)."""
        X = generator.standard_normal((samples, features)) * generator.uniform(0.5, 2, features)
        if self.data == "counts":
            return np.round(3 * np.abs(X))
        if self.data == "codes":
            return np.minimum(np.round(2 * np.abs(X)), 4)
        if self.data == "missing":
            X[:, 1:][generator.random((samples, features - 1)) < 0.2] = np.nan
            return X
        if self.data == "kernel":
            return X @ X.T
        if self.data == "labels":
            return np.digitize(X[:, :1], [-0.5, 0.5])
        if self.data == "one":
            return X[:, :1]
        return X + generator.choice([0, 0, 20])

    def targets(self, generator: np.random.Generator, X: Array) -> Any:
        """The targets that `fit` gets, None without any."""
        plain = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
        score = plain[:, 0] + np.sin(3 * plain[:, -1]) + 0.3 * generator.standard_normal(len(X))
        if self.target in ("classes", "two"):
            classes = 2 if self.target == "two" else int(generator.choice([2, 3, 5]))
            y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
            names = np.array(["cherry", "apple", "date", "banana", "elder"])
            return names[y] if generator.integers(2) else y
        made = {"numbers": score, "several": np.stack([score, -plain[:, 0], score**2], axis=1)}
        return np.exp(score / 3) if self.target == "positive" else made.get(self.target)


def _chosen(**options: Any) -> Parameters:
    """Parameters of which each is one of some values."""

    def parameters(generator: np.random.Generator) -> dict[str, Any]:
        return {name: each[generator.integers(len(each))] for name, each in options.items()}

    return parameters


_KERNELS = ["linear", "rbf", "poly", "sigmoid"]
_SVM = _chosen(
    kernel=_KERNELS, degree=[2, 3], gamma=["scale", 0.3], coef0=[0.0, 1.0], max_iter=[3000]
)


def _classifier(generator: np.random.Generator) -> dict[str, Any]:
    more = _chosen(
        probability=[True, False],
        break_ties=[True, False],
        C=[0.1, 1, 100],
        random_state=[0],
        decision_function_shape=["ovr", "ovo"],
    )(generator)
    if more["decision_function_shape"] == "ovo":
        more["break_ties"] = False
    return _SVM(generator) | more


def _nu_classifier(generator: np.random.Generator) -> dict[str, Any]:
    found = _classifier(generator) | {"nu": 0.1, "max_iter": -1}
    del found["C"]
    return found | {"kernel": str(generator.choice(["linear", "rbf", "poly"]))}


def _neighbours(generator: np.random.Generator) -> dict[str, Any]:
    metrics = [
        {},
        {"p": 1},
        {"metric": "chebyshev"},
        {"metric": "cosine", "algorithm": "brute"},
        {"metric": "sqeuclidean", "algorithm": "brute"},
        {"algorithm": "brute"},
        {"algorithm": "kd_tree"},
    ]
    weights = ["uniform", "distance"][generator.integers(2)]
    return {**metrics[generator.integers(len(metrics))], "weights": weights}


def _nearest(generator: np.random.Generator) -> dict[str, Any]:
    return {**_neighbours(generator), "n_neighbors": int(generator.choice([1, 3, 8]))}


def _radius(generator: np.random.Generator) -> dict[str, Any]:
    found = {**_neighbours(generator), "radius": float(generator.choice([0.5, 1.5, 4]))}
    return found if found.get("metric") != "sqeuclidean" else {"radius": 1.5}


def _radius_classes(generator: np.random.Generator) -> dict[str, Any]:
    return {**_radius(generator), "outlier_label": "most_frequent"}


_MODES = _chosen(mode=["distance", "connectivity"])


def _graph(generator: np.random.Generator) -> dict[str, Any]:
    found = {**_nearest(generator), **_MODES(generator)}
    del found["weights"]
    return found


def _radius_graph(generator: np.random.Generator) -> dict[str, Any]:
    found = {**_radius(generator), **_MODES(generator)}
    found.pop("weights", None)
    return found


_COMPONENTS = _chosen(n_components=[1, 2], random_state=[0])
_MIXTURE = _chosen(
    n_components=[1, 2, 4],
    covariance_type=["full", "tied", "diag", "spherical"],
    random_state=[0],
    max_iter=[20],
)
_CLUSTERS = _chosen(n_clusters=[2, 5, 9], random_state=[0])


def _process(generator: np.random.Generator) -> dict[str, Any]:
    from sklearn.gaussian_process import kernels as k

    some = [
        2.0 * k.RBF(1.5) + k.WhiteKernel(0.1),
        k.Matern(1.0, nu=0.5) + k.ConstantKernel(0.5),
        k.Matern(2.0, nu=1.5) ** 2 + k.WhiteKernel(0.1),
        k.Matern(2.0, nu=2.5) * k.RationalQuadratic(1.0, 2.0) + k.WhiteKernel(0.1),
    ]
    return {"kernel": some[generator.integers(len(some))], "optimizer": None}


def _regressing_process(generator: np.random.Generator) -> dict[str, Any]:
    return {**_process(generator), "normalize_y": bool(generator.integers(2))}


_RIDGE = _chosen(
    kernel=[*_KERNELS, "laplacian", "cosine", "polynomial"], degree=[2, 3, 1.0], coef0=[1, 0.5]
)


def _components_of_kernels(generator: np.random.Generator) -> dict[str, Any]:
    kernel = _chosen(kernel=[*_KERNELS, "cosine"], degree=[2, 3])(generator)
    return {**kernel, "n_components": 2}


def _approximated(generator: np.random.Generator) -> dict[str, Any]:
    kernel = _chosen(kernel=["rbf", "poly", "laplacian", "cosine", "linear"])(generator)
    parameters = {"poly": {"degree": 2, "coef0": 1}}.get(kernel["kernel"], {})
    return {**kernel, **parameters, "n_components": 12, "random_state": 0}


_DETECTORS = _chosen(contamination=[0.1, 0.3], random_state=[0])
_BAYES = _chosen(alpha=[1.0, 0.2], fit_prior=[True, False])
MODEL_KINDS = (
    ModelKind("svm.SVC", "classes", _classifier, is_sparse=True),
    ModelKind("svm.NuSVC", "classes", _nu_classifier, is_sparse=True),
    ModelKind("svm.SVR", "numbers", _SVM, is_sparse=True),
    ModelKind("svm.NuSVR", "numbers", _SVM, is_sparse=True),
    ModelKind("svm.OneClassSVM", "none", _SVM, is_sparse=True),
    ModelKind("neighbors.KNeighborsClassifier", "classes", _nearest),
    ModelKind("neighbors.KNeighborsRegressor", "numbers", _nearest),
    ModelKind("neighbors.KNeighborsRegressor", "several", _nearest),
    ModelKind("neighbors.RadiusNeighborsClassifier", "classes", _radius_classes),
    ModelKind("neighbors.RadiusNeighborsRegressor", "numbers", _radius),
    ModelKind(
        "neighbors.LocalOutlierFactor", "none", _chosen(novelty=[True], n_neighbors=[5, 20])
    ),
    ModelKind(
        *("neighbors.NearestCentroid", "classes"),
        _chosen(priors=["uniform", "empirical"], shrink_threshold=[None, 0.1]),
    ),
    *(
        ModelKind(
            *(f"semi_supervised.{name}", "two"),
            _chosen(kernel=["rbf", "knn"], gamma=[0.3], n_neighbors=[5], max_iter=[20]),
        )
        for name in ("LabelPropagation", "LabelSpreading")
    ),
    ModelKind("naive_bayes.GaussianNB", "classes"),
    ModelKind("naive_bayes.BernoulliNB", "classes", _chosen(binarize=[0.0, 0.5])),
    ModelKind("naive_bayes.MultinomialNB", "classes", _BAYES, "counts"),
    ModelKind("naive_bayes.ComplementNB", "classes", _chosen(norm=[True, False]), "counts"),
    ModelKind("naive_bayes.CategoricalNB", "classes", _chosen(min_categories=[6]), "codes"),
    ModelKind(
        *("discriminant_analysis.LinearDiscriminantAnalysis", "classes"),
        _chosen(solver=["svd", "eigen", "lsqr"]),
    ),
    ModelKind(
        *("discriminant_analysis.QuadraticDiscriminantAnalysis", "classes"),
        _chosen(reg_param=[0.1, 0.3]),
    ),
    ModelKind("mixture.GaussianMixture", "none", _MIXTURE),
    ModelKind("mixture.BayesianGaussianMixture", "none", _MIXTURE),
    ModelKind("cluster.KMeans", "none", _CLUSTERS),
    ModelKind("cluster.MiniBatchKMeans", "none", _CLUSTERS),
    ModelKind("cluster.BisectingKMeans", "none", _CLUSTERS),
    ModelKind("cluster.MeanShift"),
    ModelKind("cluster.AffinityPropagation", "none", _chosen(random_state=[0])),
    ModelKind("cluster.Birch", "none", _chosen(n_clusters=[None, 3], threshold=[0.5, 1.0])),
    ModelKind("gaussian_process.GaussianProcessRegressor", "numbers", _regressing_process),
    ModelKind("gaussian_process.GaussianProcessRegressor", "several", _regressing_process),
    ModelKind("gaussian_process.GaussianProcessClassifier", "classes", _process),
    ModelKind("kernel_ridge.KernelRidge", "numbers", _RIDGE),
    ModelKind("kernel_ridge.KernelRidge", "several", _RIDGE),
    ModelKind("decomposition.KernelPCA", "none", _components_of_kernels),
    ModelKind(
        *("impute.KNNImputer", "none"),
        *(_chosen(n_neighbors=[1, 2, 5], add_indicator=[True, False]), "missing"),
    ),
    ModelKind("kernel_approximation.Nystroem", "none", _approximated),
    ModelKind("kernel_approximation.RBFSampler", "none", _chosen(random_state=[0])),
    *(
        ModelKind(f"cross_decomposition.{name}", "several", _chosen(n_components=[1, 2]))
        for name in ("CCA", "PLSCanonical", "PLSRegression", "PLSSVD")
    ),
    ModelKind("cross_decomposition.PLSRegression", "numbers", _chosen(n_components=[1, 2])),
    ModelKind(
        *("kernel_approximation.SkewedChi2Sampler", "none"),
        *(_chosen(skewedness=[0.1, 1.0], random_state=[0]), "counts"),
    ),
    ModelKind(
        *("kernel_approximation.AdditiveChi2Sampler", "none"),
        *(_chosen(sample_steps=[1, 2, 3], sample_interval=[None, 0.3]), "counts"),
    ),
    ModelKind(
        *("kernel_approximation.PolynomialCountSketch", "none"),
        _chosen(
            degree=[1, 2, 3], coef0=[0, 1.5], gamma=[0.5, 1.0], n_components=[7, 20],
            random_state=[0],
        ),
    ),
    ModelKind(
        *("feature_extraction.text.TfidfTransformer", "none"),
        _chosen(
            norm=["l1", "l2", None], use_idf=[True, False], smooth_idf=[True, False],
            sublinear_tf=[True, False],
        ),
        "counts",
    ),
    *(
        ModelKind(f"neighbors.{name}Transformer", "none", parameters)
        for name, parameters in (("KNeighbors", _graph), ("RadiusNeighbors", _radius_graph))
    ),
    ModelKind("manifold.Isomap", "none", _chosen(n_neighbors=[8, 12], n_components=[1, 2])),
    ModelKind("preprocessing.LabelEncoder", data="labels"),
    ModelKind(
        *("preprocessing.LabelBinarizer", "none"),
        *(_chosen(neg_label=[0, -2], pos_label=[1, 3]), "labels"),
    ),
    ModelKind("preprocessing.KernelCenterer", "none", data="kernel"),
    ModelKind("decomposition.FastICA", "none", _COMPONENTS),
    ModelKind("decomposition.FactorAnalysis", "none", _COMPONENTS),
    ModelKind("decomposition.SparsePCA", "none", _COMPONENTS),
    ModelKind("decomposition.MiniBatchSparsePCA", "none", _COMPONENTS),
    ModelKind("random_projection.GaussianRandomProjection", "none", _COMPONENTS),
    ModelKind("random_projection.SparseRandomProjection", "none", _COMPONENTS),
    ModelKind("neighbors.NeighborhoodComponentsAnalysis", "classes", _chosen(max_iter=[5])),
    ModelKind("cluster.FeatureAgglomeration", "none", _chosen(n_clusters=[2])),
    ModelKind("neural_network.BernoulliRBM", "none", _chosen(n_components=[3], n_iter=[2])),
    ModelKind("linear_model.SGDOneClassSVM", "none", _chosen(random_state=[0])),
    ModelKind("linear_model.TweedieRegressor", "positive", _chosen(power=[0, 1.5, 2])),
    ModelKind(
        *("isotonic.IsotonicRegression", "numbers"),
        *(_chosen(increasing=[True, False], out_of_bounds=["nan", "clip"]), "one"),
    ),
    ModelKind("covariance.EllipticEnvelope", "none", _DETECTORS),
    ModelKind("dummy.DummyClassifier", "classes", _chosen(strategy=["prior", "most_frequent"])),
    ModelKind("dummy.DummyRegressor", "numbers", _chosen(strategy=["mean", "median"])),
)
