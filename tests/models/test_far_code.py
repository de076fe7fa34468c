"""Models that do not fit the caches: their code is asked for ahead, and priced as it comes."""

from dataclasses import replace

import numpy as np
import pytest
from native import run_lowered
from runnable import ISAS
from sketch import Sketch

import sparsejit
from sparsejit.api.models.variant import make_variant
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.values import Element
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.machine.target import Target

ROWS, FEATURES, LAYERS = 24, 192, 3


def layers(rows: int = ROWS) -> Graph:
    """Linear layers of which each weight is used for that many rows."""
    generator = np.random.default_rng(0)
    s = Sketch()
    value = s.input(rows, FEATURES)
    for _ in range(LAYERS):
        weights = generator.standard_normal((FEATURES, FEATURES)).astype(np.float32)
        weights *= generator.random(weights.shape) < 0.1
        value = s(Linear(), value, s.constant(weights))
    return s.finish(value)


def windows() -> Graph:
    """A convolution of an image, whose code is in parts."""
    generator = np.random.default_rng(0)
    s = Sketch()
    weights = generator.standard_normal((40, 20, 3, 3)).astype(np.float32)
    weights *= generator.random(weights.shape) < 0.1
    op = Convolution((1, 1), (1, 1), (1, 1))
    return s.finish(s(op, s.input(1, 20, 28, 28), s.constant(weights)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("graph", [layers(1), windows()], ids=["linear", "windows"])
def test_code_that_is_asked_for_computes_the_same(isa: str, graph: Graph) -> None:
    """One row has straight code on both levels, and so have windows, which is what asks."""
    target, shape = Target.named(isa), graph.inputs[0].shape
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    outputs = []
    for distance in (0, 4096):
        core = replace(target.core, prefetch_distance=distance)
        options = ModelOptions(replace(target, core=core), weight_bytes=target.l2_bytes + 1)
        lowered = lower_model(graph, options)
        assert build_model(lowered, "test").image.uses("prefetcht1") is (distance > 0)
        outputs += run_lowered(lowered, [x]).outputs
    assert outputs[0].tobytes() == outputs[1].tobytes()


@pytest.mark.parametrize("graph", [layers(), windows()], ids=["linear", "windows"])
def test_a_model_that_stays_in_l2_asks_for_nothing(graph: Graph) -> None:
    lowered = lower_model(graph, ModelOptions(Target.named("avx2")))
    assert not build_model(lowered, "test").image.uses("prefetcht1")


@pytest.mark.parametrize("isa", ISAS)
def test_so_it_is_of_a_layer_alone(isa: str) -> None:
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((64, 96)) * (generator.random((64, 96)) < 0.2)
    near = Target.named(isa)
    far = replace(near, l2_bytes=1 << 12, core=replace(near.core, prefetch_distance=4096))
    kernels = [sparsejit.compile_matrix(weights, batch=16, target=on) for on in (near, far)]
    assert [kernel.image.uses("prefetcht1") for kernel in kernels] == [False, True]


@pytest.mark.parametrize("isa", ISAS)
def test_a_model_that_outgrows_its_cache_is_lowered_as_coming_from_memory(isa: str) -> None:
    """Its code is longer than its zeros let expect."""
    target = Target.named(isa)
    first = make_variant(layers(), ModelOptions(target), "float32", None)
    expected, found = first.options.weight_bytes, len(first.program.image.data)
    assert expected < found
    room = (expected + found) // 2
    l3_bytes = int(room / target.core.l3_share)
    small = replace(target, l2_bytes=expected, l3_bytes=l3_bytes)
    again = make_variant(layers(), ModelOptions(small), "float32", None)
    assert again.options.weight_bytes > room
    bounds = {step.facts.bound for step in again.steps if step.facts.weights}
    assert all("memory" in bound or bound == "execution" for bound in bounds)


def test_rows_of_tables_that_a_call_does_not_read_take_no_room() -> None:
    s, table = Sketch(), np.ones((5_000, FEATURES), np.float32)
    found = s(Embedding(), s.input(ROWS, element=Element.INT64), s.constant(table))
    weights = np.ones((8, FEATURES), np.float32)
    graph = s.finish(s(Linear(), found, s.constant(weights)))
    lowered = lower_model(graph, ModelOptions(Target.named("avx2")))
    touched = weights.nbytes + ROWS * FEATURES * 4
    assert lowered.options.weight_bytes == touched
    variant = make_variant(graph, ModelOptions(Target.named("avx2")), "float32", None)
    assert variant.options.weight_bytes == touched < table.nbytes < len(variant.program.image.data)
