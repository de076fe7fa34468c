"""Every way to divide a step among threads: the results equal the whole's."""

from dataclasses import replace

import numpy as np
import pytest
from guard import EDGES, Edge, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights
from native import built_model, check_alike, run_built
from random_graphs import GraphCase, graph_cases
from runnable import ISAS
from sketch import Sketch

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.products import Attention, Bmm, Linear
from sparsejit.ir.ops.row_chains import layer_norm
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.values import Array, Origin, TensorType, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.memory_plan import plan_memory
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.lowering.threads.waves import ScheduledStep, Wave
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes


def divided(graph: Graph, isa: str | Target, threads: int, way: int) -> tuple[ModelSchedule, int]:
    """Each step in a wave of its own, in that way, and how many were divided."""
    target = isa if isinstance(isa, Target) else Target.named(isa)
    lowered = lower_model(run_passes(graph), ModelOptions(target))
    waves, count = [], 0
    for number, step in enumerate(lowered.steps):
        ways = step.divide(threads) if step.divide else []
        parts = list(ways[way % len(ways)]) if ways else [step]
        count += len(parts) > 1
        waves.append(Wave(tuple((ScheduledStep(number, part),) for part in parts), 2e6, 1e6))
    memory = plan_memory([[[each.step for each in run] for run in wave.threads] for wave in waves])
    return replace(lowered, waves=tuple(waves), memory=memory), count


def check(graph: Graph, inputs: list[Array], lowered: ModelSchedule, tolerance: float) -> None:
    """Against the float64 reference, at both edges of guarded memory."""
    wanted, built = graph.evaluate(inputs), built_model(lowered)

    def at(edge: Edge) -> None:
        ran = run_built(built, [array[None] for array in inputs], edge)
        assert ran.status == 0
        for (got,), reference in zip(ran.outputs, wanted, strict=True):
            atol = tolerance * np.abs(reference).max()
            np.testing.assert_allclose(got, reference, rtol=0, atol=atol)

    run_in_child([(f"{edge} of memory", lambda e=edge: at(e)) for edge in EDGES]).assert_clean()


def convolutions() -> Graph:
    """Windows, by channel with a multiplier, 1x1, a residual sum, and pooling."""
    s = Sketch()
    x = s.input(1, 6, 15, 17)
    y = s(Convolution((1, 1), (1, 1), (1, 1)), x, s.weight(20, 6, 3, 3), s.weight(20))
    by_channel = Convolution((2, 2), (1, 1), (1, 1), groups=20)
    y = s(by_channel, y, s.weight(40, 1, 3, 3), s.weight(40))
    y = s(Convolution((1, 1), (0, 0), (1, 1)), y, s.weight(48, 40, 1, 1), s.weight(48))
    z = s(Convolution((1, 1), (1, 1), (1, 1)), y, s.weight(48, 48, 3, 3), s.weight(48), y)
    pooling = Pooling(PoolingKind.MAX, (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
    return s.finish(s(pooling, z))


def attention(masks: int) -> Graph:
    """Four heads of 40 tokens; no mask, one for all or one a head."""
    build, random = GraphBuilder(), np.random.default_rng(0)
    here = Origin("attention")
    operands = [build.input(TensorType((2, 4, 40, 24)), here) for _ in range(3)]
    own = random.random((masks, 40, 40)) < 0.4
    constants = [build.constant(own, here)] if masks else []
    return build.finish(build.add(Attention(0.2), *operands, *constants, origin=here))


def products() -> Graph:
    """A layer, and stacks of products that share a matrix or not."""
    s = Sketch()
    x = s.input(3, 50, 40)
    y = s(Linear(), x, s.weight(48, 40), s.weight(48))
    return s.finish(s(Bmm(True), y, y), s(Bmm(), y, s.input(1, 48, 33)))


def columns() -> Graph:
    """Values that lie feature-major between sparse layers: attention, a function, a layer norm."""
    s = Sketch()

    def layer(x: Value, width: int) -> Value:
        weights = 0.2 * block_weights((width, x.shape[-1]), 0.1, 1, seed=width)
        return s(Linear(), x, s.constant(weights), s.weight(width))

    x = s.input(1, 80, 160)
    heads = [
        s(Permute((0, 2, 1, 3)), s(Reshape((1, 80, 2, 80)), layer(x, 160))) for _ in range(3)
    ]
    mixed = s(Reshape((1, 80, 160)), s(Permute((0, 2, 1, 3)), s(Attention(0.1), *heads)))
    y = layer(s("sin", layer(layer(mixed, 160), 192)), 160)
    z = s("add", y, layer(x, 160))
    operands = s.constant(np.float32(1 / 160)), s.constant(np.float32(1e-5)), s.weight(160)
    norm = s(layer_norm(z.shape, True, False), z, *operands)
    return s.finish(layer(norm, 176), layer(norm, 208))


GRAPHS = {
    "columns": columns,
    "convolutions": convolutions,
    "attention": lambda: attention(0),
    "masked attention": lambda: attention(1),
    "attention, a mask a head": lambda: attention(4),
    "products": products,
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_kernel_divided(name: str, way: int, isa: str) -> None:
    graph = GRAPHS[name]()
    random = np.random.default_rng(way)
    inputs = [random.uniform(-1, 1, v.shape).astype(np.float32) for v in graph.inputs]
    lowered, count = divided(graph, isa, 2 + way, way)
    assert count >= {"convolutions": 4, "columns": 5}.get(name, 1)
    check(graph, inputs, lowered, 2e-6)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=25)
@given(case=graph_cases(), threads=st.integers(2, 3), way=st.integers(0, 2))
def test_random_graphs_divided(isa: str, case: GraphCase, threads: int, way: int) -> None:
    """The bits of the whole, or of other kernels where a product is planned anew."""
    plain = lower_model(run_passes(case.graph), ModelOptions(Target.named(isa)))
    lowered, _ = divided(case.graph, isa, threads, way)
    check_alike(lowered, plain, case)
