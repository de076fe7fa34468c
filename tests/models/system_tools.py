"""The compiler and linker of the system, for tests that link what is exported."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparsejit.artefact import export

GCC = shutil.which("gcc")
MINGW, WINE = shutil.which("x86_64-w64-mingw32-gcc"), shutil.which("wine")
needs_gcc = pytest.mark.skipif(GCC is None, reason="gcc is not there to compile C")
needs_windows = pytest.mark.skipif(
    MINGW is None or WINE is None, reason="mingw-w64 or wine is not there to run a Windows program"
)
needs_linker = pytest.mark.skipif(
    not any(map(shutil.which, export.LINKERS)), reason="there is no linker"
)


def run_tool(*command: Any) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def run_windows(program: Path, windows: dict[str, str], *names: str) -> None:
    done = subprocess.run(
        [str(WINE), program.name, *names],
        cwd=program.parent, env=windows, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
