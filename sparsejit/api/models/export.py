"""The functions of a model for C, and the contents of its header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sparsejit.api.models.called import output_names
from sparsejit.api.models.stepped import SteppedModel
from sparsejit.api.models.variant import Variant, lowered_variant
from sparsejit.artefact.exported import EntryPoint, ExportedFunction, Macro
from sparsejit.errors import InvalidInput
from sparsejit.frontends.nesting import Nest, NestKind, dtypes, words_of
from sparsejit.ir.values import Array, Element, Value
from sparsejit.runtime.native_call import WORKSPACE_ALIGNMENT
from sparsejit.runtime.state_step import STATE_ALIGNMENT, StateLayout, emit_step
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Literal, Memory, dword, r8, rax, rcx, rdi, rdx, rsi, ymm


def exported_model(
    name: str, variant: Variant, nests: Sequence[Nest] = (), stepped: SteppedModel | None = None
) -> ExportedFunction:
    """Return `int NAME_run(inputs, outputs, workspace)`; with `ptrdiff_t samples` for a free batch.

    `nests` are the nests of the model's inputs and outputs, whose dtypes the header names. A model
    with states, `stepped` for one sample, has `int NAME_step(inputs, outputs, state, workspace)`
    and `int NAME_state_init(state)` instead. A model on several threads, which `for_host` has made,
    takes a table of the host's functions behind these arguments. Raises InvalidInput for a model
    with strings.
    """
    if any(map(words_of, nests)):
        raise InvalidInput(
            "the model takes or returns strings, for which C code has no table; export a file with "
            "whole numbers in their place, such as labels by their numbers"
        )
    arrays = _arrays(variant, nests, stepped)
    is_fixed = variant.tile is None
    by_host = variant.options.by_host
    tables = [
        f"const {_pointee(arrays, 'input')} *const *inputs",
        f"{_pointee(arrays, 'output')} *const *outputs",
    ]
    given = [*tables, "void *workspace", *([] if is_fixed else ["ptrdiff_t samples"])]
    threads = [f"const {name}_threads *threads"] if by_host else []
    slot = variant.lowered_again().probe_offset if by_host else None
    functions = _step_functions(stepped, tables, threads, slot)
    if slot is not None and stepped is None:
        run = partial(_emit_hosted_run, slot, is_fixed)
        functions = [EntryPoint("run", ", ".join([*given, *threads]), run)]
    return ExportedFunction(
        name,
        variant.program.image,
        variant.options.target,
        ", ".join(given),
        returns_status=True,
        fixed=((rcx, 1),) if is_fixed else (),
        macros=_macros(variant, arrays, stepped),
        about=_about(variant, name.upper(), _noted(nests), arrays, stepped),
        threads=variant.options.threads,
        functions=functions,
        workspace_bytes=variant.workspace_bytes,
        types=_types(name, variant.options.threads) if by_host else (),
        by_host=by_host,
    )


def for_host(variant: Variant) -> Variant:
    """Return the variant whose threads the host of exported code starts, if it has several."""
    if variant.options.threads == 1:
        return variant
    options = replace(variant.options, by_host=True)
    return lowered_variant(variant.graphs, options, variant.program.name, is_cached=False)


def _types(name: str, threads: int) -> list[str]:
    """Lines of C that declare the table of the host's functions."""
    return [
        f"/* Threads of the caller, {threads - 1} besides its own, numbered from 1; a null pointer",
        " * runs all on its own. Different calls at once need threads of their own. */",
        "typedef struct {",
        "    void *self; /* the first argument of both functions */",
        "    /* Has a thread run function(argument), and returns at once. */",
        "    void (*start)(void *self, int thread, void (*function)(void *), void *argument);",
        "    /* Returns when the thread is done with that. */",
        "    void (*wait)(void *self, int thread);",
        f"}} {name}_threads;",
    ]


def _emit_hosted_run(slot: int, is_fixed: bool, asm: Assembler, image: Label) -> None:
    """Put the last argument into the workspace, and run the image."""
    asm.emit("mov", Memory(rdx, slot), rcx if is_fixed else r8)
    if is_fixed:
        asm.emit("mov", dword(rcx), 1)
    asm.jump("jmp", image)


def _step_functions(
    stepped: SteppedModel | None, tables: Sequence[str], threads: Sequence[str], slot: int | None
) -> list[EntryPoint]:
    """Return the functions of a model with states."""
    if stepped is None:
        return []
    layout = stepped.layout
    block = np.zeros(layout.bytes, np.uint8)
    stepped.fill(block)
    step = partial(_emit_step, layout, slot)
    given = [*tables, "void *state", "void *workspace", *threads]
    return [
        EntryPoint("step", ", ".join(given), step),
        EntryPoint("state_init", "void *state", partial(_emit_state_init, block), _ABOUT_INIT),
    ]


_ABOUT_INIT = ("Sets the states of a stream to their values before the first step.",)


def _emit_step(layout: StateLayout, slot: int | None, asm: Assembler, image: Label) -> None:
    if slot is not None:
        asm.emit("mov", Memory(rcx, slot), r8)
    emit_step(asm, layout, lambda asm: asm.jump("call", image))
    asm.emit("ret")


def _emit_state_init(block: Array, asm: Assembler, image: Label) -> None:
    """Copy the block, 64 bytes at a time, to the state at rdi."""
    again = asm.label("next line")
    asm.emit("lea", rsi, Literal(asm.literal(block)))
    asm.emit("mov", dword(rcx), len(block) // STATE_ALIGNMENT)
    asm.bind(again)
    for half in (0, 32):
        asm.emit("vmovups", ymm(0), Memory(rsi, half))
        asm.emit("vmovups", Memory(rdi, half), ymm(0))
    asm.emit("add", rsi, STATE_ALIGNMENT)
    asm.emit("add", rdi, STATE_ALIGNMENT)
    asm.emit("sub", rcx, 1)
    asm.jump("jnz", again)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("vzeroupper")
    asm.emit("ret")


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


def _pointee(arrays: Sequence[_Array], side: str) -> str:
    elements = [each.value.type.element for each in arrays if each.side == side]
    return "float" if all(element is Element.FLOAT32 for element in elements) else "void"


class _Array(NamedTuple):
    """An array: "input" or "output", its index in the table, its value, and the model's batch axis.

    `name` is the model's name for it, `number` the number of the input or output in the model. The
    axis is None where the batch is fixed, and for an input that all samples share.
    """

    side: str
    place: int
    number: int
    name: str
    value: Value
    axis: int | None

    @property
    def macro(self) -> str:
        """Its name as a part of a macro's name."""
        return re.sub(r"\W", "_", self.name).upper()


def _arrays(
    variant: Variant, nests: Sequence[Nest], stepped: SteppedModel | None
) -> list[_Array]:
    """Return the arrays of the tables, which have no states."""
    graph, axes = variant.graph, variant.batch_axes
    made = []
    results = nests[1] if nests else Nest(NestKind.TUPLE)
    names = [value.origin.name for value in graph.inputs], output_names(graph.outputs, results)
    for row, (side, values) in enumerate((("input", graph.inputs), ("output", graph.outputs))):
        layout = None if stepped is None else (stepped.layout.inputs, stepped.layout.outputs)[row]
        given = [n for n in range(len(values)) if layout is None or layout[n] is None]
        made += [
            _Array(side, place, n, names[row][n], values[n], None if axes is None else axes[row][n])
            for place, n in enumerate(given)
        ]
    return made


def _macros(
    variant: Variant, arrays: Sequence[_Array], stepped: SteppedModel | None
) -> list[Macro]:
    counts = [sum(each.side == side for each in arrays) for side in ("input", "output")]
    macros = [
        Macro("INPUTS", counts[0], "pointers in inputs"),
        Macro("OUTPUTS", counts[1], "pointers in outputs"),
    ]
    named = []
    for each in arrays:
        words = "" if each.axis is None or stepped else " for each sample"
        parts = 1 if each.axis is None else variant.tile or 1
        side, array = each.side.upper(), f"{each.side}s[{each.place}]"
        named.append(Macro(f"{side}_{each.macro}", each.place, f"the number of {array}"))
        for key, rows in ((str(each.place), macros), (each.macro, named)):
            size, room = each.value.type.size // parts, each.value.type.bytes // parts
            rows += [
                Macro(f"{side}_{key}_SIZE", size, f"elements of {array}{words}"),
                Macro(f"{side}_{key}_BYTES", room, f"bytes of {array}{words}"),
            ]
    state = [] if stepped is None else [
        Macro("STATE_BYTES", stepped.layout.bytes, "bytes of state"),
        Macro("STATE_ALIGNMENT", STATE_ALIGNMENT, "its address is a multiple of this"),
    ]  # fmt: skip
    if stepped is not None and stepped.streamed.pace.step is not None:
        delay = stepped.streamed.pace.delay
        state.append(Macro("DELAY", delay, "frames of inputs[0] by which results are late"))
    return [
        *macros,
        *_unique(named, macros),
        *state,
        Macro("WORKSPACE_BYTES", variant.workspace_bytes, "bytes of workspace"),
        Macro("WORKSPACE_ALIGNMENT", WORKSPACE_ALIGNMENT, "its address is a multiple of this"),
    ]


def _unique(named: Sequence[Macro], taken: Sequence[Macro]) -> list[Macro]:
    """Return the macros of names that nothing else has: a name for two arrays would be a trap."""
    names = [macro.name for macro in (*named, *taken)]
    return [macro for macro in named if names.count(macro.name) == 1]


def _about(
    variant: Variant,
    prefix: str,
    noted: Mapping[tuple[str, int], str],
    arrays: Sequence[_Array],
    stepped: SteppedModel | None,
) -> list[str]:
    tile = None if stepped else variant.tile
    lines = [f"The model {_plain(variant.program.name)}. Its arrays are row-major:"]
    for side, place, number, name, value, axis in arrays:
        first = 1 if stepped else "samples"
        shape = value.shape if axis is None else (first, *value.shape[1:])
        sizes = "".join(f"[{size}]" for size in shape)
        element = value.type.element.value
        lines.append(f"  {side}s[{place}]: {element} {_plain(name)}{sizes}")
        if own := noted.get((side, number)):
            lines.append(f"    the model has {own}; numbers are {_ASKED[side]}")
        if axis and not stepped:
            lines.append(f"    samples come first here; the model has them on axis {axis}")
        elif axis is None and tile is not None:
            lines.append("    the same for all samples")
    if tile is not None:
        lines.append("samples is the number of samples; any number is allowed.")
    lines += [
        "Each array is aligned as C aligns its elements. No output may overlap another array.",
        "The workspace may hold anything before a call; concurrent calls need one each.",
    ]
    states = [] if stepped is None else _about_states(stepped, prefix)
    return [*lines, *states, *_about_positive_results(prefix)]


def _about_states(stepped: SteppedModel, prefix: str) -> list[str]:
    names, pace = ", ".join(map(_plain, stepped.states)), stepped.streamed.pace
    paced = [] if pace.step is None else [
        f"A step takes {pace.step} frames of inputs[0], on axis {pace.axis}. Results are late by",
        f"{prefix}_DELAY frames, and zero before the first.",
    ]  # fmt: skip
    return [
        f"The state holds {names}: {prefix}_STATE_BYTES of the caller's memory for each",
        "stream. Call state_init before the first step, and to start anew. After a status other",
        "than 0 the states are as before the step. Denormal numbers count as zero in a step.",
        *paced,
    ]


def _about_positive_results(prefix: str) -> list[str]:
    return [
        f"A positive result, neither {prefix}_OK nor {prefix}_UNSUPPORTED_CPU, is 1 + the number",
        "of a kernel that found an index outside its table, offsets of bags that do not ascend",
        "from 0, or a whole number divided by 0; the outputs are then undefined. A model without",
        "lookups and such divisions returns none.",
    ]


def _plain(name: str) -> str:
    """Return a name that cannot end a C comment."""
    return re.sub(r"[^\w.]", "_", name)
