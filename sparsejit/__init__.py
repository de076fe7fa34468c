"""Sparse inference on x86-64: pruned weights compiled into machine code.

>>> kernel = sparsejit.compile_matrix(weights, strategy="auto")
>>> y = kernel(x)
"""

from sparsejit.api import Kernel, compile_matrix
from sparsejit.errors import (
    CompileError,
    DamagedFile,
    InvalidInput,
    MissingDependency,
    SparseJitError,
    UnsupportedTarget,
)
from sparsejit.machine.target import Target
from sparsejit.voice.wavernn import WaveRNN

__all__ = [
    "CompileError",
    "DamagedFile",
    "InvalidInput",
    "Kernel",
    "MissingDependency",
    "SparseJitError",
    "Target",
    "UnsupportedTarget",
    "WaveRNN",
    "compile_matrix",
]
__version__ = "0.1.0"
