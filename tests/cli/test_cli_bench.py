"""`sparsejit bench kernels`: what it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.errors import InvalidInput

ROW_KEYS = {
    *("problem", "strategy", "dtype", "isa", "M", "N", "nnz", "ns_min", "ns_median"),
    *("effective_gflops", "real_gflops", "code_bytes", "pool_bytes", "compile_ms"),
    "max_abs_error",
}


@pytest.mark.serial
def test_json_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    plot = tmp_path / "roofline.png"
    arguments = ["bench", "kernels", "--problem", "B", "--strategy", "broadcast"]
    arguments += ["--dtype", "float32", "--json", str(file), "--plot", str(plot)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text())
    assert row.keys() >= ROW_KEYS
    assert (row["problem"], row["M"], row["N"]) == ("B", 256, 256)
    assert row["effective_gflops"] == pytest.approx(5 * row["real_gflops"], rel=0.01)
    assert 0 < row["ns_min"] <= row["ns_median"]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("kernels --problem Z", "'Z' is unknown; use one of A, B"),
        ("kernels --strategy fast", "'fast' is unknown; use one of auto, "),
        ("kernels --dtype float8", "'float8' is unknown; use one of float32, "),
        ("threads --problem D16", "'D16' is unknown; use one of A, B"),
        ("batch --problem D16", "'D16' is unknown; use one of A, B"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_is_timed(arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments.split()])
    assert isinstance(result.exception, InvalidInput)
    assert message in str(result.exception)
    assert result.output == ""


@pytest.mark.serial
def test_a_family_without_a_kernel_for_the_problem(tmp_path: Path) -> None:
    arguments = ["bench", "kernels", "--problem", "D16", "--strategy", "lookup"]
    result = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "rows.json")])
    assert isinstance(result.exception, InvalidInput)
    assert "no such kernel" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.serial
def test_threads_are_compared_with_one() -> None:
    arguments = ["bench", "threads", "--problem", "C95", "--dtype", "float32", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (gain,) = found["gains"]
    assert (gain["problem"], gain["threads"]) == ("C95", 2)
    assert gain["speed_up"] == pytest.approx(gain["ns_alone"] / gain["ns_shared"])
    assert found["barrier_ns"] > 0


@pytest.mark.serial
def test_lines_left_out_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsejit.perf.spare_lines.KILOBYTES", (16, 128))
    result = CliRunner().invoke(app, ["bench", "spare-lines", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    rates = {(row["run"], row["kilobytes"]): row["bytes_a_cycle"] for row in rows}
    assert rates["all", 16] > rates["all", 128] > 10
    assert rates["3", 128] > 0.6 * rates["all", 128]
