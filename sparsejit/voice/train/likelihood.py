"""Score of a voice's prediction of recordings: teacher-forced nats a sample."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.voice.features import HOP_LENGTH, FloatArray
from sparsejit.voice.prediction import CLASSES, IndexArray
from sparsejit.voice.spec.forced_network import ForcedNetwork
from sparsejit.voice.spec.own_network import CONTEXT_FRAMES
from sparsejit.voice.train.dataset import Batch, Clip, audio_files, load_clips
from sparsejit.voice.train.module import WaveRNNModule
from sparsejit.voice.weights import VoiceWeights
from sparsejit.whole_numbers import round_up

# The target where a clip has ended before the longest one.
_NO_TARGET = -100


@contextmanager
def matrix_product_precision(precision: str) -> Iterator[None]:
    """Set torch's precision of float32 products: "highest", or "medium", which may use bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def held_out_nats(
    weights: VoiceWeights,
    folder: str | os.PathLike[str],
    cache: str | os.PathLike[str],
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16", "int8"),
    most_frames: int | None = None,
) -> dict[str, float]:
    """Return the nats a sample of the voice's own held-out recordings, for each dtype.

    The compiled network is scored, teacher-forced over whole recordings, or the first `most_frames`
    of each, every sample weighing the same, at temperature 1. `folder` has the recordings, `cache`
    receives their encoding.

    Raises InvalidInput for an unknown dtype, and where a held-out recording is not in `folder`.
    """
    kinds = [DType.parse(dtype) for dtype in dtypes]
    missing = sorted(set(weights.held_out) - {path.stem for path in audio_files(folder)})
    if missing or not weights.held_out:
        wrong = f"lacks the recording {missing[0]}" if missing else "has no recording of the voice"
        raise InvalidInput(f"{folder} {wrong}; give the voice's own folder")
    pairs = [
        (clip.mel[:, :most_frames], clip.classes[: most_frames and most_frames * HOP_LENGTH])
        for clip in load_clips(folder, cache, weights.held_out)
    ]
    network, target = weights.network.at_temperature(1.0), calibrated(Target.detect())
    found = {}
    for kind in kinds:
        forced = ForcedNetwork(network, target, kind.value)
        nats = np.concatenate([forced.nats(mel, classes) for mel, classes in pairs])
        found[kind.value] = float(nats.mean())
    return found


def negative_log_likelihood(
    model: WaveRNNModule, batch: Batch, state: Tensor, int8: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the mean loss in nats a sample and the state after the batch."""
    device = state.device
    inputs, mel, targets = (
        torch.from_numpy(array).to(device) for array in (batch.inputs, batch.mel, batch.targets)
    )
    logits, last = model(inputs, mel, state, int8)
    loss = nn.functional.cross_entropy(
        logits.view(-1, CLASSES), targets.view(-1), ignore_index=_NO_TARGET
    )
    return loss, last


@torch.no_grad()
def evaluate(
    model: WaveRNNModule,
    clips: Sequence[Clip],
    device: str,
    frames: int = 20,
    most_frames: int | None = None,
    int8: bool = False,
) -> float:
    """Return the teacher-forced nats a sample over `clips`, all in parallel.

    At most the first `most_frames` frames of every clip count; every sample weighs the same. It is
    computed `frames` frames at a time.
    """
    ends = [min(clip.frames, most_frames or clip.frames) for clip in clips]
    state = torch.zeros(len(clips), model.hidden_size, device=device)
    total = 0.0
    for batch in _pieces(clips, ends, frames):
        loss, state = negative_log_likelihood(model, batch, state, int8)
        total += loss.item() * int(np.count_nonzero(batch.targets != _NO_TARGET))
    return total / (sum(ends) * HOP_LENGTH)


def _pieces(clips: Sequence[Clip], ends: Sequence[int], frames: int) -> Iterator[Batch]:
    """Yield `frames` frames of all clips at a time, one clip a stream, up to frames `ends`.

    Where a clip has ended, its stream goes on without targets.
    """
    longest = round_up(max(ends), frames)
    streams = [_stream(clip, end, longest) for clip, end in zip(clips, ends, strict=True)]
    for start in range(0, longest, frames):
        span = slice(start * HOP_LENGTH, (start + frames) * HOP_LENGTH)
        context = slice(start, start + frames + 2 * CONTEXT_FRAMES)
        yield Batch(
            np.stack([inputs[span] for inputs, _, _ in streams], axis=1).astype(np.int64),
            np.stack([targets[span] for _, targets, _ in streams], axis=1),
            np.stack([mel[:, context] for _, _, mel in streams]),
            np.full(len(clips), start == 0),
        )


def _stream(
    clip: Clip, end: int, frames: int
) -> tuple[IndexArray, npt.NDArray[np.int64], FloatArray]:
    """Inputs, targets and padded mel of a clip's first `end` frames, made `frames` long."""
    mel, samples, more = clip.padded_mel(), end * HOP_LENGTH, (frames - end) * HOP_LENGTH
    mel = mel[:, : end + 2 * CONTEXT_FRAMES]
    return (
        np.pad(clip.inputs()[:samples], ((0, more), (0, 0))),
        np.pad(clip.classes[:samples].astype(np.int64), (0, more), constant_values=_NO_TARGET),
        np.pad(mel, ((0, 0), (0, frames - end)), "edge"),
    )
