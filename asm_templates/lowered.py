"""The stages of a kernel: expected counts, then one lowered layer, for pricing and emitting.

    expect(spec, matrix, target) -> Counts       before lowering, from the zeros alone
    lower(spec, matrix, target)  -> lowered      streams of weights and indices, steps, code shape;
                                                 its `counts` are of the result
    emit(asm, lowered)                           bytes

The planner prices the counts of the lowered layer, and emits the same lowered layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

WEIGHT_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2, DType.INT8: 1}


@dataclass(frozen=True)
class Work:
    """Steps of one kind: a few instructions that repeat, with other operands each time.

    `kind` names the kind of step whose cost applies. The code of a step runs `runs` times, so the
    code holds `steps / runs` steps; `runs` is infinite for a loop whose code is negligible.
    """

    kind: str
    steps: int
    runs: float = 1.0


@dataclass(frozen=True)
class Counts:
    """Steps executed and bytes read by one call of a kernel.

    Weights are stored as `stored`. `vector_bytes` are the bytes of x and y. `padded`: the pool has
    stride padding where that helps.
    """

    target: Target
    stored: DType
    work: tuple[Work, ...]
    pool_bytes: int
    vector_bytes: int
    padded: bool = False

    @classmethod
    def of(
        cls,
        matrix: SparseMatrix,
        target: Target,
        stored: DType,
        work: Work | tuple[Work, ...],
        pool_bytes: int,
        padded: bool = False,
    ) -> "Counts":
        """Return the counts of a matrix-vector product."""
        parts = work if isinstance(work, tuple) else (work,)
        vector_bytes = 4 * (matrix.in_features + matrix.out_features)
        return cls(target, stored, parts, int(pool_bytes), vector_bytes, padded)

    @property
    def steps(self) -> int:
        """Steps of all kinds."""
        return sum(part.steps for part in self.work)


@dataclass(frozen=True)
class StepKind:
    """Cost of a step: `code_bytes` by level and stored dtype, and `cycles` by level.

    The cycles apply to a core without cycles of its own. A step takes `weights_a_lane` weights in
    each lane.
    """

    code_bytes: Mapping[tuple[str, DType], float]
    cycles: Mapping[str, float] = field(default_factory=dict)
    weights_a_lane: int = 1


_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def steps_of(
    kind: str, cycles: Mapping[str, float] | None = None, **code_bytes: tuple[float, ...]
) -> dict[str, StepKind]:
    """Return a kind of step with these cycles and code bytes.

    `code_bytes`, by level: float32, bfloat16, float16, in that order.
    """
    by_dtype = {
        (isa, dtype): size
        for isa, sizes in code_bytes.items()
        for dtype, size in zip(_FLOATS, sizes, strict=False)
    }
    return {kind: StepKind(by_dtype, cycles or {})}


class Stages(NamedTuple):
    """The functions that count, lower and emit a family's spec: `emit` takes `lower`'s result."""

    expect: Callable[[Any, SparseMatrix, Target], Any]
    lower: Callable[[Any, SparseMatrix, Target], Any]
    emit: Callable[[Assembler, Any], None]
