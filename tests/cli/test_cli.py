"""The command line: exit statuses, error lines, and what doctor finds on bad machines."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import sparsejit
from sparsejit.commands import cli, console, doctor, machine_report
from sparsejit.commands.cli import COMMANDS
from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import Target
from sparsejit.planner import calibration

ROOT = Path(__file__).parents[2]


def run(
    *arguments: str, unset: str = "", first: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command line in a child, which looks for modules in the folder `first` first."""
    environ = {name: value for name, value in os.environ.items() if name != unset}
    if first:
        known = filter(None, [environ.get("PYTHONPATH")])
        environ["PYTHONPATH"] = os.pathsep.join([str(first), *known])
    return subprocess.run(
        [sys.executable, "-m", "sparsejit.commands.cli", *arguments],
        cwd=ROOT,
        env={**environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# Packages that the command line imports for commands that need them, and none for its help; the
# compiler of kernels and, larger, the compiler of models.
KERNELS, MODELS = "sparsejit.planner.kernel_choice", "sparsejit.lowering.model_code"
HEAVY = (
    *("numpy", "peachpy", "torch", "onnx", "onnxruntime", "scipy", "sklearn", "matplotlib"),
    *(KERNELS, MODELS),
)
LOADED = f"""
import sys
from sparsejit.commands.cli import app
try:
    app(sys.argv[1:])
finally:
    print("loaded", *(name for name in {HEAVY} if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["--version"], []),
        (["--help"], []),
        *(([name, "--help"], []) for name in COMMANDS if name not in ("bench", "synth", "demo")),
        (["bench", "--help"], ["numpy"]),
        (["doctor"], ["numpy", KERNELS]),
        (["check", "small.sjit"], ["numpy", KERNELS, MODELS]),
        (["explain", "small.sjit"], ["numpy", KERNELS, MODELS]),
    ],
)
def test_a_command_imports_only_packages_that_it_needs(
    arguments: list[str], imported: list[str], tmp_path: Path
) -> None:
    sparsejit.compile_matrix(np.eye(16, dtype=np.float32)).save(tmp_path / "small.sjit")
    child = [sys.executable, "-c", LOADED, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(child, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["loaded", *imported]


def test_help_opens_with_the_commands_that_people_use_most() -> None:
    lines = CliRunner().invoke(cli.app, ["--help"], terminal_width=120).output.splitlines()
    listed = [line[2:].partition(" ")[0] for line in lines if line.startswith("\u2502")]
    commands = [name for name in listed if name in COMMANDS]
    assert commands == list(COMMANDS)
    assert commands[:5] == ["compile", "bench", "shrink", "explain", "check"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str) -> None:
    """The line of the table is the first of its docstring, and flags have no type."""
    command = COMMANDS[name].load(name)
    assert command.help.partition("\n")[0] == COMMANDS[name].help
    names = [[name], *([name, each] for each in getattr(command, "commands", {}))]
    for each in ([], *names):
        shown = CliRunner().invoke(cli.app, [*each, "--help"], terminal_width=120)
        assert shown.exit_code == 0
        assert "--help" in shown.output
        assert "<bool>" not in shown.output


def test_doctor_on_this_machine() -> None:
    done = run("doctor", SPARSEJIT_MAX_ISA="avx2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "level in force: avx2, 16 vector registers of 8 float32" in done.stdout
    assert "no AVX-512: int8 convolutions by AVX" in " ".join(done.stdout.split())
    assert done.stdout.endswith("ready\n")


@pytest.mark.parametrize(
    ("isa", "more", "line"),
    [
        ("avx512", {"avx512_vnni", "avx512_bf16"}, ""),
        ("avx512", {"avx512_vnni"}, "no AVX512-BF16: dense bfloat16 layers by float32, about 0.5"),
        ("avx512", set(), "no AVX-512 VNNI: quantised layers"),
        ("avx2", {"avx_vnni"}, "no AVX-512: int8 convolutions by AVX-VNNI"),
        ("avx2", set(), "no AVX-512: int8 convolutions by AVX2"),
    ],
)
def test_doctor_says_what_a_processor_lacks(isa: str, more: set[str], line: str) -> None:
    level = Target.named(isa)
    target = replace(level, instruction_sets=level.instruction_sets | more)
    assert machine_report.lacking(target).startswith(line)
    assert bool(machine_report.lacking(target)) is bool(line)
    assert machine_report.lacking(target).count("; ") == (isa == "avx512" and not more)


def test_doctor_lists_packages_of_developers_only_where_all_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = ["not-there>=1; extra == 'dev'", "nor-this>=1; extra == 'voice'"]
    monkeypatch.setattr(machine_report.metadata, "requires", lambda name: wanted)
    for options, names in (([], {"nor-this"}), (["--all"], {"nor-this", "not-there"})):
        said = CliRunner().invoke(cli.app, ["doctor", *options], terminal_width=200).stdout
        assert {name for name in ("nor-this", "not-there") if name in said} == names
        assert ("to measure and develop" in said) == bool(options)


def test_every_extra_has_one_purpose() -> None:
    extras = [extra for each in doctor.PURPOSES.values() for extra in each]
    declared = metadata.metadata("sparsejit").get_all("Provides-Extra") or []
    assert sorted(extras) == sorted({"core", *declared})


def test_doctor_json_is_json() -> None:
    report = json.loads(run("doctor", "--json", SPARSEJIT_MAX_ISA="avx2").stdout)
    assert report["can_run"] is True
    assert report["target"]["isa"] == "avx2"
    assert {"avx2", "fma"} <= set(report["target"]["instruction_sets"])
    peachpy = next(finding for finding in report["findings"] if finding["name"] == "peachpy")
    assert peachpy["found"].endswith("peachpy")


def test_doctor_names_the_rates_and_where_measurements_are_kept(tmp_path: Path) -> None:
    done = run("doctor", "--json", XDG_CACHE_HOME=str(tmp_path))
    report = json.loads(done.stdout)
    assert report["rates"] == Target.detect().core.origin
    assert report["cache"] == str(tmp_path / "sparsejit")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "sparsejit").write_text("a file in its place")
    done = run("doctor", XDG_CACHE_HOME=str(tmp_path), SPARSEJIT_CALIBRATE="1")
    assert done.returncode == 0
    assert "\ncache: nothing is kept: " in done.stdout
    assert f"\nrates: {Target.detect().core.origin}, because " in done.stdout
    assert " cannot be read: Not a directory; XDG_CACHE_HOME " in done.stdout


def test_doctor_below_avx2_fails_with_the_remedy() -> None:
    done = run("doctor", SPARSEJIT_MAX_ISA="sse2")
    assert done.returncode == 1
    assert "SPARSEJIT_MAX_ISA=sse2 is below AVX2" in done.stdout
    assert "set it to avx2 or avx512, or unset it" in done.stdout


def test_doctor_runs_without_peachpy_and_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "peachpy.py").write_text("raise ImportError('hidden by a test')")
    done = run("doctor", "--all", first=tmp_path)
    assert done.returncode == 0
    assert "python: ImportError: hidden by a test" in done.stdout
    assert f"remedy for peachpy: {sys.executable} -m sparsejit.install_peachpy" in done.stdout
    assert done.stdout.endswith("ready\n")


def test_doctor_names_a_setting_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEJIT_CALIBRATE", "off")
    printed = CliRunner().invoke(cli.app, ["doctor"], terminal_width=200)
    assert printed.exit_code == 1
    remedy = "SPARSEJIT_CALIBRATE=off: set it to 0 or 1, or unset it"
    assert f"\nremedy for a kernel: {remedy}\n" in printed.stdout
    assert f"\nrates: none: {remedy}\n" in printed.stdout


@pytest.mark.parametrize("peachpy", ["", "raise ImportError('hidden by a test')"])
def test_doctor_measures_and_writes_nothing(peachpy: str, tmp_path: Path) -> None:
    """Which would need PeachPy: as a user has it, with no setting and nothing kept."""
    hidden, kept = tmp_path / "hidden", tmp_path / "kept"
    hidden.mkdir()
    kept.mkdir()
    if peachpy:
        (hidden / "peachpy.py").write_text(peachpy)
    cache = {"XDG_CACHE_HOME": str(kept)}
    done = run("doctor", "--json", unset="SPARSEJIT_CALIBRATE", first=hidden, **cache)
    report = json.loads(done.stdout)
    assert (done.returncode, report["can_run"]) == (0, True)
    assert report["rates"] == Target.detect().core.origin
    assert done.stderr == "" and list(kept.iterdir()) == []


@pytest.mark.parametrize(
    ("requirement", "name", "needed_by", "remedy"),
    [
        ("nowhere-kit>=1.2", "nowhere-kit", "core", "'nowhere-kit>=1.2'"),
        ('nowhere==2; extra == "torch"', "nowhere", "torch", "'sparsejit[torch]'"),
        ("no.where>=1; extra == 'torch'", "no.where", "torch", "'sparsejit[torch]'"),
        ("nowhere[x]<3; extra == 'dev'", "nowhere", "dev", "'sparsejit[dev]'"),
    ],
)
def test_a_missing_package(requirement: str, name: str, needed_by: str, remedy: str) -> None:
    finding = machine_report._package(requirement)
    assert (finding.name, finding.found, finding.needed_by) == (name, None, needed_by)
    assert finding.remedy == f"{sys.executable} -m pip install {remedy}"


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        *(("torch>=2.9,<3", True), ("torch<3,>=2.13.0", True), ("torch==2.13", True)),
        *(("torch", True), ("torch>=2.14", False), ("torch<2.9", False), ("torch!=2.13.0", False)),
    ],
)
def test_a_package_of_another_version_is_told(
    wanted: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_report.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(machine_report.metadata, "requires", lambda name: [wanted])
    found = {each.name: each for each in machine_report.examine(False).findings}["torch"]
    assert found.ok is fits
    if not fits:
        assert found.found == f"2.13.0+cpu, but {wanted} is needed"
        assert found.remedy == f"{sys.executable} -m pip install '{wanted}'"


def test_doctor_says_where_data_are_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(Target.detect(), core=core_named("zen4"))
    monkeypatch.setattr(Target, "detect", lambda: target)
    assert machine_report.examine(False).rates == "data of zen4 (assumed)"


def test_doctor_breaks_no_line_that_a_script_may_read() -> None:
    sets = " ".join(sorted(Target.detect().instruction_sets))
    assert f"\ninstruction sets: {sets}\n" in run("doctor", COLUMNS="80").stdout


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


@pytest.fixture
def rates_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates that `calibrate` would measure, at once."""
    monkeypatch.setattr(calibration, "calibrate", lambda target: target.core)


@pytest.mark.usefixtures("rates_given")
@pytest.mark.parametrize("command", ["doctor", "calibrate"])
def test_json_goes_to_stdout_and_to_a_file(command: str, tmp_path: Path) -> None:
    file = tmp_path / "deeper/report.json"
    printed = CliRunner().invoke(cli.app, [command, "--json"])
    assert printed.exit_code == 0, printed.output
    both = CliRunner().invoke(cli.app, [command, "--json", "--out", str(file)])
    assert json.loads(both.stdout) == json.loads(file.read_text())
    assert json.loads(printed.stdout).keys() == json.loads(file.read_text()).keys()
    tables = CliRunner().invoke(cli.app, [command, "--out", str(file)])
    assert tables.exit_code == 0 and not tables.stdout.startswith("{")


@pytest.mark.parametrize(
    ("command", "module", "work"),
    [("doctor", machine_report, "examine"), ("calibrate", calibration, "calibrate")],
)
def test_outputs_are_checked_before_the_work(
    command: str, module: ModuleType, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, work, lambda *_: pytest.fail("worked for nothing"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file/x.json", tmp_path, Path("/proc/x.json"), Path("/dev/null")):
        result = CliRunner().invoke(cli.app, [command, "--out", str(out)])
        assert isinstance(result.exception, InvalidInput)
        assert str(result.exception).startswith(f"{str(out)!r} cannot be written: ")


@pytest.mark.usefixtures("rates_given")
def test_calibrate_says_where_the_rates_are_from() -> None:
    printed = CliRunner().invoke(cli.app, ["calibrate"]).stdout
    assert printed.splitlines()[-1] == Target.detect().core.origin


def test_a_dump_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    done = run("doctor", SPARSEJIT_DUMP=str(tmp_path / "file"))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"error: SPARSEJIT_DUMP={tmp_path}/file: ")
    assert done.stderr.endswith("folder that can be written to, or unset it\n")
    monkeypatch.setenv("SPARSEJIT_DUMP", str(tmp_path / "file"))
    with pytest.raises(InvalidInput, match=r"SPARSEJIT_DUMP=.*file is no folder"):
        sparsejit.compile_matrix(np.eye(16, dtype=np.float32))
    monkeypatch.setenv("SPARSEJIT_DUMP", str(tmp_path / "new/deeper"))
    sparsejit.compile_matrix(np.eye(16, dtype=np.float32))
    assert {file.suffix for file in (tmp_path / "new/deeper").iterdir()} == {".bin", ".lst"}


def test_usage_errors_exit_with_2() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_a_command_without_its_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "find_spec", lambda _: None)
    remedy = r"needs torch, scipy: pip install 'sparsejit\[torch,bench\]'"
    with pytest.raises(MissingDependency, match=remedy):
        console.require("torch", "scipy")


def test_train_refuses_a_folder_without_recordings(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert run("train", str(tmp_path / "absent")).returncode == 2
    done = run("train", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}")
    assert "Traceback" not in done.stderr


def test_version_is_the_installed_one() -> None:
    assert run("--version").stdout == f"sparsejit {metadata.version('sparsejit')}\n"
    done = subprocess.run(
        [sys.executable, "-m", "sparsejit", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "--install-completion" in done.stdout
