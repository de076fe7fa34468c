"""Without PeachPy kernels whose forms ship are compiled; others name the one command that helps."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILE = """
import numpy, sparsejit
from sparsejit.errors import MissingDependency
from sparsejit.x86.instructions import form_for
from sparsejit.x86.operands import zmm
weights = numpy.eye(16, 24, dtype=numpy.float32)
kernel = sparsejit.compile_matrix(weights, exact=True)
assert numpy.array_equal(kernel(numpy.arange(24, dtype=numpy.float32)), numpy.arange(16))
try:
    form_for("vpmadd52luq", (zmm(0), zmm(1), zmm(2)), 0)  # which no kernel has
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
def test_an_unknown_form_names_the_command(tmp_path: Path, peachpy: str, reason: str) -> None:
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
