"""Models of a few small kernels, made without torch."""

from dataclasses import replace

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.variant import Variant, make_variant, sizes_of
from sparsejit.api.options import ModelSettings
from sparsejit.frontends.nesting import TENSOR, Nest, NestKind
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Origin, TensorType, Value
from sparsejit.lowering.step import Step


def pruned(rng: np.random.Generator, rows: int, columns: int, density: float = 0.2) -> np.ndarray:
    weights = rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < density)
    return weights.astype(np.float32)


def small_graph(rows: int = 1, name: str = "fc") -> Graph:
    """A pruned layer, the softmax of its sum with the input, and another pruned layer."""
    rng, build = np.random.default_rng(0), GraphBuilder()
    x = build.input(TensorType((rows, 32)), Origin("x"))

    def linear(value: Value, out: int, module: str) -> Value:
        weights = build.constant(pruned(rng, out, 32), Origin("weight", module))
        origin = Origin("linear", module, "net.py:7", f"self.{module}(x)")
        return build.one(Linear(Activation.RELU), value, weights, origin=origin)

    hidden = linear(x, 32, name)
    total = build.one(Pointwise("add"), hidden, x, origin=Origin("sum"))
    share = build.one(softmax((rows, 32)), total, origin=Origin("add"))
    return build.finish([linear(share, 8, "head"), hidden])


def compiled(
    graph: Graph, isa: str = "native", tile: int | None = None
) -> tuple[CompiledModel, Variant]:
    settings = ModelSettings(isa, threads=1, tune=False, exact=False)
    variant = make_variant(graph, settings.resolved(), "float32", tile)
    arguments = Nest(NestKind.TUPLE, (TENSOR,) * len(graph.inputs))
    results = Nest(NestKind.LIST, (TENSOR,) * len(graph.outputs))
    called = Nest(NestKind.TUPLE, (arguments, Nest(NestKind.DICT)))
    return CompiledModel((variant,), called, results, settings), variant


def _weight(module: str) -> Origin:
    return Origin(f"{module}.weight", module, weights=(f"{module}.weight",))


def layers_graph(*matrices: np.ndarray, rows: int = 1, activation: str = "relu") -> Graph:
    """Linear layers "0", "1" ..., each with an activation behind it."""
    build = GraphBuilder()
    value = build.input(TensorType((rows, matrices[0].shape[1])), Origin("x"))
    for number, matrix in enumerate(matrices):
        weights = build.constant(matrix, _weight(str(number)))
        value = build.one(Linear(), value, weights, origin=Origin("linear", str(number)))
        value = build.one(Pointwise(activation), value, origin=Origin(activation))
    return build.finish([value])


def with_steps(variant: Variant, steps: tuple[Step, ...]) -> Variant:
    """The variant as if it had these kernels."""
    plan = variant.planned._replace(steps=steps)
    return replace(variant, known_plan=plan, sizes=sizes_of(steps))
