"""Linear layers: the planner's kernel for the matrix and the number of rows of x.

    with_x_steps       int8 layers whose x has a fixed scale and a zero point
    lower_linear       a linear layer
    steps_of_product   steps of a layer, which share their code
    product_facts      facts about a product

Feature-major values (`feature_major`) have padded rows (`Lowering.pitch_of`); layers read and write
them without transposing.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Protocol

import numpy as np

from sparsejit.asm_templates.gather.int8_boundary import int8_sums
from sparsejit.asm_templates.gather.int8_layout import kept_input_bytes
from sparsejit.asm_templates.gather.pieces import KeptInputs
from sparsejit.asm_templates.lowered import WEIGHT_BYTES
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layer, Layout, MatMul, MatVec
from sparsejit.lowering.context import Lowering, ModelOptions, lowers
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.products.product_parts import Bodies, emit_plan, part_steps
from sparsejit.lowering.step import Facts, Locations, Step, between
from sparsejit.planner.kernel_choice import Plan
from sparsejit.planner.split import Part
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rsi


def with_x_steps(each: MatVec, matrix: SparseMatrix, op: Linear | Convolution) -> MatVec:
    """The layer with the operator's scale and zero point of x, where it has them.

    Kernels multiply shifted integers, W (q + shift); W shift is subtracted from the bias.
    """
    steps = op.x_steps
    if op.dtype is not DType.INT8 or steps is None:
        return each
    scaled = replace(each, x_steps=steps)
    if not steps.zero_point:
        return scaled
    scales, sums = int8_sums(matrix)
    of_sums = (scales * np.float32(steps.scale)).astype(np.float64)
    taken = of_sums * steps.zero_point * sums
    bias = 0.0 if each.bias is None else each.bias.astype(np.float64)
    return replace(scaled, bias=(bias - taken).astype(np.float32))


@lowers(Linear)
def lower_linear(low: Lowering, node: Node) -> None:
    """Append one product for all rows of x."""
    op = node.op
    assert isinstance(op, Linear)
    x, weights, *bias = node.inputs
    matrix = low.matrix(weights)
    values = low.constant(bias[0]) if bias else None
    out_features, in_features = weights.shape
    each = MatVec(out_features, in_features, values, op.activation, op.dtype)
    each = with_x_steps(each, matrix, op)
    matrix.check_fits(each)
    rows = prod(x.shape[:-1])
    lying = low.feature_major
    x_lies = node in lying.panels and x in lying.read
    y_lies = node.output in lying.made
    layer: Layer = each
    if rows > 1:
        layer = _batch(each, rows, low.pitch_of(rows) if x_lies or y_lies else None, x_lies, y_lies)
    source = low.by_feature(x) if x_lies else low.contiguous(x)
    destination = (low.result_by_feature if y_lies else low.dense_result)(node.output)
    low.add(product_step(node, layer, matrix, source, destination, low.options))


def _batch(each: MatVec, rows: int, pitch: int | None, x_lies: bool, y_lies: bool) -> MatMul:
    """The product of all rows of x; `x_lies`, `y_lies`: whether x and y are feature-major."""
    x, y = (Layout.FEATURE_MAJOR if one else Layout.BATCH_MAJOR for one in (x_lies, y_lies))
    return MatMul(each, rows, x, pitch, result_layout=None if x is y else y)


def product_step(
    node: Node,
    layer: Layer,
    matrix: SparseMatrix,
    source: View,
    destination: View,
    options: ModelOptions,
) -> Step:
    """The step with the kernel that the planner chooses for a layer."""
    return steps_of_product(node, layer, matrix, options)(source, destination)


class StepMaker(Protocol):
    """Makes the step for an x, a y and, if the layer adds one, an operand added to y."""

    def __call__(self, source: View, destination: View, added: View | None = None) -> Step: ...


def steps_of_product(
    node: Node, layer: Layer, matrix: SparseMatrix, options: ModelOptions
) -> StepMaker:
    """A function that makes steps of a layer, which share their code."""
    choice = options.planner.plan(layer, matrix)
    facts = product_facts(layer, matrix, choice, node.inputs[1].origin.name)
    parts, kept_bytes = _parts(layer, matrix, choice, options)
    bodies: Bodies = {}
    in_place = options.planner.adds_in_place(layer, choice)

    @cache
    def ways(threads: int) -> list[list[Part]]:
        own = replace(options.planner.beside(matrix), cores=options.threads_a_tile)
        return own.ways_to_split(layer, matrix, choice, threads)

    def step_between(source: View, destination: View, added: View | None = None) -> Step:
        def divide(threads: int) -> list[list[Step]]:
            return [part_steps(step, each, bodies) for each in ways(threads)]

        step = Step(
            choice.chosen.template.name,
            node.outputs[0].origin,
            (source,) if added is None else (source, added),
            (destination,),
            between(body),
            facts,
            scratch_bytes=kept_bytes,
            in_place=1 if added is not None and in_place else None,
            parts=parts,
            parts_are_exact=layer.dtype is DType.INT8,
            divide=divide if options.threads_a_tile > 1 else None,  # it keeps weights alive
            body=body,
        )
        return step

    body = partial(emit_plan, plan=choice)
    return step_between


_Code = Callable[[Assembler, Locations], None]


def _parts(
    layer: Layer, matrix: SparseMatrix, choice: Plan, options: ModelOptions
) -> tuple[tuple[_Code, ...], int]:
    """Code of the parts of a product, and the bytes of inputs that every part can keep.

    No code where `part_bytes` is None or one part is enough.
    """
    if options.part_bytes is None or not isinstance(layer, MatVec):
        return (), 0
    parts = options.planner.row_parts(layer, matrix, choice, options.part_bytes)
    if len(parts) == 1:
        return (), 0
    kept_bytes = min(kept_input_bytes(part.plan.lowered) for part in parts)
    codes = [_part_code(part, number, kept_bytes > 0) for number, part in enumerate(parts)]
    return tuple(codes), kept_bytes


def _part_code(part: Part, number: int, keeps: bool) -> _Code:
    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        asm.emit("add", rsi, part.y_bytes)
        lowered = part.plan.lowered
        if keeps:
            lowered = replace(lowered, kept=KeptInputs(at.scratch, is_first=number == 0))
        part.plan.chosen.template.emit(asm, lowered)

    return emit


def product_facts(layer: Layer, matrix: SparseMatrix, choice: Plan, parameter: str) -> Facts:
    """Facts of a product: its plan, its weights and their zeros."""
    return planned_facts(layer, matrix, choice, matrix.zero_bits(), parameter)


def planned_facts(
    layer: Layer, matrix: SparseMatrix, choice: Plan, zeros: bytes = b"", parameter: str = ""
) -> Facts:
    """Facts of a product from its plan and the number of its weights."""
    columns = layer.batch if isinstance(layer, MatMul) else 1
    chosen, weights = choice.chosen, matrix.out_features * matrix.in_features
    return Facts(
        choice.reason,
        predicted_ns=chosen.cost.ns,
        nnz=matrix.nnz,
        weights=weights,
        weight_bytes=matrix.nnz * WEIGHT_BYTES[layer.dtype],
        code_bytes=chosen.cost.code_bytes,
        effective_flops=2 * weights * columns,
        flops=2 * matrix.nnz * columns,
        bound=chosen.cost.bound,
        plan=choice.record(),
        layer=layer,
        zeros=zeros,
        parameter=parameter,
    )
