"""One table of all kernels: families of products, and the kernels of all other operators.

Lowering names its steps by it, `selftest` and `bench kernels` walk it, and the table in
docs/kernels/index.md is made from it. Elementwise functions, gates, embeddings and samplers are
generated as chains and loops, and have no rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.asm_templates.forest.kernels import FOREST_KERNELS
from sparsejit.errors import CompileError
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import attention_cost, cached_attention_cost
from sparsejit.planner.batch_plan import price_batch
from sparsejit.planner.convolution_plan import (
    DENSE_WINDOWS,
    SPARSE_WINDOWS,
    WINOGRAD,
    channel_windows_cost,
)
from sparsejit.planner.cost import price
from sparsejit.planner.forest_plan import forest_ns
from sparsejit.planner.int8_plan import attention_cost as byte_attention_cost
from sparsejit.planner.int8_plan import (
    byte_depthwise_cost,
    byte_scaling_cost,
    copy_cost,
    fours_cost,
    norm_cost,
    price_dense_windows,
    price_quads,
    price_sparse_windows,
)


@dataclass(frozen=True)
class KernelRow:
    """A kernel, or a family of kernels.

    operator: the operator that it computes.
    levels: the instruction set levels that it has code for.
    requires: the sets that it needs too with AVX-512; with AVX2 it needs no more.
    dtypes: the dtypes of its weights, or of its operands where it has no weights.
    source: where the idea is from.
    cost: the function that prices it.
    members: the templates of a family of products.
    """

    name: str
    operator: str
    levels: tuple[str, ...]
    dtypes: tuple[DType, ...]
    source: str
    cost: Callable[..., Any]
    requires: frozenset[str] = frozenset()
    members: tuple[Template, ...] = ()

    def made_for(self, target: Target, dtype: DType) -> bool:
        """Whether it has code for a target, with weights or operands of a dtype."""
        if self.members:
            return any(each.dtype is dtype and each.made_for(target) for each in self.members)
        required = self.requires if target.isa == "avx512" else frozenset()
        has_level = target.isa in self.levels and required <= target.instruction_sets
        return has_level and dtype in self.dtypes

    @property
    def dtype_names(self) -> list[str]:
        return [dtype.value for dtype in self.dtypes]

    @property
    def needs(self) -> str:
        """Levels, each with further instruction sets, in words."""
        sets = f" with {', '.join(sorted(self.requires))}" if self.requires else ""
        return ", ".join(f"{each}{sets if each == 'avx512' else ''}" for each in self.levels)


def _of_families(
    templates: Iterable[Template], operator: str, cost: Callable[..., Any]
) -> Iterable[KernelRow]:
    """Rows of the families of a table of templates; a row needs the sets that all kernels need."""
    families: dict[str, list[Template]] = {}
    for each in templates:
        families.setdefault(each.family, []).append(each)
    for name, members in families.items():
        levels = tuple(dict.fromkeys(each.isa for each in members))
        dtypes = tuple(dict.fromkeys(each.dtype for each in members))
        wide = [each.requires for each in members if each.isa == "avx512"]
        needed = frozenset.intersection(*wide) if wide else frozenset()
        about = members[0].source
        yield KernelRow(name, operator, levels, dtypes, about, cost, needed, tuple(members))


_BOTH, _AVX512 = ("avx512", "avx2"), ("avx512",)
_F32, _INT8 = (DType.FLOAT32,), (DType.INT8,)
_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_VNNI, _VBMI = frozenset({"avx512_vnni"}), frozenset({"avx512_vnni", "avx512vbmi"})
_BY_BYTES = "images in bytes from layer to layer"
_IN_REGISTERS = "outer products in registers, as oneDNN's"
_DIRECT = "direct convolution, positions as lanes"
_WEIGHTS_AS_CODE = "weights as code over positions, as in `panels`"
_WINOGRAD = "minimal filtering: Lavin and Gray 2016"
_TILES = "tiles of queries, which look at the keys that a mask allows"
_PAIRS = f"{_TILES}; two products of bfloat16 at a time"
_FILLED = "a query at a time over the keys of a cache that are filled"
_COPY = "a copy in another order"
PRODUCT, BATCH_PRODUCT = "product", "product of a batch"

KERNELS: tuple[KernelRow, ...] = (
    *_of_families(MATVEC_TEMPLATES, PRODUCT, price),
    *_of_families(MATMUL_TEMPLATES, BATCH_PRODUCT, price_batch),
    KernelRow("depthwise", "convolution", _BOTH, _FLOATS, _DIRECT, channel_windows_cost),
    KernelRow(
        *(SPARSE_WINDOWS, "convolution", _BOTH, _FLOATS, _WEIGHTS_AS_CODE), price_sparse_windows
    ),
    KernelRow(DENSE_WINDOWS, "convolution", _BOTH, _FLOATS, _DIRECT, price_dense_windows),
    KernelRow(WINOGRAD, "convolution", _BOTH, _FLOATS, _WINOGRAD, price_dense_windows),
    KernelRow("padding", "convolution", _BOTH, _F32, _COPY, copy_cost),
    KernelRow("quads", "convolution of bytes", _BOTH, _INT8, _BY_BYTES, price_quads, _VNNI),
    KernelRow(
        *("byte-tiles", "convolution of bytes", _AVX512, _INT8, _IN_REGISTERS), price_quads, _VNNI
    ),
    KernelRow("fours", "convolution of bytes", _BOTH, _INT8, _COPY, fours_cost, _VNNI),
    KernelRow(
        *("byte-depthwise", "convolution of bytes", _BOTH, _INT8, _BY_BYTES),
        *(byte_depthwise_cost, _VBMI),
    ),
    KernelRow("phases", "convolution of bytes", _BOTH, _INT8, _COPY, copy_cost, _VNNI),
    KernelRow("to-bytes", "rounding", _BOTH, _INT8, _COPY, copy_cost, _VNNI),
    KernelRow("to-floats", "rounding", _BOTH, _INT8, _COPY, copy_cost, _VNNI),
    KernelRow("pooling", "pooling", _BOTH, _F32, _DIRECT, channel_windows_cost),
    KernelRow("byte-pooling", "pooling", _BOTH, _INT8, _BY_BYTES, copy_cost, _VNNI),
    KernelRow("byte-means", "pooling", _BOTH, _INT8, _BY_BYTES, copy_cost, _VNNI),
    KernelRow("byte-scale", "scaling", _BOTH, _INT8, _BY_BYTES, byte_scaling_cost, _VNNI),
    KernelRow("byte-norm", "norm", _BOTH, _INT8, _BY_BYTES, norm_cost, _VNNI),
    KernelRow("attention", "attention", _BOTH, _F32, _TILES, attention_cost),
    KernelRow(
        *("attention-pairs", "attention", _AVX512, (DType.BFLOAT16,), _PAIRS),
        *(attention_cost, frozenset({"avx512_bf16"})),
    ),
    KernelRow("cached attention", "attention", _BOTH, _F32, _FILLED, cached_attention_cost),
    KernelRow("masked attention", "attention", _BOTH, _F32, _TILES, attention_cost),
    KernelRow(
        *("byte-attention", "attention", _BOTH, _INT8, _BY_BYTES), byte_attention_cost, _VNNI
    ),
    *(
        KernelRow(each.name, "forest", each.levels, _F32, each.about, forest_ns)
        for each in FOREST_KERNELS
    ),
)

# The rows of operators other than products, by name.
OTHER_KERNELS = {row.name: row for row in KERNELS if not row.members}


def families_for(target: Target, dtype: DType, batch: int) -> list[str]:
    """Return the names of the families of products for a target, a dtype and a batch."""
    wanted = PRODUCT if batch == 1 else BATCH_PRODUCT
    rows = (row for row in KERNELS if row.operator == wanted)
    return [row.name for row in rows if row.made_for(target, dtype)]


def rounding_of(family: str, dtype: DType) -> float:
    """Return the largest error of a sum in a family of products of a batch that rounds x, or 0.

    It is over the magnitudes of the products.
    """
    rows = (row for row in KERNELS if (row.name, row.operator) == (family, BATCH_PRODUCT))
    members = (each for row in rows for each in row.members if each.dtype is dtype)
    return max((each.rounding for each in members), default=0.0)


def kernel_name(name: str, target: Target) -> str:
    """Return the name of the step of a kernel at a level.

    Raises CompileError for a kernel without a row, or without code for the target's level.
    """
    row = OTHER_KERNELS.get(name)
    if row is None or target.isa not in row.levels:
        raise CompileError(f"there is no kernel {name} for {target.isa}")
    return f"{name}-{target.isa}"


def kernel_table() -> list[str]:
    """Return the table of all kernels, in Markdown."""
    rows = [
        (f"`{row.name}`", row.operator, row.needs, ", ".join(row.dtype_names), row.source)
        for row in KERNELS
    ]
    head = ("kernel", "operator", "needs", "weights", "the idea is from")
    return [f"| {' | '.join(each)} |" for each in (head, ("---",) * len(head), *rows)]
