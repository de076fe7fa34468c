"""Activations of ONNX at hostile numbers, alone and behind a product, beside float64 and ORT."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from onnx.reference import ReferenceEvaluator
from runnable import ISAS
from test_activation_places import EDGES, is_near

import sparsejit

# With attributes other than their defaults where they have any.
OPERATORS: dict[str, dict[str, float | str]] = {
    "Celu": {"alpha": 0.7},
    "Elu": {"alpha": 1.3},
    "Erf": {},
    "Gelu": {"approximate": "tanh"},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "HardSwish": {},
    "LeakyRelu": {"alpha": 0.2},
    "Mish": {},
    "Relu": {},
    "Selu": {"alpha": 1.5, "gamma": 1.1},
    "Shrink": {"lambd": 0.4, "bias": 0.1},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 0.6},
}
# Functions whose sums are tried: each takes all of x from one edge.
WEIGHTS = np.linspace(0.5, 1.5, 48, dtype=np.float32).reshape(6, 8)
X = np.repeat(np.array(EDGES, np.float32)[:, None], 6, axis=1)


def model_of(operator: str, kind: int, behind_product: bool) -> object:
    """y = operator(x), or of x W, in float32 or float64."""
    width = WEIGHTS.shape[behind_product]
    arrays = [
        helper.make_tensor_value_info(name, kind, ["batch", size])
        for name, size in (("x", 6), ("y", width if behind_product else 6))
    ]
    weights = WEIGHTS.astype(helper.tensor_dtype_to_np_dtype(kind))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"])] if behind_product else []
    of = "h" if behind_product else "x"
    nodes.append(helper.make_node(operator, [of], ["y"], **OPERATORS[operator]))
    graph = helper.make_graph(nodes, "net", arrays[:1], arrays[1:], [from_array(weights, "w")])
    opsets = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("behind_product", [False, True], ids=["alone", "product"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_of_onnx(operator: str, behind_product: bool, isa: str) -> None:
    model = model_of(operator, TensorProto.FLOAT, behind_product)
    fast = sparsejit.compile(model, (X,), target=isa)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wide = ReferenceEvaluator(model_of(operator, TensorProto.DOUBLE, behind_product))
    with np.errstate(all="ignore"):
        (wanted,) = wide.run(None, {"x": X.astype(np.float64)})
        wanted = np.asarray(wanted).astype(np.float32)
    got, (like,) = fast(X), session.run(None, {"x": X})
    bad = ~(is_near(got, wanted) | is_near(got, like))
    places = sorted({EDGES[row] for row in np.nonzero(bad)[0]}, key=str)
    assert not places, f"x = {places}: {got[bad][:4]} instead of {wanted[bad][:4]}, {like[bad][:4]}"
