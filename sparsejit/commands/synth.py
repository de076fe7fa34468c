"""`sparsejit synth`: a voice speaks a recording's mel again, or a folder of them."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from sparsejit.commands.console import JsonOption, ProgressBar, print_json, require, say
from sparsejit.commands.synth_folder import FolderOptions, synth_folder
from sparsejit.commands.synth_play import player
from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import DType
from sparsejit.voice.bundled import VOICE
from sparsejit.voice.features import FloatArray
from sparsejit.voice.speak.bulk import Manner
from sparsejit.voice.speak.speak_file import SpokenFile, check_wav, count_frames, speak_file
from sparsejit.voice.speak.wavernn import WaveRNN

_Voice = Annotated[
    Path, typer.Option(help="A voice, or a checkpoint of `train` or of another project.")
]
_Temperature = Annotated[
    float | None, typer.Option(help="Temperature of the draw. Default: the voice's own.")
]
_SampleRate = Annotated[
    int | None,
    typer.Option(min=1, help="Sample rate of a checkpoint, in Hz. Default: its project's."),
]
_Companding = Annotated[
    str | None, typer.Option(help="Companding of a checkpoint: linear or mu_law.")
]
_PostFilter = Annotated[
    bool, typer.Option(help="Correct the power of each band; without it, 36 ms less delay.")
]


def synth(
    source: Annotated[
        Path,
        typer.Argument(
            exists=True, help="A recording, log-mel (80, frames) in a .npy, or a folder of these."
        ),
    ],
    out: Annotated[
        Path, typer.Argument(help="The WAV file to write, or a folder if SOURCE is one.")
    ],
    voice: _Voice = VOICE,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="The same seed gives the same samples.")
    ] = 0,
    temperature: _Temperature = None,
    dtype: Annotated[
        str, typer.Option(help="Dtype of stored weights: float32, bfloat16, float16 or int8.")
    ] = "float32",
    sample_rate: _SampleRate = None,
    companding: _Companding = None,
    post_filter: _PostFilter = True,
    play: Annotated[bool, typer.Option("--play", help="Play it while it is made.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Speak recordings again that have a result already.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes for a folder. Default: one a core.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Let the Ray cluster at ADDRESS speak a folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert recordings to log-mel features and synthesise speech from them.

    All cores, or a Ray cluster, share a folder; the same command goes on where it stopped.
    """
    require("soundfile")
    dtype = DType.parse(dtype).value
    manner = Manner(voice, seed, temperature, dtype, sample_rate, companding, post_filter)
    options = FolderOptions(overwrite, workers, ray)
    if source.is_dir():
        if play:
            raise InvalidInput(f"{source} is a folder; --play is for one recording")
        synth_folder(source, out, manner, options, as_json)
        return
    if options != FolderOptions():
        raise InvalidInput(
            f"{source} is one recording; --overwrite, --workers and --ray are for a folder"
        )
    _synth_file(source, out, manner, play, as_json)


def _synth_file(source: Path, out: Path, manner: Manner, play: bool, as_json: bool) -> None:
    check_wav(out)
    if out.exists() and out.samefile(source):
        raise InvalidInput(f"{out} is the recording itself; name another file")
    speaker = manner.compile()
    with ExitStack() as stack:
        hear = stack.enter_context(player(speaker.sample_rate)) if play else None
        spoken = _speak(speaker, source, out, manner.seed, hear)
    report = {
        "recording": str(source),
        "voice": str(manner.voice),
        "out": str(out),
        "seed": manner.seed,
        "temperature": speaker.source.temperature,
        "dtype": manner.dtype,
        "post_filter": speaker.post_filter,
        "sample_rate": speaker.sample_rate,
        "seconds": spoken.seconds,
        "computing_seconds": spoken.computing_seconds,
        "real_time_factor": spoken.real_time_factor,
        "first_audio_ms": spoken.first_audio_ms,
    }
    if as_json:
        print_json(report)
        return
    speed = f"made in {spoken.computing_seconds:.2f} s, {spoken.real_time_factor:.1f} times real"
    first = f"first audio after {spoken.first_audio_ms:.1f} ms"
    say(f"{spoken.seconds:.1f} s of speech in {out}, {speed} time, {first}")


def _speak(
    speaker: WaveRNN,
    source: Path,
    out: Path,
    seed: int,
    hear: Callable[[FloatArray], None] | None,
) -> SpokenFile:
    with ProgressBar() as bar:
        bar.begin(f"reading {source.name}")
        bar.begin("speaking", count_frames(source, speaker.source, bar.step))

        def heard(samples: FloatArray) -> None:
            bar.step(len(samples) // speaker.hop_length)
            if hear is not None:
                hear(samples)

        return speak_file(speaker, source, out, seed, heard)
