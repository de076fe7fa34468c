"""An ONNX model in parts: nodes that sparsejit compiles, and nodes left to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.final_graph import NamedDtypes
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.api.models.parts import LeftPart, OwnPart, Part, PartChain
from sparsejit.api.models.variant import GRAPH_REFUSALS, Variant, make_variant
from sparsejit.api.options import ModelSettings
from sparsejit.errors import CompileError, InvalidInput, SparseJitError
from sparsejit.frontends.onnx import GivenModel, ImportedModel, is_onnx, model_name
from sparsejit.frontends.onnx.dividing import DividedModel, GraphPart, divided
from sparsejit.frontends.onnx.reading import dtype_of, read_model
from sparsejit.frontends.onnx.sessions import model_bytes
from sparsejit.ir.dtypes import BFLOAT16
from sparsejit.ir.values import Element, TensorType
from sparsejit.lowering.context import Progress, progress_function
from sparsejit.passes.dtypes import check_matches, layers_with_weights, parsed_dtypes
from sparsejit.runtime.python_objects import ArrayType

ONNXRUNTIME = "onnxruntime"


def check_fallback(fallback: str | None, model: Any) -> None:
    """Raise InvalidInput for an unknown fallback, or one that does not apply to this model."""
    if fallback not in (None, ONNXRUNTIME):
        raise InvalidInput(f"fallback={fallback!r}; give {ONNXRUNTIME!r} or None")
    if fallback is not None and not is_onnx(model):
        raise InvalidInput(
            f"fallback={fallback!r} is for ONNX models; use torch.compile(model, "
            'backend="sparsejit") for a torch module: it leaves operators to torch'
        )


def compile_in_parts(
    source: Any,
    args: tuple[Any, ...],
    constants: Mapping[str, Any],
    dtypes: NamedDtypes,
    settings: ModelSettings,
    progress: Progress,
    free_shapes: bool,
) -> PartedModel:
    """Compile an ONNX model; nodes that cannot be compiled are left to ONNX Runtime.

    Raises the errors of `import_onnx` for a file and examples, and of `PartCompiler.compile`.
    """
    model = read_model(source)

    def given_for(inputs: tuple[Any, ...]) -> GivenModel:
        return GivenModel(model, inputs, constants)

    def compiled(given: GivenModel, tell: Progress) -> PartChain:
        return PartCompiler(settings, dtypes, model_name(source), tell).compile(given)

    def compiled_again(leaves: Sequence[Any]) -> PartChain:
        return compiled(given_for(tuple(leaves)), progress_function(None))

    first = given_for(args)
    again = compiled_again if free_shapes else None
    trees = first.input_tree, first.output_tree
    return PartedModel((compiled(first, progress),), *trees, settings, again)


class _Refused(Exception):
    """A part does not compile; `reasons` has the reason for each node, by its first result."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


@dataclass
class PartCompiler:
    """Compiles an ONNX model in parts, some left to ONNX Runtime, for inputs of certain shapes."""

    settings: ModelSettings
    dtypes: NamedDtypes
    name: str
    progress: Progress
    _made: dict[tuple[tuple[str, ...], ...], OwnPart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = self.settings.resolved()

    def compile(self, given: GivenModel) -> PartChain:
        """Compile a model in parts. Nodes that fail to compile are left to ONNX Runtime as well.

        Raises UnsupportedOperator for nodes that no engine runs, MissingDependency without ONNX
        Runtime, and InvalidInput for options that fit no kernel.
        """
        patterns = parsed_dtypes(self.dtypes)
        inputs = [_array_type(each, given.shapes[each.name]) for each in given.inputs]
        refused: dict[str, str] = {}
        while True:
            self.progress("dividing the model", 0.0)
            model = divided(given, refused)
            try:
                parts = [self._part(model, n) for n in range(len(model.parts))]
                break
            except _Refused as refusal:
                refused.update(refusal.reasons)
        own = [part for part in parts if isinstance(part, OwnPart)]
        check_matches(patterns, [x for part in own for x in layers_with_weights(part.model.graph)])
        names = {name for part in parts for name in part.outputs} | {x.name for x in inputs}
        constants = {name: model.known[name] for name in model.outputs if name not in names}
        return PartChain(inputs, model.outputs, constants, parts)

    def _part(self, model: DividedModel, number: int) -> Part:
        part, count = model.parts[number], len(model.parts)

        def tell(stage: str, share: float) -> None:
            self.progress(f"part {number + 1} of {count}: {stage}", (number + share) / count)

        if part.is_left:
            left = [model.left[place] for place in part.places]
            onnx = model_bytes(model.model(part))
            return LeftPart(onnx, part.inputs, part.outputs, left, self.options.threads)
        key = tuple(model.results(part).values()), part.inputs, part.outputs
        if key not in self._made:
            given = model.given_part(part)
            try:
                variant = self._variant(given, tell)
            except GRAPH_REFUSALS as error:
                raise _Refused(self._at_fault(model, part, error)) from error
            nests = given.input_tree, given.output_tree
            own = CompiledModel((variant,), *nests, self.settings)
            self._made[key] = OwnPart(own, part.inputs, part.outputs, len(part.places))
        return self._made[key]

    def _variant(self, given: GivenModel, tell: Progress) -> Variant:
        graph = ImportedModel(given, free_batch=False).graph()
        return make_variant(graph, self.options, self.dtypes, None, self.name, tell, is_part=True)

    def _at_fault(self, model: DividedModel, part: GraphPart, error: Exception) -> dict[str, str]:
        """Return the fewest nodes that keep a part from compiling, by first results, and why.

        Raises the error where all nodes compile in float32: then options are at fault, not nodes.
        """
        plain = replace(self, dtypes="float32", settings=replace(self.settings, exact=False))

        def fault(places: Sequence[int]) -> str:
            try:
                plain._variant(model.given_part(model.part(places)), lambda stage, share: None)
            except GRAPH_REFUSALS as reason:
                return str(_said(reason))
            return ""

        found = dict(_found_by_halves(part.places, fault))
        if not found:
            raise _said(error) from error
        names = model.results(part)
        return {names[place]: reason for place, reason in found.items()}


def _said(error: Exception) -> SparseJitError:
    """Return an error of sparsejit as it is; any other as a CompileError that asks for a report."""
    if isinstance(error, SparseJitError):
        return error
    return CompileError(f"a part cannot be compiled: {error!r}; report it")


def _found_by_halves(
    places: Sequence[int], fault: Callable[[Sequence[int]], str]
) -> Iterator[tuple[int, str]]:
    """Find nodes at fault by bisection: yield their places, and why they do not compile.

    All nodes of a set that does not compile are at fault if both of its halves compile.
    """
    reason = fault(places)
    if not reason:
        return
    middle = len(places) // 2
    halves = (places[:middle], places[middle:]) if middle else ()
    found = [each for half in halves for each in _found_by_halves(half, fault)]
    yield from found or ((place, reason) for place in places)


def _array_type(value: Any, shape: tuple[int, ...]) -> ArrayType:
    dtype = dtype_of(value.type.tensor_type.elem_type, f"input {value.name}")
    if dtype is BFLOAT16 or dtype.kind not in "biufO":
        raise InvalidInput(f"input {value.name} has {dtype}, which numpy lacks; give float32")
    TensorType(shape, Element.FLOAT32)  # which refuses sizes that no memory holds
    return ArrayType(dtype.name, shape, value.name)
