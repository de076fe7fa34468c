"""torch.export of a module in evaluation, without lasting traces in the user's model.

    origin_of                the origin of an exported operator in the user's model
    known_recurrent_shapes   shapes of recurrent layers for torch.export, which otherwise runs all
                             steps to find them
    traced                   the export for a free batch, or the example's
    opened                   the export for several open sizes

With a batch of no fixed size, torch 2.13 takes a tenth of a second a step: 9 s for a GRU of 100
steps, and 0.06 s with the shapes of this file. torch keeps Python code for these operators
(`OpOverload.py_kernels`, from its decompositions); where a release keeps none, exporting is slow.
"""

from __future__ import annotations

import inspect
import logging
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput, warn_caller
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.batch_axis import InputAxes
from sparsejit.frontends.torch_export.own_tensors import (
    carries_state,
    changes_itself,
    recorded_writes,
    written_tensors,
)
from sparsejit.frontends.torch_export.packed_sequences import traceable_packing
from sparsejit.ir.values import Origin

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.nn import Module

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
    """Origins of a program's parameters and buffers, by placeholder.

    A floating-point parameter with two or more axes longer than 1 is a weight; a buffer has only a
    name. A weight that hooks of a module compute from several parameters has
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

    Empty where there is none. Code that torch makes has the file "<string>".
    """
    for file, line, code in reversed(list(frames)):
        if not file.startswith((_torch_folder(), _OWN_FOLDER, "<string>")):
            return f"{Path(file).name}:{line}", (code or "").strip()
    return "", ""


@cache
def _torch_folder() -> str:
    import torch

    return str(Path(torch.__file__).parent)


def _plain(path: str) -> str:
    """A module's path as users write it: `layers.0`, for torch's L['self'].layers.0.

    torch also writes L['self']._modules['layers']._modules['0'].
    """
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    return re.sub(r"^L\['\w+'\]\.?", "", path)


@contextmanager
def known_recurrent_shapes() -> Iterator[None]:
    """Context in which formulas give GRU, LSTM and RNN layers their shapes, without values."""
    import torch

    aten = torch.ops.aten
    one_state = (aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    rules = {**dict.fromkeys(one_state, _one_state), aten.lstm.input: _two_states}
    kept = {op: dict(getattr(op, "py_kernels", {})) for op in rules}
    for op, rule in rules.items():
        _replace(op, dict.fromkeys(kept[op], rule))
    try:
        yield
    finally:
        for op, kernels in kept.items():
            _replace(op, kernels)


def _replace(op: Any, kernels: dict[Any, Callable[..., Any]]) -> None:
    """Give an operator other Python code, where it has some."""
    if kernels:
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()


def _one_state(x: Any, state: Any, *rest: Any) -> tuple[Any, Any]:
    """Empty results, in the right shapes, of a GRU or plain RNN: h of all steps, and the last h.

    Arguments of aten.gru.input: x, hx, parameters, has_biases, layers, dropout, train, both ways
    ...
    """
    return _sequence(x, state, rest), state.new_empty(state.shape)


def _two_states(x: Any, states: Any, *rest: Any) -> tuple[Any, Any, Any]:
    """Empty results, in the right shapes, of an LSTM: h of all steps, the last h and the last c.

    Arguments of aten.lstm.input: x, (h, c), and further ones as in `_one_state`.
    """
    hidden, cell = states
    return _sequence(x, hidden, rest), hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


def _sequence(x: Any, state: Any, rest: tuple[Any, ...]) -> Any:
    directions = 2 if rest[5] else 1
    return x.new_empty((*x.shape[:-1], directions * state.shape[-1]))


# torch.export changes the model and switches of the whole process while it runs.
ONE_AT_A_TIME = threading.RLock()
# torch.export's warning of attributes that a module assigns.
_ASSIGNED = re.compile(r"tensor attributes? (.+?) (?:was|were) assigned during export")
_QUANTISED_LAYERS = "torch.ao.nn.quantized.dynamic.modules.rnn"  # they hold objects without tensors
_FIXED_SIZE = re.compile(r"specialized it to be a constant \((\d+)\)")


def traced(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], axes: InputAxes | None
) -> tuple[ExportedProgram, str]:
    """Export a model; return the program, and why its batch is not free, empty if it is.

    `axes` are the batch axes of the tensors; None fixes the batch. Raises InvalidInput for an
    object that is no model, and where torch cannot export it.
    """
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        return model, ""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise InvalidInput(
            f"the model is a {type(model).__name__}; give a torch.nn.Module, not scripted, or "
            "the result of torch.export.export"
        )
    _check_layers(model)
    if any(module.training for module in model.modules()):
        warn_caller("the model is in training mode; it is compiled as after model.eval()")
    why_not = "it was not requested" if axes is None else _no_common_batch(args, kwargs, axes)
    with (
        _evaluating(model) as told,
        recorded_writes(model) as written,
        known_recurrent_shapes(),
        traceable_packing(),
    ):
        program = None
        if not why_not:
            try:
                program = _exported(model, args, kwargs, _open_batch(args, kwargs, axes))
            except Exception as error:  # torch has many types for a size that must not change
                fixed = _FIXED_SIZE.search(str(error))
                why_not = (
                    f"the model works for a batch of {fixed[1]} only"
                    if fixed
                    else f"torch.export fixes it: {first_line(error)}"
                )
        if program is not None and written_tensors(program):
            program, why_not = None, "the model changes buffers, which have one size"
        program = program or _of_one_batch(model, args, kwargs)
    own, lost = dict(model.named_buffers()), list(dict.fromkeys(written))
    buffers = [name for name in written_tensors(program) if name in own]
    if (lost or buffers) and carries_state(model, args, kwargs, buffers):
        is_data = lost and own.keys() >= set(lost)
        remedy = "write it by copy_(), not through `data`" if is_data else ""
        raise changes_itself(", ".join(lost) or "a list or a dict", remedy)
    for name in _kept_attributes(program, told):
        warn_caller(
            f"the model reads and assigns self.{name} while it runs, which keeps its first value "
            "in compiled calls; take it as an input and return it"
        )
    return program, why_not


def _check_layers(model: Module) -> None:
    """Raise InvalidInput for layers that torch.export cannot export, by name."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith(_QUANTISED_LAYERS):
            raise InvalidInput(
                f"layer {name or 'itself'} is torch's quantised {type(module).__name__}, which "
                "torch.export cannot export; give the model before it was quantised, with "
                'dtype="int8" or the scales from sparsejit.quantise'
            )


def traced_again(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """As `traced`, again for the same model, for the example's batch alone."""
    with _evaluating(model), known_recurrent_shapes(), traceable_packing():
        return _of_one_batch(model, args, kwargs)


class OpenSize(NamedTuple):
    """A size that may change; axes with the same name have the same length."""

    name: str
    least: int
    most: int | None


def opened(
    model: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    sizes: Sequence[Mapping[int, OpenSize]],
) -> ExportedProgram | None:
    """Export the model for all sizes from 2 on of these axes; None where torch fixes a size.

    It does so where Python loops over an axis.
    """
    import torch

    named = {size.name: size for axes in sizes for size in axes.values()}
    dims = {
        name: torch.export.Dim(f"size_{number}", min=max(2, size.least), max=size.most)
        for number, (name, size) in enumerate(named.items())
    }
    axes = [{axis: dims[size.name] for axis, size in each.items()} for each in sizes]
    args, kwargs = as_tensors(tuple(args), dict(kwargs))
    with ONE_AT_A_TIME, _evaluating(model), known_recurrent_shapes(), traceable_packing():
        try:
            return _exported(model, args, kwargs, axes)
        except Exception:  # torch has many types for a size that must not change
            return None


def _open_batch(args: Any, kwargs: Any, axes: InputAxes | None) -> list[dict[int, Any]]:
    """The batch of each tensor as a size that may change; none where it is fixed."""
    import torch

    batch = torch.export.Dim("batch")
    where = (None,) * len(tensors_of(args, kwargs)) if axes is None else axes
    return [{} if axis is None else {axis: batch} for axis in where]


def _of_one_batch(model: Module, args: Any, kwargs: Any) -> ExportedProgram:
    try:
        return _exported(model, args, kwargs, _open_batch(args, kwargs, None))
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(
            f"torch.export cannot export this {type(model).__name__}: {_reason(error)}; "
            'try torch.compile(model, backend="sparsejit")'
        ) from error


def _reason(error: Exception) -> str:
    """torch's reason, reworded where values decide a size, and the user's line."""
    text = first_line(error)
    if "data-dependent" in text or "unbacked symbol" in text:
        text = "a size or a branch depends on values of a tensor"
    elif "fake tensor in the exported program" in text:
        text = "it changes a tensor of its own by `data`, or keeps one of a call"
    frames = traceback.extract_tb(error.__traceback__)
    source, code = innermost_line((each.filename, each.lineno, each.line) for each in frames)
    return f"{text}, at {source}: {code}" if source else text


def first_line(error: Exception) -> str:
    """The most telling line of an error: the first reason of a list, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    return (reasons or lines or [repr(error)])[0].rstrip(".")


def tensors_of(args: Any, kwargs: Any) -> list[Any]:
    """The tensors among the arguments of a call, in order."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves((args, kwargs)) if is_tensor(leaf)]


def as_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(args, kwargs) with tensors in place of numpy arrays, no two in the same memory.

    torch.export treats inputs that share memory as one input.
    """
    import torch
    from torch.utils._pytree import tree_map

    met: set[int] = set()

    def as_tensor(leaf: Any) -> Any:
        tensor = torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
        if not is_tensor(tensor) or tensor.layout is not torch.strided:
            return tensor
        memory = tensor.untyped_storage().data_ptr()
        if memory in met:
            return tensor.detach().clone()
        met.add(memory)
        return tensor

    return tree_map(as_tensor, (args, kwargs))


def repeated(args: Any, kwargs: Any, axes: InputAxes) -> Any:
    """(args, kwargs) with each sample twice, on these axes of the tensors."""
    import torch
    from torch.utils._pytree import tree_map

    of_tensor = dict(zip(map(id, tensors_of(args, kwargs)), axes, strict=True))

    def twice(x: Any) -> Any:
        axis = of_tensor.get(id(x))
        return x if axis is None else torch.cat([x, x], axis)

    return tree_map(twice, (tuple(args), dict(kwargs)))


def common_batch(args: Any, kwargs: Any, axes: InputAxes) -> int | None:
    """The batch size if it is the same in all tensors, else None."""
    sizes = set(_batches(args, kwargs, axes))
    return next(iter(sizes)) if len(sizes) == 1 else None


def _batches(args: Any, kwargs: Any, axes: InputAxes) -> Iterator[int | None]:
    """The batch of each tensor that should have one; None where it lacks the axis."""
    for tensor, axis in zip(tensors_of(args, kwargs), axes, strict=True):
        if axis is not None:
            yield tensor.shape[axis] if axis < tensor.ndim else None


def _no_common_batch(args: Any, kwargs: Any, axes: InputAxes) -> str:
    sizes = set(_batches(args, kwargs, axes))
    if not sizes or None in sizes:
        return "an input has no axes" if sizes else "there are no inputs"
    if len(sizes) > 1:
        axis = "axis 0" if not any(axes) else "the batch"
        return f"{axis} of the inputs differs: {', '.join(map(str, sorted(filter(None, sizes))))}"
    return "the batch is empty" if sizes == {0} else ""


def _kept_attributes(
    program: ExportedProgram, told: Sequence[warnings.WarningMessage]
) -> list[str]:
    """Tensors that the model has as attributes, not as buffers, and both reads and replaces."""
    texts = (_ASSIGNED.search(str(warning.message)) for warning in told)
    names = (name.removeprefix("self.") for text in texts if text for name in text[1].split(", "))
    return [name for name in dict.fromkeys(names) if name in program.constants]


# They write tracebacks of exceptions that torch raises, and graphs that it gives up.
_LOGS = (
    *("torch.export", "torch._subclasses.fake_tensor"),
    "torch.fx.experimental.symbolic_shapes",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Context that silences the logs in which torch says why it exports no model."""
    loggers = {log: log.disabled for log in map(logging.getLogger, _LOGS)}
    for log in loggers:
        log.disabled = True
    try:
        yield
    finally:
        for log, before in loggers.items():
            log.disabled = before


@contextmanager
def _evaluating(model: Module) -> Iterator[list[warnings.WarningMessage]]:
    """Context of evaluation, without gradients and fused transformer layers; restored afterwards.

    Warnings are not shown but collected in the list.
    """
    import torch

    modes = [(module, module.training) for module in model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model.eval()
        with torch.no_grad(), quiet(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield told
    finally:
        for module, training in modes:
            module.training = training
        torch.backends.mha.set_fastpath_enabled(fast_path)


def _exported(
    model: Module, args: Any, kwargs: Any, dims: Sequence[Mapping[int, Any]]
) -> ExportedProgram:
    """Export the model with a torch.export.Dim for some axes of each tensor."""
    import torch
    from torch.utils._pytree import tree_map

    if not any(dims):
        return _with_known_numbers(model, tuple(args), dict(kwargs), None)
    of_tensor = dict(zip(map(id, tensors_of(args, kwargs)), dims, strict=True))
    sizes: dict[int, dict[int, Any]] = {}

    def doubled(x: Any) -> Any:
        own = of_tensor.get(id(x))
        if not own:
            return x
        # The strides of a part of a larger tensor would be guards on the size.
        made = x.contiguous()
        for axis in own:
            # One sample would be taken for a size that never changes.
            made = torch.cat([made, made], axis) if x.shape[axis] == 1 else made
        sizes[id(made)] = dict(own)
        return made

    args, kwargs = tree_map(doubled, (tuple(args), dict(kwargs)))
    with _arguments_by_name(model, kwargs):
        by_name = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        free = tree_map(lambda x: sizes.get(id(x)), dict(by_name))
        return _with_known_numbers(model, args, kwargs, free)


def _with_known_numbers(model: Module, args: Any, kwargs: Any, free: Any) -> ExportedProgram:
    """Call torch.export; if numbers in tensors decide sizes, with buffers' numbers as literals.

    torch.export treats every buffer as a tensor that may change, and so cannot compute the padding
    of a convolution from a stride that is a buffer.
    """
    import torch

    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=free)
    except Exception as error:
        numbers = _numbers_of(model) if "data-dependent" in str(error) else {}
        if not numbers:
            raise
        try:
            with _as_literals(numbers):
                program = torch.export.export(model, args, kwargs, dynamic_shapes=free)
        except Exception:  # as the model writes such a number, or as before
            raise error from None
        if _changes_literals(program):
            raise
        return program


def _numbers_of(model: Module) -> dict[Module, list[str]]:
    """The names of each module's buffers that hold one whole number."""
    found = {
        module: [
            name
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.numel() == 1 and not buffer.is_floating_point()
        ]
        for module in model.modules()
    }
    return {module: names for module, names in found.items() if names}


@contextmanager
def _as_literals(buffers: Mapping[Module, Sequence[str]]) -> Iterator[None]:
    """Context in which properties of modules replace these buffers by tensors of literals."""
    import torch

    def literal(buffer: torch.Tensor | None) -> property:
        assert buffer is not None
        numbers, dtype = buffer.tolist(), buffer.dtype
        return property(lambda module: torch.tensor(numbers, dtype=dtype))

    kept = [(module, type(module), dict(module._buffers)) for module in buffers]
    try:
        for module, own, _ in kept:
            made = {name: literal(module.get_buffer(name)) for name in buffers[module]}
            module.__class__ = type(own.__name__, (own,), made)
            for name in made:
                del module._buffers[name]
        yield
    finally:
        for module, own, held in kept:
            module.__class__ = own
            module._buffers.clear()
            module._buffers.update(held)


def _changes_literals(program: ExportedProgram) -> bool:
    """Whether a model writes into a literal, as one that counts its calls in a buffer does."""
    for node in program.graph.nodes:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if node.op == "call_function" and name.endswith("_") and name != "detach_":
            target = str(getattr(node.args[0], "target", ""))
            if target.startswith(("aten.lift_fresh", "aten.detach_")):
                return True
    return False


@contextmanager
def _arguments_by_name(model: Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Context in which the signature of `forward` names the arguments that `**kwargs` takes.

    torch.export accepts sizes that may change only for arguments with a name in the signature.
    """
    forward = model.forward
    own = inspect.signature(forward).parameters
    rest = [each for each in own.values() if each.kind is each.VAR_KEYWORD]
    unnamed = [name for name in kwargs if rest and (name not in own or own[name] is rest[0])]
    if not unnamed:
        yield
        return

    def named(*args: Any, **given: Any) -> Any:
        return forward(*args, **given)

    by_name = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in unnamed)
    others = (each for each in own.values() if each not in rest)
    named.__signature__ = inspect.Signature([*others, *by_name])  # type: ignore[attr-defined]
    had_its_own = "forward" in vars(model)
    model.forward = named
    try:
        yield
    finally:
        if had_its_own:
            model.forward = forward
        else:
            del model.forward
