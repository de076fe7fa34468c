"""Every kernel there is. Dispatch, tests and benchmarks walk this table.

Naming law: element type, family, instruction set. Adding a kernel touches its template file, its
row here, and its oracle in `sparsejit/ir/reference.py`.

A matrix-vector template is called with the address of x in rdi and of y in rsi. It must leave
rdi, rsi, rbx, rbp, rsp and r12-r15 as they were, may clobber all else, reads nothing outside x,
writes nothing outside y, and falls through at its end (no `ret`).
"""

from collections.abc import Callable
from typing import NamedTuple

from sparsejit.asm_templates.broadcast import dense, immediate, loop, mixed, straight
from sparsejit.asm_templates.gather import int8_pairs, int8_permute, lane16, lookup, permute
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


class MatVecTemplate(NamedTuple):
    """`emit` appends the kernel for a spec and its weights.

    `isa` is the level it is written for, `requires` the instruction sets it needs beyond that.
    """

    name: str
    family: str
    isa: str
    emit: Callable[[Assembler, MatVec, SparseMatrix], None]
    source: str
    dtype: DType = DType.FLOAT32
    requires: frozenset[str] = frozenset()

    def made_for(self, target: Target) -> bool:
        """Whether the planner may choose it for `target`."""
        return self.isa == target.isa and self.requires <= target.instruction_sets


_SHORT_NAMES = {DType.FLOAT32: "f32", DType.BFLOAT16: "bf16", DType.FLOAT16: "f16"}

# The emitters that take weights in every dtype.
_IN_EVERY_DTYPE = (
    ("broadcast", "avx512", straight.emit),
    ("broadcast", "avx2", straight.emit),
    ("broadcast-loop", "avx512", loop.emit),
    ("broadcast-loop", "avx2", loop.emit),
    ("broadcast-mixed", "avx512", mixed.emit),
    ("dense", "avx512", dense.emit_avx512),
    ("dense", "avx2", dense.emit_avx2),
    ("permute", "avx512", permute.emit),
    ("permute", "avx2", permute.emit),
)

MATVEC_TEMPLATES: tuple[MatVecTemplate, ...] = (
    *(
        MatVecTemplate(f"{short}-{family}-{isa}", family, isa, emit, "DESIGN section 4", dtype)
        for dtype, short in _SHORT_NAMES.items()
        for family, isa, emit in _IN_EVERY_DTYPE
    ),
    MatVecTemplate(
        "f32-immediate-avx512", "immediate", "avx512", immediate.emit_avx512, "issue 2"
    ),
    MatVecTemplate("f32-immediate-avx2", "immediate", "avx2", immediate.emit_avx2, "issue 2"),
    *(
        MatVecTemplate(
            f"{short}-lane16-avx512", "lane16", "avx512", lane16.emit_avx512, "issue 3", dtype
        )
        for short, dtype in (("f32", DType.FLOAT32), ("bf16", DType.BFLOAT16))
    ),
    *(
        MatVecTemplate(
            f"{short}-lookup-avx512",
            "lookup",
            "avx512",
            lookup.emit_avx512,
            "issue 3",
            dtype,
            frozenset({"avx512vbmi"}),
        )
        for dtype, short in _SHORT_NAMES.items()
    ),
    MatVecTemplate(
        "int8-permute-avx512",
        "int8-permute",
        "avx512",
        int8_permute.emit_avx512,
        "DESIGN section 4",
        DType.INT8,
        frozenset({"avx512_vnni", "avx512vbmi"}),
    ),
    *(
        MatVecTemplate(f"int8-pairs-{isa}", "int8-pairs", isa, emit, "issue 3", DType.INT8)
        for isa, emit in (("avx512", int8_pairs.emit_avx512), ("avx2", int8_pairs.emit_avx2))
    ),
)
