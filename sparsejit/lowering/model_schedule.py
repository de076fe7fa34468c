"""The schedule of a model: the steps in order, and how a run walks through them.

    waves    the steps of each thread, from barrier to barrier
    turns    the last steps, run by several samples in turn (`SampleTurns`)
    end      the last steps, run once for several samples (`JointEnd`)

All kernels are chosen, and have only to be emitted (`model_code`). The workspace begins with the
pointers of inputs and outputs and the int64 words of the functions in `model_code`, `sample_loop`
and `function`; then come the buffers, and the memory of the joint end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Decision
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.memory_plan import MemoryPlan, SampleTurns, aligned
from sparsejit.lowering.step import OPERAND_SLOTS, Step
from sparsejit.lowering.threads.waves import Wave
from sparsejit.planner.sample_plan import TileTime
from sparsejit.runtime.workers import HostThreads, Pool, pool

POINTER = 8  # bytes
_LOOP_SLOTS = 5
_JOINT_SLOTS = 2


@dataclass(frozen=True)
class ModelSchedule:
    """A lowered graph. A run computes `tile` samples; `tile` is 1 where the batch is fixed.

    `steps` are all kernels in order, `waves` the order and the threads in which a run has them.
    `decisions` are all choices that led to it.
    """

    graph: Graph
    options: ModelOptions
    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan
    tile: int
    turns: SampleTurns | None = None
    end: JointEnd | None = None
    decisions: tuple[Decision, ...] = ()

    def with_decisions(self, further: tuple[Decision, ...]) -> ModelSchedule:
        """The same model with further decisions."""
        return replace(self, decisions=(*self.decisions, *further)) if further else self

    @property
    def ns(self) -> float:
        """Predicted nanoseconds of a tile."""
        return sum(wave.ns for wave in self.waves)

    @property
    def time(self) -> TileTime:
        """The number of samples of a tile, and its predicted time."""
        return TileTime(self.tile, self.ns)

    @property
    def input_bytes(self) -> list[int]:
        """Bytes of a sample in each input; 0 for an input that all samples share."""
        return [
            0 if self.graph.is_shared(number) else value.type.bytes // self.tile
            for number, value in enumerate(self.graph.inputs)
        ]

    @property
    def output_bytes(self) -> list[int]:
        """Bytes of a sample in each output."""
        return [value.type.bytes // self.tile for value in self.graph.outputs]

    @cached_property
    def operand_bytes(self) -> list[int]:
        """Bytes of a sample at each pointer: inputs, outputs, inputs of the joint end."""
        handed = [] if self.end is None else self.end.lowered.input_bytes
        return [*self.input_bytes, *self.output_bytes, *handed]

    @cached_property
    def header_bytes(self) -> int:
        """Bytes before the first buffer: pointers, samples left, status, slots of loops, probes."""
        return header_bytes(self.graph, self.waves, self.end)

    @cached_property
    def end_offset(self) -> int:
        """Offset of the joint end's inputs, outputs and workspace."""
        return aligned(self.header_bytes + self.memory.bytes)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace of a thread that runs a tile; it is aligned to 64 bytes."""
        return self.end_offset + (0 if self.end is None else self.end.bytes)

    @property
    def prefetch_distance(self) -> int:
        """Distance in bytes at which its code is prefetched; 0 if it stays in L2 between calls."""
        return self.options.target.prefetch_distance(self.options.weight_bytes)

    @property
    def workers(self) -> Pool | HostThreads:
        """The threads that run waves; a host's table lies in the slots of probes."""
        return HostThreads(self.probe_offset) if self.options.by_host else pool()

    @cached_property
    def left_offset(self) -> int:
        """Offset of the number of samples left, an int64."""
        return POINTER * len(self.operand_bytes)

    @cached_property
    def status_offset(self) -> int:
        """Offset of the function's result, an int64."""
        return self.left_offset + POINTER

    @cached_property
    def loop_offset(self) -> int:
        """Offset of `_LOOP_SLOTS` int64 slots, for `sample_loop` and `function`."""
        return self.status_offset + POINTER

    @cached_property
    def operand_offset(self) -> int:
        """Offset of the slots for operands' addresses of steps that share code."""
        return self.loop_offset + POINTER * _LOOP_SLOTS

    @cached_property
    def joint_offset(self) -> int:
        """Offset of two int64: samples that run the joint end (0: none), and samples to come."""
        return self.operand_offset + POINTER * OPERAND_SLOTS

    @property
    def probe_offset(self) -> int:
        """Offset of the probes' slots."""
        return self.joint_offset + POINTER * _JOINT_SLOTS


def header_bytes(graph: Graph, waves: Sequence[Wave], end: JointEnd | None) -> int:
    """Bytes of the workspace before the first buffer."""
    probe_slots = len(waves) + 2
    fixed = 2 + _LOOP_SLOTS + OPERAND_SLOTS + _JOINT_SLOTS + (len(end.copies) if end else 0)
    slots = len(graph.inputs) + len(graph.outputs) + fixed + probe_slots
    return aligned(slots * POINTER)


class EndRecord(NamedTuple):
    """A joint end without its code.

    first, fewest: as in `JointEnd`.
    samples: number of samples that run at once.
    ns: predicted nanoseconds of these samples.
    """

    first: int
    fewest: int
    samples: int
    ns: float


@dataclass(frozen=True)
class JointEnd:
    """The last layers of a model for several samples at once.

    first: the first of the steps for one sample that the end replaces.
    fewest: the least number of samples for which the end is faster.
    copies: steps that copy one sample's values to the end's inputs, each at a pointer of its own.
    lowered: the end, for `samples` samples.
    outputs: the numbers of the model's outputs that the end computes.
    """

    first: int
    fewest: int
    copies: tuple[Step, ...]
    lowered: ModelSchedule
    outputs: tuple[int, ...]

    @property
    def samples(self) -> int:
        """Number of samples of each run; copies stand in for missing samples."""
        return self.lowered.tile

    @property
    def record(self) -> EndRecord:
        """The end without its code, for reports."""
        return EndRecord(self.first, self.fewest, self.samples, self.lowered.ns)

    @property
    def places(self) -> list[int]:
        """Offsets of the end's inputs, outputs and workspace from the start of its memory."""
        graph = self.lowered.graph
        places = [0]
        for value in (*graph.inputs, *graph.outputs):
            places.append(aligned(places[-1] + value.type.bytes))
        return places

    @property
    def bytes(self) -> int:
        """Bytes that it takes behind the workspace of a sample."""
        return self.places[-1] + self.lowered.workspace_bytes
