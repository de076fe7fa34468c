"""Graphs run as machine code between guard pages, and compared with their float64 reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from guard import EDGES, Edge, GuardedArray, run_in_child
from random_graphs import GraphCase

from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, Element, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.machine.target import Target
from sparsejit.runtime.guard_pages import guarded_workspace
from sparsejit.runtime.program import Program


@dataclass(frozen=True)
class Ran:
    """The outputs of a call, each (tiles, ...) of the output's shape, and the status it left."""

    outputs: list[Array]
    status: int


def kernels_of(graph: Graph, isa: str) -> list[str]:
    """The steps that a graph is lowered to, in order."""
    return [step.kernel for step in lower_model(graph, ModelOptions(Target.named(isa))).steps]


def random_input(graph: Graph) -> Array:
    """For its first input, the same at every call."""
    shape = graph.inputs[0].shape
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def run_graph(graph: Graph, inputs: Sequence[Array], target: Target) -> list[Array]:
    """The outputs of a graph's native function for one tile."""
    each = [array[None] for array in inputs]
    return [output[0] for output in run_tiles(graph, each, target).outputs]


def run_tiles(
    graph: Graph, inputs: Sequence[Array], target: Target, edge: Edge | None = None
) -> Ran:
    """Run a graph on inputs (tiles, ...); with `edge` all arrays begin or end at a guard page."""
    lowered = lower_model(graph, ModelOptions(target))
    return run_lowered(lowered, inputs, edge)


class Built(NamedTuple):
    """A lowered model with its code, which any calls may share."""

    lowered: ModelSchedule
    program: Program


def built_model(lowered: ModelSchedule) -> Built:
    return Built(lowered, build_model(lowered, "test"))


def run_lowered(lowered: ModelSchedule, inputs: Sequence[Array], edge: Edge | None = None) -> Ran:
    """Run what is lowered, once."""
    return run_built(built_model(lowered), inputs, edge)


def run_built(built: Built, inputs: Sequence[Array], edge: Edge | None = None) -> Ran:
    """Run its code; the workspace is filled with NaN before.

    With `edge` arrays begin or end at a guard page, and the workspace ends at one.
    """
    lowered, program = built
    graph, tiles = lowered.graph, len(inputs[0])
    inputs = [x[:1] if graph.is_shared(number) else x for number, x in enumerate(inputs)]
    given = [_placed(array, edge) for array in inputs]
    made = [_placed(_blank(value.type, tiles), edge) for value in graph.outputs]
    room = _Workspace(lowered.workspace_bytes, guarded=edge is not None)
    workspace = room.bytes
    tables = [np.array([each.address for each in group], np.uint64) for group in (given, made)]
    program.memory.function(4)(*(t.ctypes.data for t in tables), workspace.ctypes.data, tiles)
    assert all(each.surroundings_intact() for each in (*given, *made))
    for each, array in zip(given, inputs, strict=True):
        assert each.values.tobytes() == array.tobytes(), "an input was written to"
    outputs = [
        np.frombuffer(each.values.tobytes(), value.type.element.value).reshape(
            tiles, *value.shape
        )
        for each, value in zip(made, graph.outputs, strict=True)
    ]
    status = workspace[lowered.status_offset : lowered.status_offset + 8].view(np.int64)
    return Ran(outputs, int(status[0]))


def check_graph(
    graph: Graph, inputs: Sequence[Array], target: Target, tolerance: float, tiles: int = 2
) -> None:
    """Compare with `Graph.evaluate`, tile by tile, at both edges of guarded memory.

    The first tile is `inputs`, the others are rolled along their last axis where they are not
    shared.
    """
    moves = [0 if graph.is_shared(number) else 1 for number in range(len(inputs))]
    pairs = list(zip(inputs, moves, strict=True))
    every = [np.stack([np.roll(a, n * by, axis=-1) for n in range(tiles)]) for a, by in pairs]
    built = built_model(lower_model(graph, ModelOptions(target)))
    expected = [graph.evaluate([array[n] for array in every]) for n in range(tiles)]

    def check(edge: Edge) -> None:
        ran = run_built(built, every, edge)
        assert ran.status == 0
        for tile, wanted in enumerate(expected):
            for got, reference in zip(ran.outputs, wanted, strict=True):
                np.testing.assert_allclose(got[tile], reference, rtol=0, atol=tolerance)

    run_in_child([(f"{edge} of memory", lambda e=edge: check(e)) for edge in EDGES]).assert_clean()


def check_alike(lowered: ModelSchedule, plain: ModelSchedule, case: GraphCase) -> None:
    """A graph lowered in two ways: the same results to rounding, at both edges of guarded memory.

    Products may be planned otherwise. Two tiles of a case's inputs.
    """
    inputs = [np.stack([array] * 2) for array in case.inputs]
    built, other = built_model(lowered), built_model(plain)

    def check(edge: Edge) -> None:
        ran, wanted = run_built(built, inputs, edge), run_built(other, inputs)
        assert ran.status == wanted.status == 0
        for got, reference in zip(ran.outputs, wanted.outputs, strict=True):
            atol = 1e-4 * case.largest
            np.testing.assert_allclose(got * 1.0, reference * 1.0, rtol=1e-4, atol=atol)

    run_in_child([(f"{edge} of memory", lambda e=edge: check(e)) for edge in EDGES]).assert_clean()


def _blank(kind: TensorType, tiles: int) -> Array:
    fill = {Element.INT64: -7, Element.BOOL: True}.get(kind.element, np.nan)
    return np.full((tiles, *kind.shape), fill, kind.element.value)


class _Plain:
    """An array like `GuardedArray`, without guards."""

    def __init__(self, values: Array) -> None:
        self.values = values.copy()
        self.address = self.values.ctypes.data

    def surroundings_intact(self) -> bool:
        return True


def _placed(array: Array, edge: Edge | None) -> GuardedArray | _Plain:
    flat = np.ascontiguousarray(array).ravel()
    if edge is None or flat.nbytes % 4 or not flat.size:
        return _Plain(flat)
    return GuardedArray(flat.view(np.float32), edge)


class _Workspace:
    """NaN, aligned to cache lines; if `guarded`, the last one ends at a guard page."""

    def __init__(self, size: int, guarded: bool) -> None:
        lines = np.full(-(-size // 64) * 16 + 16, np.nan, np.float32)
        self._guarded = guarded_workspace(size) if guarded else None
        whole = (lines if self._guarded is None else self._guarded.values).view(np.uint8)
        self.bytes = whole[-whole.ctypes.data % 64 :]


def check_at_guard_pages(
    built: Built, inputs: Sequence[Array], check: Callable[[list[Array]], None]
) -> None:
    """Run one tile at both edges of guarded memory; `check` raises for wrong outputs."""

    def at(edge: Edge) -> None:
        check([each[0] for each in run_built(built, [x[None] for x in inputs], edge).outputs])

    run_in_child([(f"{edge} of memory", lambda e=edge: at(e)) for edge in EDGES]).assert_clean()
