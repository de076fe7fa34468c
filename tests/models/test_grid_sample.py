"""Images read at points of a grid: at the edges, and as deformable attention reads them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from test_float_arithmetic import Applied
from torch.nn.functional import affine_grid, grid_sample

import sparsejit

GENERATOR = torch.Generator().manual_seed(3)
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


@pytest.mark.parametrize("mode", MODES)
def test_points_on_edges_and_pixels_that_are_no_numbers(mode: str) -> None:
    """Points at pixels, between them, at the border and far away; an infinite pixel is far."""

    def read(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ways = product(PADDINGS, (True, False))
        return tuple(grid_sample(x, grid, mode, *each) for each in ways)

    x = rand(1, 2, 4, 5)
    x[0, 1, 3, 4] = math.inf
    line = torch.tensor([-50.0, -1.2, -1.0, -0.5, 0.0, 0.26, 0.5])
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[None]
    found = sparsejit.compile(Applied(read).eval(), (x, grid))(x, grid)
    for own, wanted in zip(found, read(x.double(), grid.double()), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("mode", MODES[:2])
def test_a_point_that_is_no_number_reads_nothing_beyond_the_image(mode: str) -> None:
    x, grid = rand(2, 3, 4, 5), rand(2, 2, 3, 2)
    grid[0, 1, 1, 0], grid[1, 0, 2, 1] = math.nan, -math.inf
    model = Applied(lambda x, grid: grid_sample(x, grid, mode, align_corners=False)).eval()
    found = sparsejit.compile(model, (x, grid))(x, grid)
    wanted = grid_sample(x, grid, mode, align_corners=False)
    known = torch.isfinite(grid).all(-1)[:, None].expand_as(wanted)
    np.testing.assert_allclose(found[known], wanted[known], rtol=1e-5, atol=1e-6)


def deformable_attention(
    value: torch.Tensor, points: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """As detectors of the DETR family read two levels of features by four heads."""
    batch, _, heads, width = value.shape
    queries, levels, count = points.shape[1], points.shape[3], points.shape[4]
    grids = 2 * points - 1
    parts = []
    shapes = ((6, 5), (3, 2))
    for level, part in enumerate(value.split([a * b for a, b in shapes], dim=1)):
        image = part.flatten(2).transpose(1, 2).reshape(batch * heads, width, *shapes[level])
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        parts.append(grid_sample(image, grid, "bilinear", "zeros", align_corners=False))
    scores = weights.transpose(1, 2).reshape(batch * heads, 1, queries, levels * count)
    total = (torch.stack(parts, dim=-2).flatten(-2) * scores).sum(-1)
    return total.view(batch, heads * width, queries).transpose(1, 2)


def test_deformable_attention_leaves_the_batch_free() -> None:
    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        points = torch.sigmoid(rand(batch, 7, 4, 2, 3, 2))
        return rand(batch, 36, 4, 8), points, rand(batch, 7, 4, 6)

    compiled = sparsejit.compile(Applied(deformable_attention).eval(), inputs(2))
    assert compiled.batch_is_free
    for batch in (1, 2, 5):
        given = inputs(batch)
        wanted = deformable_attention(*(x.double() for x in given))
        np.testing.assert_allclose(compiled(*given), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("align_corners", [True, False])
def test_affine_grids(align_corners: bool) -> None:
    def turned(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        grid = affine_grid(theta, list(x.shape), align_corners=align_corners)
        return grid_sample(x, grid, align_corners=align_corners)

    theta, x = rand(3, 2, 3), rand(3, 2, 5, 6)
    compiled = sparsejit.compile(Applied(turned).eval(), (theta, x))
    assert compiled.batch_is_free
    wanted = turned(theta.double(), x.double())
    np.testing.assert_allclose(compiled(theta, x), wanted, rtol=1e-5, atol=1e-5)
