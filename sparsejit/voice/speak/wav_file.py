"""Speech as 16-bit mono WAV files that appear whole or not at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable
from sparsejit.voice.features import FloatArray


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
