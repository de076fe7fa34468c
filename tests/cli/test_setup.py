"""Setup on a bare machine: PeachPy's routes and the Makefile's refusals, without a network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The least that passes the installer's probe.
FAKE_PEACHPY = {
    "peachpy/__init__.py": "",
    "peachpy/x86_64/__init__.py": "class RET:\n    def encode(self):\n        return b'\\xc3'\n",
}

needs_dpkg = pytest.mark.skipif(
    shutil.which("dpkg-deb") is None, reason="builds a Debian package with dpkg-deb"
)


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare/bin/python"


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A PATH of its own that offers dpkg but, so far, no apt-get."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name in ("dpkg", "dpkg-deb", "tar", "rm", "cp", "sh"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for name, text in FAKE_PEACHPY.items():
        file = tree / "usr/lib/python3/dist-packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    control = tree / "DEBIAN/control"
    control.parent.mkdir()
    control.write_text(
        "Package: python3-peachpy\nVersion: 1\nArchitecture: all\n"
        "Maintainer: nobody <nobody@localhost>\nDescription: stand-in\n"
    )
    archive = tmp_path / "python3-peachpy_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", tree, archive], check=True, capture_output=True)
    return archive


def run_installer(python: Path, commands: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, ROOT / "sparsejit/install_peachpy.py"],
        env={"PATH": str(commands)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_route_failing_names_each_reason_and_the_remedy(
    bare_python: Path, commands: Path
) -> None:
    done = run_installer(bare_python, commands)
    assert done.returncode == 1
    assert "already importable: python: ModuleNotFoundError: No module named 'peachpy'" in (
        done.stderr
    )
    assert "python3-peachpy: apt-get: No such file or directory" in done.stderr
    assert "repository: python: " in done.stderr
    assert "No module named pip" in done.stderr
    assert "remedy: 'apt install python3-peachpy'" in done.stderr
    assert "Traceback" not in done.stderr


@needs_dpkg
@pytest.mark.parametrize("fresh_machine", [False, True], ids=["lists", "no-lists"])
def test_debian_route_then_already_importable(
    bare_python: Path, commands: Path, package: Path, fresh_machine: bool
) -> None:
    needs_own_lists = 'case "$*" in *Dir::State::lists*) ;; *) exit 100;; esac'
    write_script(
        commands / "apt-get",
        f"""{needs_own_lists if fresh_machine else ""}
        case "$*" in *download*) cp {package} .;; esac""",
    )
    first = run_installer(bare_python, commands)
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith("site-packages/peachpy (Debian package python3-peachpy)\n")
    (commands / "apt-get").unlink()
    second = run_installer(bare_python, commands)
    assert second.stdout.endswith("site-packages/peachpy (already importable)\n")


@needs_dpkg
def test_a_broken_peachpy_is_replaced(bare_python: Path, commands: Path, package: Path) -> None:
    write_script(commands / "apt-get", f"cp {package} .")
    (site_packages,) = bare_python.parents[1].glob("lib/python3*/site-packages")
    (site_packages / "peachpy").mkdir()
    (site_packages / "peachpy/__init__.py").write_text("print 'the Python 2 release'\n")
    done = run_installer(bare_python, commands)
    assert done.returncode == 0, done.stderr
    assert (site_packages / "peachpy/__init__.py").read_text() == ""
    assert list(site_packages.glob("peachpy/x86_64/__pycache__/*.pyc"))
    assert list(site_packages.glob(".peachpy-*")) == []


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MAKEFLAGS": "", "LC_ALL": "C"}
    return subprocess.run(
        ["make", *arguments, "setup"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("python_body", "message"),
    [
        ('case "$*" in *ensurepip*) exit 1;; esac', "run: apt install python3-venv"),
        ("exit 1", "is missing or older than 3.10"),
    ],
    ids=["no-venv", "too-old"],
)
def test_make_refuses_an_unsuitable_python(tmp_path: Path, python_body: str, message: str) -> None:
    write_script(tmp_path / "python", python_body)
    done = run_make(f"PYTHON={tmp_path}/python", f"VENV={tmp_path}/venv")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "venv").exists()


def test_make_skips_finished_setup(tmp_path: Path) -> None:
    stamps = tmp_path / "venv/.stamps"
    stamps.mkdir(parents=True)
    for step in ("venv", "torch", "project", "peachpy"):
        (stamps / step).touch()
    done = run_make("PYTHON=/nonexistent", f"VENV={tmp_path}/venv")
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stdout
