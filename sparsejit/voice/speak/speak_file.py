"""A voice speaks one file into another, piece by piece: an hour takes no more memory than a minute.

    recording --> 22,050 Hz --> log-mel --\\
                       log-mel in a .npy ---> voice.stream --> WAV, renamed when it is whole

`check_wav`, `wav_writer`, `write_wav` and `is_whole_wav` are for 16-bit mono WAV files, which
appear whole or not at all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable
from sparsejit.runtime import native_timing
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE, FloatArray, MelStream, audio_pieces
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.trained import TrainedNetwork


def check_wav(path: Path) -> None:
    """Raise InvalidInput if `wav_writer` could not write to `path`."""
    if path.suffix != ".wav":
        raise InvalidInput(f"{path} is not a .wav path; name the output something.wav")
    check_writable(path)


@contextmanager
def wav_writer(path: Path, rate: int) -> Iterator[Callable[[FloatArray], None]]:
    """Yield a function that writes the next samples, float32 in [-1, 1]; call `check_wav` before.

    The file appears when the block ends without error. Raises InvalidInput where the disk is full.
    """
    import soundfile

    try:
        with (
            atomic_path(path) as temporary,
            soundfile.SoundFile(temporary, "w", rate, 1, "PCM_16") as file,
        ):
            yield lambda samples: file.write(np.clip(samples, -1, 1))
    except (soundfile.SoundFileError, OSError) as error:
        raise InvalidInput(f"{path} cannot be written ({error}); is the disk full?") from error


def write_wav(path: Path, audio: FloatArray, rate: int) -> None:
    """Write samples, float32 in [-1, 1]; call `check_wav` before."""
    with wav_writer(path, rate) as write:
        write(audio)


def is_whole_wav(path: Path, samples: int, rate: int) -> bool:
    """Whether there is a mono WAV file of that length and rate."""
    import soundfile

    try:
        found = soundfile.info(path)
    except (soundfile.SoundFileError, OSError):
        return False
    return (found.frames, found.samplerate, found.channels) == (samples, rate, 1)


MEL_SUFFIX = ".npy"
_FRAMES_AT_ONCE = 1024  # of a stored mel


@dataclass(frozen=True)
class SpokenFile:
    """Length of the speech in a file, and the time that it took.

    computing_seconds: time of reading, features and samples, without writing and playing.
    first_audio_ms: time from the first mel frame and its frames of look-ahead to its samples.
    """

    samples: int
    computing_seconds: float
    first_audio_ms: float
    sample_rate: int

    @property
    def seconds(self) -> float:
        return self.samples / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of speech per second of computing."""
        return self.seconds / self.computing_seconds


def mel_pieces(source: Path, network: TrainedNetwork) -> Iterator[FloatArray]:
    """Mels (bands, some frames) of a recording, or of a .npy file that holds (bands, frames).

    The pieces joined are `log_mel` of the whole recording, to the bit. Raises InvalidInput, naming
    the file, where it cannot be read, or holds no recording or mel that can be spoken.
    """
    stored = _is_mel(source, network)
    pieces = _stored_mel(source, network.n_mels) if stored else _mel_of_audio(source)
    try:
        yield from map(network.checked_mel, pieces)
    except InvalidInput as error:
        named = str(error) if str(source) in str(error) else f"{source}: {error}"
        raise InvalidInput(named) from error


def _is_mel(source: Path, network: TrainedNetwork) -> bool:
    """Whether a source is a stored mel. Raises InvalidInput for audio that has no mel here."""
    if source.suffix == MEL_SUFFIX:
        return True
    if not network.reads.is_log_mel:
        raise InvalidInput(
            f"{source} is audio, and this voice was trained on another project's mels; compute "
            f"mels as that project does and give a .npy that holds ({network.n_mels}, frames)"
        )
    return False


def count_frames(source: Path, network: TrainedNetwork, heard: Callable[[int], None]) -> int:
    """Read a source to its end and count its frames, to find errors before any work is lost.

    `heard` is called with the number of frames of each piece. Raises InvalidInput as `mel_pieces`
    does.
    """
    frames = 0
    for mel in mel_pieces(source, network):
        frames += mel.shape[1]
        heard(mel.shape[1])
    return frames


def expected_samples(source: Path, network: TrainedNetwork) -> int:
    """Number of samples that will be spoken, by the file's header.

    Raises InvalidInput where there is no header that can be read.
    """
    if _is_mel(source, network):
        return int(_mapped_mel(source, network.n_mels).shape[1]) * network.hop_length
    import soundfile

    try:
        found = soundfile.info(source)
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise InvalidInput(f"cannot read audio from {source} ({error})") from error
    return round(found.frames * SAMPLE_RATE / found.samplerate) // HOP_LENGTH * HOP_LENGTH


def speak_file(
    voice: WaveRNN, source: Path, out: Path, seed: int, heard: Callable[[FloatArray], None]
) -> SpokenFile:
    """Speak a recording's mel, or a stored one, into a WAV file, 16-bit mono at the voice's rate.

    The samples equal `voice.generate` of the whole mel. `heard` is called with each piece of them;
    an exception from it ends the work and leaves no file. Raises InvalidInput as `mel_pieces` does,
    and where the file cannot be written.
    """
    watch, samples = _StreamWatch(voice.source.context_frames), 0
    with wav_writer(out, voice.sample_rate) as write:
        for piece in watch.timed(voice.stream(watch.noted(mel_pieces(source, voice.source)), seed)):
            write(piece)
            heard(piece)
            samples += len(piece)
    spent, first = watch.spent_ns / 1e9, watch.first_audio_ns / 1e6
    return SpokenFile(samples, spent, first, voice.sample_rate)


class _StreamWatch:
    """Times a stream: the waiting for all its pieces, and for the first one."""

    def __init__(self, look_ahead: int) -> None:
        self._look_ahead = look_ahead
        self.spent_ns = 0
        self.first_audio_ns = 0
        self._ready_at: int | None = None

    def noted(self, mels: Iterator[FloatArray]) -> Iterator[FloatArray]:
        """Pass on pieces of mel; note when the first frame and its look-ahead are there."""
        frames = 0
        for mel in mels:
            frames += mel.shape[1]
            if frames > self._look_ahead and self._ready_at is None:
                self._ready_at = native_timing.clock()
            yield mel
        if self._ready_at is None:
            self._ready_at = native_timing.clock()

    def timed(self, pieces: Iterator[FloatArray]) -> Iterator[FloatArray]:
        """Pass on pieces of speech; add the wait for each to `spent_ns`, and note the first."""
        first = True
        asked = native_timing.clock()
        for piece in pieces:
            made = native_timing.clock()
            self.spent_ns += made - asked
            if first and self._ready_at is not None:
                self.first_audio_ns = made - self._ready_at
            first = False
            yield piece
            asked = native_timing.clock()


def _mel_of_audio(source: Path) -> Iterator[FloatArray]:
    stream = MelStream()
    for audio in audio_pieces(source):
        yield stream.push(audio)
    yield stream.finish()


def _stored_mel(source: Path, bands: int) -> Iterator[FloatArray]:
    frames = _mapped_mel(source, bands).shape[1]
    for first in range(0, frames, _FRAMES_AT_ONCE):
        # Mapped again for each piece: pages stay in memory as long as their mapping.
        piece = _mapped_mel(source, bands)[:, first : first + _FRAMES_AT_ONCE]
        yield np.array(piece, np.float32)


def _mapped_mel(source: Path, bands: int) -> npt.NDArray[np.floating]:
    """Map the array in a .npy file, (bands, one frame or more)."""
    try:
        stored = np.load(source, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"cannot read {source} ({error}); give a .npy of np.save") from error
    if not isinstance(stored, np.ndarray) or stored.dtype.kind != "f":
        kind = getattr(stored, "dtype", type(stored).__name__)
        raise InvalidInput(f"{source} holds {kind}; give a mel as floating point")
    if stored.ndim != 2 or stored.shape[0] != bands or not stored.shape[1]:
        raise InvalidInput(f"{source} has shape {stored.shape}; give ({bands}, frames)")
    return stored
