"""All kernels for a batch; `families` has the kernels for one vector, and the naming scheme.

A batch template is called with the address of x in rdi and of y in rsi, in the layout of its
spec, under the same terms as a matrix-vector template. If its spec has an added operand, the
operand's address is in rdx.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparsejit.asm_templates.batch import amx, amx_layout, csr, csr_halves, lowered_batch, whole
from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panels import MOST_INTEGERS
from sparsejit.asm_templates.dense_product import layer
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, SHORT_NAMES, Template
from sparsejit.asm_templates.lowered import Stages
from sparsejit.ir.spec import DType


@dataclass(frozen=True)
class PanelBytes:
    """Code bytes of a panel's kernel, for its price: for each weight, and for each input loaded.

    `by_four`: further bytes for a weight that one load brings with three others.
    """

    weight: float
    by_four: float
    input: float


PANEL_BYTES = {"avx512": PanelBytes(7.3, 7.7, 7), "avx2": PanelBytes(12, 0, 8)}


def _whole_batch(
    family: str,
    each: Template | None = None,
    arithmetic: Arithmetic = Arithmetic.FLOATS,
) -> Stages:
    """Return the stages (expect, lower, emit) of a kernel for a whole batch.

    `family`: "panels"; "rows", which repeats the kernel `each` for every column; or "mixed", both.
    """
    of_each = each.stages if each else None
    how = arithmetic, family, of_each
    expect, lower = partial(lowered_batch.expect, *how), partial(lowered_batch.lower, *how)
    return Stages(expect, lower, whole.emit)


def _repeating(each: Template, family: str) -> Template:
    """Return the batch kernel that repeats a matrix-vector kernel."""
    name = each.name.replace("-", f"-{family}-", 1)
    source, stages = "one column after the other", _whole_batch(family, each)
    return each._replace(name=name, family=family, stages=stages, source=source, each=each)


def _csr(arithmetic: Arithmetic) -> Stages:
    """Return the stages of a loop over compressed rows."""
    expect, lower = partial(csr.expect, arithmetic), partial(csr.lower, arithmetic)
    return Stages(expect, lower, csr.emit)


def _kernels(
    name: str,
    family: str,
    levels: Sequence[str],
    dtypes: Sequence[DType],
    stages: Stages,
    source: str,
    **further: Any,
) -> list[Template]:
    """Return a row's kernels, one for each dtype and level; `further` are fields of a Template."""
    return [
        Template(f"{SHORT_NAMES[dtype]}{name}-{isa}", family, isa, stages, source, dtype, **further)
        for dtype in dtypes
        for isa in levels
    ]


_BOTH, _AVX512, _AVX2 = ("avx512", "avx2"), ("avx512",), ("avx2",)
_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_BF16, _FP16, _INT8 = (DType.BFLOAT16,), (DType.FLOAT16,), (DType.INT8,)
_VNNI, _TILE_SETS = frozenset({"avx512_vnni"}), frozenset({"amx_tile", "amx_int8", "avx512_vbmi2"})
_CSR = "compressed sparse rows in blocks of columns: Saad 2003; Im and Yelick 2001"
_PANELS = "weights as code over dense columns, as in LIBXSMM's sparse kernels"
_CSR_PAIRS = "csr; pairs for vpmaddwd: Intel's optimisation manual"
_QUADS = "csr; inputs interleaved in registers as they are multiplied"
_DENSE = "outer products in registers: Goto and van de Geijn 2008"
_DENSE_PAIRS = "dense; two products of bfloat16 at a time: Intel's bfloat16 whitepaper 2018"
_HALVES = "csr; products and sums of float16 between scales: Intel's AVX512-FP16 guide 2022"
_DENSE_QUADS = "dense; four products of bytes at a time, without an index"
_TILES = "compressed weights expanded into AMX tiles: SparAMX, AbouElhamayed et al. 2025"
_BYTES, _INTEGERS = Arithmetic.BYTES, Arithmetic.INTEGERS
_IN_FLOATS = _whole_batch("panels", None, _INTEGERS)

MATMUL_TEMPLATES: tuple[Template, ...] = (
    *_kernels(
        *("panels", "panels", _BOTH, _FLOATS, _whole_batch("panels"), _PANELS), takes_vast=True
    ),
    *_kernels("csr", "csr", _BOTH, _FLOATS, _csr(Arithmetic.FLOATS), _CSR, takes_vast=True),
    *_kernels(
        *("dense", "dense", _BOTH, _FLOATS),
        *(Stages(layer.expect, layer.lower, layer.emit), _DENSE),
    ),
    *_kernels(
        *("int8-panels", "panels", _AVX512, _INT8, _whole_batch("panels", None, _BYTES), _PANELS),
        requires=_VNNI,
        takes_vast=True,
    ),
    *_kernels(
        *("int8-panels-floats", "panels", _AVX512, _INT8, _IN_FLOATS, _PANELS),
        most_inputs=MOST_INTEGERS,
        takes_vast=True,
    ),
    *_kernels(
        *("int8-panels", "panels", _AVX2, _INT8, _IN_FLOATS, _PANELS),
        most_inputs=MOST_INTEGERS,
        takes_vast=True,
    ),
    *_kernels(
        *("int8-csr", "csr", _AVX512, _INT8, _csr(_BYTES), _CSR), requires=_VNNI, takes_vast=True
    ),
    *_kernels("int8-csr-floats", "csr", _AVX512, _INT8, _csr(_INTEGERS), _CSR, takes_vast=True),
    *_kernels("int8-csr", "csr", _AVX2, _INT8, _csr(_INTEGERS), _CSR, takes_vast=True),
    *(
        _repeating(each, family)
        for each in MATVEC_TEMPLATES
        for family in ("rows", "mixed")
        if family == "rows" or each.dtype is not DType.INT8  # int8 is panels or rows
    ),
    *_kernels(
        *("int8-csr-pairs", "csr", _AVX2, _INT8, _csr(Arithmetic.PAIRS), _CSR_PAIRS),
        takes_vast=True,
    ),
    *_kernels(
        *("int8-quads", "quads", _AVX512, _INT8, _csr(Arithmetic.QUADS), _QUADS),
        requires=_VNNI,
        takes_vast=True,
    ),
    *_kernels(
        *("dense-pairs", "dense-pairs", _AVX512, _BF16),
        *(Stages(layer.expect_pairs, layer.lower_pairs, layer.emit), _DENSE_PAIRS),
        requires=frozenset({"avx512_bf16"}),
        rounding=2.0**-8,
    ),
    *_kernels(
        *("halves", "halves", _AVX512, _FP16, _csr(Arithmetic.HALVES), _HALVES),
        requires=frozenset({"avx512_fp16"}),
        most_inputs=csr_halves.MOST_INPUTS,
        rounding=csr_halves.ROUNDING,
    ),
    *_kernels(
        *("int8-dense", "int8-dense", _AVX512, _INT8),
        *(Stages(layer.expect_quads, layer.lower_quads, layer.emit), _DENSE_QUADS),
        requires=_VNNI,
    ),
    *_kernels(
        *("int8-tiles", "int8-tiles", _AVX512, _INT8),
        *(Stages(amx_layout.expect, amx_layout.lower, amx.emit), _TILES),
        requires=_TILE_SETS,
        most_inputs=amx_layout.MOST_INPUTS,
    ),
)
