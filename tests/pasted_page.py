"""The code of a page, pasted as a person does: one fresh interpreter, blocks in order, no set-up.

Python blocks share the interpreter and its empty folder, where shell blocks run as they come. A
block that opens with a comment that is the name of a file is that file. Two things do not run: a
line of `pip install`, and a block that opens with the comment `# needs ...`, for one of `NEEDS`.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"\A(?:# ([\w.-]+\.\w+)|/\* ([\w.-]+\.\w+) \*/)\n")
NEEDED = re.compile(r"\A# needs (.+)\n")
NEEDS = {"the network", "a checkout", "a checkpoint", "a trained model", "minutes", "hours"}
INSTALL = re.compile(r"^pip install .*$", re.MULTILINE)
ROOT = Path(__file__).parents[1]

# Reads (language, name of a file or "", where, text) of each block, and pastes them.
_PASTE = """
import json, subprocess, sys, types

def paste(blocks):
    fresh = sys.modules["__main__"] = types.ModuleType("__main__")
    for language, file, where, text in blocks:
        print(where, flush=True)
        if file:
            with open(file, "w") as out:
                out.write(text)
        elif language == "sh":
            subprocess.run(["bash", "-euc", text], check=True)
        elif language == "python":
            exec(compile(text, where, "exec"), vars(fresh))

paste(json.load(sys.stdin))
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    where: str

    @property
    def file(self) -> str:
        """The file that it is, or ""."""
        found = FILE_NAME.match(self.text)
        return (found[1] or found[2]) if found else ""

    @property
    def needs(self) -> str:
        """The reason why a test does not run it, or ""."""
        found = NEEDED.match(self.text)
        return found[1] if found else ""


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks, those without a language too."""
    text = page.read_text()
    return [
        Block(
            found[2],
            textwrap.dedent(found[3]),
            f"{page.name}:{text.count(chr(10), 0, found.start(3)) + 1}",
        )
        for found in FENCE.finditer(text)
    ]


def paste(page: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the page's blocks in that folder, by this interpreter and this checkout."""
    blocks = [
        (each.language, each.file, each.where, INSTALL.sub("", each.text))
        for each in blocks_of(page)
        if each.language and not each.needs
    ]
    programs = Path(sys.executable).parent
    return subprocess.run(
        [sys.executable, "-c", _PASTE],
        input=json.dumps(blocks),
        cwd=folder,
        env=os.environ
        | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
