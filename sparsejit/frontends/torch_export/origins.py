"""Origin of an exported operator in the user's model."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from sparsejit.ir.values import Origin

_PARAMETRIZED = re.compile(r"(?P<module>.*\.|)parametrizations\.(?P<weight>\w+)\.\w+(\.\w+)*")
# Ends of the names of tensors from which torch's pruning and weight_norm compute a weight.
_HOOKED = (("_orig", "_mask"), ("_g", "_v"), ("_v", "_g"))
_OWN_FOLDER = str(Path(__file__).parents[2])
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')


def origin_of(node: Any) -> Origin:
    """The node's name, its module's path, and the innermost line that is not torch's own."""
    stack = node.meta.get("nn_module_stack") or {}
    module = list(stack.values())[-1][0] if stack else ""
    source, code = _line(node.meta.get("stack_trace") or "")
    return Origin(node.name, _plain(module), source, code)


def origins_of_tensors(program: Any, is_module: bool) -> dict[str, Origin]:
    """Names and weights of a program's parameters and buffers, by placeholder.

    Matrices count as weights. A weight that hooks of a module compute from several parameters has
    the name that `sparsejit.prune.fold` gives it; a program has no hooks.
    """
    signature = program.graph_signature
    found = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target}
    matrices = {
        name
        for name in signature.inputs_to_parameters.values()
        if (tensor := program.state_dict[name]).is_floating_point()
        and tensor.numel() > max(tensor.shape, default=1)
    }
    computed = _computed_weights(found.values()) if is_module else {}
    return {
        key: Origin(name, weights=(computed.get(name, name),), is_computed=name in computed)
        if name in matrices or name in computed
        else Origin(name)
        for key, name in found.items()
    }


def _computed_weights(names: Iterable[str]) -> dict[str, str]:
    """Names of the weights that torch computes from parameters of these names, by parameter."""
    known, computed = set(names), {}
    for name in known:
        if found := _PARAMETRIZED.fullmatch(name):
            computed[name] = found["module"] + found["weight"]
        for end, other in _HOOKED:
            if name.endswith(end) and name.removesuffix(end) + other in known:
                computed[name] = name.removesuffix(end)
    return computed


def _line(trace: str) -> tuple[str, str]:
    """`file.py:line` and its text; empty where all frames are torch's."""
    return innermost_line((x["file"], int(x["line"]), x["code"]) for x in _FRAME.finditer(trace))


def innermost_line(frames: Iterable[tuple[str, int | None, str | None]]) -> tuple[str, str]:
    """`file.py:line` and text of the last frame of (file, line, text) that is not torch's or ours.

    Empty where there is none.
    """
    for file, line, code in reversed(list(frames)):
        if not file.startswith((_torch_folder(), _OWN_FOLDER)):
            return f"{Path(file).name}:{line}", (code or "").strip()
    return "", ""


@cache
def _torch_folder() -> str:
    import torch

    return str(Path(torch.__file__).parent)


def _plain(path: str) -> str:
    """`layers.0` of `L['self'].layers.0` and of `L['self']._modules['layers']._modules['0']`."""
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    return re.sub(r"^L\['\w+'\]\.?", "", path)
