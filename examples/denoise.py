"""A noise suppressor as one stream, from samples to samples: for a recording, or the microphone.

Run with `python examples/denoise.py noisy.wav clean.wav --model gtcrn_simple.onnx`, a file of
https://github.com/Xiaobin-Rong/gtcrn (stream/onnx_models), or with the two files of
https://github.com/breizhn/DTLN (pretrained_model), `--model dtln_1.onnx dtln_2.onnx`. Then:

    --add-noise 5   takes the recording as clean, adds noise 5 dB below it, and prints the gain
    --page p.html   writes a page with the sounds before and after, and their spectrograms
    --microphone    in place of the recordings: hear yourself without noise, until Ctrl-C

The networks take spectra. The Fourier transforms and the overlap of frames around them are written
as ONNX operators, so that all is one model: it reads 16 ms (8 ms with DTLN) of new samples, and
keeps the frames' past beside the networks' own states.
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import soundfile
from onnx import ModelProto, compose, numpy_helper, parser, version_converter
from scipy.signal import resample_poly

import sparsejit
from sparsejit.machine.target import Target
from sparsejit.perf.voice.sound_page import SoundPage, Take

RATE, FRAME, BINS = 16_000, 512, 257
FloatArray = npt.NDArray[np.float32]

TO_SPECTRUM = """
frame = Concat <axis = 1> (past, samples)
shaped = Mul (frame, window)
signal = Unsqueeze (shaped, two)
bins = DFT <axis = 1, onesided = 1> (signal)
past_out = Slice (frame, hop, end, one)
"""
FROM_SPECTRUM = """
signal = DFT <axis = 1, inverse = 1, onesided = 1> (bins)
row = Squeeze (signal, two)
"""
TO_SAMPLES = """
shaped = Mul (row, window)
longer = Concat <axis = 1> (tail, silence)
sum = Add (longer, shaped)
y = Slice (sum, zero, hop, one)
tail_out = Slice (sum, hop, end, one)
"""
# The networks' files have the tensors of the comments between these parts.
GTCRN = (
    f"""
    spectra (float[1, HOP] samples, float[1, PAST] past)
        => (float[1, 257, 1, 2] mix, float[1, PAST] past_out)
    {{ {TO_SPECTRUM} mix = Unsqueeze (bins, two) }}""",
    # mix -> enh
    f"""
    samples (float[1, 257, 1, 2] enh, float[1, PAST] tail)
        => (float[1, HOP] y, float[1, PAST] tail_out)
    {{ bins = Squeeze (enh, two) {FROM_SPECTRUM} {TO_SAMPLES} }}""",
)
DTLN = (
    f"""
    spectra (float[1, HOP] samples, float[1, PAST] past)
        => (float[1, 1, 257] input_2, float[1, 257, 2] noisy, float[1, PAST] past_out)
    {{ {TO_SPECTRUM} noisy = Identity (bins) power = ReduceSumSquare <axes = [2]> (bins)
       size = Sqrt (power) input_2 = Reshape (size, magnitudes) }}""",
    # input_2 -> activation_2
    f"""
    masked (float[1, 1, 257] activation_2, float[1, 257, 2] noisy) => (float[1, 1, 512] input_4)
    {{ mask = Reshape (activation_2, column) bins = Mul (noisy, mask)
       {FROM_SPECTRUM} input_4 = Unsqueeze (row, one) }}""",
    # input_4 -> conv1d_3
    f"""
    samples (float[1, 1, 512] conv1d_3, float[1, PAST] tail)
        => (float[1, HOP] y, float[1, PAST] tail_out)
    {{ row = Squeeze (conv1d_3, one) {TO_SAMPLES} }}""",
)


class Form(NamedTuple):
    """A suppressor: the samples of a step, the window of frames, and the parts around networks.

    states: the networks' inputs that take an output of the step before
    """

    hop: int
    window: FloatArray
    parts: Sequence[str]
    states: dict[str, str]


# By the number of files.
FORMS = {
    1: Form(
        *(256, np.sqrt(np.hanning(FRAME + 1)[:-1]).astype(np.float32), GTCRN),
        {name: f"{name}_out" for name in ("conv_cache", "tra_cache", "inter_cache")},
    ),
    2: Form(
        *(128, np.ones(FRAME, np.float32), DTLN),
        {"input_3": "tf_op_layer_stack_2", "input_5": "tf_op_layer_stack_5"},
    ),
}


def suppressor(files: Sequence[Path]) -> ModelProto:
    """The networks in these files, with the transforms around them, as one model of samples."""
    form = FORMS[len(files)]
    model, *later = (_part(number, form) for number in range(len(form.parts)))
    for number, (file, part) in enumerate(zip(files, later, strict=True)):
        network = version_converter.convert_version(onnx.load(file), 17)
        network.ir_version = model.ir_version
        for each in (_apart(network, f"network {number}"), part):
            made = {value.name for value in model.graph.output}
            shared = [value.name for value in each.graph.input if value.name in made]
            model = compose.merge_models(model, each, [(name, name) for name in shared])
    return model


def _part(number: int, form: Form) -> ModelProto:
    sizes = form.parts[number].replace("HOP", str(form.hop)).replace("PAST", str(FRAME - form.hop))
    part = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {sizes}')
    arrays = {
        "window": form.window[None],
        "silence": np.zeros((1, form.hop), np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "hop": np.array([form.hop]),
        "end": np.array([FRAME]),
        "magnitudes": np.array([1, 1, BINS]),
        "column": np.array([1, BINS, 1]),
    }
    read = {name for node in part.graph.node for name in node.input}
    used = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in read]
    part.graph.initializer.extend(used)
    onnx.checker.check_model(part)
    return _apart(part, f"part {number}")


def _apart(model: ModelProto, prefix: str) -> ModelProto:
    """The model with other names of all but its inputs and outputs."""
    return compose.add_prefix(model, f"{prefix} ", rename_inputs=False, rename_outputs=False)


class Denoiser:
    """A compiled suppressor.

    fast: the model; hop: the samples of a step; delay: the samples by which results are late
    """

    def __init__(self, files: Sequence[Path]) -> None:
        form = FORMS[len(files)]
        states = {"past": "past_out", "tail": "tail_out", **form.states}
        self.fast = sparsejit.compile(suppressor(files), state=states)
        self.hop, self.delay = form.hop, FRAME - form.hop

    def __call__(self, noisy: FloatArray) -> FloatArray:
        """A recording without its noise, by a new stream."""
        missing = self.delay + -len(noisy) % self.hop
        padded = np.concatenate([noisy, np.zeros(missing, np.float32)])
        samples = self.fast.stream().run(padded[None], out_axis=-1)[0]
        return samples[self.delay :][: len(noisy)]

    def listen(self) -> None:
        """Play what the microphone hears, without noise, until Ctrl-C."""
        import sounddevice

        heard, clean = (np.zeros((1, self.hop), np.float32) for _ in range(2))
        step = self.fast.stream().bind([heard], [clean])

        def block(given: FloatArray, played: FloatArray, frames: int, *_: object) -> None:
            heard[0] = given[:, 0]
            step()
            played[:, 0] = clean[0]

        form = {"samplerate": RATE, "channels": 1, "dtype": "float32"}
        with sounddevice.Stream(**form, blocksize=self.hop, callback=block):
            print(f"late by {1e3 * FRAME / RATE:.0f} ms and the sound card; Ctrl-C ends it")
            with suppress(KeyboardInterrupt):
                Event().wait()


def recording(path: Path) -> FloatArray:
    """A recording in mono, at 16 kHz."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return resample_poly(samples.mean(1), RATE, rate).astype(np.float32)


def with_noise(speech: FloatArray, decibels: float, seed: int = 0) -> FloatArray:
    """Speech with a hiss and the hum of a fan; together they are `decibels` below it."""
    random, count = np.random.default_rng(seed), len(speech)
    hertz, seconds = np.fft.rfftfreq(count, 1 / RATE), np.arange(count) / RATE
    hiss = np.fft.irfft(np.fft.rfft(random.standard_normal(count)) / (hertz + 50) ** 0.5, count)
    hum = sum(np.sin(2 * np.pi * (110 * n * seconds + random.random())) / n for n in range(1, 9))
    noise = hiss / hiss.std() + 0.5 * hum / hum.std()
    noise *= speech.std() / noise.std() / 10 ** (decibels / 20)
    return (speech + noise).astype(np.float32)


def ratio_db(found: FloatArray, speech: FloatArray) -> float:
    """The ratio of the speech in a sound to all else in it, in decibels, at any volume (SI-SDR)."""
    found, speech = found.astype(np.float64), speech.astype(np.float64)
    held = speech * (found @ speech) / (speech @ speech)
    return float(10 * np.log10((held @ held) / np.square(found - held).sum()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Denoise a recording or the microphone, as the command line says."""
    given = _read(arguments)
    denoise = Denoiser(given.model)
    if given.microphone:
        denoise.listen()
        return
    source, out = given.recordings
    speech = recording(source)
    noisy = speech if given.add_noise is None else with_noise(speech, given.add_noise)
    started = perf_counter()
    clean = denoise(noisy)
    took = perf_counter() - started
    soundfile.write(out, clean, RATE)
    figures = [
        (f"{len(noisy) / RATE / took:.0f} times", "real time, on one core"),
        (f"{1e6 * took * denoise.hop / len(noisy):.0f} us", f"for {denoise.hop} samples"),
        (f"{1e3 * FRAME / RATE:.0f} ms", "from a sound to the same sound without noise"),
    ]
    takes = [
        Take("Before", "With noise.", noisy, RATE),
        Take("After", "One stream, from samples to samples.", clean, RATE),
    ]
    if given.add_noise is not None:
        before, after = ratio_db(noisy, speech), ratio_db(clean, speech)
        figures.insert(0, (f"{after - before:+.1f} dB", f"of speech to noise, from {before:.1f}"))
        takes.append(Take("Speech", "Before noise was added.", speech, RATE))
    for number, words in figures:
        print(f"{number} {words}")
    if given.page is not None:
        given.page.write_text(_page(given.model, source, figures, takes).html(), "utf-8")


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    usage, _, more = (__doc__ or "").partition("\n")
    command = argparse.ArgumentParser(
        description=usage, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("recordings", nargs="*", type=Path, help="the noisy one, and where to")
    command.add_argument("--model", nargs="+", type=Path, required=True)
    command.add_argument("--add-noise", type=float, metavar="DB")
    command.add_argument("--page", type=Path)
    command.add_argument("--microphone", action="store_true")
    given = command.parse_args(arguments)
    if len(given.model) not in FORMS:
        command.error("--model takes the file of GTCRN, or both files of DTLN")
    if len(given.recordings) != (0 if given.microphone else 2):
        command.error("give two recordings, noisy.wav clean.wav, or --microphone alone")
    return given


def _page(
    files: Sequence[Path],
    source: Path,
    figures: Sequence[tuple[str, str]],
    takes: Sequence[Take],
) -> SoundPage:
    target = Target.detect()
    names = " and ".join(file.name for file in files)
    return SoundPage(
        heading="A noise suppressor as one stream, compiled to machine code",
        lead=f"The Fourier transforms, {names} and the overlap of frames are one native function, "
        "whose states stay in memory of its own from step to step.",
        figures=figures,
        machine=f"{target.model} ({target.core.key}, {target.isa})",
        source=f"The recording: {source.name}.",
        takes=takes,
        maker="examples/denoise.py",
    )


if __name__ == "__main__":
    main()
