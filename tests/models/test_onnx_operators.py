"""Every operator against the cases that ONNX has for it."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_nodes import cases_by_operator, computed

from sparsejit.errors import DamagedFile, UnsupportedOperator
from sparsejit.frontends.onnx.call import operator_of
from sparsejit.frontends.onnx.expansions import EXPANSIONS
from sparsejit.frontends.onnx.operators.table import OPERATORS
from sparsejit.frontends.onnx.words import ML_DOMAIN

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in their making

# Why a case may be refused: (operator, part of the reason).
REFUSED = {
    ("BatchNormalization", "takes its statistics from the batch"),
    ("DequantizeLinear", "has a scale for each block"),
    ("Dropout", "at random"),
    ("Einsum", "repeats a label"),
    ("Pow", "of whole numbers"),
    ("QuantizeLinear", "has a scale for each block"),
    ("Resize", "crops"),
    ("Resize", "keeps the aspect ratio"),
}
# Reductions of nothing at all: their reference is numpy's, which has no largest of none.
EMPTY = ("log_sum_exp_empty", "reduce_max_empty", "reduce_min_empty")


# Corners aligned by a size that is not whole; ONNX Runtime and torch round it first.
UNROUNDED = ("downsample_scales_linear_align_corners", "downsample_scales_cubic_align_corners")


# ONNX has no case of these that a graph can hold; tests/models/test_onnx.py has, and
# tests/models/test_onnx_runtime_operators.py and tests/models/test_onnx_rows.py.
# tests/models/test_onnx_ml.py has the others of ai.onnx.ml.
ELSEWHERE = {"CastLike", "GlobalLpPool", "SimplifiedLayerNormalization"} | {
    f"{ML_DOMAIN}.{name}"
    for name in (
        *("CategoryMapper", "FeatureVectorizer", "Imputer", "LinearClassifier", "LinearRegressor"),
        *("Normalizer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler", "ZipMap"),
        *("TreeEnsembleClassifier", "TreeEnsembleRegressor"),
    )
}
# -2.5 in steps of 5 / 255, as float64: half way between two steps, and not as float32.
TIED = {"test_dynamicquantizelinear": 1.0}
_HALF = 1e-3  # where a case computes in float16
# ONNX itself has bodies of others for these.
WITH_BODIES = {
    *("Attention", "CausalConvWithState", "CenterCropPad", "MeanVarianceNormalization"),
    *("NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "SwiGLU", "Swish"),
}
# Not com.microsoft's.
_OF_ML = {name for name in OPERATORS if name.startswith(ML_DOMAIN)}
KNOWN = WITH_BODIES | _OF_ML | {name for name in (*OPERATORS, *EXPANSIONS) if "." not in name}


@pytest.mark.parametrize("operator", sorted(KNOWN - ELSEWHERE))
def test_an_operator_computes_what_onnx_says(operator: str) -> None:
    checked = 0
    for case in cases_by_operator().get(operator, []):
        if not set(map(operator_of, case.model.graph.node)) <= KNOWN:
            continue
        if any(name in case.name for name in (*EMPTY, *UNROUNDED)):
            continue
        try:
            found = computed(case)
        except UnsupportedOperator as error:
            text = str(error)
            if "unsupported type" in text:  # a case of a later opset's dtypes
                continue
            assert any(name == operator and why in text for name, why in REFUSED), case.name + text
            continue
        except DamagedFile:  # a case of a later opset's attributes
            continue
        for array, wanted in zip(found, case.outputs, strict=False):
            assert array.shape == wanted.shape, case.name
            if wanted.dtype.kind in "OU":
                assert array.tolist() == wanted.tolist(), case.name
                continue
            np.testing.assert_allclose(
                array.astype(float), wanted.astype(float), rtol=1e-3, err_msg=case.name,
                atol=TIED.get(case.name, _HALF if wanted.dtype == np.float16 else 1e-5),
            )  # fmt: skip
        checked += 1
    assert checked, f"{operator} has no case that runs"


def test_every_refusal_is_still_needed() -> None:
    refused = set()
    for operator, why in REFUSED:
        for case in cases_by_operator()[operator]:
            try:
                computed(case)
            except UnsupportedOperator as error:
                if why in str(error):
                    refused.add((operator, why))
                    break
            except Exception:
                continue
    assert refused == REFUSED
