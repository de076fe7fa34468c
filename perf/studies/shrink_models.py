"""Trained models of several kinds, shrunk to errors of 0.5, 1, 2 and 5 % of their outputs.

    least_ms, share_of_zeros   times of models in turns, and their zeros, also for the other studies
                               of `sparsejit.shrink`
    StudiedModel               a model, samples to shrink it by, and its decisions
    main                       shrinks the models, and prints scores and times

Run:

    python -m sparsejit.perf.studies.shrink_models /path/to/onnx --json figures.json

The folder has the .onnx files; beside it lie `speech` (recordings) and `text`. The score of a model
is the change of its own decisions on fresh inputs; models that are trained here are also scored by
labels. Times are of one core, in turns, with ONNX Runtime on one thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich import print as print_table

import sparsejit
from sparsejit.api.reports.shown import table_of
from sparsejit.errors import SparseJitError
from sparsejit.frontends.model_source import named_function
from sparsejit.machine.target import Target
from sparsejit.perf.studies.shrink_samples import RATE, files_for_magika, pictures, sounds
from sparsejit.perf.studies.shrink_trained import (
    TrainedModel,
    digits,
    next_characters,
    spoken_words,
)
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.prune.shrink.shrunk import Shrunk

Call = Callable[..., Any]
ROUNDS = 60


def onnx_runtime(model: str | bytes) -> Call:
    """A function of all inputs that runs a model, or its path, in ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Any) -> Any:
        outputs = session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs

    return run


def least_ms(
    models: Sequence[Call], elements: Sequence[Sequence[Any]], rounds: int = ROUNDS
) -> list[float]:
    """The least milliseconds of a call of each model, in turns, each round on another element.

    The clock is the thread's: all models run on one thread, and other processes may share its core.
    """

    def timed(model: Call) -> Callable[[int], float]:
        def measure(number: int) -> float:
            inputs = elements[number % len(elements)]
            start = time.thread_time()
            model(*inputs)
            return 1e3 * (time.thread_time() - start)

        return measure

    turns = RoundsInTurn({place: timed(model) for place, model in enumerate(models)})
    turns.run(rounds)
    return list(turns.least().values())


def share_of_zeros(made: Shrunk) -> float:
    """The share of zeros in the weights of all layers that may have some."""
    sizes = [np.prod(layer.shape) for layer in made.layers]
    return float(np.average([layer.zeros for layer in made.layers], weights=sizes))


FloatArray = npt.NDArray[np.float32]
Element = tuple[Any, ...]
# Yields the inputs of each frame of a sound, and a model's result for it.
Frames = Callable[[Call, FloatArray], Iterator[tuple[Element, Any]]]

_SAMPLES, _SAMPLES_SEED, _FRESH_SEED = 128, 7, 2
_BUDGETS, _SPEED = (0.005, 0.01, 0.02, 0.05), 2.0
_STEP, _SILERO_CONTEXT = 512, 64  # new samples that silero takes, and samples before them
_LEAST_SCORE, _MOST_OVERLAP, _SAME_PLACE = 0.3, 0.45, 0.5  # of yolox's detections
_DNSMOS_SAMPLES, _GTCRN_HOP = 144_160, 256


@dataclass(frozen=True)
class StudiedModel:
    """A model, samples to shrink it by, and its decisions.

    decide: the decisions of a compiled model on fresh inputs
    changes: figures, by name, of the difference between the dense model's decisions and others
    """

    model: Any
    samples: Sequence[Element]
    decide: Callable[[Call], Any]
    changes: Callable[[Any, Any], dict[str, float]]
    constants: dict[str, Any] = field(default_factory=dict)
    speeds: Sequence[float] = ()


@dataclass(frozen=True)
class ShrunkFigures:
    """One row of the table; `failure` where there is no result."""

    asked: str
    seconds: float
    failure: str = ""
    error: float = 0.0
    zeros: float = 0.0
    ms: float = 0.0
    times_dense: float = 0.0
    times_onnx_runtime: float | None = None
    changes: dict[str, float] = field(default_factory=dict)


def dnsmos(folder: Path) -> StudiedModel:
    """DNSMOS: marks for the quality of sounds of nine seconds."""
    speech = folder.parent / "speech"
    samples = [(x[None],) for x in sounds(speech, _SAMPLES_SEED, 48, _DNSMOS_SAMPLES)]
    fresh = sounds(speech, _FRESH_SEED, 48, _DNSMOS_SAMPLES)

    def decide(call: Call) -> Any:
        return np.concatenate([call(x[None]) for x in fresh])

    def changes(dense: Any, ours: Any) -> dict[str, float]:
        off = np.abs(ours - dense)
        return {"mean change of marks": float(off.mean()), "largest": float(off.max())}

    return StudiedModel(folder / "dnsmos_sig_bak_ovr.onnx", samples, decide, changes)


def _frames_of(frames: Frames, dense: Call, some: Iterable[FloatArray]) -> list[Element]:
    """Inputs of the dense model on some of the sounds' frames, with the states before them."""
    seen = [given for sound in some for given, _ in frames(dense, sound)]
    chosen = np.random.default_rng(0).permutation(len(seen))[: 4 * _SAMPLES]
    return [seen[n] for n in chosen]


def silero(folder: Path) -> StudiedModel:
    """Silero VAD: whether frames of 32 ms are speech."""
    file, constants = folder / "silero_vad_16k_op15.onnx", {"sr": np.array(16000)}
    first = np.zeros((1, _SILERO_CONTEXT + _STEP), np.float32), np.zeros((2, 1, 128), np.float32)
    dense = sparsejit.compile(file, first, constants=constants)

    def frames(call: Call, sound: FloatArray) -> Iterator[tuple[Element, float]]:
        state = first[1]
        for start in range(_SILERO_CONTEXT, len(sound) - _STEP + 1, _STEP):
            given = sound[None, start - _SILERO_CONTEXT : start + _STEP], state
            y, state = call(*given)
            yield given, float(y.item())

    speech = folder.parent / "speech"
    samples = _frames_of(frames, dense, sounds(speech, _SAMPLES_SEED, 24, 5 * RATE))
    fresh = sounds(speech, _FRESH_SEED, 24, 6 * RATE)

    def decide(call: Call) -> Any:
        return np.array([p for sound in fresh for _, p in frames(call, sound)])

    def changes(dense: Any, ours: Any) -> dict[str, float]:
        other = float(np.mean((dense > 0.5) != (ours > 0.5)))
        return {"% decided otherwise": 100 * other, "mean change": float(abs(dense - ours).mean())}

    return StudiedModel(file, samples, decide, changes, constants)


def gtcrn(folder: Path) -> StudiedModel:
    """GTCRN: speech without its noise, 16 ms at a time."""
    file, window = folder / "gtcrn_simple.onnx", np.hanning(2 * _GTCRN_HOP + 1)[:-1] ** 0.5
    shapes = ((2, 1, 16, 16, 33), (2, 3, 1, 1, 16), (2, 1, 33, 16))
    first = [np.zeros(shape, np.float32) for shape in shapes]
    dense = sparsejit.compile(file, (np.zeros((1, 257, 1, 2), np.float32), *first))

    def frames(call: Call, sound: FloatArray) -> Iterator[tuple[Element, FloatArray]]:
        states = first
        for start in range(0, len(sound) - 2 * _GTCRN_HOP + 1, _GTCRN_HOP):
            spectrum = np.fft.rfft(window * sound[start : start + 2 * _GTCRN_HOP])
            mix = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
            given = mix[None, :, None], *states
            y, *states = call(*given)
            yield given, y[0, :, 0]

    speech = folder.parent / "speech"
    samples = _frames_of(frames, dense, sounds(speech, _SAMPLES_SEED, 24, 3 * RATE))
    fresh = sounds(speech, _FRESH_SEED, 16, 4 * RATE)

    def decide(call: Call) -> Any:
        return np.stack([y for sound in fresh for _, y in frames(call, sound)])

    def changes(dense: Any, ours: Any) -> dict[str, float]:
        noise = np.square(dense - ours).sum() / np.square(dense).sum()
        return {"SNR, dB": float(-10 * np.log10(max(noise, 1e-20)))}

    return StudiedModel(file, samples, decide, changes)


def magika(folder: Path) -> StudiedModel:
    """Magika: the kinds of files."""
    samples = [(x[None],) for x in files_for_magika(_SAMPLES_SEED, 2 * _SAMPLES)]
    fresh = [(x[None],) for x in files_for_magika(_FRESH_SEED, 1000)]
    return StudiedModel(folder / "magika_v3_3.onnx", samples, *_labelling(fresh))


def yolox(folder: Path) -> StudiedModel:
    """YOLOX: boxes around objects in pictures."""
    samples = [(x[None],) for x in pictures(_SAMPLES_SEED, 48)]
    fresh = pictures(_FRESH_SEED, 100)

    def decide(call: Call) -> Any:
        return [_detections(call(x[None])[0]) for x in fresh]

    def changes(dense: Any, ours: Any) -> dict[str, float]:
        same = sum(_matches(*pair) for pair in zip(dense, ours, strict=True))
        total = sum(len(each) for each in (*dense, *ours))
        return {"% of detections alike": 100 * 2 * same / max(total, 1), "detections": total / 2}

    return StudiedModel(folder / "yolox_nano.onnx", samples, decide, changes)


def _detections(y: FloatArray) -> FloatArray:
    """Boxes (n, 6) after non-maximum suppression: left, top, right, bottom, class and score."""
    places = [(x, row, size) for size in (8, 16, 32) for row in range(416 // size)
              for x in range(416 // size)]  # fmt: skip
    grid = np.array(places, np.float32)
    centre, half = (y[:, :2] + grid[:, :2]) * grid[:, 2:], np.exp(y[:, 2:4]) * grid[:, 2:] / 2
    scores = y[:, 4] * y[:, 5:].max(1)
    rows = np.column_stack([centre - half, centre + half, y[:, 5:].argmax(1), scores])
    left = list(rows[scores > _LEAST_SCORE][np.argsort(-scores[scores > _LEAST_SCORE])])
    kept: list[FloatArray] = []
    while left:
        kept.append(left.pop(0))
        left = [r for r in left if r[4] != kept[-1][4] or _overlap(r, kept[-1]) < _MOST_OVERLAP]
    return np.array(kept).reshape(-1, 6)


def _overlap(one: FloatArray, other: FloatArray) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(one[2:4], other[2:4]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(sides.clip(0)))
    areas = sum(float(np.prod(each[2:4] - each[:2])) for each in (one, other))
    return shared / max(areas - shared, 1e-9)


def _matches(dense: FloatArray, ours: FloatArray) -> int:
    """Number of boxes with a partner of the same class at the same place."""
    left, found = list(ours), 0
    for box in dense:
        for number, each in enumerate(left):
            if each[4] == box[4] and _overlap(each, box) > _SAME_PLACE:
                del left[number]
                found += 1
                break
    return found


def ppocr(folder: Path) -> StudiedModel:
    """PP-OCRv4: labels of positions on rendered lines; `shrink_lines.py` scores the text."""
    render = named_function(f"{folder / 'render_lines.py'}:lines", "function")
    samples, fresh = (render(seed, 192)[0][:, None] for seed in (_SAMPLES_SEED, 3))
    decisions = _labelling([(x,) for x in fresh])
    return StudiedModel(folder / "ppocr_v4_rec.onnx", [(x,) for x in samples], *decisions)


def _labelling(
    fresh: Sequence[Element], labels: npt.NDArray[np.int64] | None = None
) -> tuple[Callable[[Call], Any], Callable[[Any, Any], dict[str, float]]]:
    """Two functions of a classifier: its labels of fresh inputs, and changes of these labels.

    Labels are classes along the last axis; with given `labels` the changes include accuracy.
    """

    def decide(call: Call) -> Any:
        return np.concatenate([np.asarray(call(*x)).argmax(-1).reshape(-1) for x in fresh])

    def changes(dense: Any, ours: Any) -> dict[str, float]:
        found = {"% of labels changed": 100 * float(np.mean(dense != ours))}
        if labels is not None:
            before, after = (100 * float(np.mean(each == labels)) for each in (dense, ours))
            found |= {"dense accuracy, %": before, "points lost": before - after}
        return found

    return decide, changes


def _trained(made: TrainedModel) -> StudiedModel:
    decisions = _labelling([(x,) for x in made.fresh], made.labels)
    samples = [(x,) for x in made.elements]
    return StudiedModel(made.model, samples, *decisions, speeds=(_SPEED,))


_MODELS: dict[str, Callable[[Path], StudiedModel]] = {
    **{make.__name__: make for make in (dnsmos, silero, gtcrn, magika, yolox, ppocr)},
    "digits": lambda folder: _trained(digits()),
    "characters": lambda folder: _trained(
        next_characters(folder.parent / "text" / "shakespeare.txt")
    ),
    "words": lambda folder: _trained(spoken_words()),
}


def main(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    model: Annotated[list[str] | None, typer.Option(help="One of the models; repeat.")] = None,
    budgets: Annotated[str, typer.Option(help="Numbers with commas between.")] = "",
    dtype: Annotated[str, typer.Option(help="float32 or auto.")] = "auto",
    to: Annotated[Path | None, typer.Option("--json", help="A file for all figures.")] = None,
) -> None:
    """Shrink, score and time."""
    allowed = [float(each) for each in budgets.split(",")] if budgets else _BUDGETS
    found: dict[str, list[dict[str, Any]]] = {}
    for name in model or _MODELS:
        table, found[name] = _table(name), []
        for row in figures(_MODELS[name](folder), allowed, dtype):
            table.add_row(*_cells(row))
            found[name].append(asdict(row))
            if to is not None:
                to.write_text(json.dumps({"processor": Target.detect().model, "models": found}))
        print_table(table)


def figures(
    studied: StudiedModel, budgets: Sequence[float], dtype: str
) -> Iterator[ShrunkFigures]:
    """Yield the figures of each budget and each speed, from the same tables of errors and times."""
    with TemporaryDirectory() as kept:
        yield from _figures(studied, budgets, {"dtype": dtype, "resume": Path(kept, "tables.sjit")})


def _figures(
    studied: StudiedModel, budgets: Sequence[float], options: dict[str, Any]
) -> Iterator[ShrunkFigures]:
    dense = _compiled(studied)
    exact = studied.decide(dense)
    others = _other(studied)
    few = studied.samples[:: max(1, len(studied.samples) // 20)]
    wanted: list[dict[str, Any]] = [
        *({"budget": each} for each in budgets),
        *({"speed": each} for each in studied.speeds),
    ]
    for constraint in wanted:
        asked = "".join(f"{key}={value:g}" for key, value in constraint.items())
        start = time.monotonic()
        try:
            made = sparsejit.shrink(
                studied.model,
                studied.samples,
                constants=studied.constants,
                **constraint,
                **options,
            )
        except SparseJitError as error:
            yield ShrunkFigures(asked, time.monotonic() - start, str(error))
            continue
        seconds = time.monotonic() - start
        own, ours, *theirs = least_ms([dense, made.model, *others], few)
        yield ShrunkFigures(
            *(asked, seconds, "" if not made.is_dense else "stays dense", made.error),
            *(share_of_zeros(made), ours, own / ours, theirs[0] / ours if theirs else None),
            studied.changes(exact, studied.decide(made.model)),
        )


def _compiled(studied: StudiedModel) -> Call:
    made = sparsejit.compile(studied.model, studied.samples[0], constants=studied.constants)
    return lambda *inputs: made(*inputs)


def _other(studied: StudiedModel) -> list[Call]:
    """ONNX Runtime's call of the model, in a list; an empty list where it does not run."""
    try:
        run = onnx_runtime(_file_of(studied))
    except Exception as error:  # of many types, which are not public
        print(f"without ONNX Runtime: {error}")
        return []
    given = tuple(studied.constants.values())
    return [lambda *inputs: run(*(np.asarray(x) for x in inputs), *given)]


def _file_of(studied: StudiedModel) -> str | bytes:
    if isinstance(studied.model, Path):
        return str(studied.model)
    import torch

    with TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        torch.onnx.export(studied.model, studied.samples[0], str(file), dynamo=False)
        return file.read_bytes()


def _table(name: str) -> Any:
    return table_of(
        f"{name}: {Target.detect().model}, one core",
        ("asked for", "changes"),
        ("error", "zeros", "ms", "times dense", "times ONNX Runtime", "seconds to shrink"),
    )


def _cells(row: ShrunkFigures) -> tuple[str, ...]:
    """A row of the table."""
    changes = ", ".join(f"{key} {value:.3g}" for key, value in row.changes.items())
    other = "" if row.times_onnx_runtime is None else f"{row.times_onnx_runtime:.2f}"
    numbers = f"{row.error:.2%}", f"{row.zeros:.0%}", f"{row.ms:.3g}", f"{row.times_dense:.2f}"
    said = f"{row.failure} {changes}".strip()
    return row.asked, said, *numbers, other, f"{row.seconds:.0f}"


if __name__ == "__main__":
    typer.run(main)
