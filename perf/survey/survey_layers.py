"""The layers of the planner's survey: every pattern of zeros in every dtype."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import BLOCK_1X8, BLOCK_1X16, LANE16, UNSTRUCTURED
from sparsejit.ir.spec import DType, Layout
from sparsejit.perf.problems import Problem

# (out_features, in_features), from sizes that fit L1 to sizes that no L2 holds.
SHAPES = (
    *((64, 64), (128, 256), (256, 256), (512, 784), (768, 256), (384, 1152), (1024, 256)),
    *((1024, 1024), (1024, 4096), (2048, 1024), (3072, 1024), (2048, 2048), (4096, 4096)),
)
SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98)
PATTERNS = (UNSTRUCTURED, BLOCK_1X8, BLOCK_1X16, LANE16)
LAYERS_OF_EACH = 7
_SEED = 10


@dataclass(frozen=True)
class SurveyLayer:
    """A problem and how its weights are stored."""

    problem: Problem
    dtype: DType


def survey_layers(batch: int = 1, dtypes: Iterable[DType] = tuple(DType)) -> list[SurveyLayer]:
    """`LAYERS_OF_EACH` layers of every pattern in every dtype, in an order drawn once for all.

    Shapes, shares of zeros and layouts of a batch are drawn without replacement, so that each comes
    up as often as the others. A layer stays the same for any batch and any `dtypes`. Raises
    InvalidInput for a batch below 1.
    """
    if batch < 1:
        raise InvalidInput(f"batch {batch} is out of range; use 1 or more")
    random = np.random.default_rng(_SEED)
    shapes, sparsities = _dealt(len(SHAPES), random), _dealt(len(SPARSITIES), random)
    layouts = _dealt(len(Layout), np.random.default_rng(_SEED))
    layers = []
    for pattern in PATTERNS:
        for dtype in DType:
            for _ in range(LAYERS_OF_EACH):
                shape, sparsity = SHAPES[next(shapes)], SPARSITIES[next(sparsities)]
                layout = tuple(Layout)[next(layouts)] if batch > 1 else Layout.BATCH_MAJOR
                name = f"{shape[0]}x{shape[1]}, {sparsity:.0%} zero, {pattern.name}"
                problem = Problem(name, *shape, sparsity, pattern, 1, batch, layout)
                layers.append(SurveyLayer(problem, dtype))
    wanted = frozenset(dtypes)
    mixed = (layers[number] for number in random.permutation(len(layers)))
    return [one for one in mixed if one.dtype in wanted]


def _dealt(count: int, random: np.random.Generator) -> Iterator[int]:
    """Random permutations of the numbers below `count`, one after another, without end."""
    while True:
        yield from random.permutation(count)
