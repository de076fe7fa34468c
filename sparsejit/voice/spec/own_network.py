"""The network that `train` makes, as a `VoiceSpec`, and the reader of its log-mels.

    input   = rows of three tables for s[t-1], class[t-1] and the prediction p
    h       = GRU(W_ih input + the frame's gate terms, h)
    dense   = relu(W_1 h + the frame's terms)
    class   ~ softmax((W_2 dense + b) / temperature)

The signal processing around it is in `sparsejit.voice.prediction`.
"""

from collections.abc import Mapping

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW
from sparsejit.ir.spec import Activation
from sparsejit.voice.features import (
    HOP_LENGTH,
    MEL_RANGE,
    N_MELS,
    POWER_FLOOR,
    SAMPLE_RATE,
    FloatArray,
)
from sparsejit.voice.prediction import (
    CLASSES,
    ORDER,
    PRE_EMPHASIS,
    SIGNAL_LIMIT,
    SIGNAL_SCALE,
    ZERO_CLASS,
    predictor_from_mel,
)
from sparsejit.voice.prediction import RESIDUAL_SCALE as GAINS
from sparsejit.voice.spec.known_parts import DoubleArray, ExactLinear, taps_in_a_row
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
    Categorical,
    Companding,
    DenseSpec,
    GruSpec,
    HeldConditioning,
    LastClass,
    LastSampleRow,
    LinearPrediction,
    PredictionRow,
    VoiceSpec,
)

CONTEXT_FRAMES = 2
_GATES, _DENSE = "gate terms", "dense terms"


def own_spec(tensors: Mapping[str, FloatArray], temperature: float) -> VoiceSpec:
    """The spec of a network with these tensors, by their names in a voice file."""
    hidden, dense = tensors["rnn.weight_hh_l0"].shape[1], len(tensors["fc1.weight"])
    embedded = tensors["embedding.weight"].shape[1]
    return VoiceSpec(
        SAMPLE_RATE,
        HOP_LENGTH,
        inputs=(
            LastSampleRow("signal", embedded),
            LastClass("class", embedded, ZERO_CLASS),
            PredictionRow("prediction", embedded),
        ),
        conditioning=(HeldConditioning(_GATES, 3 * hidden), HeldConditioning(_DENSE, dense)),
        layers=(
            GruSpec("recurrent", hidden, added=(_GATES,)),
            DenseSpec("dense", dense, Activation.RELU, added=(_DENSE,)),
            DenseSpec("output", CLASSES),
        ),
        output=Categorical(CLASSES, Companding.MU_LAW),
        temperature=temperature,
        prediction=LinearPrediction(SIGNAL_LIMIT, PRE_EMPHASIS),
    )


def own_network(tensors: Mapping[str, FloatArray], temperature: float) -> TrainedNetwork:
    """The network of a voice file's tensors."""
    spec = own_spec(tensors, temperature)
    tables = np.split(tensors["embedding.weight"], len(spec.inputs))
    renamed = {f"{each.name}.table": rows for each, rows in zip(spec.inputs, tables, strict=True)}
    for part in ("weight_hh", "bias_ih", "bias_hh"):
        renamed[f"recurrent.{part}"] = tensors[f"rnn.{part}_l0"]
    # All inputs share one matrix: their rows are added, and then multiplied.
    renamed["recurrent.weight_ih"] = np.tile(tensors["rnn.weight_ih_l0"], len(spec.inputs))
    for name, layer in (("dense", "fc1"), ("output", "fc2")):
        for part in ("weight", "bias"):
            renamed[f"{name}.{part}"] = tensors[f"{layer}.{part}"]
    return TrainedNetwork(spec, renamed, LogMelReader(tensors))


class LogMelReader:
    """The layers that run once a frame: log10 mel in, terms of the gates and the dense layer out.

    It also computes the predictors and gains of the mel.
    """

    bands, around, is_log_mel = N_MELS, CONTEXT_FRAMES, True

    def __init__(self, tensors: Mapping[str, FloatArray]) -> None:
        self._mean = tensors["mel_mean"].astype(float)
        self._scale = tensors["mel_scale"].astype(float)
        limits = np.array(MEL_RANGE)[:, None]
        largest = float(np.abs((limits - self._mean) * self._scale).max())
        self._convolutions = [
            ExactLinear(taps_in_a_row(tensors["conv1.weight"]), tensors["conv1.bias"], largest),
            ExactLinear(taps_in_a_row(tensors["conv2.weight"]), tensors["conv2.bias"]),
        ]
        self._gates = ExactLinear(tensors["condition_gates.weight"])
        self._dense = ExactLinear(tensors["condition_dense.weight"])

    def beyond(self, frame: FloatArray) -> FloatArray:
        """The first or last frame, repeated in place of the frames beyond it."""
        return np.repeat(frame, self.around, axis=1)

    def __call__(self, mel: DoubleArray) -> dict[str, DoubleArray]:
        summary = (mel - self._mean) * self._scale
        for layer in self._convolutions:
            taps = [summary[k : len(summary) - 2 + k] for k in range(3)]
            summary = np.tanh(layer(np.concatenate(taps, axis=1)))
        predictors, gains = predictor_from_mel(mel[self.around : -self.around].T)
        window = np.zeros((len(gains), PREDICTION_WINDOW))
        window[:, -ORDER:] = predictors[:, ::-1]
        return {
            _GATES: self._gates(summary),
            _DENSE: self._dense(summary),
            PREDICTOR: window,
            RESIDUAL_SCALE: np.float32(GAINS) * gains,
            LEVEL_SCALE: np.reciprocal(np.float32(SIGNAL_SCALE) * gains),
        }

    def check_scale(self, mel: FloatArray) -> None:
        """Raise InvalidInput for a mel that cannot be log10 power of audio in [-1, 1]."""
        low, high = float(mel.min()), float(mel.max())
        found = f"the mel runs from {low:.4g} to {high:.4g}"
        wanted = "WaveRNN.features gives log10 power, from -9 to 2 for audio in [-1, 1]"
        # Not even white noise at full scale reaches power 1 in every band of a frame.
        if float(mel.min(axis=0).max()) >= 0:
            remedy = f"for power, take np.log10(np.maximum(mel, {POWER_FLOOR:g}))"
            raise InvalidInput(f"{found}, with a frame of no value below 0; {wanted}: {remedy}")
        if low < MEL_RANGE[0] or high > MEL_RANGE[1]:
            remedy = "divide decibels by 10, natural logarithms by 2.3026"
            raise InvalidInput(f"{found}; {wanted}: {remedy}, and scale the audio first")
