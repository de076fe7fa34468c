"""Every case of the operator table as a file: loaded and exported it gives the bits of memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from operator_calls import GROUPS, as_array, as_module, is_there
from saved_models import compiled
from system_tools import GCC, needs_gcc, run_tool

import sparsejit
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.frontends.torch_export import graph_of
from sparsejit.ir.values import Array
from sparsejit.runtime.native_call import address_table, new_workspace

GROUP_NAMES = ("elementwise", "more elementwise", "products", "experts", "reductions")
GROUP_NAMES += ("normalisations", "views", "selections", "poolings", "orders")


def models_of(group: int) -> list[tuple[str, CompiledModel, list[Array]]]:
    """Each call of a group: what it is, compiled, and its inputs."""
    made = []
    for row, calls in GROUPS[group].items():
        for each in calls if is_there(row) else ():
            module, constants, inputs = as_module(row, each)
            model = compiled(graph_of(module, constants), None)
            arrays = [np.array(as_array(tensor), order="C") for tensor in inputs]
            made.append((f"{row} {each}", model, arrays))
    return made


def run_exported(
    library: ctypes.CDLL, name: str, model: CompiledModel, inputs: Sequence[Array]
) -> list[Array]:
    """The outputs of a function of a shared object."""
    outputs = [np.zeros(v.shape, v.type.element.value) for v in model.graph.outputs]
    workspace = new_workspace(model.stats["workspace_bytes"])
    tables = address_table(inputs), address_table(outputs)
    assert library[f"{name}_run"](*tables, ctypes.c_void_p(workspace.ctypes.data)) == 0
    return outputs


def bits(arrays: Sequence[Array]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@needs_gcc
@pytest.mark.parametrize("group", range(len(GROUPS)), ids=GROUP_NAMES)
def test_files_give_the_bits_of_memory(tmp_path: Path, group: int) -> None:
    made = models_of(group)
    for number, (what, model, inputs) in enumerate(made):
        model.save(tmp_path / "m.sjit")
        found = sparsejit.load(tmp_path / "m.sjit").run(inputs)
        assert bits(found) == bits(model.run(inputs)), what
        model.export(tmp_path / f"f{number}.o")
    objects = [tmp_path / f"f{number}.o" for number in range(len(made))]
    run_tool(GCC, "-shared", "-nostdlib", *objects, "-o", tmp_path / "all.so")
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    for number, (what, model, inputs) in enumerate(made):
        found = run_exported(library, f"f{number}", model, inputs)
        assert bits(found) == bits(model.run(inputs)), what
