"""A graph of which all kernels are chosen: what is left is to emit them.

The workspace begins with the pointers of inputs and outputs, and words that `model` names; then
come the buffers, and what last layers for several samples have for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sparsejit.ir.graph import Graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.memory_plan import MemoryPlan, aligned
from sparsejit.lowering.sample_turns import SampleTurns
from sparsejit.lowering.shared_bodies import OPERAND_SLOTS
from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.waves import Wave

POINTER = 8  # bytes
LOOP_SLOTS = 5
_JOINT_SLOTS = 2


@dataclass(frozen=True)
class LoweredModel:
    """What is left to emit. A run of it takes `tile` samples, 1 where the batch is fixed.

    Where there is a `turns`, that many samples take turns with the last steps (`sample_turns`);
    where there is an `end`, several samples have last steps in common (`joint_end`).
    """

    graph: Graph
    options: ModelOptions
    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan
    tile: int
    turns: SampleTurns | None = None
    end: JointEnd | None = None

    @property
    def ns(self) -> float:
        """What a tile should take."""
        return sum(wave.ns for wave in self.waves)

    @property
    def input_bytes(self) -> list[int]:
        """What a sample takes in each input; 0 where all samples have it in common."""
        return [
            0 if self.graph.is_shared(number) else value.type.bytes // self.tile
            for number, value in enumerate(self.graph.inputs)
        ]

    @property
    def output_bytes(self) -> list[int]:
        """What a sample takes in each output."""
        return [value.type.bytes // self.tile for value in self.graph.outputs]

    @cached_property
    def operand_bytes(self) -> list[int]:
        """What a sample takes where each pointer points: inputs, outputs, what the end reads."""
        handed = [] if self.end is None else self.end.lowered.input_bytes
        return [*self.input_bytes, *self.output_bytes, *handed]

    @cached_property
    def header_bytes(self) -> int:
        """Before the first buffer: pointers, samples, status, what loops and probes keep."""
        return header_bytes(self.graph, self.waves, self.end)

    @cached_property
    def end_offset(self) -> int:
        """Where the end for several samples keeps what it reads and makes."""
        return aligned(self.header_bytes + self.memory.bytes)

    @property
    def workspace_bytes(self) -> int:
        """What a thread needs that runs a tile, 64-byte aligned."""
        return self.end_offset + (0 if self.end is None else self.end.bytes)

    @property
    def ask_ahead(self) -> int:
        """How far ahead its code is to be asked for: not where it stays in L2 from call to call."""
        return self.options.target.ask_ahead(self.options.weight_bytes)

    @cached_property
    def left_offset(self) -> int:
        """Where the number of samples left is kept, as int64."""
        return POINTER * len(self.operand_bytes)

    @cached_property
    def status_offset(self) -> int:
        """Where the function leaves its result as int64."""
        return self.left_offset + POINTER

    @cached_property
    def loop_offset(self) -> int:
        """Where `LOOP_SLOTS` int64 slots begin, for `loop`."""
        return self.status_offset + POINTER

    @cached_property
    def operand_offset(self) -> int:
        """Where steps that share code leave the addresses of their operands."""
        return self.loop_offset + POINTER * LOOP_SLOTS

    @cached_property
    def joint_offset(self) -> int:
        """Where it says how many samples have the end in common, and how many are to come."""
        return self.operand_offset + POINTER * OPERAND_SLOTS

    @property
    def probe_offset(self) -> int:
        """Where they begin."""
        return self.joint_offset + POINTER * _JOINT_SLOTS


def header_bytes(graph: Graph, waves: Sequence[Wave], end: JointEnd | None) -> int:
    """Bytes of what lies before the first buffer."""
    probe_slots = len(waves) + 2
    fixed = 2 + LOOP_SLOTS + OPERAND_SLOTS + _JOINT_SLOTS + (len(end.copies) if end else 0)
    slots = len(graph.inputs) + len(graph.outputs) + fixed + probe_slots
    return aligned(slots * POINTER)


class EndRecord(NamedTuple):
    """A joint end without its code.

    first, fewest: as of `JointEnd`.
    samples: how many run at once.
    ns: what these should take.
    """

    first: int
    fewest: int
    samples: int
    ns: float


@dataclass(frozen=True)
class JointEnd:
    """What a function needs to run the last layers of several samples at once.

    first: the step of one sample from which on it stands in their place.
    fewest: from how many samples on it is faster.
    copies: what leaves a sample's values where the end reads them, each at a pointer of its own.
    lowered: the end, for `samples`.
    outputs: the numbers of the model's outputs that it makes.
    """

    first: int
    fewest: int
    copies: tuple[Step, ...]
    lowered: LoweredModel
    outputs: tuple[int, ...]

    @property
    def samples(self) -> int:
        """How many it runs, at most and always."""
        return self.lowered.tile

    @property
    def record(self) -> EndRecord:
        """What reports say of it."""
        return EndRecord(self.first, self.fewest, self.samples, self.lowered.ns)

    @property
    def places(self) -> list[int]:
        """Bytes from its first to each input, to each output, and to its workspace."""
        graph = self.lowered.graph
        places = [0]
        for value in (*graph.inputs, *graph.outputs):
            places.append(aligned(places[-1] + value.type.bytes))
        return places

    @property
    def bytes(self) -> int:
        """What it takes behind the workspace of a sample."""
        return self.places[-1] + self.lowered.workspace_bytes
