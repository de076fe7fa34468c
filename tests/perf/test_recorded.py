"""The table of recordings: the latest of each processor, in columns of its own."""

from typing import Any

from sparsejit.perf.history import kernels_table


def row(problem: str, ns: float, time: str, **others: Any) -> dict[str, Any]:
    peers = [{"name": "MKL CSR", "ns_min": 500.0}, {"name": "scipy CSR", "ns_min": 1.0}]
    case = {"problem": problem, "dtype": "float32", "isa": "avx512", "auto": True, "peers": peers}
    return {**case, "ns_min": ns, "time": time, "machine": "M", "commit": "c", **others}


def test_the_latest_recording_of_each_processor_counts() -> None:
    rows = [
        row("A", 90.0, "2026-11-21T21"),
        row("A", 100.0, "2026-11-21T22"),
        row("A", 95.0, "2026-11-20T22"),
        row("A", 1.0, "2026-11-23", auto=False),
        row("A", 2.0, "2026-11-23", isa="avx2"),
        row("A", 250.0, "2026-11-23", microarchitecture="golden_cove", clock_ghz=3.0),
        row("B", 40.0, "2026-11-23", microarchitecture="golden_cove", dtype="int8"),
    ]
    lines = kernels_table(rows, "avx512")
    titles, _, a, b, _, *origins = lines
    assert titles.startswith("|  | matrix | zeros | zen5 float32 | zen5 bfloat16 | zen5 int8 |")
    assert "golden_cove MKL CSR | golden_cove ratio |" in titles
    assert a == "| A | 256 x 256 | 90 % | 100 |  |  | 500 | 5.0x | 250 |  |  | 500 | 2.0x |"
    assert b == "| B | 256 x 256 | 80 % in 1x8 |  |  |  |  |  |  |  | 40 |  |  |"
    assert origins[0] == "zen5: M, 2026-11-21, commit c"
    assert origins[1].startswith("golden_cove: M")
