"""Transposed convolutions with a stride: products of each position, and sums that overlap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS
from torch import nn

import sparsejit
from sparsejit.frontends.torch_export import export
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.passes.default import run_passes


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """A layer with a stride on one axis, and its input."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    stride = draw(st.integers(2, 6))
    kernel = draw(st.integers(1, 3 * stride))
    padding = draw(st.integers(0, (kernel - 1) // 2))
    more = draw(st.integers(0, stride - 1))
    given, made = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    sizes = (kernel, stride, padding, more)
    kind = draw(st.sampled_from([nn.ConvTranspose1d, nn.ConvTranspose2d]))
    space = [draw(st.integers(2, 6))]
    if kind is nn.ConvTranspose2d:
        plain, first = (1, 1, 0, 0), draw(st.booleans())
        pairs = zip(*((sizes, plain) if first else (plain, sizes)), strict=True)
        sizes, space = tuple(pairs), [*space, draw(st.integers(2, 6))]
    layer = kind(given, made, *sizes, bias=draw(st.booleans())).eval()
    if draw(st.booleans()):
        function = draw(st.sampled_from([nn.ReLU(), nn.Tanh(), nn.SiLU()]))
        layer = nn.Sequential(layer, function).eval()
    return layer, torch.randn(draw(st.integers(1, 2)), given, *space)


@pytest.mark.parametrize("isa", ISAS)
def test_random_layers_equal_torch(isa: str) -> None:
    @settings(max_examples=40)
    @given(layers())
    def check(case: tuple[nn.Module, torch.Tensor]) -> None:
        layer, x = case
        found = sparsejit.compile(layer, (x,), target=isa)(x)
        torch.testing.assert_close(found, layer(x).detach(), rtol=1e-5, atol=1e-5)

    check()


def graph_behind_passes(layer: nn.Module, x: torch.Tensor) -> Graph:
    return run_passes(export(layer.eval(), (x,), {}, False).graph(None))


def kinds(layer: nn.Module, x: torch.Tensor) -> list[Convolution]:
    """The convolutions that are left of a layer."""
    nodes = graph_behind_passes(layer, x).nodes
    return [node.op for node in nodes if isinstance(node.op, Convolution)]


def test_a_stride_on_one_axis_becomes_products_of_positions() -> None:
    (op,) = kinds(nn.ConvTranspose1d(4, 3, 8, 4), torch.randn(1, 4, 9))
    assert (op.transposed, op.stride) == (False, (1,))


def test_the_bias_is_reshaped_as_the_model_is_compiled() -> None:
    after = graph_behind_passes(nn.ConvTranspose1d(4, 3, 8, 4), torch.randn(1, 4, 9))
    assert not [node for node in after.nodes if node.inputs[0] in after.constants]
    assert run_passes(after) is after


OTHERS = {
    "no stride": nn.ConvTranspose2d(4, 4, 3),
    "two strides": nn.ConvTranspose2d(4, 4, 4, 2),
    "groups": nn.ConvTranspose2d(4, 4, (1, 4), (1, 2), groups=2),
    "dilation": nn.ConvTranspose2d(4, 4, (1, 4), (1, 2), dilation=(1, 2)),
    "a second padding": nn.ConvTranspose2d(4, 4, (1, 4), (1, 2), (1, 0)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_stay(name: str) -> None:
    (op,) = kinds(OTHERS[name], torch.randn(1, 4, 6, 6))
    assert op.transposed


def test_an_overlap_of_a_large_window_needs_no_image_of_zeros() -> None:
    """The sum of frames of 512 samples, 128 apart, as models of samples write it."""
    layer = nn.ConvTranspose1d(512, 1, 512, 128, bias=False).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(512)[:, None])
    x = torch.randn(1, 512, 24)
    found = sparsejit.compile(layer, (x,))(x)
    torch.testing.assert_close(found, layer(x).detach(), rtol=0, atol=1e-5)
