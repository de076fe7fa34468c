"""State of lowering a graph, and the registry of functions that lower operators.

    ModelOptions    options of compiling a model
    Lowering        the view of every value, and the list of kernels so far
    lowers          registers the function that lowers an operator; `lowerings` returns all of them
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import numpy as np

from sparsejit.asm_templates.batch.lowered_batch import pitch_of_lengths, spread_pitch
from sparsejit.asm_templates.convolution.int8_planes import BytePlanes
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Quantisation
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value
from sparsejit.lowering.chain_step import chain_step
from sparsejit.lowering.feature_major import (
    FeatureMajor,
    columns_of,
    feature_major,
    padded_type,
    takes_panels,
)
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.memory.storage import (
    Buffer,
    ConstantBuffer,
    InputBuffer,
    View,
    destinations,
)
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import gains_by_pairs
from sparsejit.planner.cheapest_row import Chosen
from sparsejit.planner.layer_planner import LayerPlanner

# Weights that code for one sample and for several share: their matrices, None until these are made.
CommonMatrices = dict[Value, SparseMatrix | None]
# Called as each stage begins, with its name and the share of the work done by then, 0 to 1.
Progress = Callable[[str, float], None]


def progress_function(progress: Progress | None) -> Progress:
    """The function to call with progress; for None, one that ignores it.

    Raises InvalidInput for anything that cannot be called.
    """
    if progress is None:
        return lambda stage, share: None
    if not callable(progress):
        raise InvalidInput(f"progress={progress!r}; give a function (stage, share) or None")
    return progress


@dataclass(frozen=True)
class ModelOptions:
    """Options of compiling a model; `compile_matrix` documents the ones that it has as well.

    Products that read more than `part_bytes` of weights are made in parts (`Step.parts`).
    `weight_bytes` is the size of the whole model's weights, as code or data; 0 until estimated.
    `shares_tiles`: threads take turns with the tiles of a batch, instead of sharing the kernels of
    each. `any_length`: code for other lengths will follow, and shall read the same weights.
    `same_bits`: a sample has the same bits in any batch, where a function has one tile; `exact`
    promises the same. `by_host`: the host of exported code starts the threads (`HostThreads`).
    `rounds_x`: layers in bfloat16 or float16 may round x as their weights, in a batch; and
    attention its operands to bfloat16.
    """

    target: Target
    threads: int = 1
    tune: bool = False
    exact: bool = False
    part_bytes: int | None = None
    weight_bytes: int = 0
    shares_tiles: bool = False
    any_length: bool = False
    same_bits: bool = False
    by_host: bool = False
    rounds_x: bool = False

    @cached_property
    def planner(self) -> LayerPlanner:
        """The planner of the layers; a sample's bits do not depend on its place in a tile.

        Code for another tile may sum in another order.
        """
        return LayerPlanner(
            self.target,
            exact=self.exact,
            tune=self.tune,
            alike=True,
            model_bytes=self.weight_bytes,
            any_length=self.any_length,
            rounds_x=self.rounds_x,
        )

    @property
    def multiplies_pairs(self) -> bool:
        """Whether products of activations may take them as pairs of bfloat16."""
        has_pairs = {"avx512_bf16"} <= self.target.instruction_sets
        return self.rounds_x and not self.exact and has_pairs and self.target.isa == "avx512"

    @property
    def threads_a_tile(self) -> int:
        """Number of threads that share the kernels of one tile."""
        return 1 if self.shares_tiles else self.threads


@dataclass(frozen=True)
class ByteImage:
    """An image as bytes: byte b is the integer b - 128 of `steps`, a scale and a zero point."""

    view: View
    planes: BytePlanes
    steps: Quantisation


class Lowering:
    """The state of lowering a graph: views of the values made so far, and the steps so far."""

    def __init__(
        self,
        graph: Graph,
        options: ModelOptions,
        kept: KeptWeights | None = None,
        common: CommonMatrices | None = None,
    ) -> None:
        self.graph, self.options, self.kept = graph, options, kept
        self.common: CommonMatrices = {} if common is None else common
        self.target = options.target
        self.steps: list[Step] = []
        self.wanted = destinations(graph)
        self._by_feature: dict[Value, View] = {}  # whole matrices (features, columns and padding)
        self.orders: dict[Buffer, tuple[int, ...]] = {}  # of axes, from `result_in_order`
        self.lowered: set[Node] = set()  # ahead of their turn, with a node whose result they read
        self.sums_for_gates: dict[Value, Node] = {}  # sums that a GRU's gates compute themselves
        self.attention_forms: dict[Hashable, Chosen[Any, float]] = {}  # the form of each case
        self._views: dict[Value, View] = {}
        self._copies: dict[Value, View] = {}
        self._arrays: dict[Value, View] = {}  # of constants, made when they are first read
        self._later: dict[Value, Callable[[], View]] = {}
        self.byte_images: dict[tuple[Value, Quantisation], ByteImage] = {}
        # Images in bytes by x and the scale and zero point that the call computes.
        self.call_images: dict[tuple[Value, ...], tuple[View, BytePlanes]] = {}
        self.byte_fours: dict[View, View] = {}  # copies of images with their channels by four
        for number, value in enumerate(graph.inputs):
            self._views[value] = View.whole(InputBuffer(value.type.bytes, number), value.type)

    @cached_property
    def readers(self) -> dict[Value, list[Node]]:
        """`Graph.consumers` of the graph."""
        return self.graph.consumers()

    @cached_property
    def producers(self) -> dict[Value, Node]:
        """`Graph.producers` of the graph."""
        return self.graph.producers()

    @cached_property
    def feature_major(self) -> FeatureMajor:
        """The values that lie feature-major, and the nodes that read or write them so."""
        takes = takes_panels(self.options.planner, self.matrix, self._nonzeros)
        in_pairs = self.options.multiplies_pairs and gains_by_pairs(self.target)
        known = self.graph, self.readers, self.wanted, takes, self.target
        return feature_major(*known, with_attention=not in_pairs)

    def _nonzeros(self, value: Value) -> int:
        is_kept = self.kept is not None and value in self.graph.constants
        if is_kept or self.common.get(value) is not None:
            return self.matrix(value).nnz
        return int(np.count_nonzero(self.constant(value)))

    def view(self, value: Value) -> View:
        """The view from which steps read a value: its row-major copy, if there is one."""
        if value in self._later:
            self.bind(value, self._later.pop(value)())
        return self._copies.get(value) or self._own_view(value)

    def _own_view(self, value: Value) -> View:
        if value in self._views:
            return self._views[value]
        if value not in self._arrays:
            read = partial(self.graph.constants.__getitem__, value)
            self._arrays[value] = View.whole(ConstantBuffer(value.type.bytes, read), value.type)
        return self._arrays[value]

    def is_in(self, value: Value, place: View) -> bool:
        """Whether a value was written to this view."""
        return self._own_view(value).is_same(place)

    def trial(self, values: Sequence[Value]) -> "Lowering":
        """A lowering without steps, to try nodes that read these values; `adopt` takes it over."""
        nothing = Graph((), (), (), self.graph.constants)
        trial = Lowering(nothing, self.options, self.kept, self.common)
        trial.wanted, trial._arrays = self.wanted, self._arrays
        for value in values:
            trial.bind(value, self.view(value))
        return trial

    def adopt(self, trial: "Lowering") -> None:
        """Append the kernels of a trial, and take over the views of the values it computed."""
        self.steps += trial.taken_steps()
        self._views = trial._views | self._views
        self._copies = trial._copies | self._copies

    def bind(self, value: Value, view: View) -> None:
        """Set the view of a value, from here on."""
        self._views[value] = view

    def bind_later(self, value: Value, make: Callable[[], View]) -> None:
        """Put off writing a value until it is read: `make` then writes it and returns its view."""
        self._later[value] = make

    def is_open(self, value: Value) -> bool:
        """Whether a value has no memory yet: `bind_later` put off writing it until it is read."""
        return value in self._later

    def contiguous(self, value: Value) -> View:
        """A row-major view of a value, which is copied if need be."""
        view = self.view(value)
        if view.is_contiguous:
            return view
        copied = self.temporary(value.type)
        self.copy(view, copied, value.origin)
        self._copies[value] = copied
        return copied

    def constant(self, value: Value) -> Array:
        """The array of a value known at compile time. Raises UnsupportedOperator for any other."""
        if value not in self.graph.constants:
            raise UnsupportedOperator(
                f"{value.origin.name} is the weight of an operator that takes known weights only; "
                "make it a parameter or a buffer of the model, not an input or a computed value"
            )
        return self.graph.constants[value]

    def matrix(self, value: Value) -> SparseMatrix:
        """The matrix of a constant's weights. Raises UnsupportedOperator as `constant` does."""
        if self.kept is not None and value in self.graph.constants:
            return self.kept.matrix(value, self.graph.constants)
        return self.laid_out(value, lambda weights: weights)

    def laid_out(self, value: Value, matrix_of: Callable[[Array], Array]) -> SparseMatrix:
        """The matrix that `matrix_of` makes of a constant. Raises errors as `constant` does."""
        made = self.common.get(value)
        if made is None:
            made = SparseMatrix(matrix_of(self.constant(value)))
            if value in self.common:
                self.common[value] = made
        return made

    def scalar(self, value: Value) -> float | None:
        """The number that a constant of one element holds; None for all other values."""
        if value.type.size != 1 or value not in self.graph.constants:
            return None
        number: float = self.graph.constants[value].item()
        return number

    def temporary(self, kind: TensorType) -> View:
        """A new row-major tensor in the workspace."""
        return View.whole(Buffer(kind.bytes), kind)

    def result(self, value: Value, fits: Callable[[View], bool] = lambda view: True) -> View:
        """The view to which a kernel writes a value: its destination if that fits, else new memory.

        `fits` says whether the kernel can write to a view; it must accept every row-major one.
        """
        wanted = self.wanted.get(value)
        view = wanted if wanted and fits(wanted) else self.temporary(value.type)
        self.bind(value, view)
        return view

    def result_in_order(self, value: Value, order: tuple[int, ...]) -> View:
        """New memory for a value: a row-major tensor whose axis i is axis order[i] of the value."""
        shape = tuple(value.shape[axis] for axis in order)
        view = self.temporary(replace(value.type, shape=shape))
        self.bind(value, view.permuted_back(order))
        self.orders[view.buffer] = order
        return view

    @property
    def pitch_of(self) -> Callable[[int], int]:
        """Function from a number of columns to the pitch (floats a row) of a feature-major matrix.

        With `any_length` it gives several lengths the same pitch.
        """
        return pitch_of_lengths if self.options.any_length else spread_pitch

    def by_feature(self, value: Value) -> View:
        """A value (*, features) as a matrix (features, columns and padding); copied if need be."""
        if value not in self._by_feature:
            source = self.view(value)
            matrix = self.temporary(padded_type(value, self.pitch_of))
            self.copy(source, columns_of(matrix, value), value.origin)
            self._by_feature[value] = matrix
        return self._by_feature[value]

    def result_by_feature(self, value: Value) -> View:
        """A new matrix (features, columns and padding) for a value."""
        matrix = self.temporary(padded_type(value, self.pitch_of))
        self._by_feature[value] = matrix
        self.bind_later(value, lambda: self._turned_back(value))
        return matrix

    def _turned_back(self, value: Value) -> View:
        """A row-major copy of a value that lies feature-major."""
        copied = self.temporary(value.type)
        self.copy(columns_of(self._by_feature[value], value), copied, value.origin)
        return copied

    def dense_result(self, value: Value) -> View:
        """The view to which a kernel writes a value if it can write row-major results only."""
        return self.result(value, lambda view: view.is_contiguous)

    def add(self, step: Step) -> None:
        """Append a kernel."""
        self.steps.append(step)

    def taken_steps(self) -> tuple[Step, ...]:
        """Return the steps and keep none.

        The functions of some steps hold this object: a cycle would keep all weights in memory.
        """
        steps = tuple(self.steps)
        self.steps.clear()
        return steps

    def copy(self, source: View, destination: View, origin: Origin) -> None:
        """Append the copy of one view's elements to another of its shape."""
        chain = Chain(source.shape, 1, (), (0,), title="copy")
        self.add_chain(chain, [_as_bits(source)], [None], [_as_bits(destination)], origin)

    def fill(self, destination: View, value: float, origin: Origin) -> None:
        """Append a kernel that sets all elements of a view."""
        element = destination.type.element
        array = np.array(value, element.value)
        number = View.whole(ConstantBuffer.of(array), TensorType((), element))
        chain = Chain(destination.shape, 1, (), (0,), title="fill")
        self.add_chain(chain, [number], [value], [destination], origin)

    def padded(
        self, middle: View, widths: tuple[tuple[int, int], ...], value: float, origin: Origin
    ) -> View:
        """A copy of a view with `value` around it: (before, after) elements of each axis."""
        sizes = zip(middle.shape, widths, strict=True)
        shape = tuple(length + before + after for length, (before, after) in sizes)
        whole = self.temporary(TensorType(shape, middle.type.element))
        self.surround(whole, middle, widths, value, origin)
        return whole

    def surround(
        self,
        whole: View,
        middle: View,
        widths: tuple[tuple[int, int], ...],
        value: float,
        origin: Origin,
    ) -> None:
        """Append kernels that copy `middle` into `whole`, and set the elements around it."""
        inner = whole
        for axis, (before, after) in enumerate(widths):
            length = inner.shape[axis]
            for first, end in ((0, before), (length - after, length)):
                if end > first:
                    self.fill(inner.sliced(axis, first, end), value, origin)
            inner = inner.sliced(axis, before, length - after)
        self.copy(middle, inner, origin)

    def add_chain(
        self,
        chain: Chain,
        reads: list[View],
        scalars: list[float | None],
        writes: list[View],
        origin: Origin,
    ) -> None:
        """Append a chain; `scalars` are the values of operands known at compile time."""
        self.add(chain_step(chain, reads, scalars, writes, origin, self.target))


def _as_bits(view: View) -> View:
    """A view that a chain copies: it has float64 as whole numbers of as many bytes."""
    if view.type.element is not Element.FLOAT64:
        return view
    return replace(view, type=replace(view.type, element=Element.INT64))


# Appends the kernels of a node.
Lower = Callable[[Lowering, Node], None]

_REGISTERED: dict[type[Operator], Lower] = {}


def lowers(*operators: type[Operator]) -> Callable[[Lower], Lower]:
    """Register a function that lowers these operators, where it is defined."""

    def register(lower: Lower) -> Lower:
        _REGISTERED.update(dict.fromkeys(operators, lower))
        return lower

    return register


@cache
def lowerings() -> dict[type[Operator], Lower]:
    """Import all submodules of `lowering`, and return the functions that they register."""
    package = import_module(__package__)
    for module in walk_packages(package.__path__, f"{__package__}."):
        import_module(module.name)
    return _REGISTERED
