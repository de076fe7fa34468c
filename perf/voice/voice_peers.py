"""Peers that run a network sample by sample: each in its own process, its results checked first.

    step_of       one sample of a network as plain torch code, which peers of the compiled loop run
    ready_peers   the peers whose samples agree with float64

A step takes results of the step before, so that calls of it in a row are the loop. The signal
around a network, and products that only frames change, are left out: peers compute less than the
compiled loop.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.errors import MissingDependency
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array
from sparsejit.perf.model_contest import Contestant, checked_error, export_onnx
from sparsejit.perf.peers.model_peers import MODEL_PEERS
from sparsejit.perf.peers.peer_process import PeerFailed
from sparsejit.perf.voice.voice_networks import SampleNetwork, network_named
from sparsejit.voice.spec.voice_spec import (
    BinaryTree,
    Categorical,
    DenseSpec,
    DualDenseSpec,
    GruSpec,
    InterpolatedConditioning,
    LastSample,
    VoiceSpec,
)

_UNIFORM = 0.37


class StepModule(nn.Module):
    """One sample's step: `examples` are its inputs, `feedback` links results to the next inputs.

    Feedback is pairs (result, input), by number.
    """

    examples: tuple[Tensor, ...]
    feedback: tuple[tuple[int, int], ...]


def drawn_class(logits: Tensor, uniform: Tensor) -> Tensor:
    """The class of softmax(logits) at which the sum of probabilities exceeds a uniform number."""
    sums = torch.cumsum(torch.softmax(logits, dim=0), dim=0)
    return torch.clamp((sums <= uniform).sum(), max=len(logits) - 1)


class GruCell(nn.Module):
    """torch.nn.GRUCell, or its formulas where an exporter or a compiler lacks the operator."""

    def __init__(self, *tensors: Array) -> None:
        """Take weight_ih, weight_hh, bias_ih and bias_hh, in torch's shapes."""
        super().__init__()
        out, inputs = tensors[0].shape
        self.cell = nn.GRUCell(inputs, out // 3)
        parameters = self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh
        with torch.no_grad():
            for parameter, array in zip(parameters, tensors, strict=True):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(array, np.float32)))

    def forward(self, x: Tensor | None, state: Tensor, *added: Tensor) -> Tensor:
        """The next state.

        added: terms (3n,) of the product with x, which is None if it has no features.
        """
        cell = self.cell
        if x is None:
            gates = sum(added, cell.bias_ih)
            return gru_state(gates, functional.linear(state, cell.weight_hh, cell.bias_hh), state)
        if not (added or torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()):
            known: Tensor = cell(x, state)
            return known
        gates = sum(added, functional.linear(x, cell.weight_ih, cell.bias_ih))
        return gru_state(gates, functional.linear(state, cell.weight_hh, cell.bias_hh), state)


def gru_state(gates: Tensor, products: Tensor, state: Tensor) -> Tensor:
    """The next state (n,) from both products (3n,), in order r-z-n."""
    input_r, input_z, input_n = gates.chunk(3)
    state_r, state_z, state_n = products.chunk(3)
    reset, update = torch.sigmoid(input_r + state_r), torch.sigmoid(input_z + state_z)
    candidate = torch.tanh(input_n + reset * state_n)
    return candidate + update * (state - candidate)


class SpecStep(StepModule):
    """The step of a `VoiceSpec` that draws classes, its layers by their formulas.

    Takes the last class () or sample (1,), uniform numbers (n,), states and then conditioning;
    gives the next class or sample, states, and the last layer's results. Rows of tables are
    multiplied by the first GRU's matrix before all samples.
    """

    def __init__(
        self, spec: VoiceSpec, tensors: Mapping[str, Array], conditioning: Mapping[str, Array]
    ) -> None:
        """conditioning: rows of the frames by name; the first rows are the examples."""
        super().__init__()
        assert isinstance(spec.output, Categorical | BinaryTree)
        self.spec, self.output = spec, spec.output
        self.is_scalar = isinstance(spec.inputs[0], LastSample)
        if not self.is_scalar:
            tables, tensors = _folded(spec, tensors)
            self.tables = nn.ParameterList(map(_parameter, tables))
        self.layers = nn.ModuleDict(
            {layer.name: _module(layer, tensors) for layer in spec.layers}
        )
        self.names = [layer.name for layer in spec.layers if isinstance(layer, GruSpec)]
        self.features = [each.name for each in spec.conditioning]
        self.feedback = tuple((n, n if n == 0 else n + 1) for n in range(1 + len(self.names)))
        self.examples = self._examples(tensors, conditioning)

    def _examples(
        self, tensors: Mapping[str, Array], conditioning: Mapping[str, Array]
    ) -> tuple[Tensor, ...]:
        bits = self.output.bits if isinstance(self.output, BinaryTree) else 1
        first = torch.zeros(1) if self.is_scalar else torch.tensor(self.output.classes // 2)
        sizes = [layer.size for layer in self.spec.layers if isinstance(layer, GruSpec)]
        vectors = []
        for each in self.spec.conditioning:
            rows = conditioning[each.name]
            if isinstance(each, InterpolatedConditioning):
                vector = tensors[f"{each.name}.kernel"][0] @ rows[: each.taps]
            else:
                vector = rows[0]
            vectors.append(torch.from_numpy(np.asarray(vector, np.float32)))
        states = [torch.zeros(size) for size in sizes]
        return first, torch.full((bits,), _UNIFORM), *states, *vectors

    def forward(self, last: Tensor, uniform: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        states = dict(zip(self.names, rest, strict=False))
        features = dict(zip(self.features, rest[len(self.names) :], strict=True))
        first, *layers = self.spec.layers
        if self.is_scalar:
            x = self._layer(first, last, features, states)
        else:
            rows = sum(table[last] for table in self.tables)
            x = self._layer(first, None, features, states, rows)
        for layer in layers:
            x = self._layer(layer, x, features, states)
        return self._fed_back(x, uniform), *states.values(), x

    def _layer(
        self,
        layer: DenseSpec | DualDenseSpec | GruSpec,
        x: Tensor | None,
        features: Mapping[str, Tensor],
        states: dict[str, Tensor],
        *rows: Tensor,
    ) -> Tensor:
        module = self.layers[layer.name]
        parts = [*([] if x is None else [x]), *(features[name] for name in layer.concatenated)]
        joined = torch.cat(parts) if parts else None
        if isinstance(layer, GruSpec):
            added = (*rows, *(features[name] for name in layer.added))
            states[layer.name] = state = module(joined, states[layer.name], *added)
            return x + state if layer.residual else state
        y = sum((features[name] for name in layer.added), module(joined))
        if isinstance(layer, DualDenseSpec):
            return y
        kind = layer.activation
        return y if kind is Activation.NONE else getattr(torch, kind.value)(y)

    def _fed_back(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        if isinstance(self.output, BinaryTree):
            return self._drawn_bits(parameters, uniform)
        drawn = drawn_class(parameters / self.spec.temperature, uniform)
        if not self.is_scalar:
            return drawn
        return (drawn * (2.0 / (self.output.classes - 1)) - 1.0).reshape(1)

    def _drawn_bits(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        odds = torch.sigmoid(parameters / self.spec.temperature)
        node = torch.tensor(1)
        for bit in range(len(uniform)):
            node = 2 * node + (uniform[bit] < odds[node]).long()
        return node - self.output.classes


def _folded(
    spec: VoiceSpec, tensors: Mapping[str, Array]
) -> tuple[list[Array], dict[str, Array]]:
    """Tables times their columns of the first GRU's matrix, and tensors without these columns."""
    first = spec.layers[0]
    assert isinstance(first, GruSpec) and not first.residual
    name = f"{first.name}.weight_ih"
    *columns, rest = np.split(tensors[name], np.cumsum([each.size for each in spec.inputs]), axis=1)
    tables = [
        tensors[f"{each.name}.table"] @ own.T
        for each, own in zip(spec.inputs, columns, strict=True)
    ]
    return tables, {**tensors, name: rest}


class DualLinear(nn.Module):
    """The sum of two layers scale * tanh(W x + b), as `DualDenseSpec` describes them."""

    def __init__(self, weight: Array, bias: Array, scale: Array) -> None:
        super().__init__()
        parts = (weight, bias, scale)
        self.weight, self.bias, self.scale = map(_parameter, parts)

    def forward(self, x: Tensor) -> Tensor:
        return (self.scale * torch.tanh(self.weight @ x + self.bias)).sum(0)


def _module(layer: DenseSpec | DualDenseSpec | GruSpec, tensors: Mapping[str, Array]) -> nn.Module:
    if isinstance(layer, GruSpec):
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return GruCell(*(tensors[f"{layer.name}.{part}"] for part in parts))
    if isinstance(layer, DualDenseSpec):
        both = ("weight", "bias", "scale")
        return DualLinear(*(tensors[f"{layer.name}.{part}"] for part in both))
    weight, bias = (tensors[f"{layer.name}.{part}"] for part in ("weight", "bias"))
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = _parameter(weight), _parameter(bias)
    return linear


def _parameter(array: Array) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(array, np.float32)), requires_grad=False)


def step_of(network: SampleNetwork) -> StepModule:
    """A torch module that computes one sample of a network."""
    return SpecStep(network.spec, network.tensors, network.conditioning).eval()


def exact_step(step: StepModule, calls: int) -> list[Array]:
    """Results of a step after `calls` calls, in float64. Leaves `step` in float64."""
    step.double()
    inputs = [one.double() if one.is_floating_point() else one for one in step.examples]
    outputs: tuple[Tensor, ...] = ()
    with torch.inference_mode():
        for _ in range(calls):
            outputs = step(*inputs)
            for given, taken in step.feedback:
                inputs[taken] = outputs[given]
    return [one.numpy() for one in outputs]


STEP_PEERS = ("torch", "torchscript", "torch-compile", "onnxruntime")
# Number of samples compared with float64; later, rounding may change a drawn class.
_CHECKED = 3


class StepTask:
    """One sample of a network as files in `folder`, and its exact results."""

    def __init__(self, name: str, path: Path | None, folder: Path) -> None:
        self.name, self._path, self._folder = name, path, folder
        self._step = step_of(self._network)
        self.inputs_file = folder / "step.npz"
        np.savez(self.inputs_file, *(one.numpy() for one in self._step.examples))

    @property
    def _network(self) -> SampleNetwork:
        return network_named(self.name, self._path)

    @property
    def request(self) -> dict[str, Any]:
        """Fields of the "load" request to `PeerWorker` that name the network, besides files."""
        path = None if self._path is None else str(self._path)
        return {"network": [self.name, path], "feedback": self._step.feedback}

    def onnx_file(self, opset: int) -> Path:
        """A sample as ONNX. Raises as `export_onnx` does."""
        file = self._folder / f"step{opset}.onnx"
        if not file.exists():
            export_onnx(self._step, self._step.examples, file, opset)
        return file

    @cached_property
    def exact(self) -> list[list[Array]]:
        """Results of the first samples, in float64."""
        return [exact_step(step_of(self._network), calls + 1) for calls in range(_CHECKED)]


def ready_peers(
    stack: ExitStack,
    task: StepTask,
    folder: Path,
    core: int,
    names: Iterable[str] = STEP_PEERS,
    progress: Callable[[str], None] = lambda step: None,
) -> tuple[list[Contestant], dict[str, str]]:
    """Peers whose samples agree with float64, and the reason for each skipped peer.

    Their processes end with `stack`.
    """
    ready, skipped = list[Contestant](), dict[str, str]()
    for name in names:
        progress(f"{task.name}: {name} loads")
        try:
            contestant = stack.enter_context(Contestant(MODEL_PEERS[name], core))
            contestant.prepare(task)
            for exact in task.exact:
                checked_error(contestant.run(folder), exact)
            ready.append(contestant)
        except (MissingDependency, PeerFailed) as problem:
            skipped[name] = str(problem)
    return ready, skipped
