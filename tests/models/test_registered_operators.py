"""Every operator that is registered: its types, its bytes in a file, its code, its batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import run_graph
from registered_operators import CASES, OperatorCase
from runnable import ISAS
from saved_models import compiled

import sparsejit
from sparsejit.artefact.graph_file import OPERATOR_RECORDS
from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import BatchPlace, SamplesMixed
from sparsejit.ir.ops import OPERATORS
from sparsejit.ir.values import Array, Element, TensorType
from sparsejit.lowering.context import lowerings
from sparsejit.machine.target import Target

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case.op))


def test_every_operator_has_a_lowering_and_a_case() -> None:
    wanted = set(OPERATORS.values())
    assert set(lowerings()) == wanted == {type(case.op) for case in CASES}


@each_case
def test_its_record_comes_back_equal_and_of_the_same_types(case: OperatorCase) -> None:
    data = json.loads(json.dumps(OPERATOR_RECORDS.encode(case.op), allow_nan=False))
    again = OPERATOR_RECORDS.decode(data)
    assert again == case.op and repr(again) == repr(case.op)


def types_of(case: OperatorCase) -> list[TensorType]:
    return [TensorType(a.shape, Element(a.dtype.name)) for a in case.operands]


@each_case
def test_its_code_computes_what_its_reference_says(case: OperatorCase) -> None:
    graph = case.graph()
    wanted = graph.evaluate(case.inputs)
    levels = [Target.named(param.values[0]) for param in ISAS if not param.marks[0].args[0]]
    for target in filter(case.has_code, [*levels, *([Target.detect()] if case.needs else [])]):
        results = run_graph(graph, case.inputs, target)
        for found, exact in zip(results, wanted, strict=True):
            assert found.shape == exact.shape and (found.dtype.kind == exact.dtype.kind)
            np.testing.assert_allclose(found, exact, rtol=case.tolerance, atol=case.tolerance)


@each_case
def test_its_file_gives_the_bits_of_memory(case: OperatorCase, tmp_path: Path) -> None:
    if not case.has_code(Target.detect()):
        pytest.skip(f"needs {case.needs}")
    model = compiled(case.graph(), None)
    model.save(tmp_path / "m.sjit")
    again = sparsejit.load(tmp_path / "m.sjit")
    for found, wanted in zip(again.run(case.inputs), model.run(case.inputs), strict=True):
        assert found.tobytes() == wanted.tobytes()


@each_case
def test_other_operands_are_refused(case: OperatorCase) -> None:
    kinds = types_of(case)
    declared = case.op.signature(len(kinds))
    case.op.infer(*kinds)
    for number, (kind, one) in enumerate(zip(kinds, declared.operands, strict=False)):
        others: list[Any] = []
        if one.element not in ("any", "X"):
            taken = {kind.element.value, *one.element.split("|")}
            others += [TensorType(kind.shape, e) for e in Element if e.value not in taken]
        if "..." not in one.axes and not any(axis.startswith("*") for axis in one.axes):
            others += [TensorType((*kind.shape, 1), kind.element)]
            others += [TensorType(kind.shape[1:], kind.element)] if kind.shape else []
        for other in others:
            with pytest.raises(InvalidInput, match=r" got \(.*\); give "):
                case.op.infer(*kinds[:number], other, *kinds[number + 1 :])


@each_case
def test_samples_that_it_keeps_apart_do_not_mix(case: OperatorCase) -> None:
    """Along every axis that may be the batch's: samples in another order give results so too."""
    declared = case.op.signature(len(case.operands)).operands
    pairs = list(zip(declared, case.operands, strict=False))
    labels = [one.labels(array.ndim) for one, array in pairs]
    for label in dict.fromkeys(label for each in labels for label in each):
        found = [n for n, each in enumerate(labels) if label in each]
        lengths = {n: case.operands[n].shape[labels[n].index(label)] for n in found}
        longest = max(lengths.values())
        if longest > 1:
            placed = {n: labels[n].index(label) for n in found if lengths[n] == longest}
            check_order(case, placed, longest)


def check_order(case: OperatorCase, placed: dict[int, int], length: int) -> None:
    """Nothing, unless the operator follows a batch on these axes of these operands."""
    known = [n for n in range(len(case.operands)) if n not in placed]
    graph = replace(case, constants=0).graph()
    constants = {graph.nodes[0].inputs[n]: case.operands[n] for n in known}
    follow = replace(graph, constants=constants).follower(length)
    for number, axis in placed.items():
        follow.places[graph.inputs[number]] = BatchPlace(axis)
    try:
        case.op.follow_batch(follow, graph.nodes[0])
    except SamplesMixed:
        return
    order = np.roll(np.arange(length), 1)
    inputs = [
        array.take(order, placed[number]) if number in placed else array
        for number, array in enumerate(case.operands)
    ]
    before, after = graph.evaluate(case.operands), graph.evaluate(inputs)
    for value, found, wanted in zip(graph.outputs, after, before, strict=True):
        if value in follow.given:
            np.testing.assert_array_equal(found, wanted)
            continue
        assert value in follow.places, f"{case.op} loses the batch"
        moved = reordered(wanted, follow.places[value], order)
        np.testing.assert_allclose(found, moved, rtol=1e-12, atol=1e-12)


def reordered(array: Array, place: BatchPlace, order: Array) -> Array:
    """An array with its samples in that order."""
    before, after = array.shape[: place.axis], array.shape[place.axis + 1 :]
    apart = array.reshape(*before, place.outer, len(order), place.inner, *after)
    return apart.take(order, place.axis + 1).reshape(array.shape)
