"""The checks of `make release-check`: the wheel and the sdist, each in bare environments.

Builds both in a temporary folder, then does what a new user would, with every Python from 3.10 to
3.14 that is there. README's blocks and commands run as they are written. Not part of the
test-suite: it needs the package index and some minutes.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

FILES = """
import numpy, onnx
from onnx import TensorProto, helper, numpy_helper
arrays = [helper.make_tensor_value_info(*each) for each in (
    ("x", TensorProto.FLOAT, [1, 64]), ("y", TensorProto.FLOAT, [1, 8]))]
weights = numpy.linspace(-1, 1, 512, dtype=numpy.float32).reshape(64, 8)
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["h"]),
    helper.make_node("Tanh", ["h"], ["y"])], "net", arrays[:1], arrays[1:],
    [numpy_helper.from_array(weights, "w")])
opsets = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "model.onnx")
x = numpy.linspace(-1, 1, 64, dtype=numpy.float32)[None]
numpy.save("x.npy", x)
numpy.save("y.npy", numpy.tanh(x @ weights))
"""
TYPED = """
import numpy
import sparsejit
wrong: int = sparsejit.compile_matrix(numpy.eye(16, dtype=numpy.float32))
"""
ROOMS = """
from importlib.util import find_spec
assert find_spec("sparsejit.perf.checking.check") and not find_spec("sparsejit.perf.studies")
"""
COMPARE = """
import numpy
assert numpy.allclose(numpy.load("y.npy"), numpy.load("ours.npy"), rtol=1e-5, atol=1e-6)
"""
MAIN = """
#include "model.h"
#include <stdio.h>
static float x[MODEL_INPUT_0_SIZE], y[MODEL_OUTPUT_0_SIZE];
static char workspace[MODEL_WORKSPACE_BYTES] __attribute__((aligned(MODEL_WORKSPACE_ALIGNMENT)));
int main(void)
{
    const float *inputs[] = {x};
    float *outputs[] = {y};
    return model_run(inputs, outputs, workspace) == MODEL_OK ? 0 : 1;
}
"""
# Commands that need no extras, such as torch.
TESTS = ("tests/test_house.py", "tests/machine", "tests/kernels/test_caches.py")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def examples(words: str) -> list[str]:
    """README's blocks of Python with these words in them, as they are written."""
    return [block for block in blocks("python") if words in block]


class Environment:
    """A virtual environment with nothing but pip, and an empty folder to work in."""

    def __init__(self, python: str | Path, folder: Path) -> None:
        self.folder = folder
        run(python, "-m", "venv", folder / "venv")

    def install(self, *requirements: str | Path) -> None:
        self.python("-m", "pip", "install", "--quiet", *requirements)

    def python(self, *arguments: str | Path, status: int = 0) -> str:
        return self.command("python", *arguments, status=status)

    def command(self, name: str, *arguments: str | Path, status: int = 0) -> str:
        program = self.folder / "venv/bin" / name
        return run(program, *arguments, status=status, cwd=self.folder)


def run(*command: str | Path, status: int = 0, cwd: Path | None = None) -> str:
    """The command's output; stops the check unless it exits with `status`."""
    # Nothing of this checkout, of its environment or of caches may help.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["XDG_CACHE_HOME"] = str(cwd or ROOT / "build")
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode != status:
        sys.exit(f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def pythons() -> dict[str, str]:
    """The interpreters that are there, by version: on PATH, of pyenv, and this one."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {own: sys.executable}
    for version in VERSIONS:
        kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        program = str(kept[-1]) if kept else shutil.which(f"python{version}")
        if program:
            found.setdefault(version, program)
    return {version: found[version] for version in VERSIONS if version in found}


def try_alone(archive: Path, python: str, folder: Path) -> Environment:
    """Without any extra: doctor, kernels, the voice, types."""
    environment = Environment(python, folder)
    environment.install(archive)
    assert environment.command("sparsejit", "doctor").endswith("ready\n")
    environment.command("sparsejit", "selftest", "--minutes", "0.05")
    for block in (*examples("compile_matrix"), *examples("WaveRNN")):
        environment.python("-c", block)
    (environment.folder / "user.py").write_text(TYPED)
    environment.install("mypy")
    complaint = environment.python("-m", "mypy", "user.py", status=1)
    assert 'has type "Kernel", variable has type "int"' in complaint, complaint
    assert "py.typed" not in complaint, complaint
    environment.python("-c", ROOMS)
    return environment


def try_onnx(environment: Environment, archive: Path) -> None:
    """A file, from the command line and from README, to a saved model and to C."""
    environment.install(f"{archive}[onnx]")
    environment.python("-c", FILES)
    for block in examples("model.onnx"):
        environment.python("-c", block)
    environment.command("sparsejit", "compile", "model.onnx", "--out", "model.sjit")
    arrays = ("--input", "x.npy", "--out", "ours.npy")
    environment.command("sparsejit", "run", "model.sjit", *arrays)
    environment.python("-c", COMPARE)
    objects = ("--export", "model.o", "--header", "model.h")
    environment.command("sparsejit", "compile", "model.onnx", "--out", "again.sjit", *objects)
    if compiler := shutil.which("cc"):
        (environment.folder / "main.c").write_text(MAIN)
        run(compiler, "main.c", "model.o", "-o", "main", cwd=environment.folder)
        run(environment.folder / "main")


def try_torch_and_peers(environment: Environment, archive: Path) -> None:
    """README's first example, and all of its commands."""
    (torch,) = re.findall(r"torch==[\d.]+", (ROOT / "Makefile").read_text())
    environment.install(torch)  # alone, so that no other build can come
    environment.install(f"{archive}[torch]")
    for block in examples("import sparsejit, torch"):
        environment.python("-c", block)
    commands = re.findall(r"^sparsejit .*?(?=\s*(?:#.*)?$)", "\n".join(blocks("sh")), re.MULTILINE)
    for command in commands:
        print(environment.command(*command.split()))


def run_its_tests(archive: Path, python: str, folder: Path) -> None:
    environment = Environment(python, folder)
    environment.install(archive, "pytest", "hypothesis", "iced-x86")
    environment.python("-m", "sparsejit.install_peachpy")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    tests = run(folder / "venv/bin/python", "-m", "pytest", "-q", *TESTS, cwd=source)
    print(archive.name, "its tests:", tests.splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        builder = Environment(sys.executable, folder / "builder")
        builder.install("build")
        # The wheel is built from the sdist, so that nothing of this folder gets into it.
        builder.python("-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        for version, python in pythons().items():
            environment = try_alone(wheel, python, folder / version)
            try_onnx(environment, wheel)
            print(f"{wheel.name} with Python {version}: doctor, kernels, voice, ONNX, C")
        environment = try_alone(wheel, sys.executable, folder / "torch")
        try_onnx(environment, wheel)
        try_torch_and_peers(environment, wheel)
        run_its_tests(sdist, sys.executable, folder / "sdist")


if __name__ == "__main__":
    main()
