"""The per-sample network of a voice as one native function: its inputs, and its runs.

    SampleLoop, compile_sample_loop   the function, compiled like any other graph
    LoopArrays                        inputs of a loop for a chunk of frames
    Sampler                           frames in, samples out, state kept between calls
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.probes import Probe
from sparsejit.lowering.sample_loop import GraphLoop, Role, StreamHeader, build_loop, stream_header
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.native.copying import NotCopied, SharedCode
from sparsejit.passes.default import run_passes
from sparsejit.passes.dtypes import with_dtypes
from sparsejit.planner.kernel_choice import Plan
from sparsejit.runtime.native_call import aligned_copy, new_workspace
from sparsejit.runtime.program import Program
from sparsejit.voice.features import FloatArray
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


class Sampler(NotCopied):
    """One utterance in progress, with its own state and the shared native code.

    Chunks of any number of frames give the samples that one call with all frames would give.
    `classes` of the last call, int64, empty where samples have no class, and the bytes of
    `workspace` are kept for inspection. Not for two threads at once; make one Sampler per thread.
    """

    instead_of_copying = "pickle the voice, and speak again from the same seed"

    def __init__(self, loop: SampleLoop, seed: int) -> None:
        check_seed(seed)
        self.classes: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.loop, self._results = loop.loop, loop.results
        self.native = loop.program.memory.function(2)
        self.workspace = new_workspace(loop.workspace_bytes)
        self._seed = np.array(seed, np.uint64)
        self._inputs = _OperandTable(self.loop.inputs)
        self._outputs = _OperandTable(self.loop.outputs)
        self._states = loop.new_states()
        self._inputs.set(Role.CALL, [self._seed] * self.loop.inputs.count(Role.CALL))
        for addresses, states in zip((self._inputs, self._outputs), self._states, strict=True):
            addresses.set(Role.STATE, states)
        self._header = loop.header
        self._write(loop.header.inputs, self._inputs.table)
        self._write(loop.header.outputs, self._outputs.table)

    def generate(self, conditioning: LoopArrays) -> FloatArray:
        """The samples of the next frames, float32."""
        samples, *classes = self.run(conditioning)
        self.classes = classes[0] if classes else np.empty(0, np.int64)
        return samples

    def run(self, inputs: LoopArrays) -> list[Array]:
        """The loop's results for the next frames, a row a sample."""
        (results,) = run_in_lockstep([self], [inputs])
        return results

    def take(self, arrays: LoopArrays) -> list[Array]:
        """Let the next run read these frames; return the arrays that it will fill with results."""
        count = arrays.frames * self.loop.hop
        results = [np.empty((count, *kind.shape), kind.element.value) for kind in self._results]
        self._inputs.set(Role.FRAME, arrays.of_frames)
        self._inputs.set(Role.SAMPLE, arrays.of_samples)
        self._outputs.set(Role.SAMPLE, results)
        return results

    def go_before(self, other: "Sampler") -> None:
        """Let `other` come after this sampler at every sample of the next run.

        The last one precedes the first.
        """
        self._write(self._header.next, other.workspace.ctypes.data)

    def _write(self, offset: int, address: int) -> None:
        self.workspace[offset : offset + 8].view(np.uint64)[0] = address


def check_seed(seed: int) -> None:
    """Raise InvalidInput unless `seed` is a whole number of 64 bits."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise InvalidInput(f"seed {seed!r} is not a 64-bit number; give 0 to 2**64 - 1")


def run_in_lockstep(
    samplers: Sequence[Sampler], inputs: Sequence[LoopArrays]
) -> list[list[Array]]:
    """Run samplers of one loop together; return the results of each, as `run` alone gives them.

    All have the same number of frames. They take turns sample by sample, so that weights are read
    once for all.
    """
    assert len({each.frames for each in inputs}) == 1, "all streams speak equally many frames"
    results = [sampler.take(each) for sampler, each in zip(samplers, inputs, strict=True)]
    for sampler, following in zip(samplers, [*samplers[1:], samplers[0]], strict=True):
        sampler.go_before(following)
    first = samplers[0]
    first.native(first.workspace.ctypes.data, inputs[0].frames * first.loop.hop)
    return results


class _OperandTable:
    """The table of addresses of operands with these roles; the loop swaps addresses of states."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._roles = roles
        self._values = np.zeros(len(roles), np.uint64)
        self.table = self._values.ctypes.data

    def set(self, role: Role, arrays: Sequence[Array]) -> None:
        """Set the addresses of all operands of a role, in order."""
        places = [number for number, each in enumerate(self._roles) if each is role]
        for place, array in zip(places, arrays, strict=True):
            self._values[place] = array.ctypes.data
