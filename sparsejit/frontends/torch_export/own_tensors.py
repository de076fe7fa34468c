"""Tensors that a torch module changes while it runs. Buffers among them are states of its own.

    changes_itself     the error for any other tensor
    written_tensors    the module's tensors that a program writes in place
    recorded_writes    record of the tensors and numbers that a module assigns
    with_old_values    a program in which buffers are assigned after all that reads them
    carries_state      whether the module keeps more than its buffers from call to call
    changed_buffers    the buffers that a program changes, with their places among its results
    initial_of         a buffer's value as a graph's array
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.writing.writer import Unmapped, Writer, element_of
from sparsejit.ir.dtypes import COMPLEX, as_pairs, within_float32
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node
    from torch.nn import Module


KEEP_KIND = "keep one size and dtype, such as the last n steps"


def changes_itself(name: str, remedy: str = "", how: str = "") -> InvalidInput:
    """Return the error for a model that writes into a tensor of its own that is no buffer."""
    usual = "register it as a buffer, which a stream keeps, or return it as an output"
    return InvalidInput(f"the model changes {name!r} while it runs{how}; {remedy or usual}")


def own_tensor(program: ExportedProgram, node: Node) -> str | None:
    """Return the name of the buffer, parameter or attribute that a node writes; None for others.

    The node may write it through views.
    """
    signature = program.graph_signature
    owned = {
        **signature.inputs_to_buffers,
        **signature.inputs_to_parameters,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return owned.get(_viewed(node.args[0]).name)


def _viewed(node: Any) -> Any:
    """Return the node whose result this one views, through any number of views."""
    while node.op == "call_function" and _is_view(node):
        node = node.args[0]
    return node


def _is_view(node: Node) -> bool:
    """Whether a node's result is a part of its first operand, or one of several views of it."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.target is operator.getitem
    return any(result.alias_info is not None for result in schema.returns)


def written_tensors(program: ExportedProgram) -> list[str]:
    """The names of buffers, parameters and attributes that a program changes, each once."""
    nodes = filter(writes, program.graph_module.graph.nodes)
    found = [own_tensor(program, node) for node in nodes]
    kept = [spec.target for spec in program.graph_signature.output_specs if spec.target]
    inputs = set(program.graph_signature.user_inputs)
    return [name for name in dict.fromkeys([*found, *kept]) if name and name not in inputs]


def writes(node: Node) -> bool:
    """Whether an operator changes one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


class Writes(NamedTuple):
    """Names of the tensors and numbers that a module assigns while it runs.

    `lost` are attributes that get tensors or numbers, and tensors whose `data` is set: torch.export
    follows neither, and restores the attributes. It follows the `buffers`.
    """

    lost: list[str]
    buffers: list[str]


@contextmanager
def recorded_writes(model: Module) -> Iterator[Writes]:
    """Context that records what the modules of a model assign."""
    import torch

    written = Writes([], [])
    # Proxies, by which torch traces submodules, share their attributes.
    own_attributes = {id(vars(module)): name for name, module in model.named_modules()}
    assign, data = torch.nn.Module.__setattr__, vars(torch._C.TensorBase)["data"]

    def recorded(module: Module, name: str, value: Any) -> None:
        if id(vars(module)) in own_attributes and isinstance(value, torch.Tensor | int | float):
            if name in module._buffers and isinstance(value, torch.Tensor):
                value = value.view_as(value)  # torch.export takes no input as it is
                path = own_attributes[id(vars(module))]
                written.buffers.append(f"{path}.{name}" if path else name)
            elif name not in module._parameters:
                written.lost.append(name)
        assign(module, name, value)

    def replace_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        own = (*model.named_buffers(), *model.named_parameters())
        written.lost.append(next((name for name, held in own if held is tensor), "data"))
        data.__set__(tensor, value)

    torch.nn.Module.__setattr__ = recorded  # type: ignore[method-assign, assignment]
    torch.Tensor.data = property(data.__get__, replace_data)  # type: ignore[assignment]
    try:
        yield written
    finally:
        torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign]
        del torch.Tensor.data


def with_old_values(program: ExportedProgram, assigned: Sequence[str]) -> ExportedProgram:
    """Return the program, changed so that results which view a buffer have its value before.

    torch.export copies what a module assigns to buffers into these at the end, one after the other,
    also where an output or another of these copies is a view of such a buffer.
    """
    graph = program.graph_module.graph
    *_, output = graph.nodes
    places = {name: place for place, name in program.graph_signature.inputs_to_buffers.items()}
    buffers = {places[name] for name in assigned if name in places}
    copies: list[Any] = []
    node = output.prev
    while str(node.target) == "aten.copy_.default" and len(copies) < len(buffers):
        copies.insert(0, node)
        node = node.prev
    if {copy.args[0].name for copy in copies} != buffers:
        raise changes_itself(", ".join(assigned), "write it by copy_(), not by an assignment")
    for copy in copies:
        before, after = (each.meta["val"] for each in copy.args)
        if before.shape != after.shape or before.dtype != after.dtype:
            name = program.graph_signature.inputs_to_buffers[copy.args[0].name]
            raise _changes_kind(name, before, after)
    with graph.inserting_before(copies[0] if copies else output):
        for copy in copies:
            copy.update_arg(1, _kept(graph, copy.args[1], buffers))
        results = [_kept(graph, value, buffers) for value in output.args[0]]
    output.args = (tuple(results),)
    specs = program.graph_signature.output_specs
    for spec, value in zip(specs, results, strict=True):
        if hasattr(value, "name"):
            spec.arg.name = value.name
    program.graph_module.recompile()
    return program


def _kept(graph: Graph, value: Any, buffers: Collection[str]) -> Any:
    """A copy of a result that views one of these buffers; all others as they are."""
    import torch

    if not hasattr(value, "op") or _viewed(value).name not in buffers:
        return value
    made = graph.call_function(torch.ops.aten.clone.default, (value,))
    made.meta = dict(value.meta)
    return made


def carries_state(
    model: Module, args: Sequence[Any], kwargs: Mapping[str, Any], buffers: Sequence[str]
) -> bool:
    """Whether a copy of the model gives other results in its second call with the same inputs.

    Results are its outputs and these buffers, which have their first values before both calls.
    False where the model cannot be copied. Random numbers are the same in both calls.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    try:
        copied = deepcopy(model).eval()
    except Exception:  # any of the user's own objects may refuse
        return False
    first = {name: copied.get_buffer(name).clone() for name in buffers}
    outputs = []
    with torch.no_grad(), warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        for _ in range(2):
            torch.manual_seed(0)
            for name, value in first.items():
                _set_buffer(copied, name, value.clone())
            given, named = deepcopy((args, dict(kwargs)))
            found = copied(*given, **named), [copied.get_buffer(name) for name in buffers]
            outputs.append([x.clone() for x in tree_leaves(found) if isinstance(x, torch.Tensor)])
    pairs = zip(*outputs, strict=True)
    return any(one.shape != two.shape or not one.equal(two) for one, two in pairs)


def _set_buffer(model: Module, name: str, value: torch.Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    model.get_submodule(path)._buffers[leaf] = value


class ChangedBuffer(NamedTuple):
    """A buffer that a program changes: its placeholder, and the number of the result that it takes.

    `value` is the tensor in the program, which is the module's own.
    """

    name: str
    input: str
    output: int
    value: torch.Tensor


def changed_buffers(program: ExportedProgram) -> list[ChangedBuffer]:
    """The buffers that a program without writes in place changes, in the order of its results.

    Raises InvalidInput for one without a value, and for one that gets another size or dtype, or
    shares its memory.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    signature = program.graph_signature
    places = {name: place for place, name in signature.inputs_to_buffers.items()}
    examples = {node.name: node.meta.get("val") for node in program.graph.nodes}
    found = []
    for number, spec in enumerate(signature.output_specs):
        if spec.kind.name != "BUFFER_MUTATION":
            continue
        name = str(spec.target)
        if name not in places:  # an attribute
            raise changes_itself(name)
        tensors = program.state_dict if name in program.state_dict else program.constants
        value, before, after = tensors[name], examples[places[name]], examples[spec.arg.name]
        if isinstance(value, FakeTensor):  # made while torch traced the model
            raise changes_itself(name, "give it a value of its size before it is compiled")
        if before.shape != after.shape or before.dtype != after.dtype:
            raise _changes_kind(name, before, after)
        found.append(ChangedBuffer(name, places[name], number, value))
    check_apart(program, [buffer.name for buffer in found])
    return found


def _changes_kind(name: str, before: Any, after: Any) -> InvalidInput:
    """Return the error for a buffer that gets another size or dtype."""
    kinds = (f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" for x in (before, after))
    return changes_itself(name, KEEP_KIND, f", from {' to '.join(kinds)}")


def check_apart(program: ExportedProgram, changed: Sequence[str]) -> None:
    """Raise InvalidInput for a changed tensor that shares memory with another of the model."""
    own = {**program.state_dict, **program.constants}
    for written in changed:
        memory = _memory(own.get(written))
        for name, tensor in own.items():
            if name != written and memory is not None and _memory(tensor) == memory:
                raise changes_itself(
                    written, "register a clone() of it", f", which shares memory with {name}"
                )


def _memory(tensor: Any) -> int | None:
    """The address of a tensor's memory; None for other objects, and where there is none."""
    try:
        return int(tensor.untyped_storage().data_ptr()) or None
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


def initial_of(buffer: ChangedBuffer) -> Array:
    """A copy of the buffer's value, in the dtype that a graph holds it in."""
    dtype = str(buffer.value.dtype).removeprefix("torch.")
    array = Writer().array(buffer.value)
    if dtype in COMPLEX:
        return np.array(as_pairs(array))
    try:
        element = element_of(buffer.value.dtype)
    except Unmapped as reason:
        raise InvalidInput(
            f"buffer {buffer.name}, which the model changes, has {reason}; give float16 to "
            "float64, complex64, bool, or whole numbers of uint8 or int8 to int64"
        ) from None
    return np.array(within_float32(array), element.value)
