"""Times of each weight matrix as compiled code inside its model, by pattern and amount.

    recall, remember     earlier measurements on this machine, in the user's cache directory
    latency_table        measures the targets at several amounts
    measured_latencies   measures all layers in one pattern, or recalls an earlier measurement
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from torch import nn

from sparsejit import lowering, passes
from sparsejit.api.reports.shown import Shown, table_of
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.machine.target import Target
from sparsejit.planner import measurement_store
from sparsejit.planner.calibration import calibrated
from sparsejit.prune import convolutions, in_model
from sparsejit.prune.allocation import check_amount
from sparsejit.prune.calibration import call
from sparsejit.prune.convolutions import CompiledConvolution, convolutions_in_model
from sparsejit.prune.patterns import NofM, Pattern, choose_pattern
from sparsejit.prune.prunable import Prunable, prunables
from sparsejit.prune.targets import Target as Targets
from sparsejit.prune.targets import match_targets


def measurement_file(kind: str, *parts: str) -> Path:
    """Path in the cache for a measurement that `parts` name, and all else that decides a time.

    That is the processor, the compiler and the method. `lowering` and `passes` count to the
    compiler, since convolutions need them.
    """
    target = calibrated(Target.detect())
    sets = " ".join(sorted(target.instruction_sets))
    rates = repr((target.core.rates, target.core.steps))
    method = "".join(Path(str(one.__file__)).read_text() for one in (convolutions, in_model))
    digest = measurement_store.compiler_digest()
    folders = (Path(str(room.__file__)).parent for room in (lowering, passes))
    digest += measurement_store.source_digest(folders)
    return measurement_store.cache_file(kind, target.model, sets, rates, digest, method, *parts)


def recall(file: Path) -> Any:
    """The remembered value; None where there is none, or the file is damaged."""
    try:
        return measurement_store.recall(file)
    except DamagedFile:
        return None


def remember(file: Path, value: object) -> None:
    """Keep a value of JSON types, if the cache directory can be written to."""
    measurement_store.remember(file, value)


def is_time(us: object) -> bool:
    """Whether a value from a file can be a measured time in microseconds."""
    return measurement_store.is_number(us, 1e-6, 1e12)


AMOUNTS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99)


@dataclass(frozen=True)
class Latency:
    """One layer at one amount: microseconds, and the kernels that take them.

    us: time of a matrix's product with one vector, or of a convolution's calls for an image each.
    nnz: weights that are left, out of weight[out_features, in_features].
    """

    name: str
    pattern: str
    amount: float
    us: float
    kernel: str
    nnz: int


@dataclass(frozen=True)
class LatencyTable(Shown):
    """Measured latencies; `print`, `rich.print` and notebooks show them.

    Attributes:
        rows: one measurement each
        dtype: how the measured weights were stored
        machine: the processor that was measured
    """

    rows: tuple[Latency, ...]
    dtype: str
    machine: str

    def curve(self, name: str, pattern: str) -> tuple[list[float], list[float]]:
        """Amounts in rising order, and their microseconds.

        Args:
            name: name of a target
            pattern: name of a measured pattern

        Raises:
            InvalidInput: the table has no such curve
        """
        rows = [row for row in self.rows if (row.name, row.pattern) == (name, pattern)]
        if not rows:
            known = sorted({(row.name, row.pattern) for row in self.rows})
            raise InvalidInput(f"the table has no {name} in {pattern!r}, only {known}")
        return [row.amount for row in rows], [row.us for row in rows]

    def time_us(self, name: str, pattern: str, amount: float) -> float:
        """Microseconds at an amount, interpolated between measured ones.

        Args:
            name: name of a target
            pattern: name of a measured pattern
            amount: the share pruned

        Raises:
            InvalidInput: the table has no such curve, or does not reach that amount
        """
        amounts, times = self.curve(name, pattern)
        if not amounts[0] <= amount <= amounts[-1]:
            raise InvalidInput(
                f"amount={amount} of {name} is outside {amounts[0]:g} to {amounts[-1]:g}: "
                "measure a table with wider amounts"
            )
        return float(np.interp(amount, amounts, times))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def __rich__(self) -> Group:
        patterns = dict.fromkeys(row.pattern for row in self.rows)
        return Group(*map(self._of, patterns))

    def _of(self, pattern: str) -> Table:
        title = f"{pattern}, {self.dtype}: ns a layer within the model, on {self.machine}"
        rows = [row for row in self.rows if row.pattern == pattern]
        amounts = sorted({row.amount for row in rows})
        figures = (f"{100 * amount:.3g}%" for amount in amounts)
        table = table_of(title, ["weight"], figures, frame="rule")
        cells = {(row.name, row.amount): f"{1e3 * row.us:.0f}" for row in rows}
        for name in dict.fromkeys(row.name for row in rows):
            table.add_row(name, *(cells.get((name, amount), "") for amount in amounts))
        return table


def latency_table(
    model: nn.Module,
    targets: Targets | Sequence[Targets],
    patterns: Sequence[str | Pattern] = ("unstructured", "lane16", "1x8", "1x16"),
    amounts: Sequence[float] = AMOUNTS,
    dtype: str = "float32",
    per_gate: bool | Mapping[str, int] = True,
    example_inputs: Any = None,
    run: Callable[[nn.Module, Any], Any] = call,
) -> LatencyTable:
    """Measure the targets on this machine, pruned by magnitude to each of the amounts.

    A Linear is measured with one input, a GRU's or LSTM's matrix for one step: a product of
    weight[out_features, in_features] with one vector, on one core. A convolution is measured with
    one image of the size that the layer meets, computed as in a compiled model, copies of the image
    for its padding included. Every layer is timed as a part of the model: copies of it that fill
    the room of all targets' code and weights at that amount run in turn, because other layers push
    it out of the nearest caches. A copy of the weights is pruned, as by `Pruner`.

    Tables are kept in the user's cache directory under a key of weights, pattern, amounts, dtype,
    processor and the compiler's source.

    Args:
        model: a torch module
        targets: as for `Pruner`
        patterns: as for `Pruner`, one or more
        amounts: shares to prune, each 0 to 1
        dtype: how compiled weights are stored
        per_gate: as for `Pruner`
        example_inputs: inputs of the model, a tensor or a tuple of arguments. Convolutions are
            timed for the sizes of their images; the batch does not matter. Models without
            convolutions need none.
        run: a function of model and example inputs that calls the model, where `model(*inputs)`
            does not

    Raises:
        InvalidInput: as `Pruner` does, and a convolution whose images are not known
    """
    rows: list[Latency] = []
    names = match_targets(model, targets)
    convolutions = convolutions_in_model(model, names, example_inputs, run)
    for pattern in map(choose_pattern, patterns):
        layers = prunables(model, targets, pattern, per_gate, convolutions)
        rows += measured_latencies(layers, pattern, dtype, amounts).rows
    return LatencyTable(tuple(rows), dtype, Target.detect().model)


def measured_latencies(
    layers: Mapping[str, Prunable],
    pattern: Pattern,
    dtype: str = "float32",
    amounts: Sequence[float] = AMOUNTS,
) -> LatencyTable:
    """Measure all layers of a model in one pattern, or recall an earlier measurement."""
    check_tradable(pattern)
    for amount in amounts:
        check_amount(amount, pattern)
    grid = sorted(set(amounts))
    digests = (f"{name} {layer.digest()}" for name, layer in layers.items())
    file = measurement_file("latency", pattern.name, str(grid), dtype, *digests)
    rows = _checked(recall(file), layers, pattern, grid)
    if rows is None:
        rows = tuple(_measure(layers, pattern.name, grid, dtype))
        remember(file, [asdict(row) for row in rows])
    return LatencyTable(rows, dtype, Target.detect().model)


def _checked(
    stored: Any, layers: Mapping[str, Prunable], pattern: Pattern, grid: Sequence[float]
) -> tuple[Latency, ...] | None:
    """The rows from a cached value; None unless they are the rows that would be measured."""
    expected = {
        (name, pattern.name, min(amount, layer.largest_amount))
        for name, layer in layers.items()
        for amount in grid
    }
    try:
        rows = tuple(Latency(**row) for row in stored)
        found = {(row.name, row.pattern, row.amount) for row in rows}
        texts = {type(row.kernel) for row in rows} <= {str}
        counts = {type(row.nnz) for row in rows} <= {int}
    except TypeError:
        return None
    right = found == expected and len(rows) == len(expected) and texts and counts
    return rows if right and all(is_time(row.us) for row in rows) else None


def check_tradable(pattern: Pattern) -> None:
    """Raise InvalidInput for a pattern that leaves no choice of amounts."""
    if isinstance(pattern, NofM):
        raise InvalidInput(
            f"pattern={pattern.name!r} fixes the amount of every layer, so there is nothing to "
            "trade for time: use blocks, lanes or 'unstructured'"
        )


def time_in_turn(
    layers: Mapping[str, Prunable], amounts: Mapping[str, float], dtype: str = "float32"
) -> float:
    """Microseconds of one call of every layer, pruned to these amounts, one after another."""
    each = (layer.compiled(amounts[name], dtype) for name, layer in layers.items())
    return in_model.us_in_turn([kernel for kernels in each for kernel in kernels])


def _measure(
    layers: Mapping[str, Prunable], pattern: str, amounts: Sequence[float], dtype: str
) -> Iterator[Latency]:
    known: dict[object, float] = {}
    done: set[tuple[str, float]] = set()
    for amount in amounts:
        reached = {name: min(amount, layer.largest_amount) for name, layer in layers.items()}
        compiled = {name: one.compiled(reached[name], dtype) for name, one in layers.items()}
        room = sum(len(each.image.data) for kernels in compiled.values() for each in kernels)
        for name, kernels in compiled.items():
            if (name, reached[name]) not in done:
                done.add((name, reached[name]))
                us = sum(_us(name, kernel, room, known) for kernel in kernels)
                used = ", ".join(dict.fromkeys(kernel.strategy for kernel in kernels))
                nnz = kernels[0].stats["nnz"]
                yield Latency(name, pattern, reached[name], us, used, nnz)


def _us(name: str, kernel: in_model.CompiledLayer, room: int, known: dict[object, float]) -> float:
    """Microseconds of one kernel; `known` has times of convolutions by name and code.

    Zeros may not change a convolution's code. Measured twice, its times would differ by chance, and
    pruning would seem to change them.
    """
    if not isinstance(kernel, CompiledConvolution):
        return in_model.us_among_others(kernel, room)
    key = (name, kernel.price)
    if key not in known:
        known[key] = in_model.us_among_others(kernel, room)
    return known[key]
