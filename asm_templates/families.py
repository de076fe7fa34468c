"""All kernels for one vector. Dispatch, tests and benchmarks walk this table.

Naming scheme: element type, family, instruction set. A new kernel needs its template file and a row
here; measurements of a kernel on a core belong to that core (`sparsejit/machine`).

A matrix-vector template is called with the address of x in rdi and of y in rsi. It must preserve
rdi, rsi, rbx, rbp, rsp and r12-r15, may clobber all other registers, reads nothing outside x,
writes nothing outside y, and falls through at its end (no `ret`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparsejit.asm_templates.broadcast import dense, fours, immediate, loop, mixed, straight, strips
from sparsejit.asm_templates.dense_product import dot, int8_dense
from sparsejit.asm_templates.gather import (
    int8_pairs,
    int8_permute,
    int8_staged,
    lookup,
    permute,
    permute_anywhere,
)
from sparsejit.asm_templates.gather.lookup import Format, chunk_count
from sparsejit.asm_templates.lowered import Stages, StepKind, steps_of
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layer
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


def _any_matrix(matrix: SparseMatrix, target: Target) -> bool:
    return True


def _beyond_l2(matrix: SparseMatrix, target: Target) -> bool:
    """Whether a float32 look-up kernel keeps indices in its weights, to stream fewer bytes."""
    return Format.fitting(DType.FLOAT32, chunk_count(matrix), target).index_in_weight


class Template(NamedTuple):
    """One kernel: a family at the level `isa`, which needs the sets in `requires` beyond that.

    `changes_weights_by` is the largest relative change of a weight, against its value in its
    dtype, where the kernel keeps an index in the weight's lowest bits. `changes_weights_of` tells
    for which matrices and targets it does so. Weights below 2**-125 become zeros. `rounding`, of
    kernels that round x: the largest error of a sum, over the magnitudes of its products. Models
    ask for these as a whole. `most_inputs` is the number of inputs that its workspace on the stack
    can hold. `takes_vast`: its work follows the nonzeros alone, so a vast matrix may use it. `each`
    is the kernel that a kernel for a batch repeats.
    """

    name: str
    family: str
    isa: str
    stages: Stages
    source: str
    dtype: DType
    requires: frozenset[str] = frozenset()
    changes_weights_by: float = 0.0
    changes_weights_of: Callable[[SparseMatrix, Target], bool] = _any_matrix
    most_inputs: float = math.inf
    takes_vast: bool = False
    rounding: float = 0.0
    each: "Template | None" = None

    def weight_change(self, matrix: SparseMatrix, target: Target) -> float:
        """Return the largest relative change of a weight of this matrix; 0 if all are exact."""
        changes = self.changes_weights_by > 0 and self.changes_weights_of(matrix, target)
        return self.changes_weights_by if changes else 0.0

    def is_exact(self, matrix: SparseMatrix, target: Target) -> bool:
        """Whether the kernel changes no weight of this matrix, and does not round x."""
        return not self.rounding and not self.weight_change(matrix, target)

    def made_for(self, target: Target) -> bool:
        """Whether the planner may choose this kernel for `target`, by its instruction sets."""
        return self.isa == target.isa and self.requires <= target.instruction_sets

    def expect(self, spec: Layer, matrix: SparseMatrix, target: Target) -> Any:
        """Return the counts expected from the layer's zero pattern."""
        return self.stages.expect(spec, matrix, target)

    def lower(self, spec: Layer, matrix: SparseMatrix, target: Target) -> Any:
        """Return the lowered layer, the argument of `emit`, with its `counts`."""
        return self.stages.lower(spec, matrix, target)

    def emit(self, asm: Assembler, lowered: Any) -> None:
        """Append the code of a lowered layer."""
        self.stages.emit(asm, lowered)


def _index_of(bits: int, isa: str, *dtypes: DType) -> dict[tuple[str, DType], float]:
    """Return `changes_weights_by` for kernels with an index in the lowest `bits` of each weight.

    By (level, dtype): the largest relative change of a weight.
    """
    return {(isa, dtype): 2.0 ** (bits - 24) for dtype in dtypes}


@dataclass(frozen=True)
class Family:
    """A row of the table: an algorithm at `levels`, for `dtypes`.

    With AVX-512 it needs the sets in `requires` too; with AVX2 it needs no more. `source` cites
    the idea. `steps` has the code size and cycles of each kind of step that only this family has.
    `stages_at` has the stages of levels with code of their own. `Template` explains the other
    fields.
    """

    name: str
    stages: Stages
    levels: tuple[str, ...]
    dtypes: tuple[DType, ...]
    source: str
    steps: Mapping[str, StepKind]
    requires: frozenset[str] = frozenset()
    stages_at: Mapping[str, Stages] = field(default_factory=dict)
    changes_weights_by: Mapping[tuple[str, DType], float] = field(default_factory=dict)
    changes_weights_of: Callable[[SparseMatrix, Target], bool] = _any_matrix
    most_inputs: float = math.inf
    takes_vast: bool = False


_BOTH, _AVX512, _AVX2 = ("avx512", "avx2"), ("avx512",), ("avx2",)
_F32, _BF16, _F16, _INT8 = DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.INT8
_FLOATS = (_F32, _BF16, _F16)
_VBMI = frozenset({"avx512vbmi"})
_VNNI = _VBMI | {"avx512_vnni"}
_BLOCKS = "blocks of outputs as lanes: Kalchbrenner et al. 2018, Efficient Neural Audio Synthesis"
_OWN = "our own: a lane picks its input by a permutation"

FAMILIES = (
    Family(
        "broadcast",
        Stages(straight.expect, straight.lower, straight.emit),
        *(_BOTH, _FLOATS, _BLOCKS),
        steps_of("broadcast", avx512=(8.5, 13, 13), avx2=(8.5, 15, 12)),
        takes_vast=True,
    ),
    # Loops have hardly any code; the bytes here are for the ends of block rows.
    Family(
        "broadcast-loop",
        Stages(loop.expect, loop.lower, loop.emit),
        *(_BOTH, _FLOATS, _BLOCKS),
        steps_of("broadcast-loop", avx512=(1, 1, 1), avx2=(1, 1, 1)),
        takes_vast=True,
    ),
    Family(
        "broadcast-mixed",
        Stages(mixed.expect, mixed.lower, mixed.emit),
        *(_AVX512, _FLOATS, _BLOCKS),
        steps_of("broadcast-mixed", avx512=(8.5, 17, 14)),
        takes_vast=True,
    ),
    Family(
        "broadcast-4x4",
        Stages(fours.expect, fours.lower, fours.emit),
        *(_BOTH, _FLOATS, _BLOCKS),
        steps_of("broadcast-4x4", avx512=(9.5, 16.5, 14.3), avx2=(8.8, 14, 12.2)),
    ),
    Family(
        "broadcast-4x1",
        Stages(strips.expect, strips.lower, strips.emit),
        *(_AVX2, _FLOATS, _BLOCKS),
        steps_of("broadcast-4x1", avx2=(20,), cycles={"avx2": 1.2}),
    ),
    # The load of an input counts where few outputs share it.
    Family(
        "dense",
        Stages(dense.expect, dense.lower, dense.emit),
        *(_BOTH, _FLOATS, "outer products in registers: Goto and van de Geijn 2008"),
        steps_of("dense", avx512=(0.1, 0.1, 0.1), avx2=(0.1, 0.1, 0.1))
        | steps_of("dense-narrow", avx512=(0, 0, 0), avx2=(0, 0, 0)),
    ),
    Family(
        "dot",
        Stages(dot.expect, dot.lower, dot.emit),
        *(_BOTH, _FLOATS, "inner products, lanes over inputs, as in BLAS's gemv"),
        steps_of("dot", avx512=(0.1, 0.1, 0.1), avx2=(0.1, 0.1, 0.1))
        | steps_of("dot-end", avx512=(6, 6, 6), avx2=(6, 6, 6)),
    ),
    Family(
        "permute",
        Stages(permute.expect, permute.lower, permute.emit),
        *(_BOTH, _FLOATS, _OWN),
        steps_of("permute", avx512=(21, 28, 28), avx2=(18.5, 27, 24.5)),
        changes_weights_by=_index_of(3, "avx2", _F32),
    ),
    Family(
        "permute-inline",
        Stages(permute.expect_inline, permute.lower_inline, permute.emit),
        *(_BOTH, _FLOATS, _OWN),
        steps_of(
            "permute-inline", avx512=(25,), avx2=(18.5,), cycles={"avx512": 1.4, "avx2": 2.2}
        ),
        stages_at={
            "avx2": Stages(permute_anywhere.expect, permute_anywhere.lower, permute_anywhere.emit)
        },
        changes_weights_by=_index_of(5, "avx512", *_FLOATS) | _index_of(3, "avx2", *_FLOATS),
    ),
    Family(
        "immediate",
        Stages(immediate.expect, immediate.lower, immediate.emit),
        *(_BOTH, (_F32,), "weights as immediates: the plainest JIT"),
        steps_of("immediate", avx512=(16,), avx2=(16,)),  # mov, vmovd and scalar FMA a weight
        takes_vast=True,
    ),
    Family(
        "lane16",
        Stages(permute.expect_lane16, permute.lower_lane16, permute.emit),
        *(_AVX512, (_F32, _BF16), _OWN),
        steps_of("lane16", avx512=(19, 19)),
        changes_weights_by=_index_of(4, "avx512", _F32, _BF16),
    ),
    Family(
        "lookup",
        Stages(lookup.expect, lookup.lower, lookup.emit),
        *(_AVX512, _FLOATS, "our own: byte tables of x, as in table-driven decoders"),
        steps_of("lookup", avx512=(0.5, 0.5, 0.5)),
        _VBMI,
        changes_weights_by=_index_of(7, "avx512", _F32),
        changes_weights_of=_beyond_l2,
    ),
    Family(
        "int8-permute",
        Stages(int8_permute.expect, int8_permute.lower, int8_permute.emit),
        *(_AVX512, (_INT8,), _OWN),
        {"int8-permute": StepKind({("avx512", _INT8): 10}, weights_a_lane=4)},
        _VNNI,
    ),
    Family(
        "int8-single",
        Stages(int8_permute.expect_single, int8_permute.lower_single, int8_permute.emit),
        *(_AVX512, (_INT8,), _OWN),
        {"int8-single": StepKind({("avx512", _INT8): 10}, weights_a_lane=4)},
        _VNNI,
    ),
    # Steps run in a loop; the bytes here are for the code that brings inputs together.
    Family(
        "int8-staged",
        Stages(int8_staged.expect, int8_staged.lower, int8_staged.emit),
        *(_AVX512, (_INT8,), _BLOCKS),
        {"int8-staged": StepKind({("avx512", _INT8): 5}, weights_a_lane=4)},
        _VNNI,
        most_inputs=int8_staged.MOST_INPUTS,
    ),
    Family(
        "int8-dense",
        Stages(int8_dense.expect, int8_dense.lower, int8_dense.emit),
        *(_BOTH, (_INT8,), "outer products in registers: Goto and van de Geijn 2008"),
        {"int8-dense": StepKind({(isa, _INT8): 0.1 for isa in _BOTH}, weights_a_lane=4)},
        frozenset({"avx512_vnni"}),
        most_inputs=int8_dense.MOST_INPUTS,
    ),
    Family(
        "int8-pairs",
        Stages(int8_pairs.expect, int8_pairs.lower, int8_pairs.emit),
        *(_BOTH, (_INT8,), "pairs for vpmaddwd: Intel's optimisation manual"),
        {"int8-pairs": StepKind({(isa, _INT8): 1 for isa in _BOTH}, weights_a_lane=2)},
        most_inputs=int8_pairs.MOST_INPUTS,
        takes_vast=True,
    ),
)

# Code size and cycles of every kind of step.
STEP_KINDS: Mapping[str, StepKind] = {
    kind: step for family in FAMILIES for kind, step in family.steps.items()
}

# Element types as kernel names begin with them; names of int8 families contain "int8" already.
SHORT_NAMES = {
    DType.FLOAT32: "f32-", DType.BFLOAT16: "bf16-", DType.FLOAT16: "f16-", DType.INT8: ""
}  # fmt: skip

MATVEC_TEMPLATES: tuple[Template, ...] = tuple(
    Template(
        f"{SHORT_NAMES[dtype]}{row.name}-{isa}",
        row.name,
        isa,
        row.stages_at.get(isa, row.stages),
        row.source,
        dtype,
        row.requires if isa == "avx512" else frozenset(),
        row.changes_weights_by.get((isa, dtype), 0.0),
        row.changes_weights_of,
        row.most_inputs,
        row.takes_vast,
    )
    for row in FAMILIES
    for dtype in row.dtypes
    for isa in row.levels
)
