"""Measurements of this core, kept on disk: rates, costs of steps, and which tricks gain.

    step_prices   cycles of a step of every kernel, measured on kernels of a small layer in L1
    calibrated    a target with measurements of this core
    recalled      the same, but nothing is measured
    calibrate     measures this core, about a second

Every template lowers a layer that fits its caches; the prices of its steps are scaled by its
measured time over its predicted time. Kernels take turns, each with a chain of additions beside it
that measures the clock, so that neither another guest nor a change of clock is taken for a property
of a kernel.

Measurements replace the core's recorded data. `sparsejit calibrate` makes them, or the first
compile on a kind of processor and with a compiler for which none are stored. With
SPARSEJIT_CALIBRATE=0 only that command measures, and stored measurements are not used.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from threading import Lock
from typing import Any

import numpy as np

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.asm_templates.lowered import Counts
from sparsejit.errors import CompileError, DamagedFile, InvalidInput
from sparsejit.files import check_writable
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.core import Core, Rates
from sparsejit.machine.price_records import StepPrice
from sparsejit.machine.target import Target
from sparsejit.measuring import core_loops, thread_loops
from sparsejit.measuring.kernel_times import SmallKernel, least_cycles
from sparsejit.planner.cost import all_steps, price, step_cycles
from sparsejit.planner.measurement_store import (
    cache_file,
    compiler_digest,
    is_number,
    recall,
    remember,
)
from sparsejit.runtime.workers import available_cores, pool

Key = tuple[str, str, str]

# The largest size that leaves a quarter of L1 free is taken. Blocks are 1x8, so that every family
# fills its lanes.
_SIZES = ((256, 64), (128, 64), (64, 64), (32, 32))
_DENSITY, _BLOCK_ROWS = 0.3, 8
_SHARE_OF_L1 = 0.75


def step_prices(target: Target) -> dict[Key, float]:
    """Measured cycles of a step by kind, level and stored dtype."""
    probes = [_probe(row, target) for row in MATVEC_TEMPLATES if row.made_for(target)]
    found: dict[Key, float] = {}
    for probe, cycles in zip(probes, least_cycles(probes, target), strict=True):
        counts: Counts = probe.lowered.counts
        priced = [step_cycles(target, work.kind, counts.stored) for work in counts.work]
        expected = sum(work.steps * one for work, one in zip(counts.work, priced, strict=True))
        for work, one in zip(counts.work, priced, strict=True):
            key = work.kind, target.isa, counts.stored.value
            # A kind that several templates have is measured on the family of its name.
            if work.kind == probe.template.family or key not in found:
                found[key] = one * cycles / expected
    return found


def _probe(row: Template, target: Target) -> SmallKernel:
    for size in _SIZES:
        spec = MatVec(*size, dtype=row.dtype)
        lowered = row.lower(spec, _matrix(size), target)
        cost = price(lowered.counts)
        code_fits = cost.code_bytes <= _SHARE_OF_L1 * target.l1i_bytes
        if code_fits and cost.data_bytes <= _SHARE_OF_L1 * target.l1d_bytes:
            break
    return SmallKernel(row, lowered, spec, cost.ns)


def _matrix(size: tuple[int, int]) -> SparseMatrix:
    random = np.random.default_rng(0)
    blocks = random.random((size[0] // _BLOCK_ROWS, size[1])) < _DENSITY
    weights = random.standard_normal(size).astype(np.float32)
    return SparseMatrix(weights * np.repeat(blocks, _BLOCK_ROWS, axis=0))


CALIBRATE_VARIABLE = "SPARSEJIT_CALIBRATE"

_BIG = 8 << 20  # more bytes than any L2 holds, to measure rates beyond it
_MOST_BYTES = 128 << 20
_BEYOND = ("L3", "memory")
TRICKS = ("padding", "redirects", "placement")
# Bounds of a measurement, relative to the core's recorded value: one outside them is wrong.
_PLAUSIBLE = (0.01, 100.0)
_LOCK = Lock()
# Least gain of a trick that is used: padding costs memory, jumps and placement cost code.
_LEAST_GAIN, _TRIES = 1.05, 3


@dataclass(frozen=True)
class Measured:
    """Measurements of one core.

    rates: cycles a nanosecond, and bytes a cycle by cache.
    steps: cycles, by kind of step, level and stored dtype.
    shared_way: `Core.shared_way`, a share.
    tricks: whether kernels gain by a trick, by name of a field of `Core`.
    sharing: by name of a field of `SharingPrices`, in its unit; empty without a second core.
    measured_on: the day, as in ISO 8601.
    """

    rates: Rates
    steps: dict[Key, float]
    shared_way: float
    tricks: dict[str, bool]
    sharing: dict[str, float]
    measured_on: str

    def on(self, core: Core) -> Core:
        """Return the core's data with these measurements in place of its own.

        Data of a known core design were measured on whole kernels and stay: only the clock, the
        rates beyond L2 and the distance between cores differ from machine to machine.
        """
        measured = f"measured on {self.measured_on}"
        core = replace(core, sharing=core.sharing._replace(**self.sharing))
        if not core.assumed:
            return replace(core, rates=self._far_rates(core.rates), measured=measured)
        return replace(
            core,
            rates=self.rates,
            steps={key: self._step(key, core) for key in all_steps(core)},
            shared_way=self.shared_way,
            measured=measured,
            padding=self.tricks["padding"],
            redirects=self.tricks["redirects"],
            placement=self.tricks["placement"],
        )

    def _step(self, key: Key, core: Core) -> StepPrice:
        """Price of a step: as measured, or scaled by the measured dtypes of its kind.

        Kernels that fit L1 store some short weights as float32, so that those dtypes are not
        measured.
        """
        if key in self.steps:
            return StepPrice(self.steps[key], "measured here")
        known = all_steps(core)
        kin = [one for one in self.steps if one[:2] == key[:2]]
        if not kin:
            return known[key]
        factor = geometric_mean(self.steps[one] / known[one].cycles for one in kin)
        source = f"{known[key].source}, times the measured ratio of related steps"
        return StepPrice(known[key].cycles * factor, source)

    def _far_rates(self, own: Rates) -> Rates:
        data, code = (
            {**there, **{level: found[level] for level in _BEYOND}}
            for there, found in ((own.data, self.rates.data), (own.code, self.rates.code))
        )
        return Rates(self.rates.cycles_per_ns, data, code)


def forget_calibration() -> None:
    """Forget the measurements in memory; the next `calibrated` reads the file again."""
    _calibrated.cache_clear()


def calibrated(target: Target) -> Target:
    """Return the target with measurements of this kind of core and compiler, from now or earlier.

    The target stays as it is if none are stored and it is not this machine, or with
    SPARSEJIT_CALIBRATE=0. The result is the same throughout a process. Raises InvalidInput for a
    value of the variable other than 0 or 1.
    """
    if not _wanted():
        return target
    with _LOCK:
        return _calibrated(target)


def recalled(target: Target) -> Target:
    """Return the target with stored measurements; like `calibrated`, but measure nothing."""
    return _recalled(target) if _wanted() else target


def _recalled(target: Target) -> Target:
    file = _file(target)
    return _with(target, file, *_kept(file, target.core))


@cache
def _calibrated(target: Target) -> Target:
    file = _file(target)
    found, damage = _kept(file, target.core)
    if found is None and _is_this_machine(target) and _can_be_kept(file):
        why = f" ({damage})" if damage else ""
        remedy = f"{CALIBRATE_VARIABLE}=0 turns this measurement off"
        _say(f"sparsejit: measuring this processor once, for about a second; {remedy}{why}")
        found = _measured(target)
        remember(file, _to_json(found))
    return _with(target, file, found, damage)


def _kept(file: Path, core: Core) -> tuple[Measured | None, str]:
    """Return the stored measurements, or None; and the damage of the file, with the remedy."""
    try:
        stored = recall(file)
        return None if stored is None else _checked(stored, core), ""
    except DamagedFile as problem:
        if isinstance(problem.__cause__, OSError):
            return None, f"{file} cannot be read: {problem}; XDG_CACHE_HOME names its folder"
        return None, f"{file} is damaged: {problem}; `sparsejit calibrate` writes it again"


def _with(target: Target, file: Path, found: Measured | None, damage: str) -> Target:
    """Return the target with the measurements and their file; without any, with the damage.

    Without either, the target stays as it is.
    """
    if found is not None:
        core = found.on(target.core)
        return replace(target, core=replace(core, measured=f"{core.measured}, {file}"))
    if damage:
        return replace(target, core=replace(target.core, unused=damage))
    return target


def calibrate(target: Target) -> Core:
    """Measure this core (about a second), store the result, and return the core's data with it.

    Raises InvalidInput before it measures where nothing can be stored.
    """
    file = _file(target)
    try:
        check_writable(file)
    except InvalidInput as error:
        raise InvalidInput(f"rates cannot be stored: {error}, with XDG_CACHE_HOME") from error
    problem = remember(file, _to_json(_measured(target)))
    if problem is not None:
        raise InvalidInput(problem)
    forget_calibration()
    return _recalled(target).core


def _say(text: str) -> None:
    """Print to stderr, if it can be written to: stdout may be somebody's JSON."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):  # a full disk, a reader that has gone; a closed file
        print(text, file=sys.stderr, flush=True)


def _is_this_machine(target: Target) -> bool:
    """Whether the target is this machine, no matter which data its core has."""
    here = Target.detect()
    return replace(target, core=here.core) == here


def _wanted() -> bool:
    value = os.environ.get(CALIBRATE_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise InvalidInput(f"{CALIBRATE_VARIABLE}={value}: set it to 0 or 1, or unset it")
    return value == "1"


def _can_be_kept(file: Path) -> bool:
    try:
        check_writable(file)
    except InvalidInput:
        return False
    return True


def _file(target: Target) -> Path:
    sets = " ".join(sorted(target.instruction_sets))
    whose = target.core.data_of  # these data determine which measurements are made and used
    return cache_file("processor", target.model, whose, target.isa, sets, compiler_digest())


def _measured(target: Target) -> Measured:
    before = _sharing(target)
    clock = core_loops.cycles_per_ns(target)
    rates = _rates(target, clock)
    code, data = (clock * rate["L2"] for rate in (rates.code, rates.data))
    return Measured(
        rates,
        step_prices(target),
        core_loops.shared_way(target, code, data),
        _tricks(target),
        _dearer(before, _sharing(target)),
        date.today().isoformat(),
    )


def _rates(target: Target, clock: float) -> Rates:
    sizes = {
        "L1": target.l1d_bytes // 2,
        "L2": target.l2_bytes // 4,  # with half of it, some pages may share sets that are full
        "L3": _BIG,
        "memory": 2 * target.l3_bytes,
    }
    if sizes["memory"] > _MOST_BYTES:  # it would take seconds: the recorded rate stays
        del sizes["memory"]
    data = {level: core_loops.load_bandwidth(target, size) for level, size in sizes.items()}
    data["padded L2"] = core_loops.padded_l2_bandwidth(target, spaced=True)
    code_sizes = {"L2": target.l2_bytes // 4, "L3": 2 * target.l2_bytes}
    code = {level: core_loops.code_bandwidth(target, size) for level, size in code_sizes.items()}
    # Other processes halve this rate for milliseconds.
    again = (core_loops.code_bandwidth(target, code_sizes["L2"]) for _ in range(_TRIES - 1))
    code["L2"] = max(code["L2"], *again)
    return Rates(
        clock,
        {**target.core.rates.data, **{level: rate / clock for level, rate in data.items()}},
        # In L1 the execution ports are the limit, and code from memory takes over a second to make
        # and to fault in: their recorded rates stay.
        {**target.core.rates.code, **{level: rate / clock for level, rate in code.items()}},
    )


def _tricks(target: Target) -> dict[str, bool]:
    """Whether each trick gains, measured on and off in turn."""
    size = target.l1i_bytes * 3 // 2

    def data(spaced: bool) -> float:
        if spaced:
            return core_loops.padded_l2_bandwidth(target, spaced=True)
        return core_loops.load_bandwidth(target, target.l2_bytes // 4)

    ways: dict[str, Callable[[bool], float]] = {
        "padding": data,
        "redirects": lambda on: core_loops.code_bandwidth(target, size, redirects=on),
        "placement": lambda on: core_loops.code_bandwidth(target, size, placed=on),
    }
    gains = {}
    for name, way in ways.items():
        on, off = zip(*((way(True), way(False)) for _ in range(_TRIES)), strict=True)
        gains[name] = max(on) > _LEAST_GAIN * max(off)
    return gains


def _sharing(target: Target) -> dict[str, float]:
    """Measured costs of another core; empty without one. Stops the workers that it started."""
    if available_cores() == 1:
        return {}
    had_workers = pool().workers > 0
    try:
        found = thread_loops.sharing(target)
    except CompileError:  # the system refuses another thread
        return {}
    finally:
        if not had_workers:
            pool().stop()
    known = _known_sharing(target.core)
    least, most = _PLAUSIBLE
    return {
        name: min(max(value, least * known[name]), most * known[name])
        for name, value in zip(known, found or (), strict=False)
    }


def _dearer(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return the measurement of sharing costs whose barrier takes longer.

    Virtual cores move within seconds between one core of their host and two.
    """
    return max(one, other, key=lambda found: found.get("barrier_ns", 0.0))


def _known_sharing(core: Core) -> dict[str, float]:
    """Recorded values of the sharing costs that calibration measures."""
    return {"barrier_ns": core.sharing.barrier_ns, "crossing_bytes": core.sharing.crossing_bytes}


def _to_json(measured: Measured) -> dict[str, Any]:
    return {**asdict(measured), "steps": {" ".join(k): v for k, v in measured.steps.items()}}


def _checked(stored: object, core: Core) -> Measured:
    """Return the measurements in a core's file. Raises DamagedFile, naming the field."""
    found = _fields("the file", stored, {field.name for field in fields(Measured)})
    rates = _fields("rates", found["rates"], {field.name for field in fields(Rates)})
    clock = _number("cycles_per_ns", rates["cycles_per_ns"], core.rates.cycles_per_ns)
    data, code = (
        _numbers(name, _fields(name, rates[name], set(known)), known)
        for name, known in (("data", core.rates.data), ("code", core.rates.code))
    )
    steps, tricks = found["steps"], _fields("tricks", found["tricks"], set(TRICKS))
    known = _known_sharing(core)
    shared = _fields("sharing", found["sharing"], set(known) if found["sharing"] else set())
    known_steps = {" ".join(key): price.cycles for key, price in all_steps(core).items()}
    if not isinstance(steps, dict) or not steps.keys() <= known_steps.keys():
        raise DamagedFile("steps has keys that do not name the kind, level and dtype of a step")
    if not all(isinstance(gains, bool) for gains in tricks.values()):
        raise DamagedFile("tricks has a value that is neither true nor false")
    if not is_number(found["shared_way"], 0.0, 1.0):
        raise DamagedFile("shared_way is not a number from 0 to 1")
    try:
        date.fromisoformat(found["measured_on"])
    except (TypeError, ValueError) as error:
        raise DamagedFile("measured_on is not a date") from error
    cycles = _numbers("steps", steps, known_steps)
    return Measured(
        Rates(clock, data, code),
        {_key(key): cycles[key] for key in cycles},
        found["shared_way"],
        tricks,
        _numbers("sharing", shared, known),
        found["measured_on"],
    )


def _key(text: str) -> Key:
    kind, isa, stored = text.split(" ")
    return kind, isa, stored


def _fields(name: str, value: object, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise DamagedFile(f"{name} does not have exactly the keys {', '.join(sorted(keys))}")
    return value


def _numbers(name: str, values: dict[str, Any], known: Mapping[str, float]) -> dict[str, float]:
    return {key: _number(f"{name}[{key!r}]", values[key], known[key]) for key in sorted(values)}


def _number(name: str, value: Any, known: float) -> float:
    least, most = (known * times for times in _PLAUSIBLE)
    if not is_number(value, least, most):
        raise DamagedFile(f"{name} is not a number from {least:g} to {most:g}")
    return float(value)
