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
    from sparsejit.api.compile_layer import compile_matrix
    from sparsejit.api.compile_model import compile_model as compile  # noqa: A004, users' verb
    from sparsejit.api.compile_model import quantise
    from sparsejit.api.compiled_estimator import CompiledEstimator
    from sparsejit.api.kernel import Kernel
    from sparsejit.api.load import load
    from sparsejit.api.model import CompiledModel
    from sparsejit.api.parted_model import PartedModel
    from sparsejit.api.scales import Scales
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
    "load",
    "quantise",
    "shrink",
]
__version__ = "1.0.0"

# The module of each public name, imported when the name is first used.
_MODULES = {
    "CompiledEstimator": "api.compiled_estimator",
    "CompiledModel": "api.model",
    "Kernel": "api.kernel",
    "PartedModel": "api.parted_model",
    "Scales": "api.scales",
    "Shrunk": "prune.shrink.shrunk",
    "Target": "machine.target",
    "WaveRNN": "voice.speak.wavernn",
    "compile": "api.compile_model",
    "compile_matrix": "api.compile_layer",
    "load": "api.load",
    "quantise": "api.compile_model",
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
