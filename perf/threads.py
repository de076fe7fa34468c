"""Times on one thread and on several, synchronisation included: of layers, and of whole models.

    gains   layers
    main    models, in turns in the same process

The caller is pinned to one core, as everywhere here; its workers run where Linux puts them.

`python -m sparsejit.perf.threads` prints a line a model and batch; `--record` also appends
them to perf/results/model_threads.jsonl.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Annotated

import numpy as np
import torch
import typer

import sparsejit
from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.perf import history
from sparsejit.perf.checking.claims import ONE_THREAD
from sparsejit.perf.kernels import checked_error, time_at_places
from sparsejit.perf.machine import machine_limits
from sparsejit.perf.peers.peers import single_threaded
from sparsejit.perf.problems import FloatArray, MatVecProblem
from sparsejit.perf.timing import RoundsInTurn, time_python
from sparsejit.perf.zoo import models_named, pruned
from sparsejit.runtime.native_timing import median_of_least

_ROUNDS = 8


@dataclass(frozen=True)
class Gain:
    """Nanoseconds of one layer, alone and shared by threads: the least of several rounds.

    A round's time is the median, over copies of the kernel in memory, of the minimum of each.
    """

    problem: str
    dtype: str
    kernel: str
    threads: int
    ns_alone: float
    ns_shared: float

    @property
    def speed_up(self) -> float:
        return self.ns_alone / self.ns_shared


@dataclass(frozen=True)
class _ThreadedLayer:
    """One layer compiled for one thread and for several, and its input."""

    problem: str
    alone: Kernel
    shared: Kernel
    x: FloatArray

    def ns_alone(self, _: int) -> float:
        """Nanoseconds a call on one thread.

        The minimum for each copy of the kernel in memory, and the median of these minima.
        """
        return median_of_least(time_at_places(self.alone, self.x))

    def ns_shared(self, _: int) -> float:
        """Nanoseconds a call on several threads.

        The minimum for each copy of the kernel in memory, and the median of these minima.
        """
        return median_of_least(time_at_places(self.shared, self.x))

    def gain(self, ns_alone: float, ns_shared: float) -> Gain:
        plan, dtype = self.shared.plan, self.shared.spec.dtype.value
        name, threads = plan.chosen.template.name, self.shared.stats["threads"]
        return Gain(self.problem, dtype, name, threads, ns_alone, ns_shared)


def gains(
    problems: Iterable[MatVecProblem],
    threads: int,
    dtypes: Iterable[DType] = (DType.FLOAT32,),
    progress: Callable[[str], None] = lambda step: None,
) -> list[Gain]:
    """Time every problem in every dtype on one thread and on at most `threads`.

    The least of several rounds over all of them counts: another guest may slow either core for
    seconds (docs/notes/threads.md).
    """
    cases = []
    for problem, dtype in product(problems, tuple(dtypes)):
        progress(f"compiling {problem.name}: {dtype.value}")
        weights, x = problem.weights(), problem.input()
        shared = compile_matrix(weights, dtype=dtype, threads=threads)
        cases.append(_ThreadedLayer(problem.name, compile_matrix(weights, dtype=dtype), shared, x))
    turns = RoundsInTurn(dict(enumerate(t for one in cases for t in (one.ns_alone, one.ns_shared))))
    turns.run(_ROUNDS, progress)
    least = [*turns.least().values()]
    return [one.gain(*ns) for one, *ns in zip(cases, least[::2], least[1::2], strict=True)]


DENSITY, ROUNDS = 0.1, 25
# Threads share the kernels of a sample at batch 1, and the samples at larger batches.
MODELS = (
    ("transformer-encoder", 1),
    ("transformer-encoder", 16),
    ("mobilenet-v1", 1),
    ("mobilenet-v1", 8),
    ("resnet-18", 1),
    ("lstm-tagger-both-ways", 1),
)


@dataclass(frozen=True)
class ThreadTimes:
    """Microseconds a call by number of threads: the least and the median of all rounds.

    `relative_error` is the largest error of both models over the largest output in float64.
    """

    model: str
    batch: int
    density: float
    relative_error: float
    least_us: dict[int, float]
    median_us: dict[int, float]

    @property
    def gain(self) -> float:
        """Speed-up of several threads over one, by the medians."""
        one, *_, several = self.median_us.values()
        return one / several


class ThreadContest:
    """One model on one thread and on several, checked against float64 and then timed in turn."""

    def __init__(self, name: str, batch: int, threads: int) -> None:
        """Raises CompileError where an output is wrong."""
        self.name, self.batch, self.threads = name, batch, threads
        (model,) = models_named([name])
        module, inputs = pruned(model, DENSITY), model.inputs(batch)
        with torch.inference_mode():
            wide = [x.double() if x.is_floating_point() else x for x in inputs]
            exact = module.double()(*wide).numpy().ravel()
        module.float()
        arrays = [tensor.numpy() for tensor in inputs]
        errors, calls = [], dict[int, Callable[[int], float]]()
        for count in (1, threads):
            fast = sparsejit.compile(module, example_inputs=inputs, threads=count)
            (output,) = fast.run(arrays)
            errors.append(checked_error(f"{count} threads", output.ravel(), exact))
            calls[count] = partial(_us, fast.bind(arrays, [np.empty_like(output)]))
        self.relative_error = max(errors) / float(np.abs(exact).max())
        self._turns = RoundsInTurn(calls)

    def round(self) -> float:
        """Run one more round; return the speed-up of several threads over one."""
        us = self._turns.round()
        return us[1] / us[self.threads]

    def times(self, rounds: int = ROUNDS) -> ThreadTimes:
        """Run more rounds; return the least and median times of all rounds, by threads."""
        self._turns.run(rounds)
        found = DENSITY, self.relative_error, self._turns.least(), self._turns.medians()
        return ThreadTimes(self.name, self.batch, *found)


def _us(call: Callable[[], None], _: int) -> float:
    return time_python(call, samples=3, budget_ns=30_000_000).min_ns / 1000


def _two_threads(name: str, batch: int) -> Callable[[], float]:
    return ThreadContest(name, batch, threads=2).round


# By subject and `against` of the claim.
CONTESTS: dict[tuple[str, str], Callable[[], Callable[[], float]]] = {
    (f"{name}, batch {batch}, two threads", ONE_THREAD): partial(_two_threads, name, batch)
    for name, batch in MODELS[:4]
}


def main(
    threads: Annotated[int, typer.Option(help="Number of threads, beside one.")] = 2,
    record: Annotated[bool, typer.Option("--record", help="Append the times.")] = False,
) -> None:
    """Print a line for every model."""
    rows = []
    with single_threaded():
        for name, batch in MODELS:
            times = ThreadContest(name, batch, threads).times()
            us = ", ".join(f"{count}: {value:,.1f}" for count, value in times.median_us.items())
            least = times.least_us[1] / times.least_us[threads]
            typer.echo(
                f"{name}, batch {batch}: us by threads {us}; {times.gain:.2f} times faster "
                f"({least:.2f} by the least)"
            )
            rows.append(asdict(times))
    if record:
        limits = machine_limits(Target.detect())
        typer.echo(f"recorded in {history.append('model_threads', rows, limits)}")


if __name__ == "__main__":
    typer.run(main)
