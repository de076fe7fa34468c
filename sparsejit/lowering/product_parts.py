"""A product as steps that may run at once: some rows of the weights each, or some columns of x."""

from collections.abc import Callable
from dataclasses import replace

from sparsejit.ir.graph import TensorType
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, Layout, MatMul
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.lowering.storage import View
from sparsejit.machine.target import Target
from sparsejit.planner.batch_split import ways_to_split
from sparsejit.planner.plan import Plan
from sparsejit.planner.split import Part, split
from sparsejit.x86.assembler import Assembler

_FLOAT = 4


def ways_to_divide(
    whole: Step,
    layer: Layer,
    matrix: SparseMatrix,
    choice: Plan,
    target: Target,
    plan_part: Callable[[Layer, SparseMatrix], Plan],
    threads: int,
) -> list[list[Step]]:
    """By columns and by rows, where there are as many."""
    if isinstance(layer, MatMul):
        ways = ways_to_split(layer, matrix, choice, target, threads, plan_part)
    else:
        division = split(layer, matrix, choice, target, threads, plan_part)
        ways = [list(division.parts)] if len(division.parts) > 1 else []
    return [[_part_step(whole, part) for part in parts] for parts in ways]


def _part_step(whole: Step, part: Part) -> Step:
    body = part.plan.emit

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        body(asm)

    chosen = part.plan.chosen
    return replace(
        whole,
        kernel=chosen.template.name,
        reads=(_read(whole.reads[0], part),),
        writes=(_written(whole.writes[0], part),),
        emit=emit,
        facts=Facts(whole.facts.reason, predicted_ns=chosen.cost.ns),
        divide=None,
        body=body,
        share=part.share,
    )


def _read(source: View, part: Part) -> View:
    """Its columns of x, (columns, in_features)."""
    spec = part.spec
    features = spec.in_features
    strides = (_FLOAT * features, _FLOAT)
    if isinstance(spec, MatMul) and spec.layout is Layout.FEATURE_MAJOR:
        strides = (_FLOAT, _FLOAT * spec.pitch)
    kind = TensorType((part.columns, features))
    return View(source.buffer, kind, strides, source.offset + part.x_bytes)


def _written(destination: View, part: Part) -> View:
    """Its columns and rows of y, (columns, out_features)."""
    spec = part.spec
    strides = (_FLOAT * spec.out_features, _FLOAT)
    if isinstance(spec, MatMul):
        is_turned = spec.y_layout is Layout.FEATURE_MAJOR
        strides = (_FLOAT, _FLOAT * spec.pitch) if is_turned else (_FLOAT * spec.y_features, _FLOAT)
    kind = TensorType((part.columns, spec.out_features))
    return View(destination.buffer, kind, strides, destination.offset + part.y_bytes)
