"""What `make package-check` runs: the wheel and the sdist, each in a bare environment.

Builds both in a temporary folder, installs each where there is nothing but pip, and tries what a
new user would. Not part of the test-suite: it needs the package index and some minutes.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

USE = """
import numpy, sparsejit
weights = numpy.eye(64, dtype=numpy.float32)
x = numpy.arange(64, dtype=numpy.float32)
assert numpy.allclose(sparsejit.compile_matrix(weights)(x), x, rtol=1e-5)
from sparsejit.voice.bundled import bundled_utterance
audio = sparsejit.WaveRNN.from_pretrained().generate(bundled_utterance().mel[:, :12], seed=0)
assert audio.dtype == numpy.float32 and len(audio) > 0 and numpy.abs(audio).max() > 0
from importlib.util import find_spec
assert find_spec("sparsejit.perf.checking.check") and not find_spec("sparsejit.perf.studies")
print(sparsejit.__file__, len(audio), "samples")
"""
TYPED = """
import numpy
import sparsejit
wrong: int = sparsejit.compile_matrix(numpy.eye(16, dtype=numpy.float32))
"""
# What needs no extras, such as torch.
TESTS = ("tests/test_house.py", "tests/machine", "tests/kernels/test_caches.py")


def run(*command: str | Path, status: int = 0, cwd: Path | None = None) -> str:
    """The command's output; stops the check unless it exits with `status`."""
    # Nothing of this checkout or of its environment may help.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode != status:
        sys.exit(f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def bare_environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin"


def try_as_a_user(archive: Path, folder: Path) -> Path:
    """Install an archive alone and do what its README promises; returns the environment's bin."""
    binaries = bare_environment(folder)
    python = binaries / "python"
    run(python, "-m", "pip", "install", "--quiet", archive)
    print(archive.name, "without PeachPy:", run(python, "-c", USE, cwd=folder).strip())
    missing = run(binaries / "sparsejit", "doctor", status=1, cwd=folder)
    assert f"{python} -m sparsejit.install_peachpy" in missing, missing
    run(python, "-m", "sparsejit.install_peachpy", cwd=folder)
    assert run(binaries / "sparsejit", "doctor", cwd=folder).endswith("ready\n")
    print(archive.name, run(python, "-c", USE, cwd=folder).strip())
    run(python, "-m", "pip", "install", "--quiet", "mypy")
    (folder / "user.py").write_text(TYPED)
    complaint = run(python, "-m", "mypy", "user.py", status=1, cwd=folder)
    assert 'has type "Kernel", variable has type "int"' in complaint, complaint
    assert "py.typed" not in complaint, complaint
    return binaries


def run_its_tests(archive: Path, binaries: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    run(binaries / "python", "-m", "pip", "install", "--quiet", "pytest", "hypothesis", "iced-x86")
    summary = run(binaries / "python", "-m", "pytest", "-q", *TESTS, cwd=source).splitlines()[-1]
    print(archive.name, "its tests:", summary)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        builder = bare_environment(folder / "builder")
        run(builder / "python", "-m", "pip", "install", "--quiet", "build")
        # The wheel is built from the sdist, so that nothing of this folder gets into it.
        run(builder / "python", "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        try_as_a_user(wheel, folder / "from-wheel")
        binaries = try_as_a_user(sdist, folder / "from-sdist")
        run_its_tests(sdist, binaries, folder / "unpacked")


if __name__ == "__main__":
    main()
