"""The peers for whole models: their virtual environments, and their installation.

Torch runs in our own Python. Every other peer has its own virtual environment in the user's cache
directory, made on request: their versions of numpy exclude each other.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.files import atomic_path

_WORKER = Path(__file__).with_name("peer_worker.py")
_MARKER = "installed.json"
_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS"),
    "TORCHINDUCTOR_COMPILE_THREADS",
)


@dataclass(frozen=True)
class ModelPeer:
    """One peer. `name` is also the key of its engine in `peer_worker.ENGINES`.

    requirements: packages that pip installs; without any it runs in our own environment.
    pythons: versions of Python that it exists for, best first; without any, ours.
    opset: opset of the ONNX file that it reads; None where it takes the torch module.
    is_float32: whether it computes in float32; else its error comes from a shorter dtype.
    lives_in: the peer whose virtual environment it shares.
    installer: the command that installs it, if that is not `bench peers`.
    """

    name: str
    about: str
    requirements: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    opset: int | None = None
    is_float32: bool = True
    lives_in: str = ""
    installer: str = ""

    @property
    def folder(self) -> Path:
        """Path of its virtual environment, which may not exist."""
        return user_cache_path("sparsejit") / "peers" / (self.lives_in or self.name)

    @property
    def is_installed(self) -> bool:
        """Whether an installation of exactly these requirements was completed."""
        if not self.requirements:
            return True
        try:
            kept = json.loads((self.folder / _MARKER).read_bytes())
        except (OSError, ValueError):
            return False
        return kept == self._marker

    @property
    def _marker(self) -> dict[str, list[str]]:
        return {"requirements": list(self.requirements)}

    def command(self, *cores: int) -> list[str]:
        """The command that starts its worker on those cores, a thread each.

        Raises MissingDependency where the peer is not installed.
        """
        if not self.is_installed:
            by = self.installer or f"sparsejit bench peers --install {self.folder.name}"
            raise MissingDependency(f"no bench environment; run `{by}`")
        python = str(_python_in(self.folder)) if self.requirements else sys.executable
        return [python, str(_WORKER), self.name, ",".join(map(str, cores))]

    def environment(self, threads: int = 1) -> dict[str, str]:
        """Environment variables of its worker."""
        counts = dict.fromkeys(_THREADS, str(threads))
        settings = {**os.environ, **counts, "NM_DISABLE_ANALYTICS": "1"}
        # Only our own Python gets the path of our package, beside which our numpy may lie.
        own = "" if self.requirements else str(Path(__file__).parents[3])
        return {**settings, "PYTHONPATH": own}

    def install(self, progress: Callable[[str], None] = lambda step: None) -> None:
        """Make its virtual environment, unless it is complete.

        The rest of an interrupted installation is removed first. Raises MissingDependency where no
        fitting Python is found, and where pip fails.
        """
        if self.is_installed:
            return
        python = find_python(self.name, self.pythons)
        progress(f"{self.name}: a virtual environment for {python}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._run([python, "-m", "venv", str(self.folder)])
        progress(f"{self.name}: pip install {' '.join(self.requirements)}")
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self._run([str(_python_in(self.folder)), *pip, *self.requirements])
        with atomic_path(self.folder / _MARKER) as marker:
            marker.write_text(json.dumps(self._marker))

    def _run(self, command: list[str]) -> None:
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["in silence"]
            raise MissingDependency(
                f"{self.name} could not be installed: `{' '.join(command)}` ended with "
                f"{lines[-1]!r}; try again: the next try starts over"
            )


_PEERS = (
    ModelPeer("torch", "eager, as the model is written"),
    ModelPeer("torch-channels-last", "eager, images and weights with their channels last"),
    ModelPeer("torchscript", "traced, then torch.jit.freeze"),
    ModelPeer("torch-compile", "torch.compile with its own settings"),
    ModelPeer("static-runtime", "Static Runtime of the frozen TorchScript"),
    ModelPeer("onnxruntime", "ONNX Runtime", ("onnxruntime", "numpy"), opset=17),
    ModelPeer("openvino", "OpenVINO, float32", ("openvino", "numpy"), opset=17),
    ModelPeer(
        "openvino-default",
        "OpenVINO, in the precision that it chooses here",
        ("openvino", "numpy"),
        opset=17,
        is_float32=False,
        lives_in="openvino",
    ),
    ModelPeer(
        "deepsparse",
        "Neural Magic's sparse engine, retired in 2025",
        ("deepsparse==1.8.0", "numpy<2", "onnx"),
        ("3.10", "3.11"),
        opset=14,
    ),
    ModelPeer(
        "tvm", "TVM with its own schedules, not tuned", ("apache-tvm", "numpy", "onnx"), opset=14
    ),
)
MODEL_PEERS = {peer.name: peer for peer in _PEERS}


def peers_named(names: Iterable[str]) -> list[ModelPeer]:
    """The peers of those names; raises InvalidInput for a name that is not in the table."""
    names = list(names)
    unknown = [name for name in names if name not in MODEL_PEERS]
    if unknown:
        raise InvalidInput(f"peer {unknown[0]!r} is unknown; use some of {', '.join(MODEL_PEERS)}")
    return [MODEL_PEERS[name] for name in names]


def find_python(peer: str, versions: tuple[str, ...]) -> str:
    """Path of an interpreter of one of `versions` that starts; without versions, our own.

    Raises MissingDependency, naming the peer and the interpreters that were tried.
    """
    if not versions or "{}.{}".format(*sys.version_info) in versions:
        return sys.executable
    tried = [f"python{version}" for version in versions]
    for name, wanted in zip(tried, versions, strict=True):
        path = shutil.which(name)
        if path is not None and _version_of(path) == wanted:
            return path
    raise MissingDependency(
        f"{peer} exists for Python {' and '.join(versions)} only, and none of "
        f"{', '.join(tried)} starts here; install one and put it on PATH"
    )


def _version_of(python: str) -> str | None:
    """An interpreter's version, such as "3.10"; None if it does not start, as a stale shim."""
    command = [python, "-c", "import sys, venv; print('{}.{}'.format(*sys.version_info))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _python_in(folder: Path) -> Path:
    return folder / "bin" / "python"
