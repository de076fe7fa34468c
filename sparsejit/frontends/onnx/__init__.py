"""ONNX files as graphs.

reading --> interpreting, node by node --> operators: what each becomes --> graphs of any batch
"""

from sparsejit.frontends.onnx.imported import (
    DeclaredInput,
    ImportedModel,
    declared_inputs,
    import_onnx,
)
from sparsejit.frontends.onnx.reading import is_onnx, model_name

__all__ = [
    "DeclaredInput",
    "ImportedModel",
    "declared_inputs",
    "import_onnx",
    "is_onnx",
    "model_name",
]
