"""Caches of rates and times: whatever lies in their place, a kernel compiles."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matvec_checks import block_weights

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.planner import cache, calibration, tuning
from sparsejit.planner.plan import Candidate

WEIGHTS = block_weights((64, 64), 0.2)
RATES = {
    "cycles_per_ns": 3.5,
    "data": {"L1": 64.0, "padded L2": 40.0, "L2": 44.0, "L3": 10.0, "memory": 6.0},
    "code": {"L1": 32.0, "L2": 12.0, "L3": 7.0, "memory": 4.0},
    "measured_on": "2026-01-31",
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


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration.forget_rates()
    yield tmp_path / "sparsejit"
    calibration.forget_rates()


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


def rates_file(target: Target) -> Path:
    file = cache.cache_file("rates", target.model, target.isa)
    file.parent.mkdir(parents=True)
    return file


def test_rates_from_a_file_are_used_and_named() -> None:
    target = Target.detect()
    file = rates_file(target)
    file.write_bytes(_text(RATES))
    assert calibration.calibrated(target).core.rates.data == RATES["data"]
    origin = calibration.rates_origin(calibration.calibrated(target))
    assert origin == f"measured on 2026-01-31 by `sparsejit calibrate`, {file}"


def test_without_a_file_the_rates_are_built_in() -> None:
    assert calibration.calibrated(Target.detect()).core.rates == Target.detect().core.rates
    assert calibration.rates_origin(calibration.calibrated(Target.detect()))== f"data of {Target.detect().core.data_of}"


def test_damaged_rates_are_as_good_as_none() -> None:
    target = Target.detect()
    file = rates_file(target)
    for name, content in mutants(RATES):
        file.write_bytes(content)
        calibration.forget_rates()
        assert calibration.calibrated(target).core.rates == Target.detect().core.rates, name
        origin = calibration.rates_origin(calibration.calibrated(target))
        known = f"data of {target.core.data_of}"
        assert origin.startswith(f"{known}, because {file} is damaged: "), name
        assert "\n" not in origin and len(origin) < 500, name
        assert origin.endswith("; `sparsejit calibrate` writes it anew"), name


def test_a_folder_in_place_of_the_rates() -> None:
    target = Target.detect()
    rates_file(target).mkdir()
    assert calibration.calibrated(target).core.rates == Target.detect().core.rates
    assert "is damaged: Is a directory" in calibration.rates_origin(calibration.calibrated(target))


def test_damaged_rates_do_not_keep_a_kernel_from_compiling() -> None:
    target = Target.detect()
    file = rates_file(target)
    for content in (_text(_changed(RATES, ("code", "L2"))), _text([]), DEEP.encode()):
        file.write_bytes(content)
        calibration.forget_rates()
        assert sparsejit.compile_matrix(WEIGHTS).strategy


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
    monkeypatch.setattr(calibration, "cycles_per_ns", lambda target: pytest.fail("measured"))
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
