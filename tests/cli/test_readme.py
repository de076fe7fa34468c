"""The README's Python runs as written, and what it names exists."""

import re
import subprocess
import sys
from pathlib import Path

from example_files import write_files

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run(tmp_path: Path) -> None:
    assert blocks("python")
    write_files(tmp_path)
    for block in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_named_files_exist() -> None:
    for name in re.findall(r"`((?:docs/)?[\w]+(?:\.md|/)|LICENSE)`", README):
        # The sdist has in sparsejit/ only what that links to in a checkout.
        assert (ROOT / name).exists() or (ROOT / "sparsejit" / name).exists(), name
