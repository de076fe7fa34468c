"""Divide a layer by rows into parts whose weights stay in L1 from one x to the next.

This serves loops over several streams at once: each part runs for all streams, then the next part.
Each part is planned for its rows, whose weights are near. Parts of a looped kernel are loops too: a
plan counts one x, and code that is not near.
"""

from itertools import pairwise

from sparsejit.asm_templates.broadcast.loop import Looped
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.plan import AUTO, Plan, plan
from sparsejit.planner.split import Part, some_rows
from sparsejit.whole_numbers import ceil_div

# Rows whose sums a kernel keeps in registers at once, with AVX-512: parts of whole multiples of
# them take no more steps than the layer does.
_BATCH_ROWS = 128


def row_parts(
    spec: MatVec, matrix: SparseMatrix, whole: Plan, target: Target, part_bytes: int
) -> tuple[Part, ...]:
    """Divide the layer into parts that read about `part_bytes` of weights; `whole` is its plan."""
    batches = ceil_div(spec.out_features, _BATCH_ROWS)
    count = min(batches, ceil_div(whole.lowered.counts.pool_bytes, part_bytes))
    if count <= 1:
        return (Part(0, spec, matrix, whole),)
    bounds = [batches * number // count * _BATCH_ROWS for number in range(count)]
    strategy = whole.chosen.template.family if isinstance(whole.lowered, Looped) else AUTO
    parts = []
    for first, end in pairwise([*bounds, spec.out_features]):
        rows, part = matrix.rows(first, end), some_rows(spec, first, end)
        made = plan(part, rows, target, strategy)
        parts.append(Part(first, part, rows, made))
    return tuple(parts)
