"""A folder of recordings spoken into a folder; failed files are tried once more, others kept.

A `Crew` does the work: worker processes of this machine, or a Ray cluster (`speak/crews.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sparsejit.errors import InvalidInput, SparseJitError
from sparsejit.files import check_writable
from sparsejit.voice.features import AUDIO_SUFFIXES
from sparsejit.voice.speak.speak_file import (
    MEL_SUFFIX,
    SpokenFile,
    count_frames,
    expected_samples,
    speak_file,
)
from sparsejit.voice.speak.wav_file import is_whole_wav
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.weights import is_voice_file

# Files that are read from a folder; a single recording may have any format that libsndfile reads.
SOURCE_SUFFIXES = (
    *AUDIO_SUFFIXES,
    *(".aif", ".aiff", ".au", ".caf", ".mp3", ".oga", ".opus", ".w64"),
    MEL_SUFFIX,
)


@dataclass(frozen=True, order=True)
class SpeakingTask:
    """One file to speak into another."""

    source: Path
    out: Path


@dataclass(frozen=True)
class Manner:
    """Settings for all files of a folder; `dtype` is the dtype of the voice's stored matrices.

    `post_filter` is for voices of our own: voices of another project are never filtered.
    `sample_rate` and `companding` are for a checkpoint that another project wrote, as in
    `WaveRNN.from_checkpoint`.
    """

    voice: Path
    seed: int = 0
    temperature: float | None = None
    dtype: str = "float32"
    sample_rate: int | None = None
    companding: str | None = None
    post_filter: bool = True

    def compile(self) -> WaveRNN:
        """Compile the voice. Raises as `WaveRNN.from_pretrained` or `WaveRNN.from_checkpoint` does.

        Raises InvalidInput too for a sample rate or companding with a voice of our own.
        """
        how = {name: getattr(self, name) for name in ("dtype", "temperature", "post_filter")}
        if not is_voice_file(self.voice):
            rate, curve = self.sample_rate, self.companding
            return WaveRNN.from_checkpoint(self.voice, sample_rate=rate, companding=curve, **how)
        if self.sample_rate is not None or self.companding is not None:
            raise InvalidInput(
                f"{self.voice} holds its sample rate and companding; leave both options out, "
                "which are for another project's checkpoint"
            )
        return WaveRNN.from_pretrained(self.voice, **how)

    def speak(self, task: SpeakingTask, look_up: Callable[[], None]) -> SpokenFile | str:
        """Speak one file; return its error in one line where it fails.

        `look_up` is called after every piece; a BaseException from it that is no Exception, such
        as KeyboardInterrupt, ends the work.
        """
        try:
            voice = _compiled(self)
            count_frames(task.source, voice.source, lambda _: look_up())
            return speak_file(voice, task.source, task.out, self.seed, lambda _: look_up())
        except SparseJitError as error:
            return str(error)
        except Exception as error:  # one file's error: the others are still spoken
            return f"{type(error).__name__}: {error}"


Outcome = tuple[SpeakingTask, SpokenFile | str]
# Speaks tasks, in any order, and yields the outcome of each.
Crew = Callable[[Iterable[SpeakingTask]], Iterator[Outcome]]


@dataclass
class FolderReport:
    """Outcome of the files of a folder; `failed` has the errors."""

    spoken: dict[SpeakingTask, SpokenFile] = field(default_factory=dict)
    kept: list[SpeakingTask] = field(default_factory=list)
    failed: dict[SpeakingTask, str] = field(default_factory=dict)


def tasks_of(folder: Path, out: Path) -> list[SpeakingTask]:
    """Tasks for the recordings and mels of a folder, by name, each with a WAV file in `out`.

    Raises InvalidInput where there is none, where two would be spoken into one file, and where
    `out` lies in the folder or cannot be written to.
    """
    if out.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput(
            f"{out} lies in {folder}, whose recordings are read; name a folder outside it"
        )
    sources = sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SOURCE_SUFFIXES and file.is_file() and file.name[0] != "."
    )
    if not sources:
        raise InvalidInput(f"{folder} holds no {', '.join(SOURCE_SUFFIXES)} file; put some there")
    spoken_from: dict[Path, Path] = {}
    for source in sources:
        wav = out / f"{source.stem}.wav"
        other = spoken_from.setdefault(wav, source)
        if other is not source:
            raise InvalidInput(f"{other} and {source} would both be {wav}; rename one of them")
        check_writable(wav)
    return [SpeakingTask(source, wav) for wav, source in spoken_from.items()]


def speak_tasks(
    tasks: Iterable[SpeakingTask],
    network: TrainedNetwork,
    crew: Crew,
    overwrite: bool,
    finished: Callable[[], None],
) -> FolderReport:
    """Speak the files that are not there yet, or all with `overwrite`; then failed ones once more.

    `finished` is called for each file that was there already, was spoken, or has failed twice;
    `network` is the voice's.
    """
    report = FolderReport()
    waiting = []
    for task in tasks:
        if not overwrite and _is_there(task, network):
            report.kept.append(task)
            finished()
        else:
            waiting.append(task)
    again = []
    for task, outcome in crew(waiting):
        if isinstance(outcome, str):
            again.append(task)
            continue
        report.spoken[task] = outcome
        finished()
    for task, outcome in crew(sorted(again)):
        if isinstance(outcome, str):
            report.failed[task] = outcome
        else:
            report.spoken[task] = outcome
        finished()
    return report


def _is_there(task: SpeakingTask, network: TrainedNetwork) -> bool:
    """Whether the whole output is there. A file of another length may be of another recording."""
    try:
        samples = expected_samples(task.source, network)
    except InvalidInput:
        return False  # speaking it then reports the error
    return is_whole_wav(task.out, samples, network.sample_rate)


@lru_cache(maxsize=1)
def _compiled(manner: Manner) -> WaveRNN:
    """Compile the voice, once in each process."""
    return manner.compile()
