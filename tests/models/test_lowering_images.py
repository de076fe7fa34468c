"""Images with padded channels between convolutions: where they lie, and what they change."""

import numpy as np
import pytest
from native import check_graph, kernels_of, random_input
from runnable import ISAS
from sketch import Sketch

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.images import padded_pitch
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target


def by_channel(s: Sketch, x: Value) -> Value:
    op = Convolution((1, 1), (1, 1), (1, 1), x.shape[1], activation=Activation.RELU)
    return s(op, x, s.weight(x.shape[1], 1, 3, 3), s.weight(x.shape[1]))


def across(s: Sketch, x: Value, out: int) -> Value:
    weights = s.random.standard_normal((out, x.shape[1], 1, 1))
    weights *= s.random.random(weights.shape) < 0.2
    op = Convolution((1, 1), (0, 0), (1, 1), activation=Activation.RELU6)
    return s(op, x, s.constant(weights.astype(np.float32)), s.weight(out))


def separable_net(size: int, samples: int) -> Graph:
    s = Sketch()
    y = by_channel(s, s.input(samples, 70, size, size))
    y = across(s, across(s, y, 40), 33)
    y = by_channel(s, y)
    kernel = (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)
    return s.finish(s(Pooling(PoolingKind.MAX, *kernel), across(s, y, 21)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("size", "samples"), [(7, 1), (14, 2), (28, 1), (5, 3)])
def test_values_of_padding_change_nothing(isa: str, size: int, samples: int) -> None:
    graph = separable_net(size, samples)
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


def test_products_read_and_write_padded_channels() -> None:
    lowered = lower_model(separable_net(14, 1), ModelOptions(Target.named("avx512")))
    products = [step for step in lowered.steps if "panels" in step.kernel]
    assert len(products) == 3
    for step in products:
        for view in (*step.reads, *step.writes):
            assert view.strides == (4 * spread_pitch(196), 4)
    images = [step for step in lowered.steps if "depthwise" in step.kernel]
    assert [padded_pitch(step.writes[0]) for step in images] == [208, 208]
    fills = [step.writes[0].shape for step in lowered.steps if step.kernel == "fill"]
    assert fills == [(1, 70, 12), (1, 33, 12)]


def test_results_of_a_product_for_others_have_no_padding() -> None:
    """An output lies in order, so that what its product reads does too."""
    s = Sketch()
    y = across(s, by_channel(s, s.input(1, 20, 14, 14)), 9)
    graph = s.finish(y)
    assert "fill" not in kernels_of(graph, "avx512")
    check_graph(graph, [random_input(graph)], Target.named("avx2"), 1e-3)
