"""Times of a step of streams: networks of RNNoise's form, pruned, and a wake word's pipeline.

    python -m sparsejit.perf.studies.stream_steps --wake-word wakeword_mirror.onnx

torch and ONNX Runtime take the same steps, each fed its own states, on one core in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
import typer
from onnx import numpy_helper
from rich import print as print_table
from torch import Tensor, nn
from torch.nn import functional

import sparsejit
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.reports.shown import table_of
from sparsejit.perf.model_contest import export_onnx
from sparsejit.perf.timing import RoundsInTurn, time_python
from sparsejit.prune import Pruner
from sparsejit.runtime.native_timing import pinned

ROUNDS, SPARSITY = 15, 0.8
STEP, RATE = 1280, 16_000  # samples of a wake word's step, and in a second
_OPSET = 17


class RnnSizes(NamedTuple):
    """Features of a frame, units of the first layer and of the three GRUs, and bands."""

    features: int
    first: int
    voice: int
    noise: int
    speech: int
    bands: int


# Xiph's RNNoise of 2018, and GRUs as wide as in version 0.2.
SIZES = {"2018": RnnSizes(42, 24, 24, 48, 96, 22), "0.2": RnnSizes(65, 128, 384, 384, 384, 32)}


class RnNoise(nn.Module):
    """A frame of 10 ms to the gains of bands: GRUs for voice, noise and speech see each other."""

    def __init__(self, sizes: RnnSizes) -> None:
        super().__init__()
        self.first = nn.Linear(sizes.features, sizes.first)
        self.voice = nn.GRUCell(sizes.first, sizes.voice)
        self.noise = nn.GRUCell(sizes.first + sizes.voice + sizes.features, sizes.noise)
        inside = sizes.voice + sizes.noise + sizes.features
        self.speech = nn.GRUCell(inside, sizes.speech)
        self.gains = nn.Linear(sizes.speech, sizes.bands)
        self.is_voice = nn.Linear(sizes.voice, 1)

    def forward(self, x: Tensor, voice: Tensor, noise: Tensor, speech: Tensor) -> tuple[Any, ...]:
        y = torch.tanh(self.first(x))
        voice = self.voice(y, voice)
        noise = self.noise(torch.cat([y, voice, x], 1), noise)
        speech = self.speech(torch.cat([voice, noise, x], 1), speech)
        gains = torch.sigmoid(self.gains(speech))
        return gains, torch.sigmoid(self.is_voice(voice)), voice, noise, speech


STATES: dict[str | int, str | int] = {"voice": 2, "noise": 3, "speech": 4}


def pruned_net(sizes: RnnSizes) -> tuple[RnNoise, tuple[Tensor, ...]]:
    """A net with random weights, 80 % of its GRUs' weights zero, and an example call."""
    torch.manual_seed(0)
    net = RnNoise(sizes).eval()
    Pruner(SPARSITY, "unstructured", targets=["*weight_?h"], allocation="uniform").prepare(net)
    shapes = (sizes.features, sizes.voice, sizes.noise, sizes.speech)
    return net, tuple(torch.zeros(1, count) for count in shapes)


class WakeWord(nn.Module):
    """Samples (1, time) to the probability of a word after each 80 ms.

    The log mel spectrum, an embedding every 8 frames with the form and size of Google's speech
    embedding and random weights, and the trained classifier of 16 embeddings in a file.
    """

    WINDOW, HOP, MELS, SEEN, WIDTH = 400, 160, 32, 16, 96

    def __init__(self, classifier: Path) -> None:
        super().__init__()
        self.window: Tensor
        self.bands: Tensor
        self.register_buffer("window", torch.hann_window(self.WINDOW))
        self.register_buffer("bands", _mel_bands(self.MELS, self.WINDOW // 2 + 1))
        layers: list[nn.Module] = [nn.Conv2d(1, 24, 3, padding=(0, 1)), nn.LeakyReLU(0.2)]
        before = 24
        for width, pairs, pools in ((24, 1, True), (48, 2, True), (72, 2, True), (96, 2, False)):
            for _ in range(pairs):
                layers += [nn.Conv2d(before, width, (1, 3), padding=(0, 1)), nn.LeakyReLU(0.2)]
                layers += [nn.Conv2d(width, width, (3, 1)), nn.LeakyReLU(0.2)]
                before = width
            layers += [nn.MaxPool2d(2)] if pools else []
        self.embedding = nn.Sequential(*layers, nn.Conv2d(before, self.WIDTH, (1, self.MELS // 8)))
        for layer in self.embedding:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)  # or layers would shrink all signals
        self.classifier = Classifier(classifier)

    def forward(self, samples: Tensor) -> Tensor:
        options = {"window": self.window, "center": False, "return_complex": True}
        spectrum = torch.stft(samples, self.WINDOW, self.HOP, **options)  # type: ignore[arg-type]
        power = spectrum.real.square() + spectrum.imag.square()
        mels = torch.log(power.transpose(1, 2) @ self.bands + 1e-6)
        return self.classifier(self.embedding(mels[:, None]).squeeze(3))


class Classifier(nn.Module):
    """A wake word's file of openWakeWord: embeddings (1, 96, n) to probabilities (1, n - 15)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        held = onnx.load(path).graph
        arrays = {each.name: numpy_helper.to_array(each) for each in held.initializer}
        products = [node.input for node in held.node if node.op_type == "Gemm"]
        weights = [torch.from_numpy(arrays[inputs[1]].copy()) for inputs in products]
        biases = [torch.from_numpy(arrays[inputs[2]].copy()) for inputs in products]
        # A layer of 16 embeddings, (16 * 96, units), is a convolution along time.
        whole = weights[0].T.reshape(-1, WakeWord.SEEN, WakeWord.WIDTH).transpose(1, 2)
        later = [weight.T[..., None] for weight in weights[1:]]
        self.weights = nn.ParameterList([whole.contiguous(), *later])
        self.biases = nn.ParameterList(biases)
        name = "model/layer_normalization{}/batchnorm/{}ReadVariableOp/resource"
        scales = [name.format(number, "mul/") for number in ("", "_1")]
        shifts = [name.format(number, "") for number in ("", "_1")]
        self.scales = nn.ParameterList([torch.from_numpy(arrays[n].copy()) for n in scales])
        self.shifts = nn.ParameterList([torch.from_numpy(arrays[n].copy()) for n in shifts])

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias, scale, shift in zip(
            self.weights, self.biases, self.scales, self.shifts, strict=False
        ):
            y = functional.conv1d(x, weight, bias).transpose(1, 2)
            y = functional.layer_norm(y, scale.shape, scale, shift)
            x = torch.relu(y).transpose(1, 2)
        return torch.sigmoid(functional.conv1d(x, self.weights[-1], self.biases[-1]))[:, 0]


def _mel_bands(bands: int, bins: int) -> Tensor:
    """Triangles (bins, bands) at equal distances on the mel scale, from 60 Hz to 3,800 Hz."""
    first, last = (2595 * np.log10(1 + hertz / 700) for hertz in (60, 3800))
    mels = np.linspace(first, last, bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    hertz = np.linspace(0, RATE / 2, bins)[:, None]
    rise, fall = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
    return torch.from_numpy(np.maximum(np.minimum(rise, fall), 0).astype(np.float32))


def compiled_pipeline(classifier: Path) -> tuple[WakeWord, CompiledModel]:
    """The pipeline, and its step of 80 ms of samples."""
    torch.manual_seed(0)
    model = WakeWord(classifier).eval()
    return model, sparsejit.compile(model, (torch.zeros(1, 60 * STEP),), step=STEP)


def fed_back(call: Callable[..., Sequence[Any]], x: Any, states: Sequence[Any]) -> Any:
    """A function without arguments: a step whose last outputs are states of the next one."""
    held = list(states)

    def step() -> None:
        held[:] = call(x, *held)[-len(held) :]

    return step


def _steps_of(net: RnNoise, example: tuple[Tensor, ...], folder: Path) -> dict[str, Any]:
    """Steps of a net by engine."""
    x, *states = example
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    export_onnx(net, example, folder / "net.onnx", _OPSET)
    session = onnxruntime.InferenceSession(folder / "net.onnx", options)
    names = [each.name for each in session.get_inputs()]

    def theirs(*given: Any) -> Any:
        return session.run(None, dict(zip(names, given, strict=True)))

    fast = sparsejit.compile(net, example, state=STATES)
    outputs = [np.zeros((1, size), np.float32) for size in (net.gains.out_features, 1)]
    stream, frame = fast.stream(), x.numpy()
    return {
        "stream(x)": lambda: stream(frame),
        "bound": fast.stream().bind([frame], outputs),
        "torch": fed_back(torch.inference_mode()(net), x, states),
        "ONNX Runtime": fed_back(theirs, frame, [state.numpy() for state in states]),
    }


def main(
    wake_word: Annotated[
        Path | None, typer.Option(help="A classifier of openWakeWord, .onnx.")
    ] = None,
) -> None:
    """Time all steps."""
    torch.set_num_threads(1)
    figures = ("stream(x)", "bound", "torch", "ONNX Runtime")
    table = table_of("us a step, one core", ("net",), figures)
    for name, sizes in SIZES.items():
        net, example = pruned_net(sizes)
        with TemporaryDirectory() as folder, pinned():
            steps = _steps_of(net, example, Path(folder))
            least = _least(steps)
        table.add_row(f"RNNoise {name}", *(f"{us:.2f}" for us in least.values()))
    if wake_word is not None:
        _, fast = compiled_pipeline(wake_word)
        stream, samples = fast.stream(), np.zeros((1, STEP), np.float32)
        bound = fast.stream().bind([samples], [np.zeros((1, 1), np.float32)])
        least = _least({"stream(x)": lambda: stream(samples), "bound": bound})
        table.add_row("wake word, 80 ms", *(f"{us:.1f}" for us in least.values()), "", "")
    print_table(table)


def _least(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Least microseconds of each, over rounds in turn."""

    def timed(step: Callable[[], object]) -> Callable[[int], float]:
        return lambda _: time_python(step, samples=5, budget_ns=20_000_000).min_ns / 1e3

    rounds = RoundsInTurn({name: timed(step) for name, step in steps.items()})
    rounds.run(ROUNDS)
    return rounds.least()


if __name__ == "__main__":
    typer.run(main)
