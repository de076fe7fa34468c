"""The sampler in plain numpy: the definition the compiled one is held to.

The network runs in float64. The signal (prediction, quantiser inputs, reconstruction) runs in
float32 in the order of operations that `asm_templates/pointwise/signal.py` states, so that it
agrees with native code to the bit as long as the classes do.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir import reference
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW
from sparsejit.ir.spec import CategoricalDraw, GruUpdate
from sparsejit.voice.conditioning import Conditioning
from sparsejit.voice.features import HOP_LENGTH
from sparsejit.voice.prediction import (
    CLASSES,
    DECODED,
    ORDER,
    PRE_EMPHASIS,
    SIGNAL_LIMIT,
    ZERO_CLASS,
    quantise,
)
from sparsejit.voice.weights import VoiceWeights


@dataclass(frozen=True)
class DrawnSample:
    """One sample of the reference: the class drawn, the output sample, and how close it was.

    `margin` is the distance from uniform * total to the nearest partial sum, relative to the
    total: what a rounding error must exceed to change the class.
    """

    drawn: int
    sample: np.float32
    margin: float


def sample(
    weights: VoiceWeights,
    conditioning: Conditioning,
    seed: int,
    follow: Iterable[int] | None = None,
) -> Iterator[DrawnSample]:
    """Draw sample after sample; with `follow`, continue from those classes instead of the drawn.

    Following a compiled sampler's classes compares every single draw, however many differ.
    """
    state = _State(weights, seed)
    followed = None if follow is None else iter(follow)
    for index in range(conditioning.frames * HOP_LENGTH):
        frame = index // HOP_LENGTH
        prediction = state.predict(conditioning.predictors[frame])
        logits = state.logits(conditioning, frame, prediction)
        drawn, margin = state.draw(logits, index)
        chosen = drawn if followed is None else next(followed)
        output = state.reconstruct(prediction, chosen, conditioning.residual_scales[frame])
        yield DrawnSample(drawn, output, margin)


class _State:
    """What one sample hands to the next."""

    def __init__(self, weights: VoiceWeights, seed: int) -> None:
        self.weights = weights
        self.seed = seed
        self.hidden = np.zeros(weights.hidden_size)
        self.history = np.zeros(PREDICTION_WINDOW, np.float32)
        self.last_class = ZERO_CLASS
        self.last_output = np.float32(0)
        self.recurrent = weights.recurrent.astype(np.float64)
        self.dense = weights.dense.astype(np.float64)
        self.output = weights.output.astype(np.float64)
        self.spec = CategoricalDraw(CLASSES, 1.0 / weights.temperature)

    def predict(self, predictor: npt.NDArray[np.float32]) -> np.float32:
        """Balanced tree over 32 products: i and i + 16 first, then + 8, + 4, + 2, + 1."""
        sums = np.zeros(PREDICTION_WINDOW, np.float32)
        sums[PREDICTION_WINDOW - ORDER :] = predictor[::-1] * self.history[-ORDER:]
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        return sums[0]

    def logits(
        self, conditioning: Conditioning, frame: int, prediction: np.float32
    ) -> npt.NDArray[np.float64]:
        """The network's step: advances the hidden state, returns logits before the temperature."""
        weights, scale = self.weights, conditioning.input_scales[frame]
        rows = [int(quantise(self.history[-1] * scale)), self.last_class]
        rows.append(int(quantise(prediction * scale)))
        gates = sum(
            (weights.input_tables[table, row].astype(np.float64) for table, row in enumerate(rows)),
            start=conditioning.gate_terms[frame].astype(np.float64),
        )
        recurrent = self.recurrent @ self.hidden
        recurrent[2 * weights.hidden_size :] += weights.recurrent_new_bias
        spec = GruUpdate(weights.hidden_size)
        self.hidden = reference.gru_update(spec, gates, recurrent, self.hidden)
        dense = np.maximum(self.dense @ self.hidden + conditioning.dense_biases[frame], 0.0)
        return self.output @ dense + weights.output_bias

    def draw(self, logits: npt.NDArray[np.float64], counter: int) -> tuple[int, float]:
        uniform = float(reference.random_uniform(self.seed, counter))
        drawn = reference.categorical_draw(self.spec, logits, uniform)
        return drawn, reference.categorical_margin(self.spec, logits, uniform)

    def reconstruct(
        self, prediction: np.float32, chosen: int, residual_scale: np.float32
    ) -> np.float32:
        signal = DECODED[chosen] * residual_scale + prediction
        signal = np.clip(signal, np.float32(-SIGNAL_LIMIT), np.float32(SIGNAL_LIMIT))
        self.history = np.append(self.history[1:], signal)
        self.last_class = chosen
        self.last_output = signal + np.float32(PRE_EMPHASIS) * self.last_output
        return self.last_output
