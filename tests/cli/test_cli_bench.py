"""`sparsejit bench`: what it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from fake_clock import TICK_NS, FakeClock
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.perf.kernels import PLACES
from sparsejit.perf.operators import run_operators
from sparsejit.planner.kernels import OTHER_KERNELS
from sparsejit.selftest.examination import graph_output

# The chain of dependent additions that tells cycles from nanoseconds.
CHAIN = 4096

ROW_KEYS = {
    *("problem", "strategy", "dtype", "isa", "M", "N", "nnz", "ns_min", "ns_median"),
    *("effective_gflops", "real_gflops", "code_bytes", "pool_bytes", "compile_ms"),
    "max_abs_error",
}


@pytest.fixture(autouse=True)
def every_time_is_a_tick(steady_clock: FakeClock) -> None:
    """Nothing here looks at the time."""


def test_json_rows(tmp_path: Path) -> None:
    plot = tmp_path / "roofline.png"
    arguments = ["bench", "kernels", "--problem", "B", "--strategy", "broadcast"]
    arguments += ["--dtype", "float32", "--json", "--plot", str(plot)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert ROW_KEYS.issubset(row)
    assert (row["problem"], row["M"], row["N"]) == ("B", 256, 256)
    assert row["effective_gflops"] == pytest.approx(5 * row["real_gflops"], rel=0.01)
    assert row["ns_min"] == row["ns_median"] == TICK_NS
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("kernels --problem Z", "'Z' is unknown; use one of A, B"),
        ("kernels --strategy fast", "'fast' is unknown; use one of auto, "),
        ("kernels --dtype float8", "'float8' is unknown; use one of float32, "),
        ("batch --shape 12", "shape '12'; give outputs and inputs"),
        ("batch --size 1", "batch 1 is out of range"),
        ("recorded --isa sse", "level 'sse' is unknown; use one of avx2, avx512"),
        ("threads --problem D16", "'D16' is unknown; use one of A, B"),
        ("sweep --problem D16", "'D16' is unknown; use one of A, B"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_is_timed(arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments.split()])
    assert isinstance(result.exception, InvalidInput)
    assert message in str(result.exception)
    assert result.output == ""


def test_a_file_beside_the_tables(tmp_path: Path) -> None:
    """The same rows as on stdout with --json, which has tables without."""
    file = tmp_path / "new folder" / "rows.json"
    arguments = ["bench", "sweep", "--problem", "B", "--size", "2", "--out", str(file)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "ns a column" in shown.stdout
    (row,) = json.loads(file.read_text())
    assert (row["problem"], row["batch"], row["ns"]) == ("B", 2, TICK_NS)
    both = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(both.stdout) == [row]


@pytest.mark.parametrize(
    "command", ["kernels", "batch", "sweep", "padding", "threads", "check"]
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(
    command: str, tmp_path: Path, steady_clock: FakeClock
) -> None:
    result = CliRunner().invoke(app, ["bench", command, "--out", str(tmp_path)])
    assert isinstance(result.exception, InvalidInput)
    assert str(tmp_path) in str(result.exception)
    assert result.stdout == "" and steady_clock.now == 0


def test_a_family_without_a_kernel_for_the_problem(tmp_path: Path) -> None:
    arguments = ["bench", "kernels", "--problem", "D16", "--strategy", "lookup"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "rows.json")])
    assert isinstance(result.exception, InvalidInput)
    assert "no kernel of this --strategy takes" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_threads_are_compared_with_one() -> None:
    arguments = ["bench", "threads", "--problem", "C95", "--dtype", "float32", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (gain,) = found["gains"]
    assert (gain["problem"], gain["threads"]) == ("C95", 2)
    assert gain["ns_alone"] == gain["ns_shared"] == TICK_NS
    assert gain["speed_up"] == 1
    assert found["barrier_ns"] == 0


def test_rates_of_padded_lines_count_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All loops take a tick, so eight times the bytes come at eight times the rate, padded or not.

    A cycle is a tick's share of the chain of additions that tells the clock.
    """
    monkeypatch.setattr("sparsejit.perf.machine.KILOBYTES", (16, 128))
    result = CliRunner().invoke(app, ["bench", "padding", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    rates = {(row["run"], row["kilobytes"]): row["bytes_a_cycle"] for row in rows}
    assert len(rates) == 2 * 7
    for (_, kilobytes), rate in rates.items():
        assert rate == pytest.approx((kilobytes << 10) / CHAIN)


def test_recordings_of_all_processors() -> None:
    """A table as Markdown has it, and below it whose the columns are."""
    result = CliRunner().invoke(app, ["bench", "recorded"])
    assert result.exit_code == 0, result.output
    assert "| zen5 float32 |" in result.stdout and "zen5: AMD EPYC" in result.stdout


def test_two_outputs_may_not_be_one_file(tmp_path: Path) -> None:
    """The plot would take the place of the rows."""
    path = str(tmp_path / "one")
    refused = CliRunner().invoke(app, ["bench", "kernels", "--out", path, "--plot", path])
    assert isinstance(refused.exception, InvalidInput)
    assert "two outputs are one file" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--layers=-1", "--layers=0", "--from=-1", "--batch=0"])
def test_the_planner_is_not_surveyed_on_less_than_nothing(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey = "sparsejit.perf.planner_survey.survey"
    monkeypatch.setattr(survey, lambda *_: pytest.fail("timed"))
    result = CliRunner().invoke(app, ["bench", "planner", option])
    assert result.exit_code == 2 and option.partition("=")[0] in result.output


def test_kernels_of_other_operators_are_timed_in_their_graphs() -> None:
    """The named ones alone, each in the dtypes that it has."""
    arguments = ["bench", "kernels", "--strategy", "pooling", "--strategy", "masked attention"]
    result = CliRunner().invoke(app, [*arguments, "--dtype", "float32", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["strategy"] for row in rows] == ["pooling", "masked attention"]
    assert {(row["problem"], row["dtype"]) for row in rows} == {
        *(("pooling", "float32"), ("attention", "float32"))
    }
    for row in rows:
        assert row["ns_min"] == row["ns_median"] == TICK_NS
        assert 0 < row["relative_error"] < 1e-5 or row["max_abs_error"] == 0
        assert row["sizes"] and row["ns_predicted"] > 0 and len(row["ns_by_place"]) == PLACES
    shown = CliRunner().invoke(app, [*arguments, "--dtype", "bfloat16"])
    assert isinstance(shown.exception, InvalidInput)
    assert "no kernel of this --strategy takes" in str(shown.exception)


def test_all_kernels_are_timed_unless_a_problem_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("sparsejit.perf.kernels.run", lambda *_: [])
    monkeypatch.setattr(
        "sparsejit.perf.operators.run_operators", lambda names, *_: asked.append(names) or []
    )
    for arguments in ([], ["--problem", "B"], ["--strategy", "dense", "--strategy", "fours"]):
        CliRunner().invoke(app, ["bench", "kernels", *arguments])
    assert asked == [[*OTHER_KERNELS], [], ["fours"]]


@pytest.mark.parametrize("name", ["pooling", "attention", "forest-rows"])
def test_a_graph_s_time_means_nothing_where_its_output_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sparsejit.perf.operators.graph_output", lambda case: 2 * graph_output(case)
    )
    with pytest.raises(CompileError, match="nothing more is measured"):
        run_operators([name])
