"""Target: parsing processors that are not here, and limiting the one that is."""

from pathlib import Path

import pytest

from sparsejit.errors import InvalidInput, UnsupportedTarget
from sparsejit.machine.cpuinfo import parse_cache_size, read_caches
from sparsejit.machine.target import Target, parse_target

pytestmark = pytest.mark.plans

HASWELL = "fpu sse2 avx f16c fma bmi1 bmi2 avx2"
KNIGHTS_LANDING = f"{HASWELL} avx512f avx512cd"
ZEN5 = f"{HASWELL} avx512f avx512dq avx512bw avx512vl avx512vbmi avx512_vnni avx512_bf16 avx_vnni"
SAPPHIRE_RAPIDS = f"{ZEN5} avx512_vbmi2 amx_bf16 amx_tile amx_int8"
CACHES = {"l1d": 48 << 10, "l1i": 32 << 10, "l2": 1 << 20, "l3": 32 << 20}


def cpuinfo(flags: str, other_flags: str = "fpu") -> str:
    return (
        f"processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: {flags}\n\n"
        f"processor\t: 1\nmodel name\t: Second CPU\nflags\t\t: {other_flags}\n\n"
    )


@pytest.mark.parametrize(
    ("flags", "max_isa", "isa", "registers", "lanes"),
    [
        (HASWELL, None, "avx2", 16, 8),
        (KNIGHTS_LANDING, None, "avx2", 16, 8),
        (ZEN5, None, "avx512", 32, 16),
        (ZEN5, "avx512", "avx512", 32, 16),
        (ZEN5, "avx2", "avx2", 16, 8),
        (ZEN5, " AVX2 ", "avx2", 16, 8),
        (HASWELL, "avx512", "avx2", 16, 8),
    ],
)
def test_level(flags: str, max_isa: str | None, isa: str, registers: int, lanes: int) -> None:
    target = parse_target(cpuinfo(flags), CACHES, max_isa)
    assert (target.isa, target.vector_registers, target.lanes) == (isa, registers, lanes)
    assert target.vector_bytes == 4 * lanes
    assert target.model == "Test CPU"


def test_no_avx512_name_survives_the_avx2_level() -> None:
    limited = parse_target(cpuinfo(ZEN5), CACHES, "avx2")
    assert not limited.has("avx512vbmi")
    assert not any(name.startswith("avx512") for name in limited.instruction_sets)
    assert limited.has("avx_vnni") and limited.has("f16c")
    assert not parse_target(cpuinfo(KNIGHTS_LANDING), CACHES).has("avx512f")


def test_amx_is_known_by_its_flags_and_hidden_by_the_avx2_level() -> None:
    names = {"amx_bf16", "amx_tile", "amx_int8"}
    assert names < parse_target(cpuinfo(SAPPHIRE_RAPIDS), CACHES).instruction_sets
    assert not names & parse_target(cpuinfo(SAPPHIRE_RAPIDS), CACHES, "avx2").instruction_sets
    assert not names & parse_target(cpuinfo(ZEN5), CACHES).instruction_sets
    assert not names & Target.named("avx512").instruction_sets


def test_has_refuses_a_misspelt_name() -> None:
    target = parse_target(cpuinfo(ZEN5), CACHES)
    assert target.has("avx512vbmi")
    with pytest.raises(InvalidInput, match=r"avx512_vbmi'.*avx512vbmi"):
        target.has("avx512_vbmi")


@pytest.mark.parametrize("flags", ["fpu sse2 avx f16c", "avx avx2", ""])
def test_a_processor_below_avx2_is_refused(flags: str) -> None:
    with pytest.raises(UnsupportedTarget, match=r"Test CPU.*lacks .*fma.*AVX2 and FMA"):
        parse_target(cpuinfo(flags), CACHES)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sse2", r"SPARSEJIT_MAX_ISA=sse2 is below AVX2.*avx2 or avx512"),
        ("avx", r"SPARSEJIT_MAX_ISA=avx is below AVX2"),
        ("neon", r"SPARSEJIT_MAX_ISA=neon is not a level.*avx2 or avx512"),
    ],
)
def test_bad_limits(value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", value)
    with pytest.raises(UnsupportedTarget, match=message):
        Target.detect()


def test_detect_follows_the_variable_and_memoises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEJIT_MAX_ISA", raising=False)
    native = Target.detect()
    assert Target.detect() is native
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", "avx2")
    assert Target.detect().isa == "avx2"
    assert Target.detect().runs_on(native)
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", "")
    assert Target.detect() is native


def test_named_targets() -> None:
    avx2, avx512 = Target.named("avx2"), Target.named("avx512")
    assert (avx2.isa, avx512.isa) == ("avx2", "avx512")
    assert avx2.runs_on(avx512) and not avx512.runs_on(avx2)
    assert Target.named("native") == Target.detect()
    with pytest.raises(UnsupportedTarget, match=r"'avx1024'.*avx2, avx512"):
        Target.named("avx1024")


def test_cache_sizes(tmp_path: Path) -> None:
    rows = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")]
    for number, row in enumerate(rows):
        index = tmp_path / "cache" / f"index{number}"
        index.mkdir(parents=True)
        for name, text in zip(("level", "type", "size"), row, strict=True):
            (index / name).write_text(text + "\n")
    (tmp_path / "cache" / "index3").mkdir()
    assert read_caches(tmp_path) == {"l1d": 48 << 10, "l1i": 32 << 10, "l2": 1 << 20}
    assert read_caches(tmp_path / "absent") == {}
    assert parse_cache_size("32M\n") == 32 << 20


def test_unknown_caches_fall_back_to_small_ones() -> None:
    target = parse_target(cpuinfo(ZEN5), {"l1d": 64 << 10})
    assert target.l1d_bytes == 64 << 10
    assert 0 < target.l1i_bytes <= target.l2_bytes <= target.l3_bytes
