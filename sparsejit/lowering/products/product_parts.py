"""Code and steps of products that the planner chose.

    emit_plan     the code of a product
    emit_split    the function of a product in parts, on several threads
    part_steps    steps for parts: some rows of the weights, or some columns of x
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sparsejit.errors import CompileError
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.ir.values import TensorType
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.step import Body, Facts, Step, between
from sparsejit.planner.kernel_choice import Plan
from sparsejit.planner.split import Part, Split
from sparsejit.runtime.workers import NativePart, pool
from sparsejit.x86.assembler import Assembler

_FLOAT = 4

Bodies = dict[int, Body]  # by the identity of the plan whose code they append


def emit_plan(asm: Assembler, plan: Plan) -> None:
    """Append the chosen kernel, without a return. Raises CompileError for a record."""
    if plan.lowered is None:
        raise CompileError("this plan is a record of a kernel, without code; plan the layer again")
    plan.chosen.template.emit(asm, plan.lowered)


def emit_split(asm: Assembler, split: Split) -> None:
    """Append void kernel(x, y) of all parts without its last `vzeroupper` and return."""
    if len(split.parts) == 1:
        emit_plan(asm, split.parts[0].plan)
        return
    labels = {id(part.plan): asm.label("part") for part in split.parts}
    natives = [
        NativePart(labels[id(part.plan)], part.y_bytes, part.x_bytes) for part in split.parts
    ]
    workers = pool()
    workers.require(len(natives) - 1)
    workers.emit_dispatcher(asm, natives, split.saved_ns)
    for number, part in enumerate({id(part.plan): part for part in split.parts}.values()):
        if number:
            asm.emit("vzeroupper")
            asm.emit("ret")
        asm.align(64)
        asm.bind(labels[id(part.plan)])
        emit_plan(asm, part.plan)


def part_steps(whole: Step, parts: Sequence[Part], bodies: Bodies) -> list[Step]:
    """A step for each part; parts with the same plan share its code, which is kept in `bodies`."""
    for part in parts:
        bodies.setdefault(id(part.plan), partial(emit_plan, plan=part.plan))
    return [_part_step(whole, part, bodies[id(part.plan)]) for part in parts]


def _part_step(whole: Step, part: Part, body: Body) -> Step:
    chosen = part.plan.chosen
    return replace(
        whole,
        kernel=chosen.template.name,
        reads=(_read(whole.reads[0], part), *(_added(view, part) for view in whole.reads[1:])),
        writes=(_written(whole.writes[0], part),),
        emit=between(body),
        facts=Facts(whole.facts.reason, predicted_ns=chosen.cost.ns),
        divide=None,
        body=body,
        share=part.share,
    )


def _read(source: View, part: Part) -> View:
    """The part's columns of x, (columns, in_features)."""
    spec = part.spec
    features = spec.in_features
    strides = (_FLOAT * features, _FLOAT)
    if isinstance(spec, MatMul) and spec.layout is Layout.FEATURE_MAJOR:
        strides = (_FLOAT, _FLOAT * spec.pitch)
    kind = TensorType((part.columns, features))
    return View(source.buffer, kind, strides, source.offset + part.x_bytes)


def _added(operand: View, part: Part) -> View:
    """The part's columns and rows of the added operand, (columns, out_features)."""
    spec = part.spec
    assert isinstance(spec, MatMul) and spec.added_pitch is not None
    kind = TensorType((part.columns, spec.out_features))
    strides = (_FLOAT, _FLOAT * spec.added_pitch)
    return View(operand.buffer, kind, strides, operand.offset + part.added_bytes)


def _written(destination: View, part: Part) -> View:
    """The part's columns and rows of y, (columns, out_features)."""
    spec = part.spec
    strides = (_FLOAT * spec.out_features, _FLOAT)
    if isinstance(spec, MatMul):
        is_turned = spec.y_layout is Layout.FEATURE_MAJOR
        strides = (_FLOAT, _FLOAT * spec.pitch) if is_turned else (_FLOAT * spec.y_features, _FLOAT)
    kind = TensorType((part.columns, spec.out_features))
    return View(destination.buffer, kind, strides, destination.offset + part.y_bytes)
