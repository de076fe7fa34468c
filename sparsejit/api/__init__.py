"""From weights to a callable kernel, and from models to native functions."""

from sparsejit.api.compile_layer import compile_matrix
from sparsejit.api.compile_model import compile_model
from sparsejit.api.compiled_estimator import CompiledEstimator
from sparsejit.api.kernel import Kernel
from sparsejit.api.load import load
from sparsejit.api.model import CompiledModel
from sparsejit.api.parted_model import PartedModel

__all__ = [
    "CompiledEstimator",
    "CompiledModel",
    "Kernel",
    "PartedModel",
    "compile_matrix",
    "compile_model",
    "load",
]
