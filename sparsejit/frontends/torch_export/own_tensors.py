"""Tensors that a torch module changes while it runs. Buffers among them are states of its own.

    changes_itself     the error for any other tensor
    written_tensors    the module's tensors that a program writes in place
    recorded_writes    record of writes that torch.export does not follow
    carries_state      whether the module keeps more than its buffers from call to call
    changed_buffers    the buffers that a program changes, with their places among its results
    initial_of         a buffer's value as a graph's array
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    from torch.fx import Node
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


@contextmanager
def recorded_writes(model: Module) -> Iterator[list[str]]:
    """Record attributes that get tensors or numbers, and tensors whose `data` is set.

    torch.export follows neither, and restores the attributes. Buffers that get a tensor are written
    in place when the model returns, which torch.export follows: it follows an assignment to the
    outermost module's buffers alone, and lets what views their values before see them after.
    """
    import torch

    lost: list[str] = []
    # Proxies, by which torch traces submodules, share their attributes.
    own_attributes = {id(vars(module)): name for name, module in model.named_modules()}
    assign: Any = torch.nn.Module.__setattr__
    data = vars(torch._C.TensorBase)["data"]
    assigned: dict[tuple[int, str], AssignedBuffer] = {}

    def recorded(module: Module, name: str, value: Any) -> None:
        path = own_attributes.get(id(vars(module)))
        if path is None or not isinstance(value, torch.Tensor | int | float):
            assign(module, name, value)
            return
        if name in module._buffers and isinstance(value, torch.Tensor):
            own = AssignedBuffer(f"{path}.{name}".lstrip("."), module._buffers, name)
            assigned.setdefault((id(module._buffers), name), own)
            module._buffers[name] = value
            return
        lost.extend([] if name in module._parameters else [name])
        assign(module, name, value)

    def replace_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        own = (*model.named_buffers(), *model.named_parameters())
        lost.append(next((name for name, held in own if held is tensor), "data"))
        data.__set__(tensor, value)

    torch.nn.Module.__setattr__ = recorded  # type: ignore[method-assign, assignment]
    torch.Tensor.data = property(data.__get__, replace_data)  # type: ignore[assignment]
    try:
        with _writing_in_place(model, assigned):
            yield lost
    finally:
        torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign]
        del torch.Tensor.data


class AssignedBuffer:
    """A buffer that gets another tensor: its name, its place in the module, its tensor before."""

    def __init__(self, name: str, buffers: dict[str, Any], key: str) -> None:
        self.name, self._buffers, self._key = name, buffers, key
        self.before = buffers[key]

    def restore(self) -> None:
        """Give the module the tensor that it had before."""
        self._buffers[self._key] = self.before

    def value(self) -> torch.Tensor:
        """A copy of the tensor that it has now. Raises InvalidInput for one of another kind."""
        after: torch.Tensor = self._buffers[self._key]
        if self.before is None:
            raise changes_itself(self.name, "give it a value of its size before it is compiled")
        if self.before.shape != after.shape or self.before.dtype != after.dtype:
            raise _changes_kind(self.name, self.before, after)
        return after.clone()


@contextmanager
def _writing_in_place(model: Module, assigned: dict[Any, AssignedBuffer]) -> Iterator[None]:
    """Context in which the model, before it returns, writes into buffers their given values."""
    import torch
    from torch.utils._pytree import tree_map

    def copied(x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) else x

    def start(module: Module, args: Any) -> None:
        assigned.clear()  # of a call that failed; torch has given the module its tensors back

    def write(module: Module, args: Any, results: Any) -> Any:
        if not assigned:
            return results
        results = tree_map(copied, results)
        after = [(buffer.before, buffer.value()) for buffer in assigned.values()]
        for buffer in assigned.values():
            buffer.restore()
        for before, value in after:
            before.copy_(value)
        assigned.clear()
        return results

    hooks = model.register_forward_pre_hook(start), model.register_forward_hook(write)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def carries_state(
    model: Module, args: Sequence[Any], kwargs: Mapping[str, Any], buffers: Sequence[str]
) -> bool:
    """Whether a copy of the model gives other results in its second call with the same inputs.

    Results are its outputs and these buffers, which have their first values before both calls.
    False where the model cannot be copied. Random numbers are the same in both calls.
    """
    try:
        copied = deepcopy(model).eval()
    except Exception:  # any of the user's own objects may refuse
        return False
    first = {name: copied.get_buffer(name).clone() for name in buffers}
    outputs = []
    for _ in range(2):
        for name, value in first.items():
            _set_buffer(copied, name, value.clone())
        outputs.append(_results(copied, args, kwargs, buffers))
    pairs = zip(*outputs, strict=True)
    return any(one.shape != two.shape or not one.equal(two) for one, two in pairs)


def _results(
    model: Module, args: Sequence[Any], kwargs: Mapping[str, Any], buffers: Sequence[str]
) -> list[torch.Tensor]:
    """Return copies of the outputs of a call, and of these buffers after it."""
    import torch
    from torch.utils._pytree import tree_leaves

    with torch.no_grad(), warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        given, named = deepcopy((tuple(args), dict(kwargs)))
        found = model(*given, **named), [model.get_buffer(name) for name in buffers]
        return [x.clone() for x in tree_leaves(found) if isinstance(x, torch.Tensor)]


@contextmanager
def repeated_buffers(model: Module, axes: Mapping[str, int | None]) -> Iterator[None]:
    """Context in which these buffers have each sample twice, on these axes."""
    import torch

    kept = {name: model.get_buffer(name) for name in axes}
    try:
        for name, axis in axes.items():
            if axis is not None:
                _set_buffer(model, name, torch.cat([kept[name], kept[name]], axis))
        yield
    finally:
        for name, value in kept.items():
            _set_buffer(model, name, value)


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


# A share of the largest number, by which a program may differ from its module.
_ROUNDING = 1e-3


def check_step(
    model: Module,
    program: ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    buffers: Sequence[ChangedBuffer],
) -> None:
    """Raise InvalidInput unless the program changes buffers as the module does, in one call.

    torch.export may order writes and reads otherwise than the module. Nothing is compared where
    the module, or the program, does not run as it is.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    names = [buffer.name for buffer in buffers]
    others = {name: tensor for name, tensor in model.named_buffers() if name not in names}
    try:
        memo: dict[int, Any] = {id(tensor): tensor for tensor in model.parameters()}
        wanted = _results(deepcopy(model, memo).eval(), args, kwargs, [*names, *others])
        leaves = iter(tree_leaves((tuple(args), dict(kwargs))))
        tensors = {**program.constants, **program.state_dict}
        specs = program.graph_signature.input_specs
        given = [next(leaves) if spec.target is None else tensors[spec.target] for spec in specs]
        with torch.no_grad():
            results = program.graph_module(*given)
    except Exception:  # any of the user's own objects may refuse
        return
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    outputs = [x for x, kind in zip(results, kinds, strict=True) if kind == "USER_OUTPUT"]
    found = [x for x in outputs if isinstance(x, torch.Tensor)]
    found += [*(results[buffer.output] for buffer in buffers), *others.values()]
    if not all(map(_is_near, found, wanted)):
        raise changes_itself(
            ", ".join([*names, *others]),
            "write it by copy_() after all that reads it, or return it as an output",
            " otherwise than torch.export understands it",
        )


def _is_near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return bool(found.equal(wanted))
    most = wanted[wanted.isfinite()].abs().amax().item() if wanted.isfinite().any() else 0.0
    return bool(found.isclose(wanted, 0, _ROUNDING * most, equal_nan=True).all())


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
