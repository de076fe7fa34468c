"""The one family of exceptions: every message names the value found and the remedy."""


class SparseJitError(Exception):
    """Base class of everything sparsejit raises on purpose."""


class InvalidInput(SparseJitError, ValueError):
    """An argument has the wrong shape, dtype, layout or value."""


class UnsupportedTarget(SparseJitError, RuntimeError):
    """The processor, or the limit set on it, lacks an instruction set that is needed."""


class MissingDependency(SparseJitError, ImportError):
    """A package that this feature needs cannot be imported."""


class DamagedFile(SparseJitError, ValueError):
    """A file is truncated, corrupted, or not of the kind expected."""


class CompileError(SparseJitError, RuntimeError):
    """A kernel cannot be built: an instruction or a layout does not exist."""
