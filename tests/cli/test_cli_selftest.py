"""`sparsejit selftest`: what it prints, and how it ends."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from typer.testing import CliRunner

from sparsejit.commands import cli, selftest
from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.selftest import trials
from sparsejit.selftest.cases import Case
from sparsejit.selftest.examination import NativeCase, Verdict
from sparsejit.selftest.trials import SelfTest

RUNNER = CliRunner(env={"COLUMNS": "200"})


def refuse(case: Case) -> NativeCase:
    raise InvalidInput("no such kernel")


def test_a_sound_machine() -> None:
    done = RUNNER.invoke(cli.app, ["selftest", "--kernels", "40", "--seed", "5"])
    assert done.exit_code == 0, done.output
    assert "40 of 40 kernels held" in done.stdout
    assert f"{Target.detect().model}, avx2" in done.stdout
    assert "seed 5" in done.stdout
    assert re.fullmatch(r"(\d+%: [\d,]+ held, 0 failed\n)+", done.stderr)


def test_json() -> None:
    done = RUNNER.invoke(cli.app, ["selftest", "--kernels", "12", "--seed", "5", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["seed"], report["kernels"], report["held"]) == (5, 12, 12)
    assert report["failures"] == []
    assert sum(kind["held"] for kind in report["by_kind"]) == 12
    assert {"version", "processor", "levels", "seconds"} <= set(report)


def test_one_kernel_alone() -> None:
    done = RUNNER.invoke(cli.app, ["selftest", "--seed", "5", "--only", "31"])
    assert done.exit_code == 0, done.output
    assert "1 of 1 kernels held" in done.stdout


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_failure_is_printed_with_its_command(
    form: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEJIT_MAX_ISA", raising=False)
    monkeypatch.setattr(trials, "SelfTest", partial(SelfTest, compile_it=refuse))
    done = RUNNER.invoke(cli.app, ["selftest", "--seed", "5", "--kernels", "2", *form])
    assert done.exit_code == 1
    for number in (0, 1):
        assert f"kernel {number} was not compiled: InvalidInput: no such kernel" in done.stderr
        assert f"  repeat it: sparsejit selftest --seed 5 --only {number}\n" in done.stderr
    if form:
        failure = min(json.loads(done.stdout)["failures"], key=lambda one: one["number"])
        assert failure["command"] == "sparsejit selftest --seed 5 --only 0"
    else:
        assert "0 of 2 kernels held" in done.stdout


def test_an_interrupt_shows_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(SelfTest):
        def run(
            self, numbers: Iterator[int], go_on: Callable[[], bool] = lambda: True
        ) -> Iterator[Verdict]:
            yield Verdict(0, "dense", "int8", "avx2")
            raise KeyboardInterrupt

    monkeypatch.setattr(trials, "SelfTest", Interrupted)
    done = RUNNER.invoke(cli.app, ["selftest"])
    assert done.exit_code == 130
    assert "1 of 1 kernels held" in done.stdout


def test_a_seed_is_drawn_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest.secrets, "randbelow", lambda bound: bound - 1)
    done = RUNNER.invoke(cli.app, ["selftest", "--kernels", "1"])
    assert f"seed {2**31 - 1}" in done.stdout
