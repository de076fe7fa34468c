"""`sparsejit synth`: speak a recording's mel again."""

from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from sparsejit.commands.console import console, require
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path
from sparsejit.voice.bundled import VOICE
from sparsejit.voice.features import load_audio, log_mel
from sparsejit.voice.wavernn import WaveRNN


def synth(
    recording: Annotated[Path, typer.Argument(help="Audio whose mel is spoken again.")],
    out: Annotated[Path, typer.Option(help="The WAV file to write.")] = Path("out/synth.wav"),
    voice: Annotated[Path, typer.Option(help="A voice file.")] = VOICE,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same samples.")] = 0,
) -> None:
    """Analyse a recording into log-mel features and let a voice speak them."""
    require("soundfile", "scipy")
    mel = log_mel(load_audio(recording))
    speaker = WaveRNN.from_pretrained(voice)
    audio = speaker.generate(mel, seed)
    write_wav(out, audio, speaker.sample_rate)
    console.print(f"{len(audio) / speaker.sample_rate:.1f} s of speech in {out}")


def write_wav(path: Path, audio: npt.NDArray[np.float32], rate: int) -> None:
    """Write 16-bit mono PCM; raises InvalidInput for a path that does not end in .wav."""
    import soundfile

    if path.suffix != ".wav":
        raise InvalidInput(f"{path} is not a .wav path; name the output something.wav")
    with atomic_path(path) as temporary:
        soundfile.write(temporary, np.clip(audio, -1, 1), rate, subtype="PCM_16")
