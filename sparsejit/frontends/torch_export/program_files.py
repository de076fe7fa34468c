"""Files of torch.export.save."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency
from sparsejit.files import existing_file

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def read_program(
    path: str | os.PathLike[str],
) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """A .pt2 file's program and the example inputs stored in it, by position and by name.

    torch reads it, and may run code that the file holds. Raises InvalidInput where there is no file
    or no inputs in it, DamagedFile where torch cannot read it.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"reading {path} needs torch: pip install 'sparsejit[torch]'"
        ) from error
    file = existing_file(path, "a .pt2 file")
    try:
        with _quiet():
            program = torch.export.load(file)
    except Exception as error:  # of torch, zipfile, json, pickle
        raise DamagedFile(
            f"{file} cannot be read by torch {torch.__version__}; write it with "
            "torch.export.save(program, path) of that version"
        ) from error
    if program.example_inputs is None:
        raise InvalidInput(
            f"{file} has no example inputs; save a program that torch.export.export made with them"
        )
    args, kwargs = program.example_inputs
    return program, tuple(args), dict(kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context that silences torch's log: torch logs tracebacks of exceptions that it raises."""
    logger = logging.getLogger("torch.export")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
