"""What is known of a design of core, as data: what it gains from, and what work costs on it.

Every number here was measured on such a core, or is marked as assumed, in the data module that
holds it (`processors`). Nothing else in the compiler knows a processor's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparsejit.machine.prices import (
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
from sparsejit.machine.rates import Rates

_MULTIPLIERS = 2  # of 512 bits, that prices of unknown kinds assume
# By kind of step, level and the dtype in which weights are stored, such as "avx512", "float32".
StepPrices = Mapping[tuple[str, str, str], StepPrice]


class FoldingRule(NamedTuple):
    """Matrices of at least so many nonzeros and such a density run their code so often."""

    nnz: int
    density: float
    times: int


@dataclass(frozen=True)
class Core:
    """A design of core: what it is, what kernels are made by, and what they cost.

    By level is by that of instructions: "avx512" or "avx2".

    key: its name, as that of its module of data.
    data_of: the key of the core whose numbers these are.
    products: what has it, in words.
    vendor, family, models: by CPUID; no models for a core that only names itself.
    isa: the highest level of instructions that its products have.
    caches: bytes of "l1d", "l1i", "l2" and "l3" of a product that has it, by its data sheet.
    assumed: whether its numbers were not measured on it.
    measured: where those numbers are from that were measured on the machine that this is.
    unused: what was kept of such a measurement, and why it is not used.

    padding: whether a stream from L2 arrives faster with unread lines in it.
    redirects: whether long code runs faster with jumps in it.
    placement: whether longer code runs faster at the ends of pages.
    halves_share_loads: whether two blocks of eight outputs that share a line of weights load it
        once, or each for itself.
    widened: by family and dtype, the farthest cache, "L1" or "L2", from which short weights come
        best as float32.
    shared_panel_loads: by level, how many weights of panels come four with a load and are spread by
        permutation, for 1, 2, 3 and more panels; the last is for all beyond.
    shared_window_loads: the same of sparse windows, whose x lies across lines.
    folding: by level and whether weights are short, when the code of a permute kernel runs several
        times; of rules that hold, the last.
    ask_ahead: bytes ahead of which straight code from beyond L2 asks for the code to come.

    rates: cycles a nanosecond, and bytes a cycle by cache.
    steps: cycles, by kind of step, level and stored dtype.
    code_rates: by kind of step, times as fast as `rates` say that its code arrives, for longer
        instructions carry more.
    data_rates: the same for its weights from L2.
    shared_way: the share that code adds to data that comes from L2 as well, or data to code.
    shared_far: the same beyond L2.
    unhidden: the share of each other resource that adds to the one that takes longest.
    l2_ways: lines a set of L2 has, where pages at random crowd some sets before L2 is full; 0 where
        it is taken to hold whatever is no larger.
    l3_share: the share of L3 that a process can count on.
    multipliers: vectors multiplied and added a cycle.
    reduction_cycles: cycles to add up the lanes of a vector.
    gate_cycles: cycles of a hidden unit, by recurrent cell and level.
    batch: what the parts of a batch cost.
    csr: by level and arithmetic, "floats", "pairs" and the others.
    forest: decision trees.
    attention: by level.
    sharing: what it costs to share work with another core.
    layouts: what templates weigh when they lay a layer out.
    quads: products of bytes.
    loops: all else.
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
    ask_ahead: int
    l3_share: float
    sharing: SharingPrices = field(repr=False)
    quads: QuadPrices = field(repr=False)
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
        """Cycles of a step of kind, level and stored dtype; `default` where two vectors of 512
        bits are multiplied in one.
        """
        if key in self.steps:
            return self.steps[key].cycles
        return default * (_MULTIPLIERS / self.multipliers if key[1] == "avx512" else 1.0)

    @property
    def origin(self) -> str:
        """Whose prices these are, in words."""
        assumed = " (assumed)" if self.assumed else ""
        known = self.measured or f"data of {self.data_of}{assumed}"
        return f"{known}, because {self.unused}" if self.unused else known


def models(*parts: int | range) -> frozenset[int]:
    """Model numbers, and ranges of them."""
    return frozenset(one for part in parts for one in ([part] if isinstance(part, int) else part))


def caches(l1d: int, l1i: int, l2: int, l3: int) -> dict[str, int]:
    """Bytes by cache of sizes in KiB; L1 and L2 are those of one core."""
    return {"l1d": l1d << 10, "l1i": l1i << 10, "l2": l2 << 10, "l3": l3 << 10}
