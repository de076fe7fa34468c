"""Damaged and odd ONNX models: by seed, a model that stands and what was changed in it.

case = make(seed)        sources: ONNX's own cases, models that torch writes, trained files
check(case)              compiled and run, or refused by one error of ours
"""

from __future__ import annotations

import io
import os
import random
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzzing.onnx_changes import CHANGES
from fuzzing.onnx_growing import session
from onnx import ModelProto
from onnx.backend.test.case.node import collect_testcases
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array, to_array
from onnx.reference import ReferenceEvaluator

import sparsejit
from sparsejit.api.models.called import cut
from sparsejit.errors import InvalidInput, SparseJitError
from sparsejit.frontends.onnx import import_onnx
from sparsejit.frontends.onnx.operators.table import OPERATORS
from sparsejit.frontends.onnx.reading import OLDEST_OPSET, newest_opset
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.turns import Turns
from sparsejit.ir.values import Array, Value
from sparsejit.perf.zoo import SMALL_ZOO

TRAINED = Path("/work/shared/data/onnx")
# Limits of a graph: more would be run for longer than a case is worth.
MOST_ELEMENTS, MOST_NODES = 1 << 20, 60
# Turns of a loop, which the onnx package takes some 20 us each for.
MOST_TURNS = 1 << 12
# Allowed error relative to the element and to the largest: of short floats several roundings.
_TOLERANCE, _OF_SHORT = (1e-3, 1e-4), {"float16": (4e-3, 2e-3), "bfloat16": (3e-2, 15e-3)}
# Up to which a trained file is a source: larger ones are read for longer than mutants are worth.
_MOST_BYTES = 600_000


@dataclass(frozen=True)
class OnnxCase:
    """A model and what was changed in it; some inputs may have become initialisers."""

    seed: int
    title: str
    model: ModelProto | bytes


def make(seed: int) -> OnnxCase:
    """The case of a seed: a source, and one to three changes of it."""
    draw = random.Random(seed)
    sources = _sources()
    name = draw.choice(sorted(sources))
    model = ModelProto()
    model.CopyFrom(sources[name])
    title = [name]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice(CHANGES)
        try:
            what = change(draw, model)
        except (IndexError, ValueError, TypeError):  # nothing there to change, or no such value
            continue
        title.append(f"{change.__name__.replace('_', ' ')}: {what}")
    if draw.random() < 0.03:
        return OnnxCase(seed, "; ".join([*title, "bytes"]), _spoiled(draw, model))
    return OnnxCase(seed, "; ".join(title), model)


def read(case: OnnxCase) -> Graph | None:
    """The graph of a case; None where it is refused by one of our errors, as it may be."""
    try:
        return import_onnx(model_of(case), free_batch=False).graph()
    except SparseJitError:
        return None


def check(case: OnnxCase) -> str:
    """The outcome of a case: "refused" by our errors, "read", or if it is small "compiled".

    Raises whatever else comes, and AssertionError where code computes otherwise than ONNX Runtime
    and the onnx package, or than the graph where neither computes anything.
    """
    graph = read(case)
    if graph is None:
        return "refused"
    if not _is_small(graph):
        return "read"
    random_ = np.random.default_rng(case.seed)
    kinds = _declared(case.model)
    inputs = [
        _held(random_.standard_normal(value.shape) * 2, value, kinds[value.origin.name])
        for value in graph.inputs
    ]
    try:
        compiled = sparsejit.compile(model_of(case), free_batch=False)
    except SparseJitError:
        return "refused"
    try:
        found = compiled(*inputs)
    except InvalidInput:  # an index that is out of range
        return "compiled"
    if any(node.op.count > MOST_TURNS for node in graph.nodes if isinstance(node.op, Turns)):
        return "compiled"
    results = found if isinstance(found, tuple) else (found,)
    try:
        _assert_all_close(results, _wanted(case, graph, inputs))
    except AssertionError:
        theirs = _by_onnx_runtime(case, graph, inputs)
        if theirs is None:
            raise
        _assert_all_close(results, theirs)
        return "compiled, as ONNX Runtime alone has it"
    return "compiled"


def _declared(model: ModelProto | bytes) -> dict[str, Any]:
    """The dtype of each input."""
    if isinstance(model, bytes):
        return {}
    kinds = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    return {name: tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items()}


def _held(x: Array, value: Value, dtype: Any) -> Array:
    """Numbers that the declared dtype has, as the graph takes them."""
    whole = np.asarray(x, value.type.element.value)
    return whole if whole.dtype.kind != "f" else whole.astype(dtype).astype(whole.dtype)


def _given(case: OnnxCase, graph: Graph, inputs: Sequence[Array]) -> dict[str, Array]:
    """The inputs by name, in the dtypes that the model declares."""
    kinds = _declared(case.model)
    names = [value.origin.name for value in graph.inputs]
    return {name: x.astype(kinds[name]) for name, x in zip(names, inputs, strict=True)}


def _by_onnx_runtime(case: OnnxCase, graph: Graph, inputs: Sequence[Array]) -> list[Array] | None:
    """Its results; None where it refuses the model."""
    given = _given(case, graph, inputs)
    try:
        return list(map(np.asarray, session(case.model).run(None, given)))
    except Exception:  # of whatever type it raises
        return None


def _assert_all_close(results: Sequence[Array], wanted: Sequence[Array]) -> None:
    for result, reference in zip(results, wanted, strict=True):
        assert result.shape == reference.shape, f"{result.shape}, not {reference.shape}"
        _assert_close(result, reference)


def model_of(case: OnnxCase) -> Any:
    """The model; of bytes the path of a file that holds them."""
    if not isinstance(case.model, bytes):
        return case.model
    path = Path(tempfile.gettempdir()) / f"sparsejit-{os.getpid()}.onnx"
    path.write_bytes(case.model)
    return path


def _wanted(case: OnnxCase, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """As the onnx package computes it, else as the graph does."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = cut(graph.evaluate(inputs), graph.open_axes)
        if _loops_for_long(case.model):  # though the graph may have no such loop any more
            return wanted
        try:  # what numpy calls invalid, as infinity in whole numbers, has no right result
            np.seterr(invalid="raise")
            theirs = ReferenceEvaluator(case.model).run(None, _given(case, graph, inputs))
        except Exception:  # of whatever type its operator raises
            return wanted
    shapes = [np.shape(each) for each in theirs]
    return wanted if shapes != [each.shape for each in wanted] else list(map(np.asarray, theirs))


def _loops_for_long(model: ModelProto | bytes) -> bool:
    """Whether a Loop of the model makes more turns than an evaluator in Python has time for."""
    if isinstance(model, bytes):
        return False
    known = {each.name: each for each in model.graph.initializer}
    loops = [node.input[0] for node in model.graph.node if node.op_type == "Loop"]
    return any(to_array(known[name]).max() > MOST_TURNS for name in loops if name in known)


def _assert_close(result: Array, reference: Array) -> None:
    """Compare where both are finite, within rounding of their dtype and of short formulas."""
    relative, of_largest = _OF_SHORT.get(reference.dtype.name, _TOLERANCE)
    with np.errstate(all="ignore"):
        wide, wanted = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(wanted) & (np.abs(wanted) < 1e30)
    scale = np.abs(wanted[finite]).max(initial=1.0)
    bounds = {"rtol": relative, "atol": of_largest * scale}
    np.testing.assert_allclose(wide[finite], wanted[finite], **bounds)


def _is_small(graph: Graph) -> bool:
    size = sum(value.type.size for value in graph.values())
    return len(graph.nodes) <= MOST_NODES and size <= MOST_ELEMENTS


@cache
def _sources() -> dict[str, ModelProto]:
    return dict([*_node_cases(), *_from_torch(), *_trained()])


def _node_cases() -> Iterator[tuple[str, ModelProto]]:
    """ONNX's own cases, each once more with all but its first input known."""
    for case in collect_testcases(None):
        if not any(node.op_type in OPERATORS for node in case.model.graph.node):
            continue
        model = ModelProto()
        model.CopyFrom(case.model)
        for each in model.opset_import:
            each.version = min(max(each.version, OLDEST_OPSET), newest_opset())
        yield case.name, model
        inputs, _ = case.data_sets[0]
        if len(inputs) > 1 and all(isinstance(x, np.ndarray | np.generic) for x in inputs):
            known = ModelProto()
            known.CopyFrom(model)
            for declared, array in zip(model.graph.input[1:], inputs[1:], strict=False):
                known.graph.initializer.append(from_array(np.asarray(array), declared.name))
            del known.graph.input[1:]
            yield f"{case.name} with known operands", known


def _from_torch() -> Iterator[tuple[str, ModelProto]]:
    for name in sorted(SMALL_ZOO):
        zoo = SMALL_ZOO[name]
        file = io.BytesIO()
        model, inputs = zoo.build(), zoo.inputs(2)
        torch.onnx.export(model, tuple(inputs), file, dynamo=False, opset_version=17)
        yield f"torch {name}", ModelProto.FromString(file.getvalue())


def _trained() -> Iterator[tuple[str, ModelProto]]:
    for path in sorted(TRAINED.glob("*.onnx")):
        if path.stat().st_size < _MOST_BYTES:
            yield path.name, ModelProto.FromString(path.read_bytes())


def _spoiled(draw: random.Random, model: ModelProto) -> bytes:
    data = bytearray(model.SerializeToString())
    if draw.random() < 0.5:
        return bytes(data[: draw.randrange(len(data))])
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)
