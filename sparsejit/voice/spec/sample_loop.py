"""The per-sample network of a voice as one native function, and its inputs.

    SampleLoop, compile_sample_loop   the function, compiled like any other graph
    LoopArrays                        inputs of a loop for a chunk of frames
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparsejit.ir.values import Array, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.probes import Probe
from sparsejit.lowering.sample_loop import GraphLoop, Role, StreamHeader, build_loop, stream_header
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.native.copying import SharedCode
from sparsejit.passes.default import run_passes
from sparsejit.passes.dtypes import with_dtypes
from sparsejit.planner.kernel_choice import Plan
from sparsejit.runtime.native_call import aligned_copy
from sparsejit.runtime.program import Program
from sparsejit.voice.spec.sample_graph import SampleGraph


@dataclass(frozen=True, eq=False)
class SampleLoop(SharedCode):
    """The native function, the roles of its operands (`loop`), and the record of its kernels.

    `initial` are the states of a stream that begins, `results` the types of a sample's results. A
    probe keeps its slots in the workspace from `probe_offset` on.
    """

    program: Program
    loop: GraphLoop
    header: StreamHeader
    initial: tuple[Array, ...]
    results: tuple[TensorType, ...]
    steps: tuple[Step, ...]
    workspace_bytes: int
    probe_offset: int

    @property
    def plans(self) -> dict[str, Plan]:
        """The kernels chosen for products, by the layer's name."""
        return {
            step.origin.name: step.facts.plan for step in self.steps if step.facts.plan is not None
        }

    def new_states(self) -> tuple[list[Array], list[Array]]:
        """The states of a stream that begins, and the arrays with which they alternate."""
        before, after = ([aligned_copy(each) for each in self.initial] for _ in range(2))
        return before, after


def compile_sample_loop(
    sample: SampleGraph,
    target: Target,
    dtypes: str | Mapping[str, str] = "float32",
    probe: Callable[[int], Probe] | None = None,
) -> SampleLoop:
    """Compile a sample graph; `dtypes` as in `compile`, by the layers' names.

    `probe` makes the probe that times the steps, from the offset of its first slot.
    """
    graph = with_dtypes(run_passes(sample.graph), dtypes)
    lowered = lower_model(graph, ModelOptions(target, part_bytes=target.l1d_bytes // 2))
    timed = probe(lowered.probe_offset) if probe else None
    program = build_loop(lowered, sample.loop, "sample-loop", timed)
    both = zip(sample.loop.outputs, graph.outputs, strict=True)
    return SampleLoop(
        program,
        sample.loop,
        stream_header(lowered),
        sample.initial,
        tuple(value.type for role, value in both if role is Role.SAMPLE),
        tuple(step.without_code() for step in lowered.steps),
        lowered.workspace_bytes,
        lowered.probe_offset,
    )


@dataclass(frozen=True, eq=False)
class LoopArrays:
    """Inputs of a loop in their order, C-contiguous: a row a frame, and a row a sample."""

    frames: int
    of_frames: Sequence[Array]
    of_samples: Sequence[Array] = ()

    def part(self, first: int, end: int) -> "LoopArrays":
        """The inputs of frames `first` to `end` - 1."""
        of_samples = [
            each[first * len(each) // self.frames : end * len(each) // self.frames]
            for each in self.of_samples
        ]
        return LoopArrays(end - first, [each[first:end] for each in self.of_frames], of_samples)
