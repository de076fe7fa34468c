"""Bring PeachPy 0.2.0 into the running Python: `python -m sparsejit.install_peachpy`.

The package index holds only a Python 2 release of PeachPy, so it is taken, in this order, from
the running Python if it is importable already, from Debian's and Ubuntu's `python3-peachpy`
(unpacked without root), or from its own repository at a fixed commit. Standard library only.
"""

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

COMMIT = "349e8f836142b2ed0efeb6bb99b1b715d87202e9"
SOURCE = f"https://github.com/Maratyszcza/PeachPy/archive/{COMMIT}.zip"

# Encoding `ret` imports and runs all that the encoder needs; the Python 2 release fails here.
_PROBE = "import peachpy.x86_64 as p; assert bytes(p.RET().encode()) == b'\\xc3'; print(p.__file__)"


class RouteFailed(Exception):
    """One way of getting PeachPy did not work, for the reason in the message."""


def find_working(python: str = sys.executable) -> str:
    """Path of the PeachPy package that `python` imports. Raises RouteFailed."""
    module = Path(_run([python, "-c", _PROBE]).strip())
    return str(module.parent.parent)


def from_debian(destination: Path) -> None:
    """Unpack python3-peachpy into `destination`, a site-packages. Raises RouteFailed."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = _download_debian_package(Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        _run(["dpkg", "-x", str(archive), str(unpacked)])
        package = unpacked / "usr/lib/python3/dist-packages/peachpy"
        if not package.is_dir():
            raise RouteFailed(f"{archive.name} holds no dist-packages/peachpy")
        _replace_tree(package, destination / "peachpy")
    with suppress(RouteFailed):  # `install` tests the result in any case
        _run([sys.executable, "-m", "pip", "install", "--quiet", "six"])
    # As pip would: its 4.5 MB of source take two seconds to compile, with warnings about escapes.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compileall.compile_dir(str(destination / "peachpy"), quiet=2)


def _download_debian_package(folder: Path) -> Path:
    download = ["apt-get", "download", "python3-peachpy"]
    try:
        _run(download, cwd=folder)
    except RouteFailed:
        # A fresh machine has no package lists, and only root may write the system's.
        own_lists = ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        (folder / "lists/partial").mkdir(parents=True)
        (folder / "cache/archives/partial").mkdir(parents=True)
        _run(["apt-get", *own_lists, "update"])
        _run([*download[:1], *own_lists, *download[1:]], cwd=folder)
    archives = sorted(folder.glob("python3-peachpy_*.deb"))
    if not archives:
        raise RouteFailed("apt-get download left no python3-peachpy_*.deb")
    return archives[0]


def _replace_tree(source: Path, destination: Path) -> None:
    staging = Path(tempfile.mkdtemp(dir=destination.parent, prefix=".peachpy-"))
    try:
        shutil.copytree(source, staging / "peachpy")
        shutil.rmtree(destination, ignore_errors=True)
        (staging / "peachpy").replace(destination)
    finally:
        shutil.rmtree(staging)


def from_repository(source: str = SOURCE) -> None:
    """Build PeachPy from its repository with pip. Raises RouteFailed.

    Its setup script needs `opcodes` and `six` at build time and a setuptools before 82, which
    it does not declare: hence no build isolation.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    _run([*pip, "setuptools<82", "wheel", "six", "opcodes"])
    _run([*pip, "--no-build-isolation", "--no-deps", source])


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RouteFailed(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit status {done.returncode}"
        raise RouteFailed(f"{Path(command[0]).name}: {reason}")
    return done.stdout


def install(site_packages: Path) -> str:
    """Make PeachPy importable by the first route that works; return its path and the route's name.

    Raises RouteFailed with every route's reason when none does.
    """
    routes = {
        "already importable": lambda: None,
        "Debian package python3-peachpy": lambda: from_debian(site_packages),
        "PeachPy's repository": from_repository,
    }
    reasons = []
    for name, route in routes.items():
        try:
            route()
            return f"{find_working()} ({name})"
        except RouteFailed as failure:
            reasons.append(f"  {name}: {failure}")
    raise RouteFailed("\n".join(reasons))


def main() -> None:
    try:
        print("PeachPy:", install(Path(sysconfig.get_path("purelib"))))
    except RouteFailed as failure:
        sys.exit(
            f"error: no way of getting PeachPy 0.2.0 worked:\n{failure}\n"
            "remedy: 'apt install python3-peachpy' as root and make a virtual environment with "
            "--system-site-packages,\nor put a PeachPy 0.2.0 source tree on PYTHONPATH, "
            "then run this again"
        )


if __name__ == "__main__":
    main()
