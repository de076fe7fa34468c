"""A trained network: its spec, its tensors, and the reader of its mels."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import to_array
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW
from sparsejit.voice.features import FloatArray
from sparsejit.voice.spec.known_parts import DoubleArray
from sparsejit.voice.spec.network_graph import FrameTerms, SpecGraph, Tensors, drawing_graph
from sparsejit.voice.spec.sample_loop import LoopArrays
from sparsejit.voice.spec.voice_spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
    GruSpec,
    InterpolatedConditioning,
    VoiceSpec,
)


class MelReader(Protocol):
    """Reader of mels, from which it computes conditioning.

    `bands`: the bands of a mel. `around`: frames on either side on which a frame's conditioning
    depends. `is_log_mel`: whether its mels come from `features.log_mel`.
    """

    is_log_mel: bool

    @property
    def bands(self) -> int: ...

    @property
    def around(self) -> int: ...

    def beyond(self, frame: FloatArray) -> FloatArray:
        """Frames that stand before the first or after the last frame (bands, 1).

        They are (bands, around).
        """

    def check_scale(self, mel: FloatArray) -> None:
        """Raise InvalidInput for a finite mel (bands, frames) on another scale."""

    def __call__(self, mel: DoubleArray) -> dict[str, DoubleArray]:
        """Compute conditioning of mel (frames + 2 * around, bands), as `FrameTerms` takes it."""


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network that can be compiled: its spec, its tensors, and the reader of its mels."""

    spec: VoiceSpec
    tensors: Tensors
    reads: MelReader

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
        """The size of the first GRU; without a GRU, of the first layer."""
        grus = (layer for layer in self.spec.layers if isinstance(layer, GruSpec))
        return next(grus, self.spec.layers[0]).size

    @property
    def n_mels(self) -> int:
        return self.reads.bands

    @property
    def context_frames(self) -> int:
        """The number of frames on either side that a frame's samples depend on."""
        return self.reads.around

    @cached_property
    def graph(self) -> SpecGraph:
        """The graph that is compiled."""
        return drawing_graph(self.spec, self.tensors)

    @cached_property
    def _terms(self) -> FrameTerms:
        return FrameTerms(self.graph)

    def __getstate__(self) -> dict[str, object]:
        """The fields without cached results."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def at_temperature(self, temperature: float) -> "TrainedNetwork":
        return replace(self, spec=replace(self.spec, temperature=temperature))

    def beyond(self, frame: FloatArray) -> FloatArray:
        """Frames that stand before the first or after the last frame (bands, 1).

        They are (bands, context_frames).
        """
        return self.reads.beyond(frame)

    def conditioning(self, mel: npt.ArrayLike, context: bool = False) -> LoopArrays:
        """The loop's inputs for the frames of mel (bands, F).

        With `context`, mel has `context_frames` more frames on either side.

        Raises:
            InvalidInput: as `checked_mel` does, and where there is no frame
        """
        return self._terms(*self.frame_features(mel, context))

    def frame_features(
        self, mel: npt.ArrayLike, context: bool = False
    ) -> tuple[dict[str, DoubleArray], int]:
        """The conditioning by its name, as `FrameTerms` takes it, and the number of frames."""
        around = self.context_frames
        wide = self.checked_mel(mel, 2 * around + 1 if context else 1)
        if not context:
            before, after = self.beyond(wide[:, :1]), self.beyond(wide[:, -1:])
            wide = np.concatenate([before, wide, after], axis=1)
        return self.reads(wide.T.astype(np.float64)), wide.shape[1] - 2 * around

    def checked_mel(self, mel: npt.ArrayLike, least_frames: int = 0) -> FloatArray:
        """`mel` as float32 (bands, frames).

        Raises:
            InvalidInput: another shape, NaN and infinity, and a scale that is not the network's in
                training
        """
        values = np.asarray(to_array(mel, "the mel"), np.float32)
        if values.ndim != 2 or len(values) != self.n_mels or values.shape[1] < least_frames:
            atleast = f" with {least_frames} or more frames" if least_frames else ""
            raise InvalidInput(
                f"the mel has shape {values.shape}; give ({self.n_mels}, frames){atleast}"
            )
        if not np.isfinite(values).all():
            raise InvalidInput("the mel contains NaN or infinity; give finite values")
        if values.size:
            self.reads.check_scale(values)
        return values


class GivenConditioning:
    """Reader for a network given by a spec: its "mel" is the conditioning, row under row.

    The rows follow `spec.conditioning`; after them, with linear prediction, come the 32 weights of
    the predictor, the residual scale and the level scale. Frames beyond the ends are zeros.
    """

    is_log_mel = False

    def __init__(self, spec: VoiceSpec) -> None:
        taps = {
            each.name: each.taps
            for each in spec.conditioning
            if isinstance(each, InterpolatedConditioning)
        }
        sizes = {each.name: each.size for each in spec.conditioning}
        if spec.prediction is not None:
            sizes |= {PREDICTOR: PREDICTION_WINDOW, RESIDUAL_SCALE: 1, LEVEL_SCALE: 1}
        self._taps, self._sizes = taps, sizes
        self.bands, self.around = sum(sizes.values()), max(taps.values(), default=1) // 2

    def beyond(self, frame: FloatArray) -> FloatArray:
        return np.zeros((self.bands, self.around), np.float32)

    def check_scale(self, mel: FloatArray) -> None:
        """Accept any scale."""

    def __call__(self, mel: DoubleArray) -> dict[str, DoubleArray]:
        ends = np.cumsum(list(self._sizes.values()))
        parts = dict(zip(self._sizes, np.split(mel, ends[:-1], axis=1), strict=True))
        frames = len(mel) - 2 * self.around
        for name, rows in parts.items():
            taps = self._taps.get(name, 1)
            first = self.around - taps // 2
            parts[name] = rows[first : first + frames + taps - 1]
        for scalar in (RESIDUAL_SCALE, LEVEL_SCALE):
            if scalar in parts:
                parts[scalar] = parts[scalar][:, 0]
        return parts
