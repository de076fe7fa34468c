"""A voice that another project trained: its network, and what its mels go through."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import to_array
from sparsejit.voice.conditioning import DoubleArray
from sparsejit.voice.features import FloatArray
from sparsejit.voice.loop_arrays import LoopArrays
from sparsejit.voice.networks import FrameTerms
from sparsejit.voice.networks_residual import ResidualStack
from sparsejit.voice.spec import GruSpec, VoiceSpec
from sparsejit.voice.spec_graph import SpecGraph, Tensors, drawing_graph

# Such networks read mels scaled to about one: [0, 1], or [-4, 4]. Decibels are far beyond.
LARGEST_MEL = 10.0
MEL = "mel"


@dataclass(frozen=True, eq=False)
class ForeignVoice:
    """A trained network: its spec and tensors, and the residual stack that its mels go through.

    Conditioning is the mel itself, under the name "mel", and features [first, end) of the stack's,
    by the names in `features`.
    """

    spec: VoiceSpec
    tensors: Tensors
    stack: ResidualStack
    features: Mapping[str, tuple[int, int]]

    @property
    def sample_rate(self) -> int:
        return self.spec.sample_rate

    @property
    def hop_length(self) -> int:
        return self.spec.hop_length

    @property
    def temperature(self) -> float:
        return self.spec.temperature

    @property
    def hidden_size(self) -> int:
        """Of the first GRU."""
        return next(layer.size for layer in self.spec.layers if isinstance(layer, GruSpec))

    @property
    def n_mels(self) -> int:
        return next(each.size for each in self.spec.conditioning if each.name == MEL)

    @property
    def context_frames(self) -> int:
        """Frames on either side that a frame's samples depend on."""
        return self.stack.width // 2

    @cached_property
    def graph(self) -> SpecGraph:
        """What is compiled."""
        return drawing_graph(self.spec, self.tensors)

    @cached_property
    def _terms(self) -> FrameTerms:
        return FrameTerms(self.graph)

    def beyond(self, frame: FloatArray) -> FloatArray:
        """What lies beyond the first or last frame (bands, 1): zeros, (bands, context_frames)."""
        return np.zeros((len(frame), self.context_frames), np.float32)

    def conditioning(self, mel: npt.ArrayLike, context: bool = False) -> LoopArrays:
        """What the loop reads of the frames of mel (bands, F).

        With `context` mel has `context_frames` more on either side; otherwise zeros are there, as
        in the training. Raises InvalidInput as `checked_mel` does.
        """
        return self._terms(*self.frame_features(mel, context))

    def frame_features(
        self, mel: npt.ArrayLike, context: bool = False
    ) -> tuple[dict[str, DoubleArray], int]:
        """The conditioning by its name, as `FrameTerms` takes it, and the number of frames."""
        around = self.context_frames
        least = 2 * around + 1 if context else 1
        wide = self.checked_mel(mel, least).T.astype(np.float64)
        if not context:
            wide = np.pad(wide, ((around, around), (0, 0)))
        features = self.stack(wide)
        parts = {name: features[:, first:end] for name, (first, end) in self.features.items()}
        return {MEL: wide, **parts}, len(features)

    def checked_mel(self, mel: npt.ArrayLike, least_frames: int = 0) -> FloatArray:
        """`mel` as float32 (bands, frames).

        Raises InvalidInput for another shape, NaN and infinity, and values beyond +-10: the mel
        must be scaled as in the network's training.
        """
        values = np.asarray(to_array(mel, "the mel"), np.float32)
        if values.ndim != 2 or len(values) != self.n_mels or values.shape[1] < least_frames:
            atleast = f" with {least_frames} or more frames" if least_frames else ""
            raise InvalidInput(
                f"the mel has shape {values.shape}; give ({self.n_mels}, frames){atleast}"
            )
        if not np.isfinite(values).all():
            raise InvalidInput("the mel contains NaN or infinity; give finite values")
        largest = float(np.abs(values).max(initial=0))
        if largest > LARGEST_MEL:
            raise InvalidInput(
                f"the mel has values of size {largest:.4g}; scale it as in the network's training, "
                "to [0, 1] or [-4, 4]"
            )
        return values
