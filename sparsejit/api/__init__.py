"""From weights to a callable kernel."""

from sparsejit.api.compile import compile_matrix
from sparsejit.api.kernel import Kernel

__all__ = ["Kernel", "compile_matrix"]
