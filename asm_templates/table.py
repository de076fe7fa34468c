"""Every kernel there is. Dispatch, tests and benchmarks walk this table.

Naming law: element type, family, instruction set. Adding a kernel touches its template file, its
row here, the bytes of its code in `sparsejit/planner/prices.py`, its cycles in the data of a core
(`sparsejit/machine/processors/`), its oracle in `sparsejit/ir/reference.py`.

A matrix-vector template is called with the address of x in rdi and of y in rsi. It must leave
rdi, rsi, rbx, rbp, rsp and r12-r15 as they were, may clobber all else, reads nothing outside x,
writes nothing outside y, and falls through at its end (no `ret`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from sparsejit.asm_templates.broadcast import dense, fours, immediate, loop, mixed, straight, strips
from sparsejit.asm_templates.dense_product import dot
from sparsejit.asm_templates.gather import (
    int8_pairs,
    int8_permute,
    int8_single,
    int8_staged,
    lane16,
    lookup,
    permute,
    permute_anywhere,
    permute_inline,
)
from sparsejit.asm_templates.gather.lookup_layout import chunk_count
from sparsejit.asm_templates.gather.lookup_storage import Format
from sparsejit.asm_templates.lowered import Counts, Stages
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


def _any_matrix(matrix: SparseMatrix, target: Target) -> bool:
    return True


def _beyond_l2(matrix: SparseMatrix, target: Target) -> bool:
    """Whether a float32 look-up kernel keeps indices in its weights, to stream fewer bytes."""
    return Format.fitting(DType.FLOAT32, chunk_count(matrix), target).index_in_weight


class MatVecTemplate(NamedTuple):
    """One kernel: a family at the level `isa`, which needs the sets in `requires` beyond that.

    `changes_weights_by` is the most by which a weight differs from what its dtype holds, as a
    share of itself, where the kernel keeps an index in the weight's lowest bits; it does so for
    those matrices and targets that `changes_weights_of` says. Weights below 2**-125 become zeros.
    `most_inputs` is how many its workspace on the stack can hold. `takes_vast`: it follows the
    nonzeros alone, so that a vast matrix may have it.
    """

    name: str
    family: str
    isa: str
    stages: Stages
    source: str
    dtype: DType
    requires: frozenset[str]
    changes_weights_by: float
    changes_weights_of: Callable[[SparseMatrix, Target], bool]
    most_inputs: float
    takes_vast: bool

    def weight_change(self, matrix: SparseMatrix, target: Target) -> float:
        """By what share of itself a weight of this matrix may change; 0 where all are exact."""
        changes = self.changes_weights_by > 0 and self.changes_weights_of(matrix, target)
        return self.changes_weights_by if changes else 0.0

    def made_for(self, target: Target) -> bool:
        """Whether the planner may choose it for `target`."""
        return self.isa == target.isa and self.requires <= target.instruction_sets

    def expect(self, spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
        """What the layer's zeros let expect."""
        return self.stages.expect(spec, matrix, target)

    def lower(self, spec: MatVec, matrix: SparseMatrix, target: Target) -> Any:
        """The layer as `emit` takes it, with the `counts` of what was made."""
        return self.stages.lower(spec, matrix, target)

    def emit(self, asm: Assembler, lowered: Any) -> None:
        """Append the code."""
        self.stages.emit(asm, lowered)


_STAGES = {
    "broadcast": Stages(straight.expect, straight.lower, straight.emit),
    "broadcast-loop": Stages(loop.expect, loop.lower, loop.emit),
    "broadcast-mixed": Stages(mixed.expect, mixed.lower, mixed.emit),
    "broadcast-4x4": Stages(fours.expect, fours.lower, fours.emit),
    "broadcast-4x1": Stages(strips.expect, strips.lower, strips.emit),
    "dense": Stages(dense.expect, dense.lower, dense.emit),
    "dot": Stages(dot.expect, dot.lower, dot.emit),
    "permute": Stages(permute.expect, permute.lower, permute.emit),
    "permute-inline": Stages(permute_inline.expect, permute_inline.lower, permute.emit),
    "immediate": Stages(immediate.expect, immediate.lower, immediate.emit),
    "lane16": Stages(lane16.expect, lane16.lower, permute.emit),
    "lookup": Stages(lookup.expect, lookup.lower, lookup.emit),
    "int8-permute": Stages(int8_permute.expect, int8_permute.lower, int8_permute.emit),
    "int8-single": Stages(int8_single.expect, int8_single.lower, int8_permute.emit),
    "int8-staged": Stages(int8_staged.expect, int8_staged.lower, int8_staged.emit),
    "int8-pairs": Stages(int8_pairs.expect, int8_pairs.lower, int8_pairs.emit),
}

# Where a level has a kernel of its own.
_STAGES_AT = {
    ("permute-inline", "avx2"): Stages(
        permute_anywhere.expect, permute_anywhere.lower, permute_anywhere.emit
    ),
}

_BOTH, _AVX512, _AVX2 = ("avx512", "avx2"), ("avx512",), ("avx2",)
_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_VBMI = frozenset({"avx512vbmi"})
_VNNI = _VBMI | {"avx512_vnni"}
_NONE: frozenset[str] = frozenset()
_BLOCKS = "blocks of outputs as lanes: Kalchbrenner et al. 2018, Efficient Neural Audio Synthesis"
_OWN = "our own: a lane picks its input by a permutation"

# Family, levels, dtypes, instruction sets beyond the level, and where the idea is from.
_ROWS = (
    ("broadcast", _BOTH, _FLOATS, _NONE, _BLOCKS),
    ("broadcast-loop", _BOTH, _FLOATS, _NONE, _BLOCKS),
    ("broadcast-mixed", _AVX512, _FLOATS, _NONE, _BLOCKS),
    ("broadcast-4x4", _BOTH, _FLOATS, _NONE, _BLOCKS),
    ("broadcast-4x1", _AVX2, _FLOATS, _NONE, _BLOCKS),
    ("dense", _BOTH, _FLOATS, _NONE, "outer products in registers: Goto and van de Geijn 2008"),
    ("dot", _BOTH, _FLOATS, _NONE, "inner products, lanes over inputs, as in BLAS's gemv"),
    ("permute", _BOTH, _FLOATS, _NONE, _OWN),
    ("permute-inline", _BOTH, _FLOATS, _NONE, _OWN),
    ("immediate", _BOTH, (DType.FLOAT32,), _NONE, "weights as immediates: the plainest JIT"),
    ("lane16", _AVX512, (DType.FLOAT32, DType.BFLOAT16), _NONE, _OWN),
    ("lookup", _AVX512, _FLOATS, _VBMI, "our own: byte tables of x, as in table-driven decoders"),
    ("int8-permute", _AVX512, (DType.INT8,), _VNNI, _OWN),
    ("int8-single", _AVX512, (DType.INT8,), _VNNI, _OWN),
    ("int8-staged", _AVX512, (DType.INT8,), _VNNI, _BLOCKS),
    ("int8-pairs", _BOTH, (DType.INT8,), _NONE, "pairs for vpmaddwd: Intel's optimisation manual"),
)

# By family, level and dtype: b bits of index change a weight by 2**(b - 24) of itself at most.
_CHANGES_WEIGHTS_BY = {
    ("permute", "avx2", DType.FLOAT32): 2.0**-21,
    **{("permute-inline", "avx512", dtype): 2.0**-19 for dtype in _FLOATS},
    **{("permute-inline", "avx2", dtype): 2.0**-21 for dtype in _FLOATS},
    ("lane16", "avx512", DType.FLOAT32): 2.0**-20,
    ("lane16", "avx512", DType.BFLOAT16): 2.0**-20,
    ("lookup", "avx512", DType.FLOAT32): 2.0**-17,
}
_CHANGES_WEIGHTS_OF = {"lookup": _beyond_l2}
_MOST_INPUTS = {
    "int8-pairs": int8_pairs.MOST_INPUTS, "int8-staged": int8_staged.MOST_INPUTS
}  # fmt: skip

_TAKE_VAST = {"broadcast", "broadcast-loop", "broadcast-mixed", "immediate", "int8-pairs"}

# The naming law's element types; the int8 families carry theirs in the name.
SHORT_NAMES = {
    DType.FLOAT32: "f32-", DType.BFLOAT16: "bf16-", DType.FLOAT16: "f16-", DType.INT8: ""
}  # fmt: skip

MATVEC_TEMPLATES: tuple[MatVecTemplate, ...] = tuple(
    MatVecTemplate(
        f"{SHORT_NAMES[dtype]}{family}-{isa}",
        family,
        isa,
        _STAGES_AT.get((family, isa), _STAGES[family]),
        source,
        dtype,
        requires,
        _CHANGES_WEIGHTS_BY.get((family, isa, dtype), 0.0),
        _CHANGES_WEIGHTS_OF.get(family, _any_matrix),
        _MOST_INPUTS.get(family, math.inf),
        family in _TAKE_VAST,
    )
    for family, levels, dtypes, requires, source in _ROWS
    for dtype in dtypes
    for isa in levels
)
