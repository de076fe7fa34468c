"""Graphs, for any batch, of a torch module or of a program exported from one.

    export         a module or a program as an `Exported`, which has the graphs
    read_program   files of torch.export.save
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsejit.errors import (
    DamagedFile,
    InvalidInput,
    MissingDependency,
    SparseJitError,
    warn_caller,
)
from sparsejit.files import existing_file
from sparsejit.frontends import nesting
from sparsejit.frontends.batch_axis import (
    GraphsBySize,
    InputAxes,
    SizedBatch,
    SizedInput,
    axes_of_name,
    batch_first,
    free_batch_of,
    likely_axes,
    why_not_alike,
)
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.states import ModelInterface, interface_of
from sparsejit.frontends.torch_export.decomposing import functionalised
from sparsejit.frontends.torch_export.given_sizes import (
    is_program,
    symbols_of_examples,
    user_inputs,
)
from sparsejit.frontends.torch_export.interpreting import dtype_of, graph_of
from sparsejit.frontends.torch_export.own_tensors import (
    changed_buffers,
    changes_itself,
    check_step,
    initial_of,
    repeated_buffers,
)
from sparsejit.frontends.torch_export.tracing import (
    ONE_AT_A_TIME,
    as_tensors,
    common_batch,
    origins_of_tensors,
    quiet,
    repeated,
    tensors_of,
    traced,
    traced_again,
)
from sparsejit.ir.graph import BatchAxes, Graph
from sparsejit.ir.operator import SamplesMixed
from sparsejit.ir.state import State
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.nn import Module

# A model's tensors, small ones copied, by address, shape, strides and dtype.
Copies = dict[Any, "torch.Tensor"]
_LARGE = 1 << 20  # bytes


def export(
    model: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    free_batch: bool = True,
    axes: InputAxes | None = None,
) -> Exported:
    """Export a torch.nn.Module, as it computes in evaluation, or read an ExportedProgram.

    Example inputs are tensors or numpy arrays, in any nest that torch.export takes. With
    `free_batch` their batch may change: it lies on `axes`, or if these are None, on axis 0 of every
    input, or else on axes that the sizes and the model allow. Where the model allows none,
    `Exported.batch_is_free` is False and `why_not_free` says why. Everything is computed in
    float32, models of other floats as well: weights and inputs become float32, and short floats
    are rounded where they are cast.

    Warns where the model is in training mode; its state does not change; and where the model
    writes into its inputs, which its graph does not. Raises InvalidInput for an object that is no
    model or cannot be exported, and UnsupportedOperator, which lists the operators that have no
    mapping.
    """
    args, kwargs = as_tensors(tuple(example_inputs), dict(example_kwargs or {}))
    with ONE_AT_A_TIME:
        likely = (0,) * len(tensors_of(args, kwargs)) if axes is None else axes
        exported = _exported_on(model, args, kwargs, likely if free_batch else None)
        if exported.changed_inputs:
            warn_caller(
                f"the model changes its input {exported.changed_inputs[0]!r} in place; compiled, "
                "it leaves the caller's tensor as it is (inplace=False does so in torch)"
            )
        if exported.batch_is_free or not free_batch or axes is not None or is_program(model):
            return exported
        if exported.own_states:
            return _with_batch_of_buffers(model, args, kwargs, exported) or exported
        for choice in likely_axes(exported.graph()):
            if choice != likely:
                found = _exported_on(model, args, kwargs, choice, exported.copies)
                if found.batch_is_free:
                    return found
        return exported


def _exported_on(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    axes: InputAxes | None,
    copies: Copies | None = None,
) -> Exported:
    """Export the model with its batch on these axes; without axes the batch is fixed."""
    program, why_not = traced(model, args, kwargs, axes)
    if program is model:
        sizes = symbols_of_examples(program, args, kwargs)
        return Exported(program, sizes=sizes, is_module=False)
    batch = None if axes is None else common_batch(args, kwargs, axes)
    try:
        exported = Exported(program, why_not, batch, copies)
    except _NumberReturned as reason:
        if axes is None:
            raise
        fixed, _ = traced(model, args, kwargs, None)
        return Exported(fixed, str(reason), None, copies)
    exported.check_step(model, args, kwargs)
    if exported.example_batch != 1 or why_not:
        return exported
    # One sample was exported as two: in Python, a model may take another path for one.
    single = traced_again(model, args, kwargs)
    if exported.axes is None:
        return Exported(single, exported.why_not_free, 1, exported.copies)
    why_not = "the model takes another path for one sample"
    alone = Exported(single, why_not, 1, exported.copies)
    found = batch_first(alone.graph(), exported.axes)
    return alone if why_not_alike(found, exported.graph(1)) else exported


def _with_batch_of_buffers(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], exported: Exported
) -> Exported | None:
    """The model with a free batch, which its inputs and all buffers that it changes have.

    A batch of one sample is exported as two: the batch is followed through the graph from axes of
    two samples. None where the model mixes samples, or keeps something that is no sample's.
    """
    states = exported.own_states
    for choice in likely_axes(exported.graph()):
        first = len(choice) - len(states)
        if None in choice[first:]:
            continue
        pairs = zip(exported.graph().inputs, choice, strict=True)
        batch = next(value.shape[axis] for value, axis in pairs if axis is not None)
        with suppress(SamplesMixed, SparseJitError):
            several = exported
            if batch == 1:
                axes = dict(zip((state.name for state in states), choice[first:], strict=True))
                given, named = repeated(args, kwargs, choice[:first])
                with repeated_buffers(model, axes):
                    program, _ = traced(model, given, named, None)
                    several = Exported(program, copies=exported.copies)
            return several.with_batch(choice, batch, exported)
    return None


class Exported:
    """An exported model. `graph(batch)` is its graph for a batch of that size.

    If the batch is free, samples lie on axis 0 of the graph, and on `axes` of the model.
    `input_tree` is the form of (args, kwargs), `output_tree` the form of the model's results;
    graphs have the tensors of both, in order, and behind them the buffers that the model changes,
    before and after a call: `own_states`. `sizes` are the numbers of symbols other than the batch;
    a symbol that is left out has its number in the example. `copies` are the copies of the model's
    tensors that another program of the same model has made. `is_module` says that the
    program was made of a module, whose hooks compute weights.
    """

    def __init__(
        self,
        program: ExportedProgram,
        why_fixed: str = "",
        example_batch: int | None = None,
        copies: Copies | None = None,
        sizes: Mapping[str, int] | None = None,
        is_module: bool = True,
    ) -> None:
        self._sizes = dict(sizes or {})
        self._program = functionalised(program)
        self.copies: Copies = {} if copies is None else copies
        self._buffers = changed_buffers(self._program)
        self._constants = _constants(self._program, self.copies)
        self._arrays: dict[str, Array] = {}
        self._names = origins_of_tensors(self._program, is_module)
        outputs = self._program.graph_signature.output_specs
        self._results = _numbers_of(outputs, "USER_OUTPUT")
        changed = _numbers_of(outputs, "USER_INPUT_MUTATION")
        self.changed_inputs = [str(outputs[number].target) for number in changed]
        self.input_tree = _form(program.call_spec.in_spec, _arguments(self._program), "inputs")
        self.output_tree = _form(program.call_spec.out_spec, _results(self._program), "outputs")
        self.own_states = self._states()
        self._sized: SizedBatch | None = None  # makes graphs where buffers have the batch too
        self.axes: BatchAxes | None = None
        self._probe: Graph | None = None  # every batch's graph must be like it
        choices = list(_batches_of(self._program))
        self._choose(choices[0] if choices else _fixed_batch(self._program), example_batch)
        first = self.graph()  # raises now for missing operators
        self.output_tree = nesting.with_open_axes(self.output_tree, first.open_axes)
        self.why_not_free = why_fixed or self._mixing(choices, example_batch)

    @property
    def batch_is_free(self) -> bool:
        """Whether inputs and outputs have a batch and no sample touches another."""
        return self.axes is not None

    @property
    def interface(self) -> ModelInterface:
        """The inputs and outputs by the names of the model's arguments, and its own states."""
        called = self._program.module_call_graph[0].signature
        names = (called and called.forward_arg_names) or ()
        return interface_of(self.input_tree, self.output_tree, names, self.own_states)

    def _states(self) -> tuple[State, ...]:
        """The buffers that the model changes, with their values now."""
        given, made = (len(nesting.dtypes(each)) for each in (self.input_tree, self.output_tree))
        return tuple(
            State(
                buffer.name,
                given + number,
                made + number,
                initial_of(buffer),
                "a buffer that the model changes",
            )
            for number, buffer in enumerate(self._buffers)
        )

    def check_step(self, model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidInput unless buffers change as in the module, in a call like this."""
        if self._buffers:
            check_step(model, self._program, args, kwargs, self._buffers)

    def _choose(self, batch: ProgramBatch, example_batch: int | None) -> None:
        """Make this size the batch, and forget graphs made so far."""
        self._symbol = batch.symbol
        # One sample is traced as two.
        free = batch.symbol is not None and example_batch is not None
        self.example_batch = example_batch if free else batch.size
        self._graphs = GraphsBySize()

    def graph(self, batch: int | None = None) -> Graph:
        """The graph for that batch, by default the example's.

        Raises InvalidInput where only the example's batch is possible, and where the model
        takes another path for this one.
        """
        is_fixed = self._symbol is None and self._sized is None
        if is_fixed and batch not in (None, self.example_batch):
            raise InvalidInput(
                f"batch={batch}, but the batch of this model is fixed: {self.why_not_free}; "
                "compile it with example inputs of that batch"
            )
        size = self.example_batch if batch is None else batch
        graph = self._graph(size)
        if self.axes is not None:
            graph = batch_first(graph, self.axes)
        if self._probe is not None and (why := why_not_alike(self._probe, graph, size)):
            raise InvalidInput(
                f"the model takes another path for a batch of {size}: {why}; "
                "compile it with free_batch=False"
            )
        return graph

    def with_batch(self, axes: InputAxes, batch: int, first: Exported) -> Exported:
        """The model `first`, whose example has this batch, with any batch on these axes.

        This program is of several samples. Raises SamplesMixed where the batch is not free.
        """
        found = SizedBatch(self.graph(), axes)
        count = len(first.own_states)
        if found.axes.outputs[-count:] != tuple(axes[-count:]) or first.graph().open_axes:
            raise SamplesMixed("a buffer has its batch on another axis after a call")
        wanted = batch_first(found.graph(2), found.axes)
        if why := why_not_alike(wanted, batch_first(first.graph(), found.axes), batch):
            raise SamplesMixed(f"the model takes another path for a batch of {batch}: {why}")
        made = copy(first)
        made._sized, made.axes, made.why_not_free = found, found.axes, ""
        made.example_batch = batch
        pairs = zip(first.own_states, axes[-count:], strict=True)
        made.own_states = tuple(_of_one_sample(state, axis or 0) for state, axis in pairs)
        return made

    def _graph(self, size: int | None) -> Graph:
        if self._sized is not None:
            return self._sized.graph(size or 1)
        return self._graphs.get(size, self._made_for)

    def _made_for(self, size: int | None) -> Graph:
        batch = {} if self._symbol is None or size is None else {self._symbol: size}
        sizes = self._sizes | batch
        module = self._program.graph_module
        with ONE_AT_A_TIME:
            known = self._constants, sizes, self._arrays, self._names
            results = [*self._results, *(buffer.output for buffer in self._buffers)]
            return graph_of(module, *known, results, [each.input for each in self._buffers])

    def _mixing(self, choices: Sequence[ProgramBatch], example_batch: int | None) -> str:
        """Choose the first of the candidate batches that is free; if none is, return the reason."""
        first = ""
        for batch in choices:
            self._choose(batch, example_batch)
            try:
                self.axes, self._probe = free_batch_of(
                    self._graph, self.example_batch, batch.axes
                )
                return ""
            except SamplesMixed as reason:
                first = first or str(reason)
        if choices and choices[0].symbol in self._sizes:  # given, so not the batch
            self._choose(ProgramBatch(None, None), None)
        elif choices:
            self._choose(choices[0], example_batch)
        return first or _why_one_batch(self._program)


def _of_one_sample(state: State, axis: int) -> State:
    """The state before the first call of any sample. Raises SamplesMixed if samples differ."""
    assert state.initial is not None
    one = state.initial.take([0], axis)
    if not np.array_equal(np.broadcast_to(one, state.initial.shape), state.initial):
        raise SamplesMixed(f"samples of buffer {state.name} start with different values")
    return replace(state, initial=one)


class _NumberReturned(InvalidInput):
    """Error for a model that returns a number which its sizes or a call decide, not a tensor."""


class _Tensor:
    """Stands for a tensor in a nest, with the name of its dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


def _form(spec: Any, arguments: Sequence[Any], where: str) -> Nest:
    """The form of a pytree with these leaves, each a `_Tensor` or a constant."""
    tree = spec.unflatten(arguments)
    return nesting.describe(tree, lambda x: isinstance(x, _Tensor), where, _opened)


def _opened(container: Any) -> nesting.Opened | None:
    """Open a container of a class that is registered in torch's pytrees; None for others."""
    from torch.utils._pytree import SUPPORTED_NODES

    node = SUPPORTED_NODES.get(type(container))
    if node is None:
        return None
    items, context = node.flatten_fn(container)
    names: list[str] = []
    if isinstance(container, Mapping):
        names = list(container)
    elif is_dataclass(container):
        held = ((each.name, getattr(container, each.name)) for each in fields(container))
        names = [name for name, value in held if value is not None]
    keys = tuple(names) if len(names) == len(items) else ()
    return nesting.Opened(items, keys, lambda *filled: node.unflatten_fn(list(filled), context))


def _leaf(program: ExportedProgram, argument: Any) -> Any:
    if type(argument).__name__ == "ConstantArgument":
        return argument.value
    example = next(n.meta["val"] for n in program.graph.nodes if n.name == argument.name)
    if not hasattr(example, "dtype"):
        raise _NumberReturned(
            f"the model returns the number {argument.name}, which a call or its sizes decide; "
            "return a tensor: x.sum() in the place of x.sum().item()"
        )
    return _Tensor(dtype_of(example))


def _arguments(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.input_specs
    return [_leaf(program, spec.arg) for spec in specs if spec.kind.name == "USER_INPUT"]


def _results(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.output_specs
    for spec in specs:
        if spec.kind.name not in ("USER_OUTPUT", "USER_INPUT_MUTATION", "BUFFER_MUTATION"):
            raise changes_itself(spec.target)
    return [_leaf(program, specs[number].arg) for number in _numbers_of(specs, "USER_OUTPUT")]


def _numbers_of(specs: Sequence[Any], kind: str) -> list[int]:
    return [number for number, spec in enumerate(specs) if spec.kind.name == kind]


def _constants(program: ExportedProgram, copies: Copies) -> dict[str, torch.Tensor]:
    """Parameters, buffers that stay, and literals by placeholder, one where several share memory.

    Large matrices share the model's memory: callers copy them to keep them after compiling.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    constants = {}
    changed = program.graph_signature.buffers_to_mutate.values()
    for spec in program.graph_signature.input_specs:
        if spec.target is None or spec.target in changed:
            continue
        tensors = program.state_dict if spec.target in program.state_dict else program.constants
        tensor = tensors[spec.target]
        if isinstance(tensor, FakeTensor):  # made while torch traced the model
            raise changes_itself(spec.target)
        lazy = tensor.is_conj(), tensor.is_neg()  # views that read the same memory differently
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, *lazy)
        if key not in copies:
            plain = tensor.detach().cpu().resolve_conj().resolve_neg()
            is_large = plain.ndim > 1 and plain.nbytes >= _LARGE
            copies[key] = plain if is_large else plain.clone()
        constants[spec.arg.name] = copies[key]
    return constants


class ProgramBatch(NamedTuple):
    """Candidate batch dimension of an exported program.

    symbol: torch's name of the size; None for a fixed batch.
    size: its value in the example; None if unknown.
    axes: for each input, its first axis with this symbol; None for an input without it.
    """

    symbol: str | None
    size: int | None
    axes: tuple[int | None, ...] = ()


def _batches_of(program: ExportedProgram) -> Iterator[ProgramBatch]:
    """Yield sizes that may be the batch, sizes of axis 0 of the inputs first."""
    shapes = [example.shape for _, example in user_inputs(program)]
    inputs = [
        SizedInput(
            (), {n: str(size) for n, size in enumerate(shape) if not isinstance(size, int)}
        )
        for shape in shapes
    ]
    places = [(axis, n) for n, each in enumerate(inputs) for axis in each.names]
    for axis, number in sorted(places):
        symbol, size = inputs[number].names[axis], shapes[number][axis]
        axes = axes_of_name(inputs, symbol)
        if axes[number] == axis and size.node.expr.is_Symbol:
            yield ProgramBatch(symbol, size.node.hint, axes)


def _fixed_batch(program: ExportedProgram) -> ProgramBatch:
    """The batch of a program of fixed sizes: axis 0 of the inputs, if it has one length."""
    sizes = {tuple(example.shape[:1]) for _, example in user_inputs(program)}
    return ProgramBatch(None, next(iter(sizes))[0] if len(sizes) == 1 and sizes != {()} else None)


def _why_one_batch(program: ExportedProgram) -> str:
    """The reason why a program has no batch that may change."""
    sizes = [(name, example.shape) for name, example in user_inputs(program)]
    for name, shape in sizes:
        if not len(shape):
            return f"input {name} has no axes"
    if not sizes:
        return "the model has no tensor inputs"
    (first, (size, *_)), *others = sizes
    for name, (other, *_) in others:
        if other != size:
            return f"axis 0 of input {first} is {size}, axis 0 of {name} is {other}"
    return "it was exported for one batch"


def read_program(
    path: str | os.PathLike[str],
) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """A .pt2 file's program and the example inputs stored in it, by position and by name.

    torch reads it, and may run code that the file holds. Raises InvalidInput where there is no file
    or no inputs in it, DamagedFile where torch cannot read it.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"reading {path} needs torch: pip install 'sparsejit[torch]'"
        ) from error
    file = existing_file(path, "a .pt2 file")
    try:
        with quiet():
            program = torch.export.load(file)
    except Exception as error:  # of torch, zipfile, json, pickle
        raise DamagedFile(
            f"{file} cannot be read by torch {torch.__version__}; write it with "
            "torch.export.save(program, path) of that version"
        ) from error
    if program.example_inputs is None:
        raise InvalidInput(
            f"{file} has no example inputs; save a program that torch.export.export made with them"
        )
    args, kwargs = program.example_inputs
    return program, tuple(args), dict(kwargs)

