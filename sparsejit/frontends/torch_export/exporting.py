"""A torch module, or what torch.export made of one, as graphs of any batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.errors import InvalidInput
from sparsejit.frontends import nesting
from sparsejit.frontends.batch_axis import GraphsBySize, why_fixed, why_not_alike
from sparsejit.frontends.caller_warnings import warn_caller
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.torch_export.given_sizes import symbols_of_examples, user_inputs
from sparsejit.frontends.torch_export.interpreting import dtype_of, graph_of
from sparsejit.frontends.torch_export.mutation import functionalised
from sparsejit.frontends.torch_export.tracing import (
    ONE_AT_A_TIME,
    as_tensors,
    common_batch,
    traced,
    traced_again,
)
from sparsejit.ir.graph import Array, Graph

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


# A model's tensors, small ones copied, by address, shape, strides and dtype.
Copies = dict[Any, "torch.Tensor"]
_LARGE = 1 << 20  # bytes


def export(
    model: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    free_batch: bool = True,
) -> Exported:
    """A torch.nn.Module, as it computes in evaluation, or an ExportedProgram.

    Example inputs are tensors or numpy arrays, in any nest that torch.export takes. With
    `free_batch` axis 0 of every input is one size that may change; where the model does not allow
    that, `Exported.batch_is_free` is False and `why_not_free` says why. Everything is computed in
    float32, models of other floats as well: their weights and inputs become float32.
    Warns where the model is in training mode; its state does not change; and where the model
    writes into its inputs, which its graph does not. Raises InvalidInput for
    what is no model or cannot be exported, and UnsupportedOperator, which lists the operators
    that have no mapping.
    """
    args, kwargs = as_tensors(tuple(example_inputs), dict(example_kwargs or {}))
    with ONE_AT_A_TIME:
        program, why_not = traced(model, args, kwargs, free_batch)
        sizes = symbols_of_examples(program, args, kwargs) if program is model else {}
        exported = Exported(program, why_not, common_batch(args, kwargs), sizes=sizes)
        if exported.changed_inputs:
            warn_caller(
                f"the model changes its input {exported.changed_inputs[0]!r} in place; compiled, "
                "it leaves the caller's tensor as it is (inplace=False does so in torch)"
            )
        if exported.example_batch != 1 or why_not or program is model:
            return exported
        # It was exported as two samples: a model may do otherwise for one, in Python.
        single = traced_again(model, args, kwargs)
        if not exported.batch_is_free:
            return Exported(single, exported.why_not_free, 1, exported.copies)
        why_not = "the model computes otherwise for one sample"
        alone = Exported(single, why_not, 1, exported.copies)
        return alone if why_not_alike(alone.graph(), exported.graph(1)) else exported


class Exported:
    """An exported model. `graph(batch)` is its graph for a batch of that size.

    `input_tree` is the form of (args, kwargs), `output_tree` that of what the model returns;
    graphs have the tensors of both, in order. `sizes` are the numbers of symbols beside the batch,
    the example's where they are left out. `copies` has those that another program of the same
    model has made of its tensors.
    """

    def __init__(
        self,
        program: ExportedProgram,
        why_fixed: str = "",
        example_batch: int | None = None,
        copies: Copies | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._sizes = dict(sizes or {})
        self._program = functionalised(program)
        self.copies: Copies = {} if copies is None else copies
        self._constants = _constants(self._program, self.copies)
        self._arrays: dict[str, Array] = {}
        self._graphs = GraphsBySize()
        signature = self._program.graph_signature
        self._names = {s.arg.name: s.target for s in signature.input_specs if s.target}
        # torch.export returns them as outputs, before all others.
        self.changed_inputs = [
            str(s.target) for s in signature.output_specs if s.kind.name == "USER_INPUT_MUTATION"
        ]
        self.input_tree = _form(program.call_spec.in_spec, _arguments(self._program), "inputs")
        self.output_tree = _form(program.call_spec.out_spec, _results(self._program), "outputs")
        self._symbol, traced_batch, found = _batch_of(self._program)
        # One sample is traced as two.
        free = self._symbol is not None and example_batch is not None
        self.example_batch = example_batch if free else traced_batch
        self._probe: Graph | None = None  # what every batch's graph must be like
        self.graph()  # so that what is missing is said now
        self.why_not_free = why_fixed or found or self._mixing()

    @property
    def batch_is_free(self) -> bool:
        """Whether axis 0 of inputs and outputs is the batch and no sample touches another."""
        return not self.why_not_free

    def graph(self, batch: int | None = None) -> Graph:
        """With that batch, by default the example's.

        Raises InvalidInput where only the example's batch is possible, and where the model
        computes otherwise for this one.
        """
        if self._symbol is None and batch not in (None, self.example_batch):
            raise InvalidInput(
                f"batch={batch}, but the batch of this model is fixed: {self.why_not_free}; "
                "compile it with example inputs of that batch"
            )
        size = self.example_batch if batch is None else batch
        graph = self._graph(size)
        if self._probe is not None and (why := why_not_alike(self._probe, graph, size)):
            raise InvalidInput(
                f"the model computes otherwise for a batch of {size}: {why}; "
                "compile it with free_batch=False"
            )
        return graph

    def _graph(self, size: int | None) -> Graph:
        return self._graphs.get(size, self._made_for)

    def _made_for(self, size: int | None) -> Graph:
        batch = {} if self._symbol is None or size is None else {self._symbol: size}
        sizes = self._sizes | batch
        module = self._program.graph_module
        with ONE_AT_A_TIME:
            known = self._constants, sizes, self._arrays, self._names
            return graph_of(module, *known, len(self.changed_inputs))

    def _mixing(self) -> str:
        """Why the batch is not free, from the graphs of two batches."""
        if self._symbol is None:
            return "it was exported for one batch"
        why, probe = why_fixed(self._graph, self.example_batch)
        if not why:
            self._probe = probe
        return why


class _Tensor:
    """Stands for a tensor in a nest, with the name of its dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


def _form(spec: Any, arguments: Sequence[Any], where: str) -> Nest:
    """The form of a pytree whose leaves are these; `_Tensor` and constants."""
    return nesting.describe(spec.unflatten(arguments), lambda x: isinstance(x, _Tensor), where)


def _leaf(program: ExportedProgram, argument: Any) -> Any:
    if type(argument).__name__ == "ConstantArgument":
        return argument.value
    examples = (n.meta["val"] for n in program.graph.nodes if n.name == argument.name)
    return _Tensor(dtype_of(next(examples)))


def _arguments(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.input_specs
    return [_leaf(program, spec.arg) for spec in specs if spec.kind.name == "USER_INPUT"]


def _results(program: ExportedProgram) -> list[Any]:
    signature = program.graph_signature
    kinds = [spec.kind.name for spec in signature.output_specs]
    for spec, kind in zip(signature.output_specs, kinds, strict=True):
        if kind not in ("USER_OUTPUT", "USER_INPUT_MUTATION"):
            raise InvalidInput(
                f"the model changes {spec.target!r} while it runs; return it as an output instead"
            )
    specs = zip(signature.output_specs, kinds, strict=True)
    return [_leaf(program, spec.arg) for spec, kind in specs if kind == "USER_OUTPUT"]


def _constants(program: ExportedProgram, copies: Copies) -> dict[str, torch.Tensor]:
    """Parameters, buffers and literals by placeholder, one where several share memory.

    Large matrices are the model's own: who keeps them longer than compiling takes copies them.
    """
    constants = {}
    for spec in program.graph_signature.input_specs:
        if spec.target is None:
            continue
        tensors = program.state_dict if spec.target in program.state_dict else program.constants
        tensor = tensors[spec.target]
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in copies:
            plain = tensor.detach().cpu()
            short = plain.is_floating_point() and plain.element_size() < 4
            is_large = plain.ndim > 1 and plain.nbytes >= _LARGE
            copies[key] = plain.float() if short else plain if is_large else plain.clone()
        constants[spec.arg.name] = copies[key]
    return constants


def _batch_of(program: ExportedProgram) -> tuple[str | None, int | None, str]:
    """The symbol on axis 0 of all inputs, its number in the example, and why there is none."""
    sizes = []
    for name, example in user_inputs(program):
        if not len(example.shape):
            return None, None, f"input {name} has no axes"
        sizes.append((name, example.shape[0]))
    if not sizes:
        return None, None, "the model has no tensor inputs"
    (first, size), *others = sizes
    for name, other in others:
        if str(other) != str(size):
            return None, None, f"axis 0 of input {first} is {size}, that of {name} is {other}"
    if isinstance(size, int):
        return None, size, "it was exported for one batch"
    return str(size), size.node.hint, ""
