"""The benchmark's own instruments: the timing loop, the rivals, the problems, the record."""

import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_clock import TICK_NS, FakeClock

from sparsejit.errors import CompileError, InvalidInput, MissingDependency
from sparsejit.ir.sparse_matrix import LANE16
from sparsejit.machine import microarchitecture
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.perf import history, kernels
from sparsejit.perf.machine import MachineLimits, machine_limits
from sparsejit.perf.peers import peers
from sparsejit.perf.peers.peers import peers_for, single_threaded
from sparsejit.perf.problems import PROBLEMS, Problem, problems_named
from sparsejit.perf.timing import RoundsInTurn, time_python
from sparsejit.runtime import native_timing
from sparsejit.runtime.native_timing import (
    Timing,
    call_native,
    median_of_least,
    pinned,
    time_in_turn,
    time_native,
)
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, r8, r9, rax, rcx, rdi, rdx, rsi, rsp, xmm

# Bytes of the caches of a named target.
L1, L2, L3 = 48 << 10, 1 << 20, 32 << 20
LIMITS = MachineLimits("avx512", 500.0, 250.0, 100.0, 10.0, 280.0)


def native(*instructions: tuple[Any, ...]) -> ExecutableMemory:
    asm = Assembler(Target.detect())
    for instruction in instructions:
        asm.emit(*instruction)
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)


def test_arguments_arrive_as_the_abi_says() -> None:
    """Six integers in registers, the rest on the stack, floats in vector registers."""
    seen, floats = np.zeros(9, np.int64), np.zeros(2, np.float32)
    function = native(
        ("mov", rax, rdi),
        *(("mov", Memory(rax, 8 * n), r) for n, r in enumerate((rsi, rdx, rcx, r8, r9))),
        *(
            instruction
            for n in range(4)
            for instruction in (
                ("mov", rcx, Memory(rsp, 8 + 8 * n)),
                ("mov", Memory(rax, 40 + 8 * n), rcx),
            )
        ),
        ("mov", rax, floats.ctypes.data),
        ("vmovss", Memory(rax), xmm(0)),
        ("vmovss", Memory(rax, 4), xmm(1)),
    )
    call_native(function.address, (seen.ctypes.data, 1, 2, 1.5, 3, 4, 5, 6, 7, -2.5, 8, 9))
    assert seen.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert floats.tolist() == [1.5, -2.5]


def test_functions_timed_in_turn_all_run_in_order_with_their_own_arguments(
    steady_clock: FakeClock,
) -> None:
    times_ten_plus = native(
        ("mov", rax, Memory(rdi)),
        ("imul", rax, rax, 10),
        ("add", rax, rsi),
        ("mov", Memory(rdi), rax),
    )
    reset = native(("mov", Memory(rdi), rsi))
    digits = np.zeros(1, np.int64)
    calls = [(reset.address, (digits.ctypes.data, 0))]
    calls += [(times_ten_plus.address, (digits.ctypes.data, digit)) for digit in (1, 2, 3)]
    assert time_in_turn(calls, samples=5) == Timing(TICK_NS, TICK_NS, 5)
    assert digits.tolist() == [123]


@pytest.mark.parametrize("integers", [0, 6, 7, 8, 9])
def test_the_stack_is_aligned_at_the_call(integers: int) -> None:
    place = np.zeros(1, np.int64)
    function = native(("mov", rax, place.ctypes.data), ("mov", Memory(rax), rsp))
    call_native(function.address, [1] * integers)
    assert place[0] % 16 == 8


def test_too_many_floats_are_refused() -> None:
    with pytest.raises(InvalidInput, match="9 float arguments; pass at most 8"):
        time_native(0, [1.0] * 9)


@pytest.mark.parametrize("ns", [1, 7, 1000, 3_000_000])
def test_a_call_is_what_the_clock_says(fake_clock: FakeClock, ns: int) -> None:
    timing = time_python(lambda: fake_clock.pass_time(ns), samples=10)
    assert timing == Timing(ns, ns, 10)


def test_a_sample_is_long_enough_to_be_read_and_no_longer(fake_clock: FakeClock) -> None:
    counts: list[int] = []

    def loop(count: int) -> None:
        counts.append(count)
        fake_clock.pass_time(40 * count)

    native_timing.sample(loop, 20, native_timing.BUDGET_NS)
    assert counts[-20:] == [native_timing.SAMPLE_NS // 40] * 20
    assert 40 * sum(counts[:-21]) >= native_timing.WARM_UP_NS


def test_the_least_and_the_median_of_uneven_samples(fake_clock: FakeClock) -> None:
    """Attempts in threes fill the warm-up, one more says what is affordable; then five count."""
    each = native_timing.SAMPLE_NS
    warm_up = 3 * -(-native_timing.WARM_UP_NS // (3 * each)) + 1
    lengths = iter([1] * warm_up + [9, 3, 2, 8, 4])
    loop = lambda count: fake_clock.pass_time(each * next(lengths))  # noqa: E731
    timing = native_timing.sample(loop, 5, native_timing.BUDGET_NS)
    assert timing == Timing(2.0 * each, 4.0 * each, 5)


@pytest.mark.parametrize(("budget_ns", "samples"), [(50_000_000, 10), (1, 5), (10**12, 1000)])
def test_the_budget_limits_the_samples(fake_clock: FakeClock, budget_ns: int, samples: int) -> None:
    def call() -> None:
        fake_clock.pass_time(5_000_000)

    assert time_python(call, samples=1000, budget_ns=budget_ns).samples == samples


def test_the_figure_of_several_places_is_the_median_of_their_least() -> None:
    timings = [Timing(min_ns, 100.0, samples=5) for min_ns in (30.0, 10.0, 50.0)]
    assert median_of_least(timings) == 30.0


def test_pinning_is_undone() -> None:
    before = os.sched_getaffinity(0)
    with pinned(max(before)) as core:
        assert os.sched_getaffinity(0) == {core} == {max(before)}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(InvalidInput, match="core 4096 is not available"), pinned(4096):
        pass
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_problems_have_the_sparsity_they_state(problem: Problem) -> None:
    weights = problem.weights()
    assert weights.shape == (problem.out_features, problem.in_features)
    rows, used = problem.pattern.rows, weights != 0
    if problem.pattern is LANE16:
        used = np.sort(used.reshape(len(used), -1, 16), axis=2)
    blocks = used.reshape(-1, rows, problem.in_features).any(axis=1)
    assert blocks.sum() == blocks.size - round(problem.sparsity * blocks.size)
    assert np.count_nonzero(weights) == rows * blocks.sum()
    np.testing.assert_array_equal(weights, problem.weights())


def test_an_unknown_problem_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'Z' is unknown; use one of A, B, C90"):
        problems_named(["A", "Z"], PROBLEMS)


def test_every_peer_computes_the_product_again_and_again() -> None:
    """Also after the output was spoilt: a peer must write it on every call."""
    weights, x = PROBLEMS["B"].weights(), PROBLEMS["B"].input()
    exact = weights.astype(np.float64) @ x.astype(np.float64)
    with single_threaded():
        found, skipped = peers_for(weights, x)
        for peer in found:
            for _ in range(2):
                y = peer.output()
                np.testing.assert_allclose(y, exact, atol=1e-4)
                if y.flags.writeable:
                    y[:] = np.nan
    assert {peer.name for peer in found} | set(skipped) == set(peers._MAKERS)
    assert len(found) >= 5


def test_mkl_is_skipped_with_a_word_where_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    peers.mkl.cache_clear()
    monkeypatch.setattr(peers.metadata, "files", absent)
    try:
        found, skipped = peers_for(np.eye(8, dtype=np.float32), np.ones(8, np.float32))
    finally:
        peers.mkl.cache_clear()
    assert set(skipped) == {"MKL CSR", "MKL sgemv"}
    assert "pip install 'sparsejit[bench]'" in skipped["MKL CSR"]
    assert "scipy CSR" in {peer.name for peer in found}


def test_mkl_failures_are_not_mistaken_for_results() -> None:
    with pytest.raises(MissingDependency, match=r"returned \(0, 3\)"):
        peers._require_success(0, 3)


def test_a_wrong_output_is_not_timed() -> None:
    exact = np.array([1.0, -2.0])
    good = np.array([1.0 + 1e-6, -2.0], np.float32)
    assert kernels.checked_error("kernel", good, exact) == pytest.approx(1e-6, rel=0.1)
    for wrong in ([1.0, -2.001], [np.nan, -2.0]):
        with pytest.raises(CompileError, match="kernel: largest error"):
            kernels.checked_error("kernel", np.array(wrong, np.float32), exact)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_the_limits_are_bytes_and_operations_over_time(isa: str, steady_clock: FakeClock) -> None:
    target = Target.named(isa)
    if not target.runs_on(Target.detect()):
        pytest.skip(f"needs {isa}")
    limits = machine_limits(target)
    assert limits.l1_bytes_per_ns == 16 * target.l1d_bytes / 2 / TICK_NS
    assert limits.l2_bytes_per_ns == target.l2_bytes / 2 / TICK_NS
    assert limits.l3_bytes_per_ns == 4 * target.l2_bytes / TICK_NS
    assert limits.memory_bytes_per_ns == 4 * target.l3_bytes / TICK_NS
    assert limits.fma_gflops == 2 * target.lanes * 12 * 1000 / TICK_NS


@pytest.mark.parametrize(
    ("flops", "data_bytes", "expected"),
    [
        (0, 40_000, (80.0, "L1")),
        (0, L1 + 500_000, (L1 / 500 + 2000, "L2")),
        (0, L1 + L2 + 4_000_000, (L1 / 500 + L2 / 250 + 40_000, "L3")),
        (0, L1 + L2 + L3 + 1_000, (L1 / 500 + L2 / 250 + L3 / 100 + 100, "memory")),
        (280_000, 1000, (1000.0, "FMA")),
    ],
)
def test_the_least_time(flops: int, data_bytes: int, expected: tuple[float, str]) -> None:
    ns, limit = LIMITS.least_ns(flops, data_bytes, Target.named("avx512"))
    assert (pytest.approx(ns), limit) == expected


def test_results_are_appended_with_their_circumstances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    monkeypatch.setattr(history, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(history, "_commit", lambda: "abc-dirty")
    for row in ({"problem": "A", "ns_min": 1.5}, {"problem": "B", "ns_min": 2.5}):
        path = history.append("kernels", [row], LIMITS)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["problem"], second["problem"]) == ("A", "B")
    assert second["commit"] == "abc-dirty" and second["limits"] == LIMITS.as_dict()
    assert second["machine"] == Target.detect().model
    assert second["microarchitecture"] == microarchitecture.detect()
    assert second["clock_ghz"] == 4096 / TICK_NS
    assert second["rates"]["data"].keys() >= {"L1", "L2", "L3", "memory"}


def test_results_outside_a_checkout_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "RESULTS", tmp_path / "results")
    with pytest.raises(InvalidInput, match="run from a clone"):
        history.append("kernels", [{}], LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_contestants_are_measured_in_turn_round_after_round() -> None:
    order: list[tuple[str, int]] = []

    def contestant(name: str, times: list[float]) -> Callable[[int], float]:
        def measure(number: int) -> float:
            order.append((name, number))
            return times[number]

        return measure

    turns = RoundsInTurn({"a": contestant("a", [9, 3, 4]), "b": contestant("b", [0, 8, 7])})
    turns.round(0)
    turns.forget()
    assert [turns.round(number) for number in (1, 2)] == [{"a": 3, "b": 8}, {"a": 4, "b": 7}]
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert turns.times == {"a": [3, 4], "b": [8, 7]}
    assert turns.least() == {"a": 3, "b": 7}


def test_whoever_is_not_kept_takes_part_no_more_but_keeps_its_times() -> None:
    turns = RoundsInTurn({"a": lambda number: 1.0, "b": lambda number: 2.0})
    turns.round()
    turns.keep({"b"})
    assert turns.round() == {"b": 2.0}
    assert turns.times == {"a": [1.0], "b": [2.0, 2.0]}


def test_whoever_fails_takes_part_no_more() -> None:
    def fails(number: int) -> float:
        if number:
            raise ValueError("it ended")
        return 1.0

    turns = RoundsInTurn({"a": fails, "b": lambda number: [5.0 + number, 4.0]}, (ValueError,))
    turns.run(2)
    assert (turns.least(), turns.medians()) == ({"b": 4.0}, {"b": 4.5})
    assert turns.skipped == {"a": "it ended"}
