"""Convolutions and max pooling of bytes to bytes, and convolutions of bytes to sums in float32.

    lower_byte_depthwise     convolutions by channel
    ends_of                  epilogues: scales, biases and rounding of each row's sums
    lower_byte_convolution   all other convolutions: `int8_convolution` over the image or its phases
    lower_byte_pooling       max pooling
    lower_dynamic            convolutions by a scale and zero point of the call, to float32
    takes_byte_columns       whether a linear layer is computed as a convolution of its columns

The steps of `lower_byte_convolution`:

    x in bytes -> phases, if the stride is 2 -> quads, with an added operand if any -> y in bytes
"""

from dataclasses import dataclass, replace
from math import inf, isfinite, prod

import numpy as np

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.int8_conversions import emit_byte_pooling
from sparsejit.asm_templates.convolution.int8_convolution import (
    QUAD,
    LoweredQuads,
    QuadForm,
    emit_quads,
    quad_stream,
)
from sparsejit.asm_templates.convolution.int8_depthwise import (
    LoweredByteDepthwise,
    byte_channel_windows,
    emit_byte_depthwise,
    gaps_for,
)
from sparsejit.asm_templates.convolution.int8_pair_code import LoweredPairs
from sparsejit.asm_templates.convolution.int8_planes import (
    BytePhase,
    BytePlanes,
    ByteWindows,
    ChannelFours,
    windows_of,
)
from sparsejit.asm_templates.convolution.int8_results import ByteEpilogue, SumEpilogue
from sparsejit.asm_templates.convolution.int8_row_pairs import emit_row_pairs, pair_rows
from sparsejit.asm_templates.convolution.int8_tap_pairs import emit_tap_pairs, has_room, pair_taps
from sparsejit.asm_templates.convolution.int8_tap_words import emit_tap_words, word_taps
from sparsejit.asm_templates.convolution.int8_taps import TapFours, in_order, tap_fours
from sparsejit.asm_templates.convolution.int8_tiles import emit_tiles
from sparsejit.asm_templates.gather.int8_boundary import quantised_nonzeros
from sparsejit.errors import CompileError
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, DynamicConvolution, RoundedResult
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatMul, MatVec, Quantisation
from sparsejit.ir.values import Value
from sparsejit.lowering.context import ByteImage, Lowering, lowers
from sparsejit.lowering.convolution.depthwise import node_axes
from sparsejit.lowering.convolution.filters import filter_matrix
from sparsejit.lowering.convolution.int8_images import (
    ZERO,
    bind_image,
    by_fours,
    by_taps,
    byte_view,
    bytes_of,
    call_bytes,
    check_bytes,
    copied,
    copy_step,
)
from sparsejit.lowering.memory.storage import Buffer, View, cut
from sparsejit.lowering.products.linear import with_x_steps
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.cost import Cost
from sparsejit.planner.int8_plan import (
    ByteColumns,
    ByteConvolution,
    QuadWork,
    by_channel,
    byte_convolution_ns,
    byte_depthwise_cost,
    fills_vectors,
    order_of_taps,
    plan_quads,
    takes_columns,
    takes_words,
)
from sparsejit.planner.kernels import kernel_name
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdx


def lower_byte_depthwise(low: Lowering, node: Node, image: ByteImage) -> None:
    """Append a depthwise convolution from bytes to bytes; `byte_convolution_ns` must be finite."""
    op = node.op
    assert isinstance(op, Convolution) and op.rounding is not None
    axes, shape = node_axes(node), node.output.shape
    windows, x = byte_channel_windows(image.planes, shape, *axes), image.view
    if windows is None:
        planes = gaps_for(*axes, image.planes)
        rows, columns = (BytePhase(0, 1, count) for count in (planes.rows, planes.columns))
        whole = ByteWindows(planes, (rows,), (columns,), (0,))
        gap = image.steps.zero_point + ZERO
        x = copied(low, node, (image.view, image.planes), whole, gap)
        windows = byte_channel_windows(planes, shape, *axes)
    assert windows is not None
    matrix = _taps(low, node)
    integers, _ = quantised_nonzeros(matrix)
    bias = low.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    epilogue, ends = ends_of(matrix, bias, op, image.steps, low.target)
    weights = np.zeros(integers.shape, np.int8)
    weights[integers.rows, integers.columns] = integers.values
    lowered = LoweredByteDepthwise(windows, weights, ends, epilogue)
    result = byte_view(windows.y)
    low.add(_depthwise_step(low, node, lowered, x, result))
    bind_image(low, node.output, ByteImage(result, windows.y, op.rounding.result))


def _taps(low: Lowering, node: Node) -> SparseMatrix:
    """The weights of a depthwise convolution as a matrix (channels, taps)."""
    filters = low.constant(node.inputs[1])
    return SparseMatrix(filters.reshape(len(filters), -1))


def _in_rows(lowered: LoweredByteDepthwise, target: Target) -> LoweredPairs | None:
    """The rows that AVX2's code reads, in words or pairs; None for AVX-512."""
    if target.isa != "avx2":
        return None
    return (word_taps if takes_words(target) else pair_taps)(lowered)


def _depthwise_step(
    low: Lowering, node: Node, lowered: LoweredByteDepthwise, x: View, result: View
) -> Step:
    windows = lowered.windows
    paired, by_words = _in_rows(lowered, low.target), takes_words(low.target)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        if paired is not None:
            (emit_tap_words if by_words else emit_tap_pairs)(asm, paired, windows)
        else:
            emit_byte_depthwise(asm, lowered)

    def divide(threads: int) -> list[list[Step]]:
        if lowered.windows.y.samples > 1 or (paired is not None and not has_room(windows)):
            return []
        return [[part(*some) for some in cut(windows.y.channels, threads)]]

    def part(first: int, end: int) -> Step:
        some = slice(first, end)
        planes = (replace(each, channels=end - first) for each in (windows.x, windows.y))
        x_planes, y_planes = planes
        fewer = replace(
            lowered,
            windows=replace(windows, x=x_planes, y=y_planes, is_first=first == 0),
            weights=lowered.weights[some],
            ends=lowered.ends[some],
        )
        views = x.sliced(1, first, end), result.sliced(1, first, end)
        made = _depthwise_step(low, node, fewer, *views)
        return replace(made, share=f"channels {first} to {end - 1}")

    shapes = () if paired is None else paired.shapes
    cost = byte_depthwise_cost(windows, low.target, shapes, lowered.epilogue.looked_up)
    weights = lowered.weights.size
    taps = "two" if paired is not None and not by_words else "four"
    operations = 2 * weights * windows.y.samples * windows.y.rows * windows.y.columns
    facts = Facts(
        f"bytes to bytes by channel, {taps} taps at a time, bound by {cost.bound}",
        predicted_ns=cost.ns,
        nnz=int(np.count_nonzero(lowered.weights)),
        weights=weights,
        weight_bytes=lowered.channels.nbytes if paired is None else paired.nbytes,
        effective_flops=operations,
        flops=operations * int(np.count_nonzero(lowered.weights)) // max(1, weights),
        bound=cost.bound,
        parameter=node.inputs[1].origin.name,
    )
    name = kernel_name("byte-depthwise", low.target)
    return Step(name, node.output.origin, (x,), (result,), emit, facts, divide=divide)


# Parts up to which a table takes fewer instructions than a slope: a part of AVX2 is 16 entries.
_PARTS_BEFORE_SLOPES = {"avx512": 2, "avx2": 0}
_WORTH_CUTTING = 2.0**31  # what an int32 holds


def plain(op: Convolution) -> Convolution:
    """The operator of a quantised convolution in float32, as the model has its weights."""
    return replace(op, dtype=DType.FLOAT32, x_steps=None, rounding=None)


def ends_of(
    matrix: SparseMatrix,
    bias: np.ndarray | None,
    op: Convolution,
    x: Quantisation,
    target: Target,
) -> tuple[ByteEpilogue, np.ndarray]:
    """The epilogue that turns a kernel's int32 sums into bytes, and its numbers by row, (out, 3).

    The numbers: the scale of sums, and the bias before and after the rounding to `own`.
    """
    integers, scales = quantised_nonzeros(matrix)
    assert op.rounding is not None
    first = op.rounding.own or op.rounding.read
    of_sums = scales.astype(np.float64) * x.scale / first.scale
    weights = integers.sums_by_row(integers.values)
    added = np.zeros(len(of_sums)) if bias is None else bias.astype(np.float64)
    late = added / op.rounding.read.scale
    start = 0.0 if op.rounding.late else added / first.scale
    ends = np.stack([of_sums, start - of_sums * (x.zero_point + ZERO) * weights, late], axis=1)
    most = 255 * integers.sums_by_row(np.abs(integers.values.astype(np.int32))) * of_sums
    cuts = bool((most + np.abs(ends[:, 1])).max(initial=0) >= _WORTH_CUTTING)
    return _epilogue(op.rounding, op.activation, cuts, target), ends.astype(np.float32)


def _ends_of_sums(matrix: SparseMatrix) -> np.ndarray:
    """The numbers of rows whose results are sums: the sum of weights, negated, as the bias."""
    integers, _ = quantised_nonzeros(matrix)
    sums = integers.sums_by_row(integers.values)
    return np.stack([np.ones(len(sums)), -sums, np.zeros(len(sums))], axis=1).astype(np.float32)


def _epilogue(
    rounding: RoundedResult, activation: Activation, cuts: bool, target: Target
) -> ByteEpilogue:
    zero, cut = rounding.result.zero_point + ZERO, rounding.read
    least = cut.zero_point + ZERO if activation in (Activation.RELU, Activation.RELU6) else 0
    is_cut = activation is Activation.RELU6
    six = int(min(255, np.rint(6.0 / cut.scale) + cut.zero_point + ZERO)) if is_cut else 255
    own, added = (
        None if each is None else (each.scale / cut.scale, each.zero_point + ZERO)
        for each in (rounding.own, rounding.added)
    )
    made = ByteEpilogue(zero, least, six, cuts, own, added, rounding.late)
    if rounding.table is None:
        return made
    table = (np.array(rounding.table) + ZERO).astype(np.uint8)
    parts = _PARTS_BEFORE_SLOPES[target.isa]
    return made.with_function(table, cut.zero_point + ZERO, parts)


def _table_share(op: Convolution, target: Target) -> float:
    """The share of the parts of a convolution's table that are looked up; 0 without a table."""
    assert op.rounding is not None
    return _epilogue(op.rounding, op.activation, False, target).looked_up


def lower_byte_convolution(low: Lowering, node: Node) -> None:
    """Append the steps of a convolution. Raises CompileError if the target has no code for it."""
    op, (value, _, *others) = node.op, node.inputs
    assert isinstance(op, Convolution) and op.rounding is not None
    is_by_channel = by_channel(_work(low, node))
    check_bytes(low, node, "byte-depthwise" if is_by_channel else "quads")
    assert op.x_steps is not None
    image = bytes_of(low, value, op.x_steps)
    if is_by_channel:
        lower_byte_depthwise(low, node, image)
        return
    windows, x = _windows(low, image, node_axes(node), node, image.steps.zero_point + ZERO)
    y = _result_planes(node, windows)
    adds = len(others) == 2 and op.rounding.added is not None
    matrix = _plain_filters(low, node)[0]
    target = low.options.planner.beside(matrix).target
    looked_up = _table_share(op, target)
    work = QuadWork(matrix, windows, y, adds, target, looked_up)
    form: QuadForm = plan_quads(work).row.emitter
    reads: tuple[View, ...] = (x,)
    taps = tap_fours(windows, y, order_of_taps(matrix)) if form.by_taps else None
    if taps is not None:
        reads = (by_taps(low, x, taps, node.output.origin),)
    elif form.fours:
        fours = ChannelFours(windows.planes, windows.phases)
        reads = (by_fours(low, x, fours, image.steps.zero_point + ZERO, node.output.origin),)
    if adds:
        assert op.rounding.added is not None
        reads = *reads, _added(low, node, bytes_of(low, others[1], op.rounding.added), y)
    result, all_of_it = byte_view(y), (0, y.channels)
    product = _Product(node, windows, image.steps, form, y, reads, result, *all_of_it, taps)
    low.add(_step(low, product))
    bind_image(low, node.output, ByteImage(result, y, op.rounding.result))


@lowers(DynamicConvolution)
def lower_dynamic(low: Lowering, node: Node) -> None:
    """Append the steps of a convolution whose scale and zero point a call computes.

    Raises CompileError if the target has no code for it.
    """
    check_bytes(low, node, "quads")
    (value, scale, zero, _), plain_node = node.inputs, as_floats(node)
    assert isinstance(plain_node.op, Convolution)
    if not isfinite(byte_product_ns(low, plain_node)):
        raise CompileError(
            f"{node.output.origin.name} has windows with a stride of {max(plain_node.op.stride)} "
            "in bytes, for which there is no code; use dtype='float32'"
        )
    x, planes = call_bytes(low, value, (scale, zero))
    gap, axes = low.view(zero), node_axes(plain_node)
    windows = windows_of(planes, *axes)
    if not windows.in_place:
        x = copied(low, node, (x, planes), windows, gap)
    y, matrix = _result_planes(node, windows), _plain_filters(low, plain_node)[0]
    target = low.options.planner.beside(matrix).target
    work = QuadWork(matrix, windows, y, False, target, to_sums=True)
    form: QuadForm = plan_quads(work).row.emitter
    if form.fours:
        fours = ChannelFours(windows.planes, windows.phases)
        x = by_fours(low, x, fours, gap, node.output.origin)
    result = _float_view(y, node.output)
    product = _Product(plain_node, windows, None, form, y, (x, gap), result, 0, y.channels)
    low.add(_step(low, product))
    low.bind(node.output, result)


def as_floats(node: Node) -> Node:
    """The convolution of x minus its zero point in float32, as if x were that already."""
    x, _, _, weights = node.inputs
    assert isinstance(node.op, DynamicConvolution)
    return Node(node.op.windows, (x, weights), node.outputs)


def _float_view(planes: BytePlanes, value: Value) -> View:
    """A new buffer for a value in float32, whose positions lie as the bytes of planes do."""
    of_bytes = planes.strides if len(value.shape) > 3 else (planes.sample, planes.channel, 1)
    size = SumEpilogue.element_bytes
    strides = tuple(size * stride for stride in of_bytes)
    return View(Buffer(size * planes.samples * planes.sample), value.type, strides)


def lower_byte_pooling(low: Lowering, node: Node, rows: Axis, columns: Axis) -> bool:
    """Append max pooling of an image in bytes; return False if there is no such image or code."""
    images = [each for (value, _), each in low.byte_images.items() if value is node.inputs[0]]
    if not images or max(rows.stride, columns.stride) > 2:
        return False
    image = images[0]
    windows, x = _windows(low, image, (rows, columns), node, 0)
    y = _result_planes(node, windows)
    gap = image.steps.zero_point + ZERO

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_byte_pooling(asm, windows, y, gap)

    result = byte_view(y)
    moved = len(windows.taps) * y.bytes
    low.add(copy_step(low, "byte-pooling", node.output.origin, ((x,), result), moved, emit))
    bind_image(low, node.output, ByteImage(result, y, image.steps))
    return True


def _windows(
    low: Lowering, image: ByteImage, over: tuple[Axis, Axis], node: Node, gap: int
) -> tuple[ByteWindows, View]:
    """A node's windows over an image of bytes, and the view that they read.

    The view is the image, or a copy where its gaps (bytes around it) are not `gap`, or its layout
    does not fit.
    """
    fits = gap == image.steps.zero_point + ZERO
    windows = windows_of(image.planes, *over, fits)
    if windows.in_place:
        return windows, image.view
    return windows, copied(low, node, (image.view, image.planes), windows, gap)


def _result_planes(node: Node, windows: ByteWindows) -> BytePlanes:
    """Planes of the result, with the pitch of the planes that windows read."""
    return BytePlanes.plain(node.output.shape, windows.planes.pitch)


def _added(low: Lowering, node: Node, image: ByteImage, y: BytePlanes) -> View:
    """The view of an operand in bytes that is added to y; copied unless its planes are like `y`."""
    if image.planes == y:
        return image.view
    rows, columns = (BytePhase(0, 1, count) for count in (y.rows, y.columns))
    whole = ByteWindows(y, (rows,), (columns,), (0,))
    return copied(low, node, (image.view, image.planes), whole, 0)


@dataclass(frozen=True)
class _Product:
    """Output channels `first` up to `end` of a node, with their operands and result planes.

    x: its scale and zero point; None if the call computes these, and the results are sums in
        float32. The second of `reads` is that zero point then, else an operand that is added.
    """

    node: Node
    windows: ByteWindows
    x: Quantisation | None
    form: QuadForm
    y: BytePlanes
    reads: tuple[View, ...]
    result: View
    first: int
    end: int
    taps: TapFours | None = None

    @property
    def op(self) -> Convolution:
        assert isinstance(self.node.op, Convolution)
        return self.node.op

    @property
    def part(self) -> BytePlanes:
        """The planes of these output channels."""
        return replace(self.y, channels=self.end - self.first)

    @property
    def adds(self) -> bool:
        """Whether an operand is added."""
        return self.x is not None and len(self.reads) > 1

    def some(self, first: int, end: int) -> "_Product":
        """The product of some of the output channels."""
        x, *others = self.reads
        reads = x, *(view.sliced(1, first, end) if self.adds else view for view in others)
        into = self.result.sliced(1, first, end)
        return replace(self, reads=reads, result=into, first=first, end=end)

    def lowered(self, low: Lowering) -> tuple[SparseMatrix, LoweredQuads | LoweredPairs, Cost]:
        """The weights of these output channels, their lowered kernel and its cost."""
        matrix, each = _plain_filters(low, self.node)
        matrix, bias = matrix.rows(self.first, self.end), each.bias
        bias = None if bias is None else bias[self.first : self.end]
        epilogue: ByteEpilogue | SumEpilogue
        if self.x is None:
            epilogue, ends = SumEpilogue(), _ends_of_sums(matrix)
        else:
            epilogue, ends = ends_of(matrix, bias, self.op, self.x, low.target)
        integers, _ = quantised_nonzeros(matrix)
        windows, form = self.windows, self.form
        target = low.options.planner.beside(matrix).target
        work = QuadWork(
            matrix,
            windows,
            self.part,
            self.adds,
            target,
            epilogue.looked_up,
            to_sums=self.x is None,
        )
        cost = plan_quads(work, form).price.cost
        if self.taps is not None:
            windows, integers = self.taps.windows, in_order(integers, self.taps.order)
        x = ChannelFours(windows.planes, windows.phases) if form.fours else windows.planes
        places = windows.places(QUAD // form.offsets)
        before = -min(0, int(places.min()))
        if form.by_row:
            assert isinstance(epilogue, ByteEpilogue)
            between = windows.planes, self.part
            is_first = self.first == 0
            return matrix, pair_rows(
                integers, places, between, ends, epilogue, is_first=is_first
            ), cost
        where = places + before, epilogue.element_bytes * self.y.channel
        stream = quad_stream(integers, *where, ends, form, len(windows.taps))
        ways = stream, epilogue, form, windows.met_bytes, self.first == 0
        return matrix, LoweredQuads(x, self.part, before, *ways), cost


def _step(low: Lowering, product: _Product) -> Step:
    matrix, lowered, cost = product.lowered(low)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        at.reads[-1].point(asm, rdx)
        if isinstance(lowered, LoweredPairs):
            emit_row_pairs(asm, lowered)
        else:
            (emit_tiles if product.form.is_tile else emit_quads)(asm, lowered)

    def divide(threads: int) -> list[list[Step]]:
        if product.y.samples > 1:
            return []
        return [[part(*some) for some in cut(product.y.channels, threads)]]

    def part(first: int, end: int) -> Step:
        return replace(
            _step(low, product.some(first, end)), share=f"channels {first} to {end - 1}"
        )

    facts = _facts(matrix, product, cost, lowered.nbytes)
    return Step(
        kernel_name("byte-tiles" if product.form.is_tile else "quads", low.target),
        product.node.output.origin,
        product.reads,
        (product.result,),
        emit,
        facts,
        divide=divide,
    )


def _plain_filters(low: Lowering, node: Node) -> tuple[SparseMatrix, MatVec]:
    """The weights of a node in float32, as the model has them, and its layer."""
    op = node.op
    assert isinstance(op, Convolution)
    return filter_matrix(low, Node(plain(op), node.inputs[:3], node.outputs))


def _facts(
    matrix: SparseMatrix, product: _Product, cost: Cost, stream_bytes: int
) -> Facts:
    weights = matrix.out_features * matrix.in_features
    y, form = product.part, product.form
    positions = y.samples * y.rows * y.columns
    together = form.together
    rows = "a row" if together == 1 else f"{together} rows"
    four = "four channels side by side" if form.fours else "four inputs"
    if form.by_taps:
        four = "four inputs side by side"
    if form.by_row:
        four = "two inputs"
    made = "sums" if product.x is None else "bytes"
    return Facts(
        f"bytes to {made}, {four} of {rows} at a time, bound by {cost.bound}",
        predicted_ns=cost.ns,
        nnz=matrix.nnz,
        weights=weights,
        weight_bytes=stream_bytes,
        effective_flops=2 * weights * positions,
        flops=2 * matrix.nnz * positions,
        bound=cost.bound,
        zeros=matrix.zero_bits(),
        parameter=product.node.inputs[1].origin.name,
    )


def byte_product_ns(low: Lowering, node: Node) -> float:
    """Predicted nanoseconds of a convolution from bytes to bytes; infinite if there is no code."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Convolution)
    if op.transposed or max(op.stride) > 2 or len(x.shape) not in (3, 4):
        return inf
    return byte_convolution_ns(_work(low, node))


def _work(low: Lowering, node: Node) -> ByteConvolution:
    """A convolution as the planner prices it."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Convolution)
    adds, planner = len(node.inputs) > 3, low.options.planner
    sizes = x.shape, node.output.shape, node_axes(node), op.groups, adds
    looked_up = 0.0
    if op.rounding is not None:
        looked_up = _table_share(op, planner.target)
    return ByteConvolution(*sizes, lambda: _plain_filters(low, node)[0], planner, looked_up)


def takes_byte_columns(low: Lowering, node: Node) -> bool:
    """Whether a linear layer in int8 should be a convolution of its columns in bytes.

    It should where columns fill vectors. Elsewhere predicted times decide.
    """
    op, (x, weights, *others) = node.op, node.inputs
    assert isinstance(op, Linear)
    columns = prod(x.shape[:-1])
    if columns < 2 or any(value not in low.graph.constants for value in (weights, *others)):
        return False
    if fills_vectors(columns):
        return True
    matrix = low.matrix(weights)
    outputs, inputs = weights.shape
    each = MatVec(outputs, inputs, None, op.activation, op.dtype)
    layer = MatMul(with_x_steps(each, matrix, op), columns)
    return takes_columns(ByteColumns(layer, matrix, low.options.planner))
