"""`sparsejit synth`: speak a recording's mel again."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from sparsejit.commands.console import JsonOption, print_json, require, say
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable
from sparsejit.voice.bundled import VOICE
from sparsejit.voice.features import load_audio, log_mel
from sparsejit.voice.wavernn import WaveRNN


def synth(
    recording: Annotated[Path, typer.Argument(help="Audio whose mel is spoken again.")],
    out: Annotated[Path, typer.Option(help="The WAV file to write.")] = Path("out/synth.wav"),
    voice: Annotated[Path, typer.Option(help="A voice file.")] = VOICE,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="The same seed gives the same samples.")
    ] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of the draw; the voice's own if left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Analyse a recording into log-mel features and let a voice speak them."""
    require("soundfile", "scipy")
    check_wav(out)
    speaker = WaveRNN.from_pretrained(voice, temperature)
    mel = log_mel(load_audio(recording))
    started = time.perf_counter()
    audio = speaker.generate(mel, seed)
    computing = time.perf_counter() - started
    write_wav(out, audio, speaker.sample_rate)
    seconds = len(audio) / speaker.sample_rate
    report = {
        "recording": str(recording),
        "voice": str(voice),
        "out": str(out),
        "seed": seed,
        "temperature": speaker.weights.temperature,
        "sample_rate": speaker.sample_rate,
        "seconds": seconds,
        "computing_seconds": computing,
        "real_time_factor": seconds / computing,
    }
    if as_json:
        print_json(report)
        return
    speed = f"made in {computing:.2f} s, {seconds / computing:.1f} times real time"
    say(f"{seconds:.1f} s of speech in {out}, {speed}")


def check_wav(path: Path) -> None:
    """Raise InvalidInput if `write_wav` could not write to `path`."""
    if path.suffix != ".wav":
        raise InvalidInput(f"{path} is not a .wav path; name the output something.wav")
    check_writable(path)


def write_wav(path: Path, audio: npt.NDArray[np.float32], rate: int) -> None:
    """Write 16-bit mono PCM; ask `check_wav` before."""
    import soundfile

    with atomic_path(path) as temporary:
        soundfile.write(temporary, np.clip(audio, -1, 1), rate, subtype="PCM_16")
