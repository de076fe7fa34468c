"""Kept calibrations: their owner, the figures taken from them, other files in their place."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TextIO

import pytest
from damaged_files import DEEP, as_json, changed_copy, mutants
from matvec_checks import block_weights

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import Target
from sparsejit.measuring import thread_loops
from sparsejit.planner import calibration, measurement_store
from sparsejit.planner.cost import all_steps

pytestmark = pytest.mark.plans

WEIGHTS = block_weights((64, 64), 0.2)
MEASURED = {
    "rates": {
        "cycles_per_ns": 3.5,
        "data": {"L1": 64.0, "padded L2": 40.0, "L2": 44.0, "L3": 10.0, "memory": 6.0},
        "code": {"L1": 32.0, "L2": 12.0, "L3": 7.0, "memory": 4.0},
    },
    "steps": {"dense avx2 float32": 0.5, "permute avx512 bfloat16": 2.5},
    "shared_way": 0.25,
    "tricks": {"padding": True, "redirects": False, "placement": True},
    "sharing": {"barrier_ns": 400.0, "crossing_bytes": 15.0},
    "measured_on": "2026-01-31",
}
TRICKS_OFF = {"padding": False, "redirects": False, "placement": False}
# Mutants of it that remain valid: fewer steps, a share of none, a trick that gains.
STILL_RIGHT = {
    *(f"without ('steps', '{step}')" for step in MEASURED["steps"]),
    "('steps',) table",
    "('shared_way',) zero",
    "('shared_way',) tiny",
    *(f"('tricks', '{trick}') true" for trick in MEASURED["tricks"]),
    "('sharing',) table",
}
CAN_BE_KEPT = calibration._can_be_kept


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Empty. What is kept there is used; who lets something be measured says so (`measures`)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARSEJIT_CALIBRATE", raising=False)
    monkeypatch.setattr(calibration, "_can_be_kept", lambda file: False)
    calibration.forget_calibration()
    yield tmp_path / "sparsejit"
    calibration.forget_calibration()


def processor_file(target: Target) -> Path:
    sets = " ".join(sorted(target.instruction_sets))
    parts = target.model, target.core.data_of, target.isa, sets, measurement_store.compiler_digest()
    file = measurement_store.cache_file("processor", *parts)
    file.parent.mkdir(parents=True)
    return file


@pytest.mark.parametrize("key", ["zen5", "generic"])
def test_numbers_of_a_file_are_used_and_named(key: str) -> None:
    """A core with data of its own takes only the clock and rates beyond L2 from a calibration."""
    target = replace(Target.detect(), core=core_named(key))
    file = processor_file(target)
    file.write_bytes(as_json(MEASURED))
    core, own = calibration.calibrated(target).core, target.core
    if key == "zen5":
        assert core.rates.data == {**own.rates.data, "L3": 10.0, "memory": 6.0}
        assert core.rates.cycles_per_ns == 3.5
        assert (core.steps, core.shared_way) == (own.steps, own.shared_way)
        assert (core.padding, core.redirects, core.placement) == (True, True, True)
    else:
        assert core.rates.data == MEASURED["rates"]["data"]
        assert all_steps(core)["permute", "avx512", "bfloat16"].cycles == 2.5
        assert (core.padding, core.redirects, core.placement) == (True, False, True)
    assert core.sharing == own.sharing._replace(barrier_ns=400.0, crossing_bytes=15.0)
    assert core.origin == f"measured on 2026-01-31, {file}"


def test_without_a_second_core_its_price_is_the_data_s() -> None:
    target = Target.detect()
    processor_file(target).write_bytes(as_json({**MEASURED, "sharing": {}}))
    core = calibration.calibrated(target).core
    assert core.rates != target.core.rates and core.sharing == target.core.sharing


def test_another_core_is_priced_where_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dearer of two; no number that a kept file may not have."""
    target = replace(Target.detect(), core=core_named("zen5"))
    known = target.core.sharing
    monkeypatch.setattr(calibration, "available_cores", lambda: 2)
    monkeypatch.setattr(thread_loops, "sharing", lambda target: (500.0, 9.0))
    dear = calibration._sharing(target)
    assert dear == {"barrier_ns": 500.0, "crossing_bytes": 9.0}
    monkeypatch.setattr(thread_loops, "sharing", lambda target: (150.0, float("inf")))
    near = calibration._sharing(target)
    assert near == {"barrier_ns": 150.0, "crossing_bytes": 100 * known.crossing_bytes}
    assert calibration._dearer(near, dear) == calibration._dearer(dear, {}) == dear
    monkeypatch.setattr(thread_loops, "sharing", lambda target: None)
    assert calibration._sharing(target) == {}
    monkeypatch.setattr(calibration, "available_cores", lambda: 1)
    monkeypatch.setattr(thread_loops, "sharing", lambda target: pytest.fail("measured"))
    assert calibration._sharing(target) == {}


@pytest.mark.usefixtures("steady_clock")
def test_barriers_without_time_mean_that_no_core_came() -> None:
    """All that is timed takes as long, two parts as one."""
    assert thread_loops.sharing(Target.detect()) is None


def test_measurements_with_other_data_are_not_used() -> None:
    """As `bench planner --generic` does on a core that has data of its own."""
    generic, own = (replace(Target.detect(), core=core_named(key)) for key in ("generic", "zen5"))
    file = calibration._file(generic)
    file.parent.mkdir(parents=True)
    file.write_bytes(as_json(MEASURED))
    assert calibration.calibrated(generic) != generic
    assert calibration.calibrated(own) == own


def test_prices_that_were_not_measured_change_as_those_of_their_kind() -> None:
    """Or a kernel whose float32 was measured has a rival at an assumed price in float16."""
    target = replace(Target.detect(), core=core_named("generic"))
    processor_file(target).write_bytes(as_json(MEASURED))
    core, own = calibration.calibrated(target).core, target.core
    factor = 2.5 / all_steps(own)["permute", "avx512", "bfloat16"].cycles
    key = "permute", "avx512", "float16"
    assert all_steps(core)[key].cycles == pytest.approx(factor * all_steps(own)[key].cycles)
    other = "lookup", "avx512", "float32"
    assert all_steps(core)[other] == all_steps(own)[other]


def test_without_a_file_prices_are_the_core_s_data() -> None:
    target = Target.detect()
    assert calibration.calibrated(target) == target
    assumed = " (assumed)" if target.core.assumed else ""
    assert target.core.origin == f"data of {target.core.data_of}{assumed}"


def test_a_damaged_file_is_as_good_as_none() -> None:
    target = Target.detect()
    file = processor_file(target)
    damaged = {name: text for name, text in mutants(MEASURED) if name not in STILL_RIGHT}
    assert len(damaged) == len(list(mutants(MEASURED))) - len(STILL_RIGHT)
    for name, content in damaged.items():
        file.write_bytes(content)
        calibration.forget_calibration()
        core = calibration.calibrated(target).core
        assert core.rates == target.core.rates, name
        known = target.core.origin
        assert core.origin.startswith(f"{known}, because {file} is damaged: "), name
        assert "\n" not in core.origin and len(core.origin) < 500, name
        assert core.origin.endswith("; `sparsejit calibrate` writes it again"), name


def test_steps_that_nobody_can_take_are_damage() -> None:
    target = Target.detect()
    file = processor_file(target)
    unknown = ({"permute": 1.0}, {"a b c d": 1.0}, {"bogus avx9 float1": 1.0})
    for steps in (*unknown, {"permute avx2 float32": "1"}, [], None):
        file.write_bytes(as_json({**MEASURED, "steps": steps}))
        calibration.forget_calibration()
        assert "is damaged: steps" in calibration.calibrated(target).core.origin


@pytest.mark.parametrize("times", [0.009, 101.0])
def test_impossible_measurements_count_as_damage(times: float) -> None:
    target = Target.detect()
    file, own = processor_file(target), target.core
    key = "permute", "avx2", "float32"
    changes = (
        (("rates", "cycles_per_ns"), own.rates.cycles_per_ns),
        (("rates", "data", "L2"), own.rates.data["L2"]),
        (("rates", "code", "memory"), own.rates.code["memory"]),
        (("steps", " ".join(key)), all_steps(own)[key].cycles),
    )
    for path, known in changes:
        content = changed_copy({**MEASURED, "steps": {" ".join(key): 1.0}}, path, times * known)
        file.write_bytes(as_json(content))
        calibration.forget_calibration()
        origin = calibration.calibrated(target).core.origin
        assert "is damaged: " in origin and f"{path[-1]}" in origin


def test_calibration_can_be_turned_off(
    measures: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept calibration is not used, and nothing is measured."""
    target = Target.detect()
    file = processor_file(target)
    file.write_bytes(as_json(MEASURED))
    monkeypatch.setenv("SPARSEJIT_CALIBRATE", "0")
    assert calibration.calibrated(target) == calibration.recalled(target) == target
    file.unlink()
    assert calibration.calibrated(target) == target
    assert calibration.calibrate(target).origin == f"measured on 2026-01-31, {file}"
    assert measures == [target]
    assert calibration.calibrated(target) == target
    for value in ("", "1"):
        monkeypatch.setenv("SPARSEJIT_CALIBRATE", value)
        assert calibration.calibrated(target).core.origin == f"measured on 2026-01-31, {file}"


def test_a_setting_that_is_neither_on_nor_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEJIT_CALIBRATE", "off")
    for look in (calibration.calibrated, calibration.recalled, sparsejit.compile_matrix):
        with pytest.raises(InvalidInput, match="SPARSEJIT_CALIBRATE=off: set it to 0 or 1"):
            look(WEIGHTS if look is sparsejit.compile_matrix else Target.detect())


def test_a_folder_in_place_of_the_file() -> None:
    target = Target.detect()
    processor_file(target).mkdir()
    core = calibration.calibrated(target).core
    assert core.rates == target.core.rates
    assert core.measured == "" and core.origin.startswith(f"{target.core.origin}, because ")
    assert "cannot be read: Is a directory" in core.origin


def test_a_damaged_file_does_not_keep_a_kernel_from_compiling() -> None:
    file = processor_file(Target.detect())
    for content in (as_json(changed_copy(MEASURED, ("shared_way",))), as_json([]), DEEP.encode()):
        file.write_bytes(content)
        calibration.forget_calibration()
        assert sparsejit.compile_matrix(WEIGHTS).strategy


def test_kept_measurements_are_read_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_can_be_kept", CAN_BE_KEPT)
    monkeypatch.setattr(calibration, "_measured", lambda target: pytest.fail("measured"))
    target = Target.detect()
    assert calibration.recalled(target) == target
    file = processor_file(target)
    file.write_bytes(as_json(MEASURED))
    assert calibration.recalled(target).core.origin == f"measured on 2026-01-31, {file}"
    file.write_text("[]")
    assert "is damaged" in calibration.recalled(target).core.origin


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """The targets that were measured, at once; the first compile may do so."""
    monkeypatch.setattr(calibration, "_can_be_kept", CAN_BE_KEPT)
    asked: list[Target] = []

    def measured(target: Target) -> calibration.Measured:
        asked.append(target)
        return calibration.Measured(target.core.rates, {}, 0.1, TRICKS_OFF, {}, "2026-01-31")

    monkeypatch.setattr(calibration, "_measured", measured)
    return asked


def test_the_first_compile_measures_once_and_says_so(
    measures: list[Target], capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "SPARSEJIT_CALIBRATE=0 turns this measurement off" in said
    assert "about a second" in said
    assert "measured on 2026-01-31" in str(kernel.explain())
    calibration.forget_calibration()
    for target in ("native", "avx2", Target.named("avx2")):
        sparsejit.compile_matrix(WEIGHTS, target=target)
    assert measures == [Target.detect()]
    assert capsys.readouterr().err == ""


def full() -> TextIO:
    return os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1)


def gone() -> TextIO:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering=1)


def closed() -> TextIO:
    stream = StringIO()
    stream.close()
    return stream


@pytest.mark.usefixtures("measures")
@pytest.mark.parametrize("stream", [full, gone, closed, lambda: None])
def test_the_first_compile_needs_nobody_to_listen(
    stream: Callable[[], TextIO | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert "measured on 2026-01-31" in str(sparsejit.compile_matrix(WEIGHTS).explain())
    assert capsys.readouterr().out == ""
    with suppress(OSError):  # what could not be written is tried again
        if stderr is not None:
            stderr.close()


def test_a_damaged_file_is_measured_again(measures: list[Target]) -> None:
    file = processor_file(Target.detect())
    file.write_text("[]")
    sparsejit.compile_matrix(WEIGHTS)
    assert len(measures) == 1 and json.loads(file.read_text())["shared_way"] == 0.1


def test_nothing_is_measured_that_could_not_be_kept(
    cache_folder: Path, measures: list[Target]
) -> None:
    cache_folder.write_text("a file in its place")
    sparsejit.compile_matrix(WEIGHTS)
    assert measures == []


def test_rates_that_could_not_be_kept_are_not_measured(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_folder.write_text("")
    monkeypatch.setattr(calibration, "_measured", lambda target: pytest.fail("measured"))
    with pytest.raises(InvalidInput, match=r"sparsejit is no folder; .* with XDG_CACHE_HOME"):
        calibration.calibrate(Target.detect())
