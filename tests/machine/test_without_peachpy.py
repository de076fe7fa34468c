"""Without PeachPy the package imports, and the first compile names the one command that helps."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILE = """
import numpy, sparsejit
from sparsejit.errors import MissingDependency
try:
    sparsejit.compile_matrix(numpy.eye(16, dtype=numpy.float32))
except MissingDependency as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("peachpy", "reason"),
    [
        ("raise ImportError('hidden by a test')", "hidden by a test"),
        ("print 'the release for Python 2'", "Missing parentheses in call to 'print'"),
        ("", "cannot import name 'x86_64' from 'peachpy'"),
    ],
    ids=["absent", "python 2", "another"],
)
def test_the_first_compile_names_the_command(tmp_path: Path, peachpy: str, reason: str) -> None:
    (tmp_path / "peachpy.py").write_text(peachpy)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"PeachPy 0.2.0 cannot be imported ({reason}")
    assert done.stdout.endswith(f"; run: {sys.executable} -m sparsejit.install_peachpy\n")
