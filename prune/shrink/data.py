"""Samples of a model's inputs: lists, files, and folders of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.frontends.files import read_arrays, read_npy
from sparsejit.ir.values import Array

LEAST_ELEMENTS = 8
# Every fourth element is held back, to measure errors on.
_HELD = 4


def read_data(path: str | Path, names: Sequence[str]) -> list[tuple[Array, ...]]:
    """The elements in a file, as arguments in the order of `names`, a model's inputs.

    An .npz file has an array for each input, by name; an .npy file is the array of the only input.
    The first axis counts elements, and each element keeps an axis of one. In a folder each .npy
    file is an element of the only input. Raises InvalidInput for a path of another kind, for names
    that the model does not have, and for arrays of unlike lengths.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if not files:
            raise InvalidInput(f"{path} has no .npy file; give a folder with one for each element")
        return [(read_npy(file),) for file in files]
    arrays = read_arrays(path, names, all_of_them=True)
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidInput(f"{path} has arrays of lengths {lengths}; give equal lengths")
    count = next(iter(lengths.values()))
    return [tuple(arrays[name][n : n + 1] for name in names) for n in range(count)]


def split(elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Elements to fit weights to, and elements held back to measure errors on.

    Raises InvalidInput for too few.
    """
    if len(elements) < LEAST_ELEMENTS:
        raise InvalidInput(
            f"data has {len(elements)} elements; give {LEAST_ELEMENTS} at least, better 100"
        )
    held = [each for n, each in enumerate(elements) if n % _HELD == _HELD - 1]
    return [each for n, each in enumerate(elements) if n % _HELD != _HELD - 1], held


def spread(elements: Sequence[Any], most: int) -> Sequence[Any]:
    """Some elements, `most` at most, from all parts of the data."""
    return elements[:: max(1, len(elements) // most)][:most]


def check_alike(shapes: Iterable[Any]) -> None:
    """Raise InvalidInput unless all elements have the shapes of the first."""
    first: Any = None
    for number, each in enumerate(shapes):
        first = each if first is None else first
        if each != first:
            raise InvalidInput(
                f"data[{number}] has inputs of shape {each}, data[0] {first}; give elements of "
                "one shape, cut or padded"
            )
