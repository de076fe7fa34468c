"""Survey of the planner's choices against the best of all kernels, and of its predictions.

    survey_layers   the layers: every pattern of zeros in every dtype
    survey          plans each layer and times its kernels
    summary         the results in a few figures; `lines` and tables show them

Every kernel that exists for a layer is made, checked against float64 and timed, in turns in one
process. Kernels that come near the fastest are timed at more places in memory than the others.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table

from sparsejit.api.reports.shown import table_of
from sparsejit.asm_templates.families import SHORT_NAMES
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import BLOCK_1X8, BLOCK_1X16, LANE16, UNSTRUCTURED, SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, Layer, Layout, MatMul, MatVec, Quantisation
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.perf.kernels import checked_error, exact_output
from sparsejit.perf.problems import FloatArray, Problem
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.planner.batch_plan import plan_batch, price_batch
from sparsejit.planner.calibration import calibrated
from sparsejit.planner.cost import price
from sparsejit.planner.kernel_choice import Candidate, Job, Plan, Template, plan
from sparsejit.runtime.native_timing import aligned, clock, native_loop, time_native
from sparsejit.runtime.program import build

# (out_features, in_features), from sizes that fit L1 to sizes that no L2 holds.
SHAPES = (
    *((64, 64), (128, 256), (256, 256), (512, 784), (768, 256), (384, 1152), (1024, 256)),
    *((1024, 1024), (1024, 4096), (2048, 1024), (3072, 1024), (2048, 2048), (4096, 4096)),
)
SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98)
PATTERNS = (UNSTRUCTURED, BLOCK_1X8, BLOCK_1X16, LANE16)
LAYERS_OF_EACH = 7
_SEED = 10


@dataclass(frozen=True)
class SurveyLayer:
    """A problem and how its weights are stored."""

    problem: Problem
    dtype: DType


def survey_layers(batch: int = 1, dtypes: Iterable[DType] = tuple(DType)) -> list[SurveyLayer]:
    """`LAYERS_OF_EACH` layers of every pattern in every dtype, in an order drawn once for all.

    Shapes, shares of zeros and layouts of a batch are drawn without replacement, so that each comes
    up as often as the others. A layer stays the same for any batch and any `dtypes`. Raises
    InvalidInput for a batch below 1.
    """
    if batch < 1:
        raise InvalidInput(f"batch {batch} is out of range; use 1 or more")
    random = np.random.default_rng(_SEED)
    shapes, sparsities = _dealt(len(SHAPES), random), _dealt(len(SPARSITIES), random)
    layouts = _dealt(len(Layout), np.random.default_rng(_SEED))
    layers = []
    for pattern in PATTERNS:
        for dtype in DType:
            for _ in range(LAYERS_OF_EACH):
                shape, sparsity = SHAPES[next(shapes)], SPARSITIES[next(sparsities)]
                layout = tuple(Layout)[next(layouts)] if batch > 1 else Layout.BATCH_MAJOR
                name = f"{shape[0]}x{shape[1]}, {sparsity:.0%} zero, {pattern.name}"
                problem = Problem(name, *shape, sparsity, pattern, 1, batch, layout)
                layers.append(SurveyLayer(problem, dtype))
    wanted = frozenset(dtypes)
    mixed = (layers[number] for number in random.permutation(len(layers)))
    return [one for one in mixed if one.dtype in wanted]


def _dealt(count: int, random: np.random.Generator) -> Iterator[int]:
    """Random permutations of the numbers below `count`, one after another, without end."""
    while True:
        yield from random.permutation(count)


WITHIN = 1.5
# Larger straight-line code takes seconds to write; it is left out unless the planner chooses it.
MOST_CODE_BYTES = 20 << 20
# A kernel that is predicted to be `_HOPELESS` times slower than the best is left out: always for a
# batch, else if its code or data alone would take longer than the best at `_FASTEST_BYTES` a cycle.
_HOPELESS, _FASTEST_BYTES = 4.0, 64.0
# A kernel is not timed further if its first calls take `_FAR_BEHIND` times the least, and also more
# than `_TOLD_BY_ONE_CALL_NS`, below which one call tells too little.
_FAR_BEHIND, _TOLD_BY_ONE_CALL_NS = 3.0, 20_000.0
_PLACES, _MORE_PLACES, _NEAR = 2, 3, 1.25
_SAMPLES, _BUDGET_NS = 25, 12_000_000
_COPIED_BYTES = 8 << 20  # larger code is timed at one place: its pages make no difference


@dataclass(frozen=True)
class ContenderTime:
    """Nanoseconds a call of one kernel for one layer: predicted for the code made, and measured."""

    name: str
    predicted_ns: float
    ns: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_ns / self.ns


@dataclass(frozen=True)
class SurveyRow:
    """One layer: its timed kernels, fastest first, and the reason for each skipped kernel.

    `chosen` is the name of the planner's choice; `shape` is (out_features, in_features).
    """

    layer: str
    shape: tuple[int, int]
    sparsity: float
    pattern: str
    dtype: str
    batch: int
    layout: str
    isa: str
    chosen: str
    kernels: tuple[ContenderTime, ...]
    skipped: dict[str, str]

    @property
    def choice(self) -> ContenderTime:
        """The kernel that the planner chose."""
        return next(one for one in self.kernels if one.name == self.chosen)

    @property
    def loss(self) -> float:
        """The chosen kernel's time over the fastest one's; at least 1."""
        return self.choice.ns / self.kernels[0].ns

    @property
    def is_within(self) -> bool:
        """Whether the choice's prediction and time differ by less than a factor of `WITHIN`."""
        return 1 / WITHIN < self.choice.ratio < WITHIN

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "loss": self.loss, "ratio": self.choice.ratio}


def survey(
    layers: Iterable[SurveyLayer],
    target: Target,
    progress: Callable[[str], None] = lambda step: None,
) -> list[SurveyRow]:
    """Plan each layer and time its kernels; raises CompileError for a wrong output."""
    rows = []
    for layer in layers:
        progress(f"{layer.problem.name} {layer.dtype.value}, batch {layer.problem.batch}")
        rows.append(survey_layer(layer, target))
    return rows


def survey_layer(layer: SurveyLayer, target: Target) -> SurveyRow:
    """Plan one layer, and time its kernels: a row of `survey`."""
    problem, dtype = layer.problem, layer.dtype
    matrix, x = SparseMatrix(problem.weights()), aligned(problem.input())
    largest = float(np.abs(x).max())
    steps = Quantisation(largest / LARGEST_INT8, 0, symmetric=True) if dtype is DType.INT8 else None
    sizes = problem.out_features, problem.in_features
    each = MatVec(*sizes, dtype=dtype, x_steps=steps)
    spec: Layer = each if problem.batch == 1 else MatMul(each, problem.batch, problem.layout)
    if isinstance(spec, MatMul):
        job, choice = Job(spec, matrix, target, price_batch), plan_batch(spec, matrix, target)
    else:
        job, choice = Job(spec, matrix, target, price), plan(spec, matrix, target)
    wanted, skipped = _worth_timing(choice, job)
    runs = _made(wanted, job, choice, x)
    _time_in_turn(runs)
    return SurveyRow(
        layer=problem.name,
        shape=(problem.out_features, problem.in_features),
        sparsity=problem.sparsity,
        pattern=problem.pattern.name,
        dtype=dtype.value,
        batch=problem.batch,
        layout=problem.layout.value,
        isa=target.isa,
        chosen=kernel_name(choice.chosen.template),
        kernels=tuple(sorted((run.result() for run in runs), key=lambda one: one.ns)),
        skipped=skipped,
    )


def kernel_name(template: Template) -> str:
    """A template's name without element type and level: "permute", "rows-permute", "panels"."""
    return template.name.removeprefix(SHORT_NAMES[template.dtype]).removesuffix(f"-{template.isa}")


def _worth_timing(choice: Plan, job: Job) -> tuple[list[Template], dict[str, str]]:
    """Kernels to time, the chosen one among them, and the reason for each skipped one."""
    best_ns = min(candidate.cost.ns for candidate in choice.candidates)
    wanted, skipped = [], {}
    for candidate in choice.candidates:
        template, cost = candidate.template, candidate.cost
        if template is not choice.chosen.template:
            if cost.code_bytes > MOST_CODE_BYTES:
                skipped[kernel_name(template)] = f"{cost.code_bytes >> 20} MB of code"
                continue
            is_hopeless = isinstance(job.spec, MatMul) or _floor_ns(candidate, job) > best_ns
            if cost.ns > _HOPELESS * best_ns and is_hopeless:
                skipped[kernel_name(template)] = f"predicted {cost.ns / best_ns:.0f} times slower"
                continue
        wanted.append(template)
    return wanted, skipped


def _floor_ns(candidate: Candidate, job: Job) -> float:
    """Nanoseconds that a kernel takes at least: to read its code or data, whichever is larger.

    They come at `_FASTEST_BYTES` a cycle.
    """
    longer = max(candidate.cost.code_bytes, candidate.cost.data_bytes)
    return longer / _FASTEST_BYTES / calibrated(job.target).core.rates.cycles_per_ns


class _Contender:
    """One kernel at several places in memory; `ns` is the time of a call."""

    def __init__(self, candidate: Candidate, code: bytes, x: FloatArray, y: FloatArray) -> None:
        self.candidate, self._code, self._x, self._y = candidate, code, x, y
        self.ns = 0.0
        self._places: list[tuple[ExecutableMemory, FloatArray, FloatArray]] = []

    def check(self, exact: reference.Float64) -> None:
        """Check its output against `exact`; set `ns` to the least of the second and third call."""
        memory, x, y = self._at(0)
        loop = native_loop([(memory.address, (x.ctypes.data, y.ctypes.data))])
        loop(1)
        checked_error(self.candidate.template.name, y, exact)
        self.ns = float(min(_duration(loop) for _ in range(2)))

    def time(self, place: int) -> float:
        """Least nanoseconds of a call at that place."""
        memory, x, y = self._at(place)
        arguments = (x.ctypes.data, y.ctypes.data)
        timing = time_native(memory.address, arguments, samples=_SAMPLES, budget_ns=_BUDGET_NS)
        return timing.min_ns

    def result(self) -> ContenderTime:
        cost = self.candidate.cost
        return ContenderTime(kernel_name(self.candidate.template), cost.ns, self.ns)

    def _at(self, place: int) -> tuple[ExecutableMemory, FloatArray, FloatArray]:
        number = 0 if len(self._code) > _COPIED_BYTES else place
        while len(self._places) <= number:  # all are held, or the next would get the same pages
            x, y = aligned(self._x), aligned(self._y)
            self._places.append((ExecutableMemory(self._code), x, y))
        return self._places[number]


def _made(templates: list[Template], job: Job, choice: Plan, x: FloatArray) -> list[_Contender]:
    """Make the kernels, the chosen one first, and check each against float64."""
    exact = exact_output(job.spec, job.matrix, x)
    runs = []
    for template in sorted(templates, key=lambda one: one is not choice.chosen.template):
        is_chosen = template is choice.chosen.template
        made, lowered = (choice.chosen, choice.lowered) if is_chosen else job.lowered(template)
        program = build(template.name, job.target, partial(template.emit, lowered=lowered))
        run = _Contender(made, program.image.data, x, np.full(job.spec.y_shape, np.nan, np.float32))
        run.check(exact)
        runs.append(run)
    return runs


def _time_in_turn(runs: list[_Contender]) -> None:
    """Set `ns` of the chosen run, the first, and of all that may be the fastest, timed in turns.

    Runs near the fastest are timed at more places in memory.
    """
    told = max(_TOLD_BY_ONE_CALL_NS, _FAR_BEHIND * min(run.ns for run in runs))
    chosen = runs[0]
    rounds = RoundsInTurn({run: run.time for run in runs if run is chosen or run.ns <= told})
    for place in range(_PLACES):
        rounds.round(place)
    medians = rounds.medians()
    least = min(medians.values())
    rounds.keep({run for run, ns in medians.items() if run is chosen or ns <= _NEAR * least})
    for place in range(_PLACES, _PLACES + _MORE_PLACES):
        rounds.round(place)
    for run, ns in rounds.medians().items():
        run.ns = ns


def _duration(loop: Callable[[int], None]) -> int:
    start = clock()
    loop(1)
    return clock() - start


TOLERABLE = 1.1


@dataclass(frozen=True)
class SurveySummary:
    """Figures of the layers of one batch size; losses are of layers with a choice of kernels.

    `geometric_mean` and `worst` are losses, the chosen kernel's time over the fastest one's; `over`
    counts losses above `TOLERABLE`. `share_within` is the share of all chosen kernels whose
    prediction is within a factor of `WITHIN`. `ratios` has the median of predicted over measured
    time by kernel and dtype.
    """

    batch: int
    isa: str
    layers: int
    with_choice: int
    geometric_mean: float
    worst: float
    worst_layer: str
    over: int
    share_within: float
    ratios: dict[str, dict[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def summary(rows: Sequence[SurveyRow]) -> SurveySummary:
    """A summary of rows of one batch size and level, at least one."""
    contested = [row for row in rows if len(row.kernels) > 1]
    losses = [row.loss for row in contested] or [1.0]
    worst = max(contested or rows, key=lambda row: row.loss)
    return SurveySummary(
        *(rows[0].batch, rows[0].isa, len(rows), len(contested)),
        geometric_mean=math.exp(statistics.fmean(map(math.log, losses))),
        worst=worst.loss,
        worst_layer=_in_words(worst),
        over=sum(loss > TOLERABLE for loss in losses),
        share_within=statistics.fmean(row.is_within for row in rows),
        ratios=_ratios(rows),
    )


def _ratios(rows: Iterable[SurveyRow]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for one in row.kernels:
            found.setdefault(one.name, {}).setdefault(row.dtype, []).append(one.ratio)
    return {
        name: {dtype: statistics.median(ratios) for dtype, ratios in sorted(of.items())}
        for name, of in sorted(found.items())
    }


def _in_words(row: SurveyRow) -> str:
    layout = f", batch {row.batch} {row.layout}" if row.batch > 1 else ""
    return f"{row.layer}, {row.dtype}{layout}: {row.chosen}, best {row.kernels[0].name}"


def lines(found: SurveySummary) -> list[str]:
    """The figures in words."""
    return [
        f"batch {found.batch}, {found.isa}: {found.layers} layers, "
        f"{found.with_choice} with a choice of kernels",
        f"choice over the fastest: geometric mean {found.geometric_mean:.3f}, "
        f"worst {found.worst:.2f}, {found.over} over {TOLERABLE}",
        f"the worst: {found.worst_layer}",
        f"predictions within {WITHIN} times: {found.share_within:.0%}",
    ]


def losses_table(rows: Iterable[SurveyRow]) -> Table:
    """The layers whose choice loses more than `TOLERABLE` or was predicted badly, worst first."""
    figures = ("ns", "fastest, ns", "loss", "predicted over measured")
    table = table_of("", ("layer", "chosen", "fastest"), figures)
    for row in sorted(rows, key=lambda row: row.loss, reverse=True):
        if row.loss <= TOLERABLE and row.is_within:
            continue
        choice, best = row.choice, row.kernels[0]
        layout = f" {row.layout}" if row.batch > 1 else ""
        table.add_row(
            *(f"{row.layer}, {row.dtype}{layout}", choice.name, best.name, f"{choice.ns:.0f}"),
            *(f"{best.ns:.0f}", f"{row.loss:.2f}", f"{choice.ratio:.2f}"),
        )
    return table


def ratios_table(found: SurveySummary) -> Table:
    """Table of median predicted over measured time of every kernel, chosen or not."""
    dtypes = [dtype.value for dtype in DType]
    table = table_of("", ["predicted over measured"], dtypes)
    for name, by_dtype in found.ratios.items():
        table.add_row(name, *(f"{by_dtype[d]:.2f}" if d in by_dtype else "" for d in dtypes))
    return table
