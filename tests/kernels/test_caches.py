"""Caches of rates and times: whatever lies in their place, a kernel compiles."""

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from matvec_checks import block_weights

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import Target
from sparsejit.planner import cache, calibration, tuning
from sparsejit.planner.plan import Candidate

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
    "measured_on": "2026-01-31",
}
TRICKS_OFF = {"padding": False, "redirects": False, "placement": False}
# Of what `mutants` makes of that: fewer steps, a share of none, a trick that gains.
STILL_RIGHT = {
    *(f"without ('steps', '{step}')" for step in MEASURED["steps"]),
    "('steps',) table",
    "('shared_way',) zero",
    "('shared_way',) tiny",
    *(f"('tricks', '{trick}') true" for trick in MEASURED["tricks"]),
}
WRONG = {
    "zero": 0,
    "negative": -1.0,
    "nan": float("nan"),
    "infinity": float("inf"),
    "huge": 1e300,
    "beyond float": 10**400,
    "tiny": 1e-320,
    "text": "3.5",
    "null": None,
    "true": True,
    "list": [[1.0]],
    "table": {},
}
DEEP = "[" * 200_000
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


def mutants(right: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Files that are not quite `right`, each with a name."""
    for path in list(_paths(right)):
        yield f"without {path}", _text(_changed(right, path))
        for name, value in WRONG.items():
            yield f"{path} {name}", _text(_changed(right, path, value))
    yield "one key more", _text({**right, "unknown": 1.0})
    whole = _text(right)
    for end in range(0, len(whole), max(1, len(whole) // 40)):
        yield f"cut at {end}", whole[:end]
    for name, value in WRONG.items():
        yield f"only {name}", _text(value)
    yield "binary", bytes(range(256))
    yield "nested deeply", DEEP.encode()
    yield "nested deeply in a field", whole.replace(b"{", b'{"deep": ' + DEEP.encode() + b", ", 1)


def _paths(value: Any, *above: str) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*above, key)
        if isinstance(inner, dict):
            yield from _paths(inner, *above, key)


def _changed(right: dict[str, Any], path: tuple[str, ...], *value: Any) -> dict[str, Any]:
    """A copy with the value there replaced, or taken away where none is given."""
    changed = copy.deepcopy(right)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    for given in value:
        inner[path[-1]] = given
    return changed


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


def processor_file(target: Target) -> Path:
    sets = " ".join(sorted(target.instruction_sets))
    parts = target.model, target.core.data_of, target.isa, sets, cache.compiler_digest()
    file = cache.cache_file("processor", *parts)
    file.parent.mkdir(parents=True)
    return file


@pytest.mark.parametrize("key", ["zen5", "generic"])
def test_what_is_in_a_file_is_used_and_named(key: str) -> None:
    """Where the core's own data were measured: of it only the clock and what lies beyond L2."""
    target = replace(Target.detect(), core=core_named(key))
    file = processor_file(target)
    file.write_bytes(_text(MEASURED))
    core, own = calibration.calibrated(target).core, target.core
    if key == "zen5":
        assert core.rates.data == {**own.rates.data, "L3": 10.0, "memory": 6.0}
        assert core.rates.cycles_per_ns == 3.5
        assert (core.steps, core.shared_way) == (own.steps, own.shared_way)
        assert (core.padding, core.redirects, core.placement) == (True, True, True)
    else:
        assert core.rates.data == MEASURED["rates"]["data"]
        assert core.step_cycles("permute", "avx512", "bfloat16") == 2.5
        assert (core.padding, core.redirects, core.placement) == (True, False, True)
    assert core.origin == f"measured on 2026-01-31, {file}"


def test_what_was_measured_with_other_data_is_not_used() -> None:
    """As `bench planner --generic` does on a core that has data of its own."""
    generic, own = (replace(Target.detect(), core=core_named(key)) for key in ("generic", "zen5"))
    file = calibration._file(generic)
    file.parent.mkdir(parents=True)
    file.write_bytes(_text(MEASURED))
    assert calibration.calibrated(generic) != generic
    assert calibration.calibrated(own) == own


def test_prices_that_were_not_measured_change_as_those_of_their_kind() -> None:
    """Or a kernel whose float32 was measured has a rival at an assumed price in float16."""
    target = replace(Target.detect(), core=core_named("generic"))
    processor_file(target).write_bytes(_text(MEASURED))
    core, own = calibration.calibrated(target).core, target.core
    factor = 2.5 / own.step_cycles("permute", "avx512", "bfloat16")
    key = "permute", "avx512", "float16"
    assert core.step_cycles(*key) == pytest.approx(factor * own.step_cycles(*key))
    other = "lookup", "avx512", "float32"
    assert core.step_cycles(*other) == own.step_cycles(*other)


def test_without_a_file_prices_are_the_core_s_data() -> None:
    target = Target.detect()
    assert calibration.calibrated(target) == target
    assert calibration.rates_origin(target) == f"data of {target.core.data_of}"


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
        known = f"data of {target.core.data_of}"
        assert core.origin.startswith(f"{known}, because {file} is damaged: "), name
        assert "\n" not in core.origin and len(core.origin) < 500, name
        assert core.origin.endswith("; `sparsejit calibrate` writes it anew"), name


def test_steps_that_nobody_can_take_are_damage() -> None:
    target = Target.detect()
    file = processor_file(target)
    for steps in ({"permute": 1.0}, {"a b c d": 1.0}, {"permute avx2 float32": "1"}, [], None):
        file.write_bytes(_text({**MEASURED, "steps": steps}))
        calibration.forget_calibration()
        assert "is damaged: steps" in calibration.calibrated(target).core.origin


def test_calibration_can_be_turned_off(
    measures: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept is no more used than anything is measured."""
    target = Target.detect()
    file = processor_file(target)
    file.write_bytes(_text(MEASURED))
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
    assert "is damaged: Is a directory" in core.origin


def test_a_damaged_file_does_not_keep_a_kernel_from_compiling() -> None:
    file = processor_file(Target.detect())
    for content in (_text(_changed(MEASURED, ("shared_way",))), _text([]), DEEP.encode()):
        file.write_bytes(content)
        calibration.forget_calibration()
        assert sparsejit.compile_matrix(WEIGHTS).strategy


def test_what_is_kept_can_be_read_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_can_be_kept", CAN_BE_KEPT)
    monkeypatch.setattr(calibration, "_measured", lambda target: pytest.fail("measured"))
    target = Target.detect()
    assert calibration.recalled(target) == target
    file = processor_file(target)
    file.write_bytes(_text(MEASURED))
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
        return calibration.Measured(target.core.rates, {}, 0.1, TRICKS_OFF, "2026-01-31")

    monkeypatch.setattr(calibration, "_measured", measured)
    return asked


def test_the_first_compile_measures_once_and_says_so(
    measures: list[Target], capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "SPARSEJIT_CALIBRATE=0 turns that off" in said
    assert "about a second" in said
    assert "measured on 2026-01-31" in kernel.explain()
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
    assert "measured on 2026-01-31" in sparsejit.compile_matrix(WEIGHTS).explain()
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


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were timed, each said to take as long as there are bytes in its name."""
    names: list[str] = []

    def time(candidate: Candidate, *_: object) -> float:
        names.append(candidate.template.name)
        return float(len(candidate.template.name))

    monkeypatch.setattr(tuning, "_time", time)
    return names


def test_damaged_times_are_measured_again(cache_folder: Path, timed: list[str]) -> None:
    chosen = sparsejit.compile_matrix(WEIGHTS, tune=True).strategy
    (file,) = cache_folder.glob("tuning-*.json")
    right = json.loads(file.read_bytes())
    for name, content in mutants(right):
        timed.clear()
        file.write_bytes(content)
        assert sparsejit.compile_matrix(WEIGHTS, tune=True).strategy == chosen, name
        assert set(timed) == right.keys(), name
        assert json.loads(file.read_bytes()) == right, name


def block_with_a_file(folder: Path) -> None:
    folder.write_text("")


def block_with_a_folder(folder: Path) -> None:
    """A folder in the file's place, which no file can be renamed onto."""
    sparsejit.compile_matrix(WEIGHTS, tune=True)
    (file,) = folder.glob("tuning-*.json")
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("block", [block_with_a_file, block_with_a_folder])
def test_times_that_cannot_be_kept_are_used_all_the_same(
    cache_folder: Path, timed: list[str], block: Callable[[Path], None]
) -> None:
    block(cache_folder)
    timed.clear()
    kernel = sparsejit.compile_matrix(WEIGHTS, tune=True)
    assert len(timed) == len(kernel.plan.measured_ns) > 1
    assert re.search(r"; not kept for the next time: .* cannot be written: ", kernel.explain())
    x = np.ones(64, np.float32)
    np.testing.assert_allclose(kernel(x), WEIGHTS.astype(np.float64) @ x, atol=1e-4)


def test_rates_that_could_not_be_kept_are_not_measured(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_with_a_file(cache_folder)
    monkeypatch.setattr(calibration, "_measured", lambda target: pytest.fail("measured"))
    with pytest.raises(InvalidInput, match=r"sparsejit is no folder; .* with XDG_CACHE_HOME"):
        calibration.calibrate(Target.detect())


def test_the_digest_knows_every_file_and_its_place(tmp_path: Path) -> None:
    files = {"a.py": "x", "inner/b.py": "y", "inner/deeper/c.toml": "z"}

    def digest(changed: dict[str, str]) -> str:
        folder = tmp_path / f"checkout-{len(list(tmp_path.iterdir()))}" / "room"
        for name, text in changed.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return cache.source_digest([folder])

    same = digest(files)
    assert digest(dict(reversed(files.items()))) == same
    assert digest({**files, "__pycache__/a.pyc": "x"}) == same
    variants = [{**files, name: text + "!"} for name, text in files.items()]
    for name in files:
        moved = dict(files)
        moved[f"{name}.py"] = moved.pop(name)
        variants.append(moved)
    # The same names and the same bytes in one row, cut elsewhere.
    variants.append({"a.py": "xy", "inner/b.py": "", "inner/deeper/c.toml": "z"})
    assert len({digest(variant) for variant in variants} | {same}) == len(variants) + 1


def test_the_compiler_s_digest_covers_the_rooms_that_decide_code() -> None:
    package = Path(sparsejit.__file__).parent
    rooms = ("machine", "x86", "runtime", "ir", "asm_templates", "planner")
    assert cache.compiler_digest() == cache.source_digest(package / room for room in rooms)
    assert all(list((package / room).rglob("*.py")) for room in rooms)
