"""Operators of scikit-learn's estimators.

    ScaledColumns       columns of x in float64: scalers, categories
    JoinedColumns       x and columns beside it in float64
    PiecewiseColumns    columns of x in float64: codes, bins, splines
    PowerColumns        Yeo-Johnson powers of columns, in float64
    ColumnProducts      products of columns, in float64
    RowNorm             rows divided by their norms, in float64
    DoubleProduct       scores of linear models, in float64
    Distances           to rows of a fit: neighbours, centres, support vectors
    Forest              all trees in one step, rows of x one after another or together
    Contributions       SHAP values of trees, rows of x one after another
"""

import numpy as np

from sparsejit.asm_templates.forest.contributions import (
    ContributionTrees,
    ContributionWalk,
    contribution_layout,
    emit_contributions,
)
from sparsejit.asm_templates.forest.kernels import ForestKernel
from sparsejit.asm_templates.pointwise.float64_columns import (
    ColumnScaling,
    DoubleProductSpec,
    emit_double_product,
    emit_scaled_columns,
)
from sparsejit.asm_templates.pointwise.float64_distances import DistanceSpec, emit_distances
from sparsejit.asm_templates.pointwise.float64_features import (
    ColumnFactors,
    emit_column_products,
    emit_row_norms,
)
from sparsejit.asm_templates.pointwise.float64_powers import emit_powers
from sparsejit.asm_templates.pointwise.piecewise_columns import Pieces, emit_piecewise_columns
from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.columns import (
    ColumnProducts,
    Distances,
    DoubleProduct,
    JoinedColumns,
    PiecewiseColumns,
    PowerColumns,
    RowNorm,
    ScaledColumns,
)
from sparsejit.ir.ops.forest import Contributions, Forest, Trees
from sparsejit.ir.values import Array
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.step import Body, Facts, Locations, Step, between
from sparsejit.planner.cost import vector_cost
from sparsejit.planner.forest_plan import plan_forest
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdi, rdx, rsi

_DOUBLE = 8
_UNCHANGED = (0.0, 1.0, 0.0, -np.inf, np.inf, 0.0)  # the numbers of a column that stays as it is


@lowers(ScaledColumns)
def lower_scaled_columns(low: Lowering, node: Node) -> None:
    """Append one kernel. Raises InvalidInput for a column that x does not have."""
    assert isinstance(node.op, ScaledColumns)
    x, columns, numbers = node.inputs
    rows, features = x.shape
    places = low.constant(columns)
    _check_columns(places, features)
    scaling = ColumnScaling(
        *(rows, features, x.type.element.bytes, node.output.type.element.bytes),
        *(places, low.constant(numbers)),
    )
    vectors = rows * ceil_div(scaling.outputs, 4)
    reason = f"{scaling.outputs} of {features} columns in float64, {rows} times"
    moved = x.type.bytes + node.output.type.bytes
    work = vectors * 8, moved
    _add(low, node, "columns", reason, work, lambda asm: emit_scaled_columns(asm, scaling))


@lowers(JoinedColumns)
def lower_joined_columns(low: Lowering, node: Node) -> None:
    """Append one kernel, which writes x, then the other columns, into the rows of the result."""
    assert isinstance(node.op, JoinedColumns)
    total = node.output.shape[1]
    parts = [
        ColumnScaling(
            *(rows, count, value.type.element.bytes, _DOUBLE, np.arange(count)),
            *(np.tile(np.array(_UNCHANGED)[:, None], count), (total - count) * _DOUBLE),
        )
        for value in node.inputs
        for rows, count in (value.shape,)
    ]

    def emit(asm: Assembler, at: Locations) -> None:
        first = 0
        for part, read in zip(parts, at.reads, strict=True):
            read.point(asm, rdi)
            at.writes[0].point(asm, rsi)
            if first:
                asm.emit("add", rsi, first * _DOUBLE)
            emit_scaled_columns(asm, part)
            first += part.outputs

    vectors = sum(part.rows * ceil_div(part.outputs, 4) for part in parts)
    moved = node.output.type.bytes + sum(value.type.bytes for value in node.inputs)
    cost = vector_cost(vectors * 4, moved, low.target)
    facts = Facts(f"{total} columns side by side in float64", cost.ns, moved_bytes=moved)
    reads = tuple(low.contiguous(value) for value in node.inputs)
    into = low.dense_result(node.output)
    low.add(Step("columns", node.output.origin, reads, (into,), emit, facts))


def _check_columns(columns: Array, features: int) -> None:
    """Raise InvalidInput for a column that x does not have."""
    wrong = columns[(columns < 0) | (columns >= features)]
    if wrong.size:
        raise InvalidInput(f"column {wrong[0]} of x does not exist; give columns below {features}")


@lowers(PiecewiseColumns)
def lower_piecewise_columns(low: Lowering, node: Node) -> None:
    """Append one kernel, which searches the bounds. Raises InvalidInput as `Pieces` does."""
    assert isinstance(node.op, PiecewiseColumns)
    x, *constants = node.inputs
    rows, features = x.shape
    columns, *others = map(low.constant, constants)
    _check_columns(columns, features)
    sizes = rows, features, x.type.element.bytes, node.output.type.element.bytes
    spec = Pieces(*sizes, columns, *others)
    reason = f"{len(columns)} columns of {len(spec.bounds)} bounds in float64, {rows} times"
    moved = x.type.bytes + node.output.type.bytes
    work = rows * spec.instructions, moved
    _add(low, node, "pieces", reason, work, lambda asm: emit_piecewise_columns(asm, spec))


@lowers(ColumnProducts)
def lower_column_products(low: Lowering, node: Node) -> None:
    """Append one kernel. Raises InvalidInput for a factor that is no column of x."""
    x, factors = node.inputs
    rows, features = x.shape
    numbers = low.constant(factors)
    _check_columns(numbers[numbers != -1], features)
    spec = ColumnFactors(rows, features, numbers)
    outputs, degree = numbers.shape
    reason = f"{outputs} products of up to {degree} columns in float64, {rows} times"
    work = rows * outputs * (5 + 4 * degree), x.type.bytes + node.output.type.bytes
    _add(low, node, "column-products", reason, work, lambda asm: emit_column_products(asm, spec))


@lowers(PowerColumns)
def lower_power_columns(low: Lowering, node: Node) -> None:
    """Append one kernel."""
    x, powers = node.inputs
    rows, features = x.shape
    numbers = low.constant(powers)
    reason = f"{features} powers of columns in float64, {rows} times"
    work = rows * features * 70, 2 * x.type.bytes
    _add(low, node, "powers", reason, work, lambda asm: emit_powers(asm, rows, numbers))


@lowers(RowNorm)
def lower_row_norm(low: Lowering, node: Node) -> None:
    """Append one kernel, which reads each row twice."""
    assert isinstance(node.op, RowNorm)
    (x,), norm = node.inputs, node.op.norm
    rows, features = x.shape
    reason = f"{features} columns divided by their {norm} norm in float64, {rows} times"
    work = rows * (12 + 12 * features), 2 * x.type.bytes
    _add(
        low, node, "row-norm", reason, work, lambda asm: emit_row_norms(asm, rows, features, norm)
    )


@lowers(DoubleProduct)
def lower_double_product(low: Lowering, node: Node) -> None:
    """Append one kernel, which computes the sums row after row."""
    assert isinstance(node.op, DoubleProduct)
    x, weights, bias = node.inputs
    operands = low.constant(weights), low.constant(bias)
    sizes = x.type.element.bytes, *operands, node.output.type.element.bytes
    spec = DoubleProductSpec(x.shape[0], *sizes)
    lanes = low.target.lanes // 2
    vectors = spec.rows * ceil_div(len(spec.used), lanes) * (len(spec.bias) + 1)
    reason = f"{len(spec.bias)} float64 sums of {len(spec.used)} inputs, {spec.rows} times"
    moved = x.type.bytes + spec.rows * 8 * len(spec.bias) * len(spec.used)
    work = vectors, moved
    _add(low, node, "float64-product", reason, work, lambda asm: emit_double_product(asm, spec))


@lowers(Distances)
def lower_distances(low: Lowering, node: Node) -> None:
    """Append one kernel, which walks through the known rows once for each row of x."""
    assert isinstance(node.op, Distances)
    x, known = node.inputs
    rows = low.constant(known)
    spec = DistanceSpec(node.op.measure, x.shape[0], x.type.element.bytes, rows)
    vectors = x.shape[0] * ceil_div(len(rows), low.target.lanes // 2) * rows.shape[1]
    reason = f"distances to {len(rows)} rows of {rows.shape[1]} features, {x.shape[0]} times"
    moved = x.type.bytes + node.output.type.bytes + x.shape[0] * rows.nbytes
    work = 2 * vectors, moved
    _add(low, node, "distances", reason, work, lambda asm: emit_distances(asm, spec))


def _add(
    low: Lowering,
    node: Node,
    name: str,
    reason: str,
    work: tuple[int, int],
    body: Body,
) -> None:
    """Append a kernel that takes x in rdi and y in rsi; `work`: instructions, and bytes moved."""
    instructions, moved = work
    cost = vector_cost(instructions, moved, low.target)
    reads, into = (low.contiguous(node.inputs[0]),), low.dense_result(node.output)
    facts = Facts(reason, cost.ns, moved_bytes=moved)
    low.add(Step(name, node.output.origin, reads, (into,), between(body), facts, body=body))


@lowers(Forest)
def lower_forest(low: Lowering, node: Node) -> None:
    """Append the kernel predicted to be fastest. Raises InvalidInput as `Trees` does."""
    assert isinstance(node.op, Forest)
    x, *constants = node.inputs
    y_bytes = node.output.type.element.bytes
    trees = Trees(x.shape[1], node.op.scale, *map(low.constant, constants), y_bytes=y_bytes)
    chosen = plan_forest(trees, x.shape[0], low.target)
    kernel: ForestKernel = chosen.row.emitter
    lowered = chosen.work.lowered(kernel)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        at.scratch.point(asm, rdx)
        lowered.emit(asm)

    heights = trees.tree_heights
    reason = (
        f"{len(heights)} trees of up to {heights.max(initial=0)} levels, {len(trees.nodes):,} "
        f"nodes: {kernel.about}"
    )
    facts = Facts(reason, chosen.price, weight_bytes=lowered.counts.data_bytes, bound="execution")
    into = low.dense_result(node.output)
    scratch = lowered.scratch_bytes
    origin = node.output.origin
    reads = (low.contiguous(x),)
    low.add(Step(kernel.name, origin, reads, (into,), emit, facts, scratch))


@lowers(Contributions)
def lower_contributions(low: Lowering, node: Node) -> None:
    """Append one kernel. Raises InvalidInput as `ContributionTrees` does."""
    assert isinstance(node.op, Contributions)
    x, *constants = node.inputs
    thresholds, nodes, leaves, roots, base, shares = map(low.constant, constants)
    trees = Trees(
        *(x.shape[1], 1.0, thresholds, nodes[:, :4], leaves[:, None].astype(np.float32), roots),
        base.astype(np.float32),
    )
    given = ContributionTrees(trees, nodes[:, 4], leaves, base, shares, node.op.columns)
    walk = ContributionWalk.of(contribution_layout(given), x.shape[0], low.target)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        at.scratch.point(asm, rdx)
        emit_contributions(asm, walk)

    heights, points = trees.tree_heights, len(walk.layout.points)
    reason = (
        f"SHAP values of {len(heights)} trees of up to {heights.max(initial=0)} levels, "
        f"{len(walk.layout.nodes):,} nodes, by {points} points of an integral"
    )
    moved = walk.table_bytes + x.type.bytes + node.output.type.bytes
    cost = vector_cost(x.shape[0] * walk.instructions, moved, low.target)
    facts = Facts(reason, cost.ns, moved_bytes=moved)
    reads, into = (low.contiguous(x),), low.dense_result(node.output)
    scratch = walk.scratch_bytes(low.target.lanes)
    low.add(Step("contributions", node.output.origin, reads, (into,), emit, facts, scratch))
