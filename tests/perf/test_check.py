"""Claims of speed held to measurement: which apply, when rounds are repeated, what comes of it."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from fake_clock import FakeClock
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.errors import CompileError, InvalidInput, MissingDependency, UnsupportedTarget
from sparsejit.machine import microarchitecture
from sparsejit.machine.microarchitecture import MICROARCHITECTURES
from sparsejit.machine.target import ISA_LEVELS
from sparsejit.perf.checking import check, contests
from sparsejit.perf.checking.check import (
    FAILS,
    HOLDS,
    NO_PEER,
    NOT_HERE,
    ROUNDS,
    ClaimResult,
    judge,
)
from sparsejit.perf.checking.claims import CLAIMS, MKL_CSR, ONE_THREAD, PREDICTED, Claim, claims_of
from sparsejit.perf.checking.contests import contest_of
from sparsejit.perf.checking.model_contests import MODEL_SUBJECTS
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer
from sparsejit.perf.peers.peers import make_peer
from sparsejit.perf.problems import ALL_PROBLEMS
from sparsejit.perf.zoo import ZOO

CLAIM = Claim("B", "numpy (OpenBLAS)", 2.0, "a test")
CALM = [2.0, 2.1, 2.05, 2.0, 9.0]
NOISY = [1.0, 3.0, 2.0, 1.5, 2.5]


def scripted(*sets: list[float]) -> tuple[contests.Round, Iterator[float]]:
    """A contest with these ratios, and what is left of them."""
    ratios = iter([ratio for one in sets for ratio in one])
    return lambda: next(ratios), ratios


def claim_with(least: float) -> Claim:
    return Claim("A", MKL_CSR, least, "a test")


def test_the_median_of_calm_rounds_decides() -> None:
    """One round that something disturbed is no noise."""
    contest, left = scripted(CALM, CALM)
    outcome = judge(claim_with(2.05), contest)
    assert (outcome.verdict, outcome.ratio, outcome.repeats) == (HOLDS, 2.05, 0)
    assert outcome.spread == pytest.approx(0.1 / 2.1) and not outcome.noisy
    assert len(list(left)) == ROUNDS


def test_a_claim_fails_only_where_it_fails_every_time() -> None:
    """As where a neighbour spoilt all rounds of an attempt."""
    slow = [0.9 * ratio for ratio in CALM]
    contest, left = scripted(slow, slow, CALM, CALM)
    outcome = judge(claim_with(2.05), contest)
    assert (outcome.verdict, outcome.ratio, outcome.repeats) == (HOLDS, 2.05, 2)
    contest, left = scripted(slow, CALM, slow, NOISY, CALM)
    outcome = judge(claim_with(2.06), contest)
    assert (outcome.verdict, outcome.ratio, outcome.repeats) == (FAILS, 2.05, 3)
    assert len(list(left)) == ROUNDS


def test_noisy_rounds_are_repeated_until_they_agree() -> None:
    contest, left = scripted(NOISY, NOISY, CALM, CALM)
    outcome = judge(claim_with(2.0), contest)
    assert (outcome.verdict, outcome.ratio, outcome.repeats) == (HOLDS, 2.05, 2)
    assert len(list(left)) == ROUNDS


def test_of_rounds_that_never_agree_the_calmest_decide() -> None:
    calmer = [1.9, 1.6, 1.7, 1.8, 1.5]
    contest, left = scripted(NOISY, calmer, NOISY, NOISY, CALM)
    outcome = judge(claim_with(2.0), contest)
    assert (outcome.verdict, outcome.ratio, outcome.noisy) == (FAILS, 1.7, True)
    assert outcome.repeats == check.MOST_REPEATS == 3 and len(list(left)) == ROUNDS


def test_rounds_of_nothing_agree() -> None:
    contest, _ = scripted(*[[0.0] * ROUNDS] * 4)
    assert judge(claim_with(0.5), contest).verdict == FAILS


@pytest.mark.parametrize(
    ("core", "isa", "applies"),
    [("zen5", "avx512", True), ("zen5", "avx2", False), ("zen4", "avx512", False)],
)
def test_a_claim_for_one_core(core: str, isa: str, applies: bool) -> None:
    claim = Claim("A", MKL_CSR, 6.0, "a test", microarchitecture="zen5", isa="avx512")
    assert claim.applies(core, isa) is applies
    assert CLAIM.applies(core, isa)


@pytest.mark.parametrize(
    ("problem", "verdict"),
    [(MissingDependency("no mkl"), NO_PEER), (UnsupportedTarget("one core"), NOT_HERE)],
)
def test_claims_that_cannot_be_measured_are_listed_and_fail_nothing(
    problem: Exception, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(claim: Claim) -> contests.Round:
        raise problem

    monkeypatch.setattr(check, "contest_of", refuse)
    (outcome,) = check.check([CLAIM])
    assert (outcome.verdict, outcome.why, outcome.ratio) == (verdict, str(problem), None)
    assert check.all_hold([outcome])


def test_claims_for_other_processors_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "contest_of", lambda claim: pytest.fail("measured"))
    monkeypatch.setattr(microarchitecture, "detect", lambda: "generic")
    elsewhere = [claim for claim in CLAIMS if claim.microarchitecture is not None]
    outcomes = check.check(elsewhere)
    assert {outcome.verdict for outcome in outcomes} == {NOT_HERE}
    assert [outcome.claim for outcome in outcomes] == elsewhere


def test_every_claim_can_be_measured_and_makes_sense() -> None:
    """Its problem and peer, or its contest, exist; none is made twice; each says its source."""
    peers = {MKL_CSR, PREDICTED, ONE_THREAD}
    for claim in CLAIMS:
        if claim.subject in ALL_PROBLEMS:
            assert claim.against in peers
        elif claim.subject in MODEL_SUBJECTS:
            assert claim.against in MODEL_PEERS and MODEL_SUBJECTS[claim.subject].model in ZOO
        else:
            assert (claim.subject, claim.against) in contests.CONTESTS
        assert claim.least > 0 and claim.source
        assert claim.measured is None or claim.least <= claim.measured
        assert claim.microarchitecture in (None, *MICROARCHITECTURES)
        assert claim.isa in (None, *ISA_LEVELS)
    keys = [(c.subject, c.dtype, c.against, c.microarchitecture, c.isa) for c in CLAIMS]
    assert len(set(keys)) == len(keys)
    claimed = {(claim.subject, claim.against) for claim in CLAIMS}
    assert claimed >= contests.CONTESTS.keys()


def test_a_model_is_not_compiled_where_its_peer_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = ModelPeer("absent", "", ("no-such-package",))
    monkeypatch.setitem(MODEL_PEERS, "absent", absent)
    with pytest.raises(MissingDependency, match="bench peers --install absent"):
        contest_of(Claim("mlp at 90 %", "absent", 1.0, "a test"))


def test_unknown_subjects_are_refused() -> None:
    assert claims_of(["C95"]) == [claim for claim in CLAIMS if claim.subject == "C95"]
    with pytest.raises(InvalidInput, match="nothing is claimed of 'Z'; use one of A, "):
        claims_of(["A", "Z"])


@pytest.mark.parametrize(
    "claim",
    [
        CLAIM,
        Claim("B", "numpy (OpenBLAS)", 2.0, "a test", "int8"),
        Claim("D16", "torch F.linear", 2.0, "a test"),
        Claim("A", PREDICTED, 0.9, "a test"),
    ],
    ids=lambda claim: f"{claim.subject}-{claim.dtype}-{claim.against}",
)
def test_a_kernel_and_its_rival_are_timed_alike(claim: Claim, steady_clock: FakeClock) -> None:
    assert contest_of(claim)() == 1.0


def test_a_wrong_rival_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(name: str, weights: np.ndarray, x: np.ndarray) -> object:
        return make_peer(name, weights, 1.001 * x)

    monkeypatch.setattr(contests, "make_peer", wrong)
    with pytest.raises(CompileError, match="largest error"):
        contest_of(CLAIM)


def test_a_wrong_kernel_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_matrix = contests.compile_matrix

    def wrong(weights: np.ndarray, **options: object) -> object:
        return compile_matrix(1.001 * weights, **options)

    monkeypatch.setattr(contests, "compile_matrix", wrong)
    with pytest.raises(CompileError, match="largest error"):
        contest_of(CLAIM)


@pytest.mark.parametrize(
    ("key", "ratio"),
    [
        (("a call from Python", "numpy's of the same size"), 1.0),
        (("a bound call", "an empty call and the kernel"), 2.0),
        (("four threads on one core", ONE_THREAD), 1.0),
        (("padded lines from L2", "all lines"), 1.0),
        (("ten times the work", "ten times the time"), 0.1),
        (("a network at 95 %", "itself dense"), 1.0),
        (("a larger batch's time", "the longest before"), 1.0),
    ],
    ids=lambda key: key[0] if isinstance(key, tuple) else "",
)
def test_contests_of_the_rest_run(
    key: tuple[str, str], ratio: float, steady_clock: FakeClock
) -> None:
    """If all takes a tick, the same is as good as the same."""
    assert contests.CONTESTS[key]()() == pytest.approx(ratio)


def run_check(
    outcomes: list[ClaimResult], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(check, "check", lambda claims, progress: outcomes)
    result = CliRunner().invoke(app, ["bench", "check", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout


FOUND = [
    ClaimResult(CLAIM, HOLDS, 2.5, 0.03),
    ClaimResult(CLAIM, NOT_HERE, why="claimed for zen5"),
    ClaimResult(CLAIM, NO_PEER, why="no mkl"),
]
FAILED = ClaimResult(Claim("D16", MKL_CSR, 3.0, "a test"), FAILS, 1.5, 0.4, repeats=3)


def test_the_command_says_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = run_check(FOUND, monkeypatch)
    assert code == 0
    for word in ("holds", "not for this processor", "peer absent", "2.50", "1 of 1 claims hold"):
        assert word in shown
    code, shown = run_check([*FOUND, FAILED], monkeypatch)
    assert code == 1
    for word in ("fails", "~40%", "D16, batch 16", "1 of 2 claims hold"):
        assert word in shown


def test_the_command_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = run_check([*FOUND, FAILED], monkeypatch, "--json")
    found = json.loads(shown)
    assert code == 1 and found["holds"] is False
    assert found["microarchitecture"] == microarchitecture.detect()
    last = found["claims"][-1]
    assert (last["claim"]["subject"], last["batch"], last["ratio"]) == ("D16", 16, 1.5)
    assert (last["verdict"], last["noisy"], last["repeats"]) == ("fails", True, 3)
