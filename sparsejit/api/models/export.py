"""The function of a model for C, and the contents of its header."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparsejit.api.models.variant import Variant
from sparsejit.artefact.exported import ExportedFunction, Macro
from sparsejit.frontends.nesting import Nest, dtypes
from sparsejit.ir.ops.selection import Embedding, EmbeddingBag
from sparsejit.ir.values import Element, Value
from sparsejit.runtime.native_call import WORKSPACE_ALIGNMENT
from sparsejit.x86.operands import rcx


def exported_model(name: str, variant: Variant, nests: Sequence[Nest] = ()) -> ExportedFunction:
    """Return `int NAME_run(inputs, outputs, workspace)`; with `long samples` for a free batch.

    `nests` are the nests of the model's inputs and outputs, whose dtypes the header names. Raises
    InvalidInput for a model on several threads.
    """
    graph, is_fixed = variant.graph, variant.tile is None
    parameters = [
        f"const {_pointee(graph.inputs)} *const *inputs",
        f"{_pointee(graph.outputs)} *const *outputs",
        "void *workspace",
    ]
    return ExportedFunction(
        name,
        variant.program.image,
        variant.options.target,
        ", ".join(parameters if is_fixed else [*parameters, "long samples"]),
        returns_status=True,
        fixed=((rcx, 1),) if is_fixed else (),
        macros=_macros(variant),
        about=_about(variant, name.upper(), _noted(nests)),
        threads=variant.options.threads,
    )


# Notes for callers about numbers whose dtype in the model is another.
_ASKED = {"input": "read as they are", "output": "values that it can hold"}


def _noted(nests: Sequence[Nest]) -> dict[tuple[str, int], str]:
    """Return the dtypes that the model declares for its inputs and outputs.

    The keys are "input" or "output", and the position; a dtype that is not noted has none.
    """
    return {
        (side, place): dtype
        for side, nest in zip(_ASKED, nests, strict=False)
        for place, dtype in enumerate(dtypes(nest))
        if dtype
    }


def _pointee(values: Sequence[Value]) -> str:
    is_float = all(value.type.element is Element.FLOAT32 for value in values)
    return "float" if is_float else "void"


class _Array(NamedTuple):
    """An array: "input" or "output", its index in the table, its value, and the model's batch axis.

    The axis is None where the batch is fixed, and for an input that all samples share.
    """

    side: str
    place: int
    value: Value
    axis: int | None


def _arrays(variant: Variant) -> list[_Array]:
    graph, axes = variant.graph, variant.batch_axes
    sides = (("input", graph.inputs), ("output", graph.outputs))
    return [
        _Array(side, place, value, None if axes is None else axes[number][place])
        for number, (side, values) in enumerate(sides)
        for place, value in enumerate(values)
    ]


def _macros(variant: Variant) -> list[Macro]:
    graph, samples = variant.graph, variant.tile or 1
    macros = [
        Macro("INPUTS", len(graph.inputs), "pointers in inputs"),
        Macro("OUTPUTS", len(graph.outputs), "pointers in outputs"),
    ]
    for side, place, value, axis in _arrays(variant):
        each, parts = ("", 1) if axis is None else (" for each sample", samples)
        name, array = f"{side.upper()}_{place}", f"{side}s[{place}]"
        macros += [
            Macro(f"{name}_SIZE", value.type.size // parts, f"elements of {array}{each}"),
            Macro(f"{name}_BYTES", value.type.bytes // parts, f"bytes of {array}{each}"),
        ]
    return [
        *macros,
        Macro("WORKSPACE_BYTES", variant.workspace_bytes, "bytes of workspace"),
        Macro("WORKSPACE_ALIGNMENT", WORKSPACE_ALIGNMENT, "its address is a multiple of this"),
    ]


def _about(variant: Variant, prefix: str, noted: Mapping[tuple[str, int], str]) -> list[str]:
    tile = variant.tile
    lines = [f"The model {_plain(variant.program.name)}. Its arrays are row-major:"]
    for side, place, value, axis in _arrays(variant):
        shape = value.shape if axis is None else ("samples", *value.shape[1:])
        sizes = "".join(f"[{size}]" for size in shape)
        element = value.type.element.value
        lines.append(f"  {side}s[{place}]: {element} {_plain(value.origin.name)}{sizes}")
        if own := noted.get((side, place)):
            lines.append(f"    the model has {own}; numbers are {_ASKED[side]}")
        if axis:
            lines.append(f"    samples come first here; the model has them on axis {axis}")
        elif axis is None and tile is not None:
            lines.append("    the same for all samples")
    if tile is not None:
        lines.append("samples is the number of samples; any number is allowed.")
    lines += [
        "No output may overlap another array. The workspace may hold anything before a call;",
        "concurrent calls need one each.",
    ]
    return [*lines, *_about_indices(variant, prefix)]


def _about_indices(variant: Variant, prefix: str) -> list[str]:
    """Return lines for the header on positive results (an index out of range), if any occur."""
    if not any(isinstance(node.op, Embedding | EmbeddingBag) for node in variant.graph.nodes):
        return []
    return [
        "Where an index lies outside its table, or offsets of bags do not ascend from 0, the",
        f"result is positive, neither {prefix}_OK nor {prefix}_UNSUPPORTED_CPU: 1 + the number",
        "of the kernel that found it. The outputs are then undefined.",
    ]


def _plain(name: str) -> str:
    """Return a name that cannot end a C comment."""
    return re.sub(r"[^\w.]", "_", name)
