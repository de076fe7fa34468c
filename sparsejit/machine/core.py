"""Records of a design of core: its speed, its identity, and the choices and costs of kernels on it.

    Rates         speed: cycles a nanosecond, and bytes a cycle by cache; measured by
                  `sparsejit calibrate`, or from the core's data
    FoldingRule   the sizes from which a piece of code runs several times
    Core          the techniques that it gains from, and the cost of work on it

Every number here was measured on such a core, or is marked as assumed, in the data module that
holds it (`processors`). Nothing else in the compiler knows a processor's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparsejit.machine.price_records import (
    AttentionPrices,
    BatchPrices,
    CsrPrices,
    ForestPrices,
    LayoutPrices,
    LoopPrices,
    QuadPrices,
    SharingPrices,
    StepPrice,
)


@dataclass(frozen=True)
class Rates:
    """Speed of a core: cycles a nanosecond, and bytes a cycle by the cache that they come from.

    `data` and `code` have the keys L1, L2, L3 and memory. `data` also has padded L2, for streams
    with padding lines in between.
    """

    cycles_per_ns: float
    data: dict[str, float]
    code: dict[str, float]


_MULTIPLIERS = 2  # multipliers of 512 bits that default cycles assume
# By kind of step, level and the dtype in which weights are stored, such as "avx512", "float32".
StepPrices = Mapping[tuple[str, str, str], StepPrice]


class FoldingRule(NamedTuple):
    """A rule of folding: code of a permute kernel runs `times` times, each time on other weights.

    It holds for at least `nnz` nonzeros, at a density of at least `density`.
    """

    nnz: int
    density: float
    times: int


@dataclass(frozen=True)
class Core:
    """A design of core: its identity, the choices that kernels make for it, and their costs.

    Levels are levels of instructions: "avx512" or "avx2".

    key: its name, which is also the name of its module of data.
    data_of: the key of the core on which these numbers were measured.
    products: products with this core, in words.
    vendor, family, models: by CPUID; no models for a core that can only be named.
    isa: the highest level of instructions that its products have.
    caches: bytes of "l1d", "l1i", "l2" and "l3" of one product, by its data sheet.
    assumed: whether its numbers were not measured on it.
    measured: the source of numbers that were measured on this machine.
    unused: the reason why a stored measurement of this machine is not used.

    padding: whether a stream from L2 arrives faster with unread lines in it.
    redirects: whether long code runs faster with jumps in it.
    placement: whether longer code runs faster at the ends of pages.
    halves_share_loads: whether two blocks of eight outputs that share a line of weights load it
        once for both, or once each.
    widened: by family and dtype, the farthest cache, "L1" or "L2", from which short weights are
        faster stored as float32.
    shared_panel_loads: by level, the share of panels' weights that are loaded by four and spread by
        permutation, for 1, 2, 3 and more panels; the last is for all larger numbers.
    shared_window_loads: the same for sparse windows, whose x lies across lines.
    folding: by level and whether weights are short, rules for running the code of a permute kernel
        several times; the last rule that holds applies.
    prefetch_distance: distance in bytes at which straight-line code from beyond L2 is prefetched.

    rates: cycles a nanosecond, and bytes a cycle by cache.
    steps: cycles, by kind of step, level and stored dtype.
    code_rates: by kind of step, the rate at which its code arrives, over the rate in `rates`:
        longer instructions carry more.
    data_rates: the same for its weights from L2.
    shared_way: the share of the shorter transfer, of code or data, that adds to the other one where
        both come from L2.
    shared_far: the same beyond L2.
    unhidden: the share of each other resource that adds to the one that takes longest.
    l2_ways: lines in a set of L2, where pages at random crowd some sets before L2 is full; 0 where
        L2 is assumed to miss nothing until it is full.
    l3_share: the share of L3 that a process can count on.
    multipliers: vectors multiplied and added a cycle.
    reduction_cycles: cycles to add up the lanes of a vector.
    gate_cycles: cycles of a hidden unit, by recurrent cell and level.
    batch: costs of the parts of a batch.
    csr: costs of compressed rows, by level and arithmetic, "floats", "pairs" and the others.
    forest: costs of decision trees.
    attention: costs of attention, by level, and for "pairs" of bfloat16 with AVX-512.
    sharing: costs of sharing work with another core.
    layouts: figures by which templates choose layouts.
    quads: costs of products of bytes, by level, and for "avx_vnni" at the level of AVX2.
    loops: costs of all other loops.
    """

    key: str
    data_of: str
    caches: Mapping[str, int] = field(repr=False)
    rates: Rates = field(repr=False)
    steps: StepPrices = field(repr=False)
    folding: Mapping[tuple[str, bool], tuple[FoldingRule, ...]] = field(repr=False)
    shared_panel_loads: Mapping[str, tuple[float, ...]] = field(repr=False)
    shared_window_loads: Mapping[str, tuple[float, ...]] = field(repr=False)
    code_rates: Mapping[str, float] = field(repr=False)
    data_rates: Mapping[str, float] = field(repr=False)
    batch: BatchPrices = field(repr=False)
    csr: Mapping[tuple[str, str], CsrPrices] = field(repr=False)
    gate_cycles: Mapping[tuple[str, str], float] = field(repr=False)
    forest: ForestPrices = field(repr=False)
    attention: Mapping[str, AttentionPrices] = field(repr=False)
    padding: bool
    redirects: bool
    placement: bool
    halves_share_loads: bool
    widened: Mapping[tuple[str, str], str] = field(repr=False)
    shared_way: float
    shared_far: float
    l2_ways: int
    unhidden: float
    reduction_cycles: float
    multipliers: float
    prefetch_distance: int
    l3_share: float
    sharing: SharingPrices = field(repr=False)
    quads: Mapping[str, QuadPrices] = field(repr=False)
    layouts: LayoutPrices = field(default=LayoutPrices(), repr=False)
    loops: LoopPrices = field(default=LoopPrices(), repr=False)
    vendor: str = ""
    family: int = 0
    models: frozenset[int] = frozenset()
    products: str = "any other"
    isa: str = "avx512"
    assumed: bool = False
    measured: str = ""
    unused: str = ""

    def __hash__(self) -> int:
        return hash((self.key, self.data_of, self.measured, self.unused))

    def step_cycles(self, key: tuple[str, str, str], default: float) -> float:
        """Return the cycles of a step, by its kind, level and stored dtype.

        `default` is for a kind without cycles, on a core with two multipliers of 512 bits.
        """
        if key in self.steps:
            return self.steps[key].cycles
        return default * (_MULTIPLIERS / self.multipliers if key[1] == "avx512" else 1.0)

    @property
    def origin(self) -> str:
        """The source of these costs, in words."""
        assumed = " (assumed)" if self.assumed else ""
        known = self.measured or f"data of {self.data_of}{assumed}"
        return f"{known}, because {self.unused}" if self.unused else known


def models(*parts: int | range) -> frozenset[int]:
    """Return a set of model numbers, from numbers and ranges."""
    return frozenset(one for part in parts for one in ([part] if isinstance(part, int) else part))


def caches(l1d: int, l1i: int, l2: int, l3: int) -> dict[str, int]:
    """Return bytes by cache, from KiB; L1 and L2 are per core."""
    return {"l1d": l1d << 10, "l1i": l1i << 10, "l2": l2 << 10, "l3": l3 << 10}
