"""Picks the kernel for a batch: panels, a matrix-vector kernel repeated, both, a loop over
compressed rows, or dense code.

A panel costs the same however few of its columns are used, a repeated kernel by the column, dense
code by the weight, zeros included. Prices in cycles are those of the recording machine;
docs/kernels/batch.md and dense.md have where they come from.
"""

from dataclasses import dataclass

from sparsejit.asm_templates.batch.csr_shape import CsrCounts
from sparsejit.asm_templates.batch.lowered_batch import BatchCounts
from sparsejit.asm_templates.batch.panels import shared_loads
from sparsejit.asm_templates.batch.whole import chunk_columns
from sparsejit.asm_templates.batch_table import MATMUL_TEMPLATES, MatMulTemplate
from sparsejit.asm_templates.dense_product.layer import DenseCounts
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.planner.cost import Cost, Rates, cache_level, price
from sparsejit.planner.csr_price import price_csr
from sparsejit.planner.plan import AUTO, Job, Plan, choose

LOADS_A_CYCLE = 2.0
PRODUCTS_A_CYCLE = 2.0
STORE_CYCLES = 1.0  # both multipliers lend it a register port
# Panels' long instructions arrive from L2 at 16 bytes a cycle, faster than `Rates` says of code in
# general. From L3 they arrive as it says, as long as they are a small share of it.
L2_CODE_FACTOR = 1.35
FAR_CODE_RATE = 0.25
NEAR_SHARE_OF_L3 = 1 / 3
# To transpose lanes by n elements, and more for each n.
SQUARE_CYCLES = {"avx512": (35, 1.0), "avx2": (8, 0.5)}
REPEATED_SHARE = 1.15  # a kernel on one column after the other, over the same column again
COPY_CYCLES = {"avx512": 2.5, "avx2": 1.3}  # to bring a vector of x into line
# Of fetching weights from beyond L2, what the multiplications of dense code do not hide.
DENSE_FETCH_SHARE = 0.6


@dataclass(frozen=True)
class _PanelBytes:
    """Bytes of code for a weight, more where four come with one load, and for an input."""

    weight: float
    by_four: float
    input: float


_PANEL_BYTES = {"avx512": _PanelBytes(7.3, 7.7, 7), "avx2": _PanelBytes(12, 0, 8)}


def batch_strategies() -> tuple[str, ...]:
    """The names `strategy=` accepts for a batch."""
    return (AUTO, *dict.fromkeys(template.family for template in MATMUL_TEMPLATES))


def plan_batch(
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
    strategy: str = AUTO,
    exact: bool = False,
    alike: bool = False,
) -> Plan:
    """Choose a template for a batch; if `exact`, one that changes no weight.

    If `alike`, one that sums every column in the same order, so that where a column lies in the
    batch changes no bit of it; `mixed` does not.

    Raises InvalidInput for a strategy that does not exist, or not for this dtype and target.
    """
    possible = (
        row
        for row in MATMUL_TEMPLATES
        if _is_possible(row, spec, target) and not (alike and row.family == "mixed")
    )
    job = Job(spec, matrix, target, price_batch)
    return choose(job, possible, strategy, batch_strategies(), exact)


def _is_possible(template: MatMulTemplate, spec: MatMul, target: Target) -> bool:
    """Whether the workspace suffices, and whether `mixed` is neither of the other two."""
    needs_no_workspace = template.family == "rows" and spec.layout is Layout.BATCH_MAJOR
    if needs_no_workspace or template.family in ("csr", "dense"):
        return True
    both = spec.batch > target.lanes and spec.batch % target.lanes != 0
    return chunk_columns(spec, target.lanes) > 0 and (both or template.family != "mixed")


def price_batch(counts: BatchCounts | CsrCounts | DenseCounts, rates: Rates) -> Cost:
    """The sum of what panels, repeated kernels and transpositions cost, or that of a loop."""
    if isinstance(counts, DenseCounts):
        return _dense(counts, rates)
    if isinstance(counts, CsrCounts):
        return price_csr(counts, rates)
    parts: list[tuple[float, Cost]] = []
    waiting = _transposing(counts)
    if counts.in_panels:
        parts.append((1, _panels(counts, rates)))
    if counts.each is not None and counts.repeats:
        each = price(counts.each, rates)
        parts.append((REPEATED_SHARE * counts.repeats, each))
        if counts.in_panels:  # which have left nothing of its code where it is fetched from
            waiting += each.code_bytes / (rates.code["L2"] * L2_CODE_FACTOR)
    _, dearest = max(parts, key=lambda part: part[0] * part[1].ns)
    return Cost(
        sum(int(times * cost.steps) for times, cost in parts),
        sum(cost.code_bytes for _, cost in parts),
        sum(cost.data_bytes for _, cost in parts),
        sum(times * cost.ns for times, cost in parts) + waiting / rates.cycles_per_ns,
        dearest.bound,
    )


def _dense(counts: DenseCounts, rates: Rates) -> Cost:
    """Weights come once; L2 hides behind the multiplications, what lies beyond does in part."""
    spec = counts.spec
    data_bytes = counts.pool_bytes + 4 * spec.batch * (spec.in_features + spec.out_features)
    level = cache_level(counts.pool_bytes, data_bytes - counts.pool_bytes, counts.target, 0)
    fetching = counts.pool_bytes / rates.data[level]
    exposed = 0.0 if level == "L2" else DENSE_FETCH_SHARE * fetching
    cycles = max(fetching, counts.cycles + exposed)
    bound = "execution" if counts.cycles > fetching else f"data from {level}"
    return Cost(counts.products, 0, data_bytes, cycles / rates.cycles_per_ns, bound)


def _transposing(counts: BatchCounts) -> float:
    """Cycles to move between layouts what its kernel wants in the other."""
    target, spec = counts.target, counts.spec
    columns = counts.repeats if spec.layout is Layout.FEATURE_MAJOR else counts.in_panels
    whole, rest = divmod(columns, target.lanes)
    square, column = SQUARE_CYCLES[target.isa]
    cycles = whole * (square + column * target.lanes) + (square + column * rest if rest else 0.0)
    sizes = (spec.in_features, spec.out_features)
    return cycles * sum(-(-size // target.lanes) for size in sizes)


def _panels(counts: BatchCounts, rates: Rates) -> Cost:
    """The first panel of a chunk waits for its code, the others for loads or multiplications."""
    target, spec, nnz = counts.target, counts.spec, counts.nnz
    panels = -(-counts.in_panels // target.lanes)
    at_once = min(panels, chunk_columns(spec, target.lanes) // target.lanes)
    chunks = -(-panels // at_once)
    share, code = shared_loads(target, at_once), _PANEL_BYTES[target.isa]
    code_bytes = int(nnz * (code.weight + share * code.by_four) + counts.inputs * code.input)
    data_bytes = 4 * nnz + panels * target.vector_bytes * (spec.in_features + spec.out_features)
    code_level = cache_level(code_bytes, data_bytes, target, target.l1i_bytes)
    fetching = code_bytes / _code_rate(code_bytes, code_level, target, rates)
    loading = (nnz * (1 - 0.75 * share) + counts.inputs) / LOADS_A_CYCLE
    adding = nnz / PRODUCTS_A_CYCLE + spec.out_features * STORE_CYCLES
    later = max(loading, adding)
    first = max(fetching, later)
    is_copied = spec.layout is Layout.FEATURE_MAJOR and spec.batch % target.lanes != 0
    copying = spec.in_features * panels * COPY_CYCLES[target.isa] if is_copied else 0.0
    cycles = chunks * first + (panels - chunks) * later + copying
    bound = f"code from {code_level}" if fetching > later and panels < 2 * chunks else "execution"
    return Cost(panels * nnz, code_bytes, data_bytes, cycles / rates.cycles_per_ns, bound)


def _code_rate(code_bytes: int, level: str, target: Target, rates: Rates) -> float:
    """Bytes a cycle."""
    if code_bytes > NEAR_SHARE_OF_L3 * target.l3_bytes:
        return FAR_CODE_RATE
    return rates.code[level] * (L2_CODE_FACTOR if level == "L2" else 1)
