"""ONNX files as graphs.

reading --> interpreting, node by node --> operators: a mapping for each --> graphs of any batch
        --> dividing: nodes for ONNX Runtime --> models of the parts
"""

from sparsejit.frontends.onnx.dividing import divided_onnx
from sparsejit.frontends.onnx.imported import (
    DeclaredInput,
    GivenModel,
    ImportedModel,
    declared_inputs,
    import_onnx,
)
from sparsejit.frontends.onnx.polynomial_sizes import file_has_polynomial_sizes
from sparsejit.frontends.onnx.reading import is_onnx, model_name

__all__ = [
    "DeclaredInput",
    "GivenModel",
    "ImportedModel",
    "declared_inputs",
    "divided_onnx",
    "file_has_polynomial_sizes",
    "import_onnx",
    "is_onnx",
    "model_name",
]
