"""The networks that `bench synth` measures, each with the conditioning of some frames.

    GraphTurns      a sample graph run by its operators' float64 references, to check the compiled
                    loop
    SampleNetwork   a network with its tensors and conditioning
    NETWORKS        table of networks by name

Networks without a trained voice have random weights: our times and the peers' depend only on
shapes, densities and patterns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.ir import reference
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.sampling import Draw, TreeDraw
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array
from sparsejit.lowering.sample_loop import Role
from sparsejit.voice.bundled import VOICE, bundled_utterance
from sparsejit.voice.spec.known_checkpoints import known_network, read_checkpoint
from sparsejit.voice.spec.network_graph import FrameTerms, SpecGraph, drawing_graph, forced_graph
from sparsejit.voice.spec.sample_graph import SampleGraph
from sparsejit.voice.spec.sample_loop import LoopArrays
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import (
    BinaryTree,
    Categorical,
    DenseSpec,
    DualDenseSpec,
    GruSpec,
    HeldConditioning,
    InterpolatedConditioning,
    LastClass,
    LastSample,
    LastSampleRow,
    LinearPrediction,
    PredictionRow,
    VoiceSpec,
)
from sparsejit.voice.weights import VoiceWeights


class GraphTurns:
    """Runs a sample graph by `Graph.evaluate`, sample after sample."""

    def __init__(self, sample: SampleGraph, arrays: LoopArrays, seed: int) -> None:
        self._loop, self._arrays, self._seed = sample.loop, arrays, seed
        self._states = [np.array(state) for state in sample.initial]
        names = [value.origin.name for value in sample.graph.inputs]
        self._state_names = [
            n for n, role in zip(names, sample.loop.inputs, strict=True) if role is Role.STATE
        ]
        deciding = [value for node in _decisions(sample.graph) for value in node.inputs]
        self._results = len(sample.graph.outputs)
        self._graph = replace(sample.graph, outputs=(*sample.graph.outputs, *deciding))
        self._sample = 0

    def next(self) -> tuple[list[Array], float]:
        """Results of the next sample, and the least margin of its draws; 0 is a rounding tie."""
        frame = self._sample // self._loop.hop
        given = {
            Role.CALL: iter([np.array(self._seed, np.uint64).view(np.int64)]),
            Role.FRAME: iter([array[frame] for array in self._arrays.of_frames]),
            Role.SAMPLE: iter([array[self._sample] for array in self._arrays.of_samples]),
            Role.STATE: iter(self._states),
        }
        values = self._graph.evaluate([next(given[role]) for role in self._loop.inputs])
        outputs, deciding = values[: self._results], values[self._results :]
        roles = list(zip(self._loop.outputs, outputs, strict=True))
        self._states = [value for role, value in roles if role is Role.STATE]
        self._sample += 1
        nodes = _decisions(self._graph)
        pairs = zip(nodes, deciding[::2], deciding[1::2], strict=True)
        margin = min((_margin(*pair) for pair in pairs), default=1.0)
        return [value for role, value in roles if role is Role.SAMPLE], margin

    def follow(self, name: str, value: float) -> None:
        """Continue from another value of a state, such as the compiled loop's."""
        if name in self._state_names:
            state = self._state_names.index(name)
            self._states[state] = np.asarray(value, self._states[state].dtype)


def _decisions(graph: Graph) -> list[Node]:
    """The nodes that draw a class."""
    return [node for node in graph.nodes if isinstance(node.op, Draw | TreeDraw)]


def _margin(node: Node, first: Array, second: Array) -> float:
    if isinstance(node.op, TreeDraw):
        read = node.op.path(first, second)[:-1]
        return float(np.abs(first[read] - second).min())
    assert isinstance(node.op, Draw)
    spec = node.op.spec(len(first))
    return float(reference.categorical_margin(spec, first, float(second)))


FloatArray = npt.NDArray[np.float32]
FRAMES = 40
# Folder, beside a checkout, with the trained network of another project.
CHECKPOINT = Path(__file__).resolve().parents[3] / "shared" / "data" / "wavernn-16k"


@dataclass(frozen=True, eq=False)
class SampleNetwork:
    """A `VoiceSpec` with its tensors, and the conditioning of `FRAMES` frames by its name."""

    name: str
    spec: VoiceSpec
    tensors: Mapping[str, FloatArray]
    conditioning: Mapping[str, Array]

    @property
    def sample_rate(self) -> int:
        return self.spec.sample_rate

    @property
    def graph(self) -> SampleGraph:
        return self._drawing.sample

    @cached_property
    def _drawing(self) -> SpecGraph:
        return drawing_graph(self.spec, self.tensors)

    @cached_property
    def forced(self) -> SpecGraph:
        """Graph of the last layer's results for given classes."""
        return forced_graph(self.spec, self.tensors)

    @cached_property
    def inputs(self) -> LoopArrays:
        return FrameTerms(self._drawing)(self.conditioning, FRAMES)

    def forced_inputs(self, given: Sequence[int] | npt.NDArray[np.int64]) -> LoopArrays:
        """Inputs of `forced`: the given classes for the first samples, class 0 for the others."""
        arrays = FrameTerms(self.forced)(self.conditioning, FRAMES)
        classes = np.zeros(FRAMES * self.spec.hop_length, np.int64)
        classes[: len(given)] = given
        return LoopArrays(FRAMES, arrays.of_frames, (*arrays.of_samples, classes))

    def exact_logits(
        self, given: Sequence[int] | npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Results of `forced` for the first samples' classes, by its operators in float64."""
        turns = GraphTurns(self.forced.sample, self.forced_inputs(given), 0)
        return np.array([turns.next()[0][0] for _ in given])


def voice_network(path: Path) -> SampleNetwork:
    """A voice that `train` wrote, speaking the bundled utterance."""
    mel = bundled_utterance().mel[:, :FRAMES]
    return trained_network(path.stem, VoiceWeights.load(path).network, mel)


def deck_network() -> SampleNetwork:
    """One GRU of 1024 units, dense layers of 1024 and 256, 4 % of all weights in 16x1 blocks.

    Source: the WaveRNN of A. Tulloch's and B. Maher's work on TVM at Facebook, 2019. Its sparse
    product with W_ih is folded here, since nothing lies between it and the linear layer before.
    """
    mel, first, second = "mel", "first features", "second features"
    layers = (
        DenseSpec("I", 1024, concatenated=(mel, first)),
        GruSpec("rnn", 1024, residual=True),
        DenseSpec("fc1", 1024, Activation.RELU, concatenated=(second,)),
        DenseSpec("fc2", 256),
    )
    held = HeldConditioning(mel, 24), HeldConditioning(first, 16), HeldConditioning(second, 16)
    spec = VoiceSpec(24_000, 240, (LastSample(),), held, layers, Categorical(256))
    random = np.random.default_rng(1024)
    tensors = _random_tensors(spec, random)
    for name in ("rnn.weight_ih", "rnn.weight_hh", "fc1.weight", "fc2.weight"):
        weights = tensors[name]
        columns = weights[:, :1024]
        kept = random.random((len(weights) // 16, 1024)) < 0.04
        # Variances stay as they would be with all weights.
        columns *= np.repeat(kept, 16, axis=0) / np.float32(np.sqrt(0.04))
    return SampleNetwork("deck", spec, tensors, _random_conditioning(spec, random))


def lpcnet_network() -> SampleNetwork:
    """GRUs of 384 (10 % in 8x4 blocks) and 16 units, a dual dense layer, a tree of 8 bits.

    Source: J.-M. Valin's LPCNet, 2021.
    """
    units, classes = 384, 256
    spec = VoiceSpec(
        sample_rate=16_000,
        hop_length=160,
        inputs=(
            LastSampleRow("signal", 128),
            PredictionRow("prediction", 128),
            LastClass("excitation", 128, first=128),
        ),
        conditioning=(HeldConditioning("gates", 3 * units), HeldConditioning("features", 128)),
        layers=(
            GruSpec("gru_a", units, added=("gates",)),
            GruSpec("gru_b", 16, concatenated=("features",)),
            DualDenseSpec("dual", classes),
        ),
        output=BinaryTree(8),
        prediction=LinearPrediction(limit=4.0, emphasis=0.85),
    )
    random = np.random.default_rng(384)
    tensors = _random_tensors(spec, random)
    blocks = random.random((3 * units // 8, units // 4)) < 0.1
    tensors["gru_a.weight_hh"] *= np.kron(blocks, np.ones((8, 4), np.float32))
    blocks = random.random((3 * 16 // 8, units // 4)) < 0.5
    tensors["gru_b.weight_ih"][:, :units] *= np.kron(blocks, np.ones((8, 4), np.float32))
    given = {
        **_random_conditioning(spec, random),
        "predictor": np.zeros((FRAMES, 32)),
        "residual scale": np.full(FRAMES, 0.1),
        "level scale": np.ones(FRAMES),
    }
    return SampleNetwork("lpcnet", spec, tensors, given)


def wavernn_network(folder: Path = CHECKPOINT) -> SampleNetwork:
    """The one-GRU network of geneing/WaveRNN-Pytorch, trained, with its sample mel.

    Raises MissingDependency where its files are not in `folder`.
    """
    mel, model = folder / "mel.npy", folder / "model.safetensors"
    for path in (mel, model):
        if not path.exists():
            raise MissingDependency(f"{path} is not there; give its folder by --checkpoint")
    known = known_network(read_checkpoint(model))
    return trained_network("wavernn-16k", known, np.load(mel)[:FRAMES].T)


def trained_network(name: str, network: TrainedNetwork, mel: FloatArray) -> SampleNetwork:
    """A network that speaks a mel (bands, FRAMES)."""
    features, _ = network.frame_features(mel)
    return SampleNetwork(name, network.spec, network.tensors, features)


def _random_tensors(spec: VoiceSpec, random: np.random.Generator) -> dict[str, FloatArray]:
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in spec.tensor_shapes().items()
    }


def _random_conditioning(spec: VoiceSpec, random: np.random.Generator) -> dict[str, Array]:
    rows = {
        each.name: FRAMES + (each.taps - 1 if isinstance(each, InterpolatedConditioning) else 0)
        for each in spec.conditioning
    }
    return {e.name: random.standard_normal((rows[e.name], e.size)) for e in spec.conditioning}


# By the names that `--network` takes, from the path of the files; None for their usual path.
NETWORKS: dict[str, Callable[[Path | None], SampleNetwork]] = {
    "voice": lambda path: voice_network(path or VOICE),
    "deck": lambda path: deck_network(),
    "wavernn-16k": lambda path: wavernn_network(path or CHECKPOINT),
    "lpcnet": lambda path: lpcnet_network(),
}


def check_network(name: str) -> str:
    """Return the name; raises InvalidInput where no network has it."""
    if name not in NETWORKS:
        raise InvalidInput(f"network {name!r} is unknown; use one of {', '.join(NETWORKS)}")
    return name


def network_named(name: str, path: Path | None = None) -> SampleNetwork:
    """A network by its name; `path` is the voice's file, or wavernn-16k's folder.

    Raises InvalidInput for another name, MissingDependency where its files are not there.
    """
    return NETWORKS[check_network(name)](path)
