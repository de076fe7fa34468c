"""Speech on the machine's loudspeaker, while more of it is made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread
from typing import Any

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.voice.features import FloatArray

# Most pieces that wait to be played: half a minute, however long the whole is.
_MOST_WAITING = 48


@contextmanager
def player(rate: int) -> Iterator[Callable[[FloatArray], None]]:
    """Yield a function that plays samples, float32 in [-1, 1]; the block ends when all are heard.

    If the block raises, the sound ends at once. Raises MissingDependency where sounddevice or its
    library is not installed, InvalidInput where no device plays at `rate` or it stops doing so.
    """
    stream, device_error = _open_device(rate)
    waiting: Queue[FloatArray | None] = Queue(_MOST_WAITING)
    failures: list[BaseException] = []

    def write() -> None:
        while (samples := waiting.get()) is not None:
            if failures:
                continue  # empty the queue all the same, or `play` would wait for ever
            try:
                stream.write(samples[:, None])
            except device_error as error:
                failures.append(error)

    def check() -> None:
        if failures:
            raise InvalidInput(f"the audio device stopped ({failures[0]}); leave out --play")

    def play(samples: FloatArray) -> None:
        waiting.put(samples)
        check()

    thread = Thread(target=write)
    thread.start()
    try:
        yield play
    except BaseException as error:
        failures.append(error)
        stream.abort()
        raise
    finally:
        waiting.put(None)
        thread.join()
        stream.stop()
        stream.close()
    check()


def _open_device(rate: int) -> tuple[Any, type[Exception]]:
    """A started stream to the default device, and the exception type of its errors."""
    try:
        import sounddevice
    except ImportError as error:
        raise MissingDependency("sounddevice is missing: pip install 'sparsejit[play]'") from error
    except OSError as error:
        remedy = "install it, on Debian with apt-get install libportaudio2"
        raise MissingDependency(f"the PortAudio library is missing ({error}): {remedy}") from error
    try:
        stream = sounddevice.OutputStream(samplerate=rate, channels=1, dtype="float32")
        stream.start()
    except (sounddevice.PortAudioError, ValueError) as error:
        raise InvalidInput(
            f"no audio device plays {rate} Hz here ({error}); leave out --play"
        ) from error
    return stream, sounddevice.PortAudioError
