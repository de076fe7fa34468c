"""Files and targets of make that the README names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_named_files_exist() -> None:
    for name in re.findall(r"`((?:docs/)?[\w]+(?:\.md|/)|LICENSE)`", README):
        # The sdist has in sparsejit/ only what that links to in a checkout.
        assert (ROOT / name).exists() or (ROOT / "sparsejit" / name).exists(), name
