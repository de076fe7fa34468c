"""The command line: exit statuses, error lines, and what doctor finds on bad machines."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sparsejit.commands import cli, console, machine_report
from sparsejit.errors import InvalidInput, MissingDependency

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparsejit.commands.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_doctor_on_this_machine() -> None:
    done = run("doctor", SPARSEJIT_MAX_ISA="avx2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "level in force: avx2, 16 vector registers of 8 float32" in done.stdout
    assert done.stdout.endswith("ready\n")


def test_doctor_json_is_json() -> None:
    report = json.loads(run("doctor", "--json", SPARSEJIT_MAX_ISA="avx2").stdout)
    assert report["can_run"] is True
    assert report["target"]["isa"] == "avx2"
    assert {"avx2", "fma"} <= set(report["target"]["instruction_sets"])
    peachpy = next(finding for finding in report["findings"] if finding["name"] == "peachpy")
    assert peachpy["found"].endswith("peachpy")


def test_doctor_below_avx2_fails_with_the_remedy() -> None:
    done = run("doctor", SPARSEJIT_MAX_ISA="sse2")
    assert done.returncode == 1
    assert "SPARSEJIT_MAX_ISA=sse2 is below AVX2" in done.stdout
    assert "set it to avx2 or avx512, or unset it" in done.stdout


def test_doctor_runs_without_peachpy_and_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "peachpy.py").write_text("raise ImportError('hidden by a test')")
    done = run("doctor", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "python: ImportError: hidden by a test" in done.stdout
    assert f"remedy for peachpy: {sys.executable} -m sparsejit.install_peachpy" in done.stdout


@pytest.mark.parametrize(
    ("requirement", "name", "needed_by", "remedy"),
    [
        ("nowhere-kit>=1.2", "nowhere-kit", "core", "'nowhere-kit>=1.2'"),
        ('nowhere==2; extra == "torch"', "nowhere", "torch", "'nowhere==2'"),
        ("no.where>=1; extra == 'torch'", "no.where", "torch", "'no.where>=1'"),
        ("nowhere[x]<3; extra == 'dev'", "nowhere", "dev", "'nowhere[x]<3'"),
    ],
)
def test_a_missing_package(requirement: str, name: str, needed_by: str, remedy: str) -> None:
    finding = machine_report._package(requirement)
    assert (finding.name, finding.found, finding.needed_by) == (name, None, needed_by)
    assert finding.remedy == f"{sys.executable} -m pip install {remedy}"


def test_only_the_core_decides_whether_it_can_run() -> None:
    extra = machine_report.Finding("mkl", None, "bench", "pip install mkl")
    core = machine_report.Finding("numpy", None, "core", "pip install numpy")
    assert machine_report.Diagnosis(None, (extra,)).can_run
    assert not machine_report.Diagnosis(None, (extra, core)).can_run


def test_an_expected_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise InvalidInput("shape (3,) [not a tag]; pass (4,)")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.delenv("SPARSEJIT_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert capsys.readouterr().err == "error: shape (3,) [not a tag]; pass (4,)\n"
    monkeypatch.setenv("SPARSEJIT_DEBUG", "1")
    with pytest.raises(InvalidInput):
        cli.main()


def test_usage_errors_exit_with_2() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_a_command_without_its_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"needs torch.*sparsejit doctor"):
        console.require("torch")


def test_train_refuses_a_folder_without_recordings(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert run("train", str(tmp_path / "absent")).returncode == 2
    done = run("train", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}")
    assert "Traceback" not in done.stderr


def test_version_is_the_installed_one() -> None:
    assert run("--version").stdout == f"sparsejit {metadata.version('sparsejit')}\n"
