"""Problems that kernels and peers are timed on; weights and inputs come from seeds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import (
    BLOCK_1X8,
    BLOCK_1X16,
    LANE16,
    UNSTRUCTURED,
    BlockShape,
    SparseMatrix,
)
from sparsejit.ir.spec import Layout

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Problem:
    """A product with (out_features, in_features) weights, `sparsity` of them zero.

    Exactly the stated share of the pattern's blocks is zero, at random places; surviving weights
    and inputs are standard normal.
    """

    name: str
    out_features: int
    in_features: int
    sparsity: float
    pattern: BlockShape
    seed: int
    batch: int = 1
    layout: Layout = Layout.BATCH_MAJOR

    def weights(self) -> FloatArray:
        """float32 (out_features, in_features), the same on every call."""
        random = np.random.default_rng(self.seed)
        block_rows, block_columns = self.pattern.rows, self.pattern.columns
        shape = (self.out_features // block_rows, self.in_features // block_columns)
        blocks = shape[0] * shape[1]
        dropped = round(self.sparsity * blocks)
        kept = np.zeros(blocks, bool)
        kept[np.argpartition(random.random(blocks, np.float32), dropped)[dropped:]] = True
        mask = kept.reshape(shape).repeat(block_rows, 0).repeat(block_columns, 1)
        if self.pattern is LANE16:
            windows = mask.reshape(self.out_features, -1, 16)
            mask = random.permuted(windows, axis=2).reshape(mask.shape)
        values = random.standard_normal(mask.shape, np.float32)
        return np.where(mask, values, np.float32(0))

    def input(self) -> FloatArray:
        """float32 (in_features,), or a batch in its layout; the same on every call."""
        shape = {
            Layout.BATCH_MAJOR: (self.batch, self.in_features),
            Layout.FEATURE_MAJOR: (self.in_features, self.batch),
        }[self.layout]
        values = np.random.default_rng(self.seed + 1).standard_normal(shape, np.float32)
        return values[0] if self.batch == 1 else values


@dataclass(frozen=True, eq=False)
class GivenMatrix:
    """A layer of a trained model as a problem: the same members as `Problem`."""

    name: str
    values: FloatArray
    batch: int = 1
    layout: Layout = Layout.BATCH_MAJOR

    @property
    def out_features(self) -> int:
        return int(self.values.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.values.shape[1])

    @property
    def sparsity(self) -> float:
        return 1.0 - np.count_nonzero(self.values) / self.values.size

    @property
    def pattern(self) -> BlockShape:
        """The pattern its zeros follow: 1x8 where every such block is full or empty."""
        return BLOCK_1X8 if SparseMatrix(self.values).block_fill(8) == 1 else UNSTRUCTURED

    def weights(self) -> FloatArray:
        return self.values

    def input(self) -> FloatArray:
        """float32 (in_features,) standard normal, the same on every call."""
        return np.random.default_rng(0).standard_normal(self.in_features, np.float32)


MatVecProblem: TypeAlias = Problem | GivenMatrix

PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("A", 256, 256, 0.90, UNSTRUCTURED, seed=100),
        Problem("B", 256, 256, 0.80, BLOCK_1X8, seed=200),
        Problem("C90", 1024, 1024, 0.90, UNSTRUCTURED, seed=300),
        Problem("C95", 1024, 1024, 0.95, UNSTRUCTURED, seed=400),
        Problem("G95", 3072, 1024, 0.95, UNSTRUCTURED, seed=500),
        Problem("E", 4096, 4096, 0.90, UNSTRUCTURED, seed=600),
        Problem("1x16", 1024, 1024, 0.95, BLOCK_1X16, seed=700),
        Problem("deck", 3072, 1024, 0.96, BLOCK_1X16, seed=800),
        Problem("A-lane", 256, 256, 0.90, LANE16, seed=900),
    )
}
# A, as a batch.
BATCH_PROBLEMS = {
    f"D{batch}": Problem(
        f"D{batch}", 256, 256, 0.90, UNSTRUCTURED, 100, batch, Layout.FEATURE_MAJOR
    )
    for batch in (16, 64)
}
ALL_PROBLEMS = {**PROBLEMS, **BATCH_PROBLEMS}


def problems_named(names: Iterable[str], among: Mapping[str, Problem]) -> list[Problem]:
    """The problems of those names; raises InvalidInput for a name that `among` lacks."""
    names = list(names)
    for name in names:
        if name not in among:
            raise InvalidInput(f"problem {name!r} is unknown; use one of {', '.join(among)}")
    return [among[name] for name in names]
