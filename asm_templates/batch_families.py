"""All kernels for a batch; `families` has the kernels for one vector, and the naming scheme.

A batch template is called with the address of x in rdi and of y in rsi, in the layout of its
spec, under the same terms as a matrix-vector template. If its spec has an added operand, the
operand's address is in rdx.
"""

import math
from dataclasses import dataclass
from functools import partial

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


_CSR_SOURCE = "compressed sparse rows in blocks of columns: Saad 2003; Im and Yelick 2001"
_PANELS_SOURCE = "weights as code over dense columns, as in LIBXSMM's sparse kernels"
_INT8: tuple[tuple[str, str, Arithmetic, frozenset[str]], ...] = (
    ("avx512", "avx512", Arithmetic.BYTES, frozenset({"avx512_vnni"})),
    ("floats-avx512", "avx512", Arithmetic.INTEGERS, frozenset()),
    ("avx2", "avx2", Arithmetic.INTEGERS, frozenset()),
)
_CSR_PAIRS = Template(
    "int8-csr-pairs-avx2",
    "csr",
    "avx2",
    _csr(Arithmetic.PAIRS),
    "csr; pairs for vpmaddwd: Intel's optimisation manual",
    DType.INT8,
    takes_vast=True,
)
_QUADS = Template(
    "int8-quads-avx512",
    "quads",
    "avx512",
    _csr(Arithmetic.QUADS),
    "csr; inputs interleaved in registers as they are multiplied",
    DType.INT8,
    frozenset({"avx512_vnni"}),
    takes_vast=True,
)
_MOST_INPUTS = {("panels", Arithmetic.INTEGERS): MOST_INTEGERS}
_TAKE_VAST = ("panels", "csr")
_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_BY_ITSELF = (
    ("panels", _whole_batch("panels"), _PANELS_SOURCE),
    ("csr", _csr(Arithmetic.FLOATS), _CSR_SOURCE),
    (
        *("dense", Stages(layer.expect, layer.lower, layer.emit)),
        "outer products in registers: Goto and van de Geijn 2008",
    ),
)
_PAIRS = Template(
    "bf16-dense-pairs-avx512",
    "dense-pairs",
    "avx512",
    Stages(layer.expect_pairs, layer.lower_pairs, layer.emit),
    "dense; two products of bfloat16 at a time: Intel's bfloat16 whitepaper 2018",
    DType.BFLOAT16,
    frozenset({"avx512_bf16"}),
    rounding=2.0**-8,
)
_HALVES = Template(
    "f16-halves-avx512",
    "halves",
    "avx512",
    _csr(Arithmetic.HALVES),
    "csr; products and sums of float16 between scales: Intel's AVX512-FP16 guide 2022",
    DType.FLOAT16,
    frozenset({"avx512_fp16"}),
    most_inputs=csr_halves.MOST_INPUTS,
    rounding=csr_halves.ROUNDING,
)
_DENSE_BYTES = Template(
    "int8-dense-avx512",
    "int8-dense",
    "avx512",
    Stages(layer.expect_quads, layer.lower_quads, layer.emit),
    "dense; four products of bytes at a time, without an index",
    DType.INT8,
    frozenset({"avx512_vnni"}),
)
_TILES = Template(
    "int8-tiles-avx512",
    "int8-tiles",
    "avx512",
    Stages(amx_layout.expect, amx_layout.lower, amx.emit),
    "compressed weights expanded into AMX tiles: SparAMX, AbouElhamayed et al. 2025",
    DType.INT8,
    frozenset({"amx_tile", "amx_int8", "avx512_vbmi2"}),
    most_inputs=amx_layout.MOST_INPUTS,
)
MATMUL_TEMPLATES: tuple[Template, ...] = (
    *(
        Template(
            *(f"{SHORT_NAMES[dtype]}{family}-{isa}", family, isa, stages, source, dtype),
            takes_vast=family in _TAKE_VAST,
        )
        for family, stages, source in _BY_ITSELF
        for dtype in _FLOATS
        for isa in ("avx512", "avx2")
    ),
    *(
        Template(
            f"int8-{family}-{name}",
            family,
            isa,
            _csr(arithmetic) if family == "csr" else _whole_batch(family, None, arithmetic),
            _CSR_SOURCE if family == "csr" else _PANELS_SOURCE,
            DType.INT8,
            requires,
            most_inputs=_MOST_INPUTS.get((family, arithmetic), math.inf),
            takes_vast=True,
        )
        for family in ("panels", "csr")
        for name, isa, arithmetic, requires in _INT8
    ),
    *(
        _repeating(each, family)
        for each in MATVEC_TEMPLATES
        for family in ("rows", "mixed")
        if family == "rows" or each.dtype is not DType.INT8  # int8 is panels or rows
    ),
    _CSR_PAIRS,
    _QUADS,
    _PAIRS,
    _HALVES,
    _DENSE_BYTES,
    _TILES,
)
