"""The test cases that ONNX itself has for every operator, as models for our opsets."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.test.case.node import collect_testcases
from onnx.numpy_helper import from_array

from sparsejit.api.models.called import cut
from sparsejit.api.models.dtypes import CallWords, ModelDtypes
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx
from sparsejit.frontends.onnx.call import operator_of
from sparsejit.frontends.onnx.reading import OLDEST_OPSET, newest_opset
from sparsejit.frontends.onnx.words import ML_DOMAIN
from sparsejit.ir.dtypes import TEXT
from sparsejit.ir.values import Array

_KINDS = "fiub"
_TEXTS = "OU"
_BEYOND = np.dtype(np.uint64)  # which no graph holds


@dataclass(frozen=True)
class NodeCase:
    """A model of one node or a few, and a call of it."""

    name: str
    model: ModelProto
    inputs: list[Array]
    outputs: list[Array]


@cache
def cases_by_operator() -> dict[str, list[NodeCase]]:
    """All cases of dtypes that we have, by the operator of their first node."""
    found: dict[str, list[NodeCase]] = {}
    for case in _cases():
        found.setdefault(operator_of(case.model.graph.node[0]), []).append(case)
    return found


def _cases() -> Iterator[NodeCase]:
    for case in collect_testcases(None):
        model: Any = deepcopy(case.model)
        inputs, outputs = case.data_sets[0]
        arrays = [*inputs, *outputs]
        plain = all(isinstance(a, np.ndarray | np.generic) for a in arrays)
        kinds = _KINDS + _TEXTS if model.graph.node[0].domain == ML_DOMAIN else _KINDS
        if not plain or not all(np.asarray(a).dtype.kind in kinds for a in arrays):
            continue
        if _BEYOND in (np.asarray(a).dtype for a in arrays):
            continue
        version = next((each for each in model.opset_import if not each.domain), None)
        if model.graph.node[0].domain == ML_DOMAIN:
            version = version or model.opset_import.add()
        if version is not None:
            version.version = min(max(version.version, OLDEST_OPSET), newest_opset())
            given = [np.asarray(a) for a in inputs]
            yield NodeCase(case.name, model, given, [np.asarray(a) for a in outputs])


def computed(case: NodeCase) -> list[Array]:
    """The results of the graph of a case; operands that must be known are known, no others.

    Only the first output, where the others are masks and places that no graph keeps.
    """
    try:
        return _evaluated(case, 0)
    except UnsupportedOperator as error:
        if "is not computed" in str(error):
            return _evaluated(case, 0, outputs=1)
        if len(case.inputs) < 2:
            raise
        return _evaluated(case, 1)


def _evaluated(case: NodeCase, known_from: int, outputs: int | None = None) -> list[Array]:
    """With the inputs from that number on as initialisers; 0 leaves all to the call."""
    model, known = deepcopy(case.model), []
    if outputs is not None:
        del model.graph.output[outputs:]
    if known_from:
        known = list(zip(model.graph.input, case.inputs, strict=True))[known_from:]
        del model.graph.input[known_from:]
    for declared, array in known:
        model.graph.initializer.append(from_array(array, declared.name))
    read = import_onnx(model, free_batch=False)
    graph = read.graph()
    dtypes = ModelDtypes(graph.inputs, read.input_tree, read.output_tree)
    words, texts = dtypes.words(), {n for n, each in dtypes.outputs if each == TEXT}
    given = case.inputs[: len(case.inputs) - len(known)]
    wide = [_wide(a, words) for a in given]
    found = cut(graph.evaluate(wide), graph.open_axes)
    return [words.texts(x) if words and n in texts else x for n, x in enumerate(found)]


def _wide(array: Array, words: CallWords | None) -> Array:
    """An operand of a call as graphs have it."""
    if array.dtype.kind in _TEXTS:
        assert words is not None
        return words.numbers(array, "x")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array
