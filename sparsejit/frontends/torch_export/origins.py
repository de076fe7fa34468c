"""Where an operator of an exported graph stands in the user's model."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from sparsejit.ir.graph import Origin

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')


def origin_of(node: Any) -> Origin:
    """The node's name, its module's path, and the innermost line that is not torch's own."""
    stack = node.meta.get("nn_module_stack") or {}
    module = list(stack.values())[-1][0] if stack else ""
    source, code = _line(node.meta.get("stack_trace") or "")
    return Origin(node.name, _plain(module), source, code)


def _line(trace: str) -> tuple[str, str]:
    """`file.py:line` and its text; empty where all frames are torch's."""
    for frame in reversed(list(_FRAME.finditer(trace))):
        if not frame["file"].startswith(_torch_folder()):
            return f"{Path(frame['file']).name}:{frame['line']}", frame["code"].strip()
    return "", ""


@cache
def _torch_folder() -> str:
    import torch

    return str(Path(torch.__file__).parent)


def _plain(path: str) -> str:
    """`layers.0` of `L['self'].layers.0` and of `L['self']._modules['layers']._modules['0']`."""
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    return re.sub(r"^L\['\w+'\]\.?", "", path)
