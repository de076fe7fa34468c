"""Saved models with one to three changes and a digest that fits: loaded and called, or refused.

case = make(seed)        a random torch model as a file, and what was changed in it
check(case)              "ran", or "refused" by one of our errors
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from fuzzing import torch_models

import sparsejit
from sparsejit.artefact import sealed
from sparsejit.errors import SparseJitError

SOURCES = 40  # models a process makes at most
_NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63), 2**64, 0.5, -0.0, 1e300)
_ODD = (None, True, "text", "int64", "bool", "float32", "inf", [], [1], {}, [[1.0]])
_DTYPES = (np.int64, np.float32, np.float64, np.bool_, np.int8, np.uint8, np.int32)


@dataclass(frozen=True)
class FileCase:
    """A file to write, and the inputs of the model that it held."""

    title: str
    header: dict[str, Any]
    tensors: dict[str, Any]
    inputs: tuple[np.ndarray, ...]


def make(seed: int) -> FileCase:
    """The case of a seed."""
    draw = random.Random(seed)
    header, tensors, inputs = _source(draw.randrange(SOURCES))
    header, tensors = copy.deepcopy(header), dict(tensors)
    title = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice((_number, _number, _number, _field, _moved, _tensor))
        title.append(change(draw, header, tensors))
    return FileCase("; ".join(title), header, tensors, inputs)


@cache
def _source(number: int) -> tuple[dict[str, Any], dict[str, Any], tuple[np.ndarray, ...]]:
    """Header and tensors of a saved model; those that cannot be compiled are passed over."""
    with warnings.catch_warnings(), torch.no_grad(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        for seed in range(1000 * number, 1000 * (number + 1)):
            case = torch_models.make(seed)
            inputs = tuple(x[: case.example].clone() for x in case.inputs)
            try:
                compiled = sparsejit.compile(case.program, inputs)
            except SparseJitError:
                continue
            path = Path(folder) / "model.sparsejit"
            compiled.save(path)
            held = sealed.read(path, ["model"])
            return held.header, held.tensors, tuple(x.numpy() for x in inputs)
    raise AssertionError("no model of a thousand can be compiled")


def check(case: FileCase) -> str:
    """Whatever is not of sparsejit.errors is a finding; so is memory that the process has not."""
    with TemporaryDirectory() as folder, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.sparsejit"
        try:
            sealed.write(path, "model", case.header, case.tensors)
        except ValueError:
            return "no JSON"
        try:
            loaded = sparsejit.load(path)
            loaded(*case.inputs)
        except SparseJitError as refused:
            return f"refused: {type(refused).__name__}"
    return "ran"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a nest."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _number(draw: random.Random, header: dict[str, Any], tensors: dict[str, Any]) -> str:
    """A number, or a name, by another."""
    leaves = [(c, k) for c, k in _places(header) if not isinstance(c[k], dict | list)]
    inside, key = draw.choice(leaves)
    before = inside[key]
    near = (before + 1, before - 1, -before, 2 * before) if isinstance(before, int) else ()
    inside[key] = draw.choice((*near, *_NUMBERS, *_ODD))
    return f"{key}: {before!r} -> {inside[key]!r}"


def _field(draw: random.Random, header: dict[str, Any], tensors: dict[str, Any]) -> str:
    """One thing less, or twice."""
    inside, key = draw.choice(list(_places(header)))
    if isinstance(inside, list) and draw.random() < 0.5:
        inside.insert(key, copy.deepcopy(inside[key]))
        return f"{key} twice"
    del inside[key]
    return f"without {key}"


def _moved(draw: random.Random, header: dict[str, Any], tensors: dict[str, Any]) -> str:
    """The value at one place, at another as well."""
    places = list(_places(header))
    (one, here), (other, there) = draw.choice(places), draw.choice(places)
    one[here] = copy.deepcopy(other[there])
    return f"{here} = that of {there}"


def _tensor(draw: random.Random, header: dict[str, Any], tensors: dict[str, Any]) -> str:
    """Another dtype, shape or content; or none."""
    if not tensors:
        return "no tensors"
    name = draw.choice(sorted(tensors))
    array, way = tensors[name], draw.randrange(5)
    if way == 0:
        tensors[name] = array.astype(draw.choice(_DTYPES))
    elif way == 1:
        tensors[name] = np.ascontiguousarray(array.reshape(-1)[: draw.randrange(array.size + 1)])
    elif way == 2:
        tensors[name] = np.full(array.shape, draw.choice((0, 1, -1, 100))).astype(array.dtype)
    elif way == 3:
        tensors[name] = array[None]
    else:
        del tensors[name]
    return f"tensor {name}, way {way}"
