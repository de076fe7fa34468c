"""Sparse inference on x86-64: pruned weights compiled into machine code.

>>> fast = sparsejit.compile(model, example_inputs=(x,))
>>> y = fast(x)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from sparsejit.api.kernels.compile_layer import compile_matrix
    from sparsejit.api.kernels.kernel import Kernel
    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.api.models.generating import generate
    from sparsejit.api.models.parted_model import PartedModel
    from sparsejit.api.quantising.scales import Scales
    from sparsejit.compiling import compile_model as compile  # noqa: A004, users' verb
    from sparsejit.compiling import quantise
    from sparsejit.estimators.compiled_estimator import CompiledEstimator
    from sparsejit.loading import load
    from sparsejit.machine.target import Target
    from sparsejit.prune.shrink.shrinking import shrink
    from sparsejit.prune.shrink.shrunk import Shrunk
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
    "Scales",
    "Shrunk",
    "SparseJitError",
    "Target",
    "UnsupportedOperator",
    "UnsupportedTarget",
    "WaveRNN",
    "compile",
    "compile_matrix",
    "generate",
    "load",
    "quantise",
    "shrink",
]
__version__ = "1.0.0"

# The module of each public name, imported when the name is first used.
_MODULES = {
    "CompiledEstimator": "estimators.compiled_estimator",
    "CompiledModel": "api.models.compiled_model",
    "Kernel": "api.kernels.kernel",
    "PartedModel": "api.models.parted_model",
    "Scales": "api.quantising.scales",
    "Shrunk": "prune.shrink.shrunk",
    "Target": "machine.target",
    "WaveRNN": "voice.speak.wavernn",
    "compile": "compiling",
    "compile_matrix": "api.kernels.compile_layer",
    "generate": "api.models.generating",
    "load": "loading",
    "quantise": "compiling",
    "shrink": "prune.shrink.shrinking",
}
_OWN_NAMES = {"compile": "compile_model"}
# Packages that are attributes of `sparsejit`, imported when they are first used.
_PACKAGES = ("attention_masks", "prune", "voice")


def __getattr__(name: str) -> Any:
    """Import and return a public name, or a package of public names."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'sparsejit' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), _OWN_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
