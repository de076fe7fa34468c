"""The exceptions and warnings of sparsejit.

    SparseJitError   base class of exceptions: every message names the value found and the remedy
    called           refusal of misspelt arguments, by the name of the function that users call
    warn_caller      warnings that name the user's line, at any depth of calls within this package
"""

import contextlib
import difflib
import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class SparseJitError(Exception):
    """Base class of everything sparsejit raises on purpose."""


class InvalidInput(SparseJitError, ValueError):
    """An argument has the wrong shape, dtype, layout or value."""


class UnsupportedOperator(InvalidInput):
    """A model uses operators that cannot be compiled: the message lists all of them."""


class UnsupportedTarget(SparseJitError, RuntimeError):
    """The processor, or the limit set on it, lacks an instruction set that is needed."""


class MissingDependency(SparseJitError, ImportError):
    """A package or program that this feature needs is not there."""


class DamagedFile(SparseJitError, ValueError):
    """A file is truncated, corrupted, or not of the kind expected."""


class CompileError(SparseJitError, RuntimeError):
    """A kernel cannot be built: an instruction or a layout does not exist."""


class NotCopyable(SparseJitError, TypeError):
    """An object that holds process addresses or a stream position cannot be copied or pickled."""


def suggest(name: Any, known: Iterable[str]) -> str:
    """Remedy for a misspelt name, for messages: the nearest known name, or all of them.

    Args:
        name: the name found
        known: the valid names
    """
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"


def check_flags(**given: Any) -> None:
    """Raise InvalidInput for arguments, by name, that are neither True nor False."""
    for name, value in given.items():
        if type(value).__name__ not in ("bool", "bool_"):  # Python's and numpy's
            raise InvalidInput(f"{name}={value!r}; give True or False")


def called(name: str) -> Callable[[Function], Function]:
    """Decorate a function so that unknown arguments raise TypeError with its name and the nearest.

    Args:
        name: the name by which users call the function
    """

    def decorate(function: Function) -> Function:
        code = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            unknown = [each for each in kwargs if each not in known]
            if unknown:
                remedy = suggest(unknown[0], known)
                raise TypeError(f"{name}() has no argument {unknown[0]!r}; {remedy}")
            return function(*args, **kwargs)

        return cast(Function, checked)

    return decorate


_OURS = (str(Path(__file__).parents[0]), contextlib.__file__)


def warn_caller(text: str) -> None:
    """Warn at the nearest line outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
