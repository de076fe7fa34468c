"""Compare forests with peers: check outputs, then time rows in turn, round after round.

Each peer runs in its own process on the same core. Peers with C functions are called from a C loop,
as ours is from a native loop. ONNX Runtime is called from Python, the quickest way for it; ours
called from Python is a separate row.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns as clock
from typing import Any

import numpy as np

from sparsejit.compiling import compile_model
from sparsejit.errors import CompileError, InvalidInput, MissingDependency
from sparsejit.estimators.compiled_estimator import CompiledEstimator
from sparsejit.ir.values import Array
from sparsejit.perf.peers.model_peers import ModelPeer
from sparsejit.perf.peers.peer_process import PeerFailed, PeerProcess
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.runtime.native_timing import native_loop, pinned, sample
from sparsejit.whole_numbers import round_up

PEER = ModelPeer(
    "forests",
    "tl2cgen, lleaves and ONNX Runtime",
    (
        *("tl2cgen", "treelite", "lleaves", "lightgbm", "onnxruntime", "onnx", "skl2onnx"),
        "llvmlite<0.45",  # later versions lack functions that lleaves 1.3 calls
        *("scikit-learn", "numpy"),
    ),
    installer="sparsejit bench forests --install",
)
ROWS, FITTED_ROWS, FEATURES = 10_000, 5_000, 30
ROUNDS = 5
ROUND_NS = 300_000_000
LARGEST_ERROR = 1e-5
OURS, OURS_FROM_PYTHON = "sparsejit", "sparsejit, from Python"
_WORKER = Path(__file__).with_name("peers") / "forest_worker.py"
_NATIVE_ROWS = 1000


@dataclass(frozen=True)
class ForestProblem:
    """A forest to fit: a class of scikit-learn or LightGBM, its parameters, and its peers."""

    name: str
    kind: str
    parameters: dict[str, Any]
    engines: tuple[str, ...]

    def fit(self, x: Array, y: Array) -> Any:
        if self.kind.startswith("LGBM"):
            import lightgbm

            return getattr(lightgbm, self.kind)(**self.parameters, verbose=-1, n_jobs=1).fit(x, y)
        import sklearn.ensemble

        return getattr(sklearn.ensemble, self.kind)(**self.parameters).fit(x, y)


_FOREST = {"n_estimators": 100, "max_depth": 8, "random_state": 0}
_BOOSTED = {"n_estimators": 100, "max_depth": 8, "num_leaves": 256, "min_child_samples": 5}
_C_ENGINES = ("tl2cgen", "tl2cgen-quantised")
FOREST_PROBLEMS = {
    problem.name: problem
    for problem in (
        ForestProblem(
            "random-forest", "RandomForestRegressor", _FOREST, (*_C_ENGINES, "onnxruntime")
        ),
        ForestProblem("lightgbm", "LGBMRegressor", _BOOSTED, (*_C_ENGINES, "lleaves")),
    )
}


@dataclass(frozen=True)
class ForestTime:
    """Least nanoseconds a row, with one row a call and with all rows in one call.

    relative_error: the largest error over the largest output.
    """

    name: str
    version: str
    ns_single: float
    ns_batch: float
    relative_error: float


@dataclass(frozen=True)
class ForestComparison:
    """Times of all contestants for one forest, and the reason for each skipped peer."""

    problem: str
    kernels: tuple[str, str]
    times: tuple[ForestTime, ...]
    skipped: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def gain(self, batch: bool) -> float:
        """The fastest peer's time over ours, with one row a call or with all rows in one call."""

        def ns(time: ForestTime) -> float:
            return time.ns_batch if batch else time.ns_single

        rivals = [ns(time) for time in self.times if not time.name.startswith(OURS)]
        (ours,) = (ns(time) for time in self.times if time.name == OURS)
        return min(rivals, default=float("nan")) / ours


@dataclass(frozen=True)
class _Side:
    """A contestant: its error, and `time`, a function from rows a call to nanoseconds a row."""

    name: str
    version: str
    error: float
    time: Callable[[int], float]


def compare_forests(
    problem: ForestProblem, progress: Callable[[str], None] = lambda step: None
) -> ForestComparison:
    """Fit and compile a forest, check outputs, then time all contestants in turn.

    Raises CompileError where our predictions differ from the library's own.
    """
    progress(f"{problem.name}: fitting")
    x, y = regression_rows()
    estimator = problem.fit(x[:FITTED_ROWS], y[:FITTED_ROWS])
    wanted = np.asarray(estimator.predict(x)).reshape(ROWS, -1)
    with pinned() as core, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparsejit-forest-")))
        sides, kernels = _our_sides(estimator, x, wanted)
        skipped = {}
        data = folder / "data.npz"
        np.savez(data, x=x, x_fit=x[:FITTED_ROWS], y_fit=y[:FITTED_ROWS], outputs=wanted.shape[1])
        for engine in problem.engines:
            progress(f"{problem.name}: {engine}")
            try:
                model = _model_file(problem, estimator, engine, folder)
                sides.append(_rival(stack, engine, core, (data, model), wanted))
            except (PeerFailed, MissingDependency) as error:
                skipped[engine] = str(error)
        times = _times(sides, lambda step: progress(f"{problem.name}: {step}"))
    return ForestComparison(problem.name, kernels, times, skipped)


def _times(sides: Sequence[_Side], progress: Callable[[str], None]) -> tuple[ForestTime, ...]:
    turns = RoundsInTurn(
        {
            (side.name, rows): partial(_ns_a_row, side, rows)
            for side in sides
            for rows in (1, ROWS)
        }
    )
    turns.run(ROUNDS, progress)
    least = turns.least()
    return tuple(
        ForestTime(one.name, one.version, least[one.name, 1], least[one.name, ROWS], one.error)
        for one in sides
    )


def _ns_a_row(side: _Side, rows: int, _: int) -> float:
    return side.time(rows)


def regression_rows() -> tuple[Array, Array]:
    """Random float32 features (ROWS, FEATURES), and a target: a function of a few, with noise."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((ROWS, FEATURES)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.3 * x[:, 3:9].sum(axis=1)
    return x, y + 0.3 * generator.standard_normal(ROWS)


def _our_sides(estimator: Any, x: Array, wanted: Array) -> tuple[list[_Side], tuple[str, str]]:
    single, batch = compile_model(estimator), compile_model(estimator, x)
    errors = [_error(each.predict(x).reshape(wanted.shape), wanted) for each in (single, batch)]
    if max(errors) > LARGEST_ERROR:
        raise CompileError(f"our predictions differ by {max(errors):.1e} from the library's")
    native = _native_rows(single, x)

    def call(rows: int) -> float:
        return native() if rows == 1 else _python_ns(batch, x, rows)

    def call_from_python(rows: int) -> float:
        return _python_ns(single if rows == 1 else batch, x, rows)

    sides = [
        _Side(OURS, "", max(errors), call),
        _Side(OURS_FROM_PYTHON, "", max(errors), call_from_python),
    ]
    kernels = [each.variant("predict").steps[0].kernel for each in (single, batch)]
    return sides, (kernels[0], kernels[1])


def _native_rows(compiled: CompiledEstimator, x: Array) -> Callable[[], float]:
    """A function that times native calls of one row each and returns nanoseconds a row."""
    variant = compiled.variant("predict")
    y = np.zeros(_NATIVE_ROWS, np.float32)
    workspace = np.zeros(variant.workspace_bytes + 64, np.uint8)
    start = round_up(workspace.ctypes.data, 64)
    sources = np.array([x[i : i + 1].ctypes.data for i in range(_NATIVE_ROWS)], np.uint64)
    results = np.array([y[i : i + 1].ctypes.data for i in range(_NATIVE_ROWS)], np.uint64)
    calls = [
        (
            variant.program.memory.address,
            (sources[i : i + 1].ctypes.data, results[i : i + 1].ctypes.data, start, 1),
        )
        for i in range(_NATIVE_ROWS)
    ]
    loop = native_loop(calls)
    keep = (variant, x, y, workspace, sources, results)

    def time() -> float:
        assert keep
        return sample(loop, 200, ROUND_NS).min_ns / _NATIVE_ROWS

    return time


def _python_ns(compiled: CompiledEstimator, x: Array, rows: int) -> float:
    """Least nanoseconds a row with `rows` rows a call, repeated until a round's time is over."""
    parts = [x[i : i + rows] for i in range(0, len(x), rows)]
    predict, least, end = compiled.predict, float("inf"), clock() + ROUND_NS
    while least == float("inf") or clock() < end:
        start = clock()
        for part in parts:
            predict(part)
        least = min(least, (clock() - start) / len(x))
    return least


def _model_file(problem: ForestProblem, estimator: Any, engine: str, folder: Path) -> Path:
    """Write the model in the format that the engine reads."""
    import treelite

    path = folder / engine
    if engine == "onnxruntime":
        path.write_text(json.dumps({"kind": problem.kind, **problem.parameters}))
    elif engine == "lleaves":
        estimator.booster_.save_model(path)
    elif problem.kind.startswith("LGBM"):
        treelite.frontend.from_lightgbm(estimator.booster_).serialize(path)
    else:
        import treelite.sklearn

        treelite.sklearn.import_model(estimator).serialize(path)
    return path


def _rival(
    stack: ExitStack, engine: str, core: int, files: tuple[Path, Path], wanted: Array
) -> _Side:
    """Start a peer and check its outputs. Raises PeerFailed or MissingDependency."""
    python, *_ = PEER.command(core)
    command = [python, str(_WORKER), engine, str(core)]
    process = stack.enter_context(PeerProcess(command, PEER.environment()))
    data, model = files
    told = process.ask(do="load", data=str(data), model=str(model), folder=str(PEER.folder))
    outputs = data.with_name(f"{engine}.npy")
    process.ask(do="predict", outputs=str(outputs))
    error = _error(np.load(outputs).reshape(wanted.shape), wanted)
    if error > LARGEST_ERROR:
        raise PeerFailed(f"its predictions differ by {error:.1e} from the library's")

    def time(rows: int) -> float:
        return float(process.ask(do="time", batch=rows, budget_ns=ROUND_NS)["ns"])

    return _Side(engine, str(told["version"]), error, time)


def _error(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def problems_named(names: list[str]) -> list[ForestProblem]:
    """The problems of these names; raises InvalidInput for a name that is not in the table."""
    unknown = [name for name in names if name not in FOREST_PROBLEMS]
    if unknown:
        known = ", ".join(FOREST_PROBLEMS)
        raise InvalidInput(f"forest {unknown[0]!r} is unknown; use some of {known}")
    return [FOREST_PROBLEMS[name] for name in names]
