"""Sparse inference on x86-64: pruned weights compiled into machine code.

>>> fast = sparsejit.compile(model, example_inputs=(x,))
>>> y = fast(x)
"""

from types import ModuleType

from sparsejit.api import (
    CompiledEstimator,
    CompiledModel,
    Kernel,
    PartedModel,
    compile_matrix,
    load,
)
from sparsejit.api import compile_model as compile  # noqa: A004, the verb users know
from sparsejit.errors import (
    CompileError,
    DamagedFile,
    InvalidInput,
    MissingDependency,
    NotCopyable,
    SparseJitError,
    UnsupportedOperator,
    UnsupportedTarget,
)
from sparsejit.machine.target import Target
from sparsejit.voice.speak.wavernn import WaveRNN

__all__ = [
    "CompileError",
    "CompiledEstimator",
    "CompiledModel",
    "DamagedFile",
    "InvalidInput",
    "Kernel",
    "MissingDependency",
    "NotCopyable",
    "PartedModel",
    "SparseJitError",
    "Target",
    "UnsupportedOperator",
    "UnsupportedTarget",
    "WaveRNN",
    "compile",
    "compile_matrix",
    "load",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """`sparsejit.prune`, which needs torch, where it is first asked for."""
    if name == "prune":
        import sparsejit.prune

        return sparsejit.prune
    raise AttributeError(f"module 'sparsejit' has no attribute {name!r}")
