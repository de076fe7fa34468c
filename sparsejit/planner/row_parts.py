"""Parts of a layer by rows whose weights stay in the first cache level from one x to the next.

For products with several x of which none is there before the last has been multiplied on: a part
runs for all of them, then the next. Each is planned for its rows, whose weights are near.
"""

from itertools import pairwise

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.plan import Plan, plan
from sparsejit.planner.split import Part, some_rows

# Rows whose sums kernels keep in registers at once, in AVX-512: parts of whole batches of them
# take no more steps than the layer does.
_BATCH_ROWS = 128


def row_parts(
    spec: MatVec, matrix: SparseMatrix, whole: Plan, target: Target, part_bytes: int
) -> tuple[Part, ...]:
    """The layer in parts that read about `part_bytes` of weights each; `whole` is its plan."""
    batches = -(-spec.out_features // _BATCH_ROWS)
    count = min(batches, -(-whole.lowered.counts.pool_bytes // part_bytes))
    if count <= 1:
        return (Part(0, spec, matrix, whole),)
    bounds = [batches * number // count * _BATCH_ROWS for number in range(count)]
    parts = []
    for first, end in pairwise([*bounds, spec.out_features]):
        rows, part = matrix.rows(first, end), some_rows(spec, first, end)
        made = plan(part, rows, target)
        parts.append(Part(first, part, rows, made))
    return tuple(parts)
