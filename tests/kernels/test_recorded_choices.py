"""With a processor's own prices the planner chooses the kernel measured fastest on it; no clock.

Layers and times of Zen 5 come from `perf/results`, layers and times of Sapphire Rapids from
`sapphire_rapids.json`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec, Quantisation
from sparsejit.machine.core import Core
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import INSTRUCTION_SETS, ISA_LEVELS, Target
from sparsejit.perf.history import RESULTS, read_rows
from sparsejit.perf.planner_survey import PATTERNS
from sparsejit.perf.problems import ALL_PROBLEMS, Problem
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.planner.kernel_choice import Candidate, plan

# Within a recording times vary by so much; from one to another the clock varies too.
NOISE, NOISE_BETWEEN = 1.05, 1.15
FAR_LESS = 0.4  # derived prices may be half wrong
ZEN5_MACHINE = "AMD EPYC"
AMX = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
BATCHES = (*range(2, 18), 24, 31, 32, 33, 47, 48, 63, 64)
# Planning 4096x4096 takes seconds: once is enough.
LARGE, LARGE_CASE = "E", ("E", "float32", "avx512")


@dataclass(frozen=True)
class Recorded:
    """A layer for a level, and for each family that was timed: nanoseconds, and in which run."""

    problem: Problem
    dtype: str
    isa: str
    ns: dict[str, tuple[float, str]]

    def noise(self, family: str) -> float:
        """The ratio to the fastest up to which a family may be as fast."""
        _, fastest = min(self.ns.values())
        return NOISE if self.ns[family][1] == fastest else NOISE_BETWEEN

    def share(self, choice: Candidate) -> float:
        """The predicted time of a choice over the fastest recorded."""
        return choice.cost.ns / min(self.ns.values())[0]

    def loss(self, family: str) -> float:
        """The family's time over the fastest one's."""
        return self.ns[family][0] / min(self.ns.values())[0]


def target(core: Core, isa: str, lacking: frozenset[str], l2_bytes: int) -> Target:
    """A processor with that core, up to a level."""
    sets = INSTRUCTION_SETS - lacking
    if isa == "avx2":
        sets = frozenset(one for one in sets if not one.startswith(("avx512", "amx")))
    return replace(Target.named(isa), instruction_sets=sets, l2_bytes=l2_bytes, core=core)


def zen5(isa: str, core: Core | None = None) -> Target:
    return target(core or core_named("zen5"), isa, AMX | {"avx512_fp16"}, 1 << 20)


def sapphire_rapids(core: Core | None = None) -> Target:
    return target(core or core_named("golden_cove"), "avx512", frozenset(), 2 << 20)


def recorded_on_zen5() -> Iterator[Recorded]:
    """Every case of `bench kernels`, each family at its last recording."""
    found: dict[tuple[str, str, str], dict[str, tuple[float, str]]] = {}
    rows = [row for row in read_rows(RESULTS / "kernels.jsonl") if row["machine"] == ZEN5_MACHINE]
    for row in sorted(rows, key=lambda row: str(row["time"])):
        case = row["problem"], row["dtype"], row["isa"]
        found.setdefault(case, {})[row["strategy"]] = row["ns_min"], row["time"]
    for (problem, dtype, isa), ns in found.items():
        if problem != LARGE or (problem, dtype, isa) == LARGE_CASE:
            yield Recorded(ALL_PROBLEMS[problem], dtype, isa, ns)


def recorded_on_sapphire_rapids(*kinds: str) -> list[Recorded]:
    """Times of those kinds, of a family in several the last."""
    text = Path(__file__).with_name("sapphire_rapids.json").read_text()
    patterns = {pattern.name: pattern for pattern in PATTERNS}
    layers = []
    for one in json.loads(text)["layers"]:
        name = f"{one['shape'][0]}x{one['shape'][1]} {one['sparsity']:.0%} {one['pattern']}"
        problem = Problem(name, *one["shape"], one["sparsity"], patterns[one["pattern"]], seed=1)
        times = {family: ns for kind in kinds for family, ns in one[kind].items()}
        ns = {family: (float(time), "") for family, time in times.items()}
        layers.append(Recorded(problem, one["dtype"], "avx512", ns))
    return layers


@cache
def matrix_of(problem: Problem) -> SparseMatrix:
    return SparseMatrix(problem.weights())


def chosen(
    problem: Problem, dtype: str, for_target: Target, batch: int = 1, layout: Any = None
) -> Candidate:
    """The planner's choice; int8 knows the scale of x, as where it was recorded."""
    steps = Quantisation(0.03, 0, symmetric=True) if dtype == "int8" else None
    sizes = problem.out_features, problem.in_features
    each = MatVec(*sizes, None, Activation.NONE, DType(dtype), steps)
    matrix = matrix_of(problem)
    if batch == 1:
        return plan(each, matrix, for_target).chosen
    return plan_batch(MatMul(each, batch, layout), matrix, for_target).chosen


def case(recorded: Recorded) -> str:
    return f"{recorded.problem.name}-{recorded.dtype}-{recorded.isa}"


ON_ZEN5 = list(recorded_on_zen5())
ON_SAPPHIRE_RAPIDS = recorded_on_sapphire_rapids("ns", "scaled")
MADE_FOR_ANOTHER = recorded_on_sapphire_rapids("ns")


def zen5_choice(recorded: Recorded, core: Core | None = None) -> Candidate:
    problem = recorded.problem
    for_target = zen5(recorded.isa, core)
    return chosen(problem, recorded.dtype, for_target, problem.batch, problem.layout)


@pytest.mark.parametrize("recorded", ON_ZEN5, ids=case)
def test_zen5_prices_choose_what_was_fastest_there(recorded: Recorded) -> None:
    """And nothing that nobody timed there, but where it should take far less than what was."""
    choice = zen5_choice(recorded)
    family = choice.template.family
    if family not in recorded.ns:
        assert recorded.share(choice) <= FAR_LESS
        return
    assert recorded.loss(family) <= recorded.noise(family), recorded.ns


def test_the_recordings_of_zen5_leave_a_choice() -> None:
    """Every problem at both levels, all float32 cases with several families."""
    assert {(one.problem.name, one.isa) for one in ON_ZEN5 if one.dtype == "float32"} == {
        (name, isa)
        for name in ALL_PROBLEMS
        for isa in ISA_LEVELS
        if (name, "float32", isa) == LARGE_CASE or name != LARGE
    }
    assert all(len(one.ns) > 1 for one in ON_ZEN5 if one.dtype == "float32")


def spoiled(core: Core, kind: str, factor: float) -> Core:
    """The core with every price of a kind of step times a factor."""
    steps = {
        key: price._replace(cycles=price.cycles * (factor if key[0] == kind else 1))
        for key, price in core.steps.items()
    }
    return replace(core, steps=steps)


@pytest.mark.parametrize("kind", ["permute", "lookup", "broadcast", "broadcast-mixed", "lane16"])
def test_wrong_prices_choose_what_was_slower(kind: str) -> None:
    """So these tests would notice: a kernel whose steps seem too dear is missed."""
    core = spoiled(core_named("zen5"), kind, 3.0)
    cases = [one for one in ON_ZEN5 if one.dtype == "float32" and len(one.ns) > 1]
    small = [one for one in cases if one.problem.name != LARGE and one.problem.batch == 1]
    won = [one for one in small if min(one.ns, key=one.ns.__getitem__) == kind]
    assert won
    families = [(one, zen5_choice(one, core).template.family) for one in won]
    assert any(f not in one.ns or one.loss(f) > one.noise(f) for one, f in families)


@pytest.mark.parametrize("recorded", ON_SAPPHIRE_RAPIDS, ids=case)
def test_golden_cove_prices_choose_what_was_fastest_there(recorded: Recorded) -> None:
    """And nothing that nobody timed there, or on that design of core."""
    family = chosen(recorded.problem, recorded.dtype, sapphire_rapids()).template.family
    assert family in recorded.ns
    assert recorded.loss(family) <= NOISE, recorded.ns


def test_prices_of_another_processor_choose_what_is_slower_there() -> None:
    """Choices by the first processor's prices lost 1.5 to 1.8 times in these layers."""
    for_target = sapphire_rapids(core_named("zen5"))
    made = [(one, chosen(one.problem, one.dtype, for_target)) for one in MADE_FOR_ANOTHER]
    families = [(one, choice.template.family) for one, choice in made]
    lost = [one for one, family in families if family in one.ns and one.loss(family) > NOISE]
    assert len(lost) >= 3


def batches_on_zen5(layout: Layout) -> dict[int, tuple[str, float]]:
    """The family and the nanoseconds of each batch in the last recording of A in float32."""
    rows = [row for row in read_rows(RESULTS / "batch.jsonl") if row["machine"] == ZEN5_MACHINE]
    case = ("A", "float32", layout.value)
    rows = [row for row in rows if (row["problem"], row["dtype"], row["layout"]) == case]
    last = max(row["time"] for row in rows)
    return {row["batch"]: (row["strategy"], row["ns"]) for row in rows if row["time"] == last}


@pytest.mark.recordings
@pytest.mark.parametrize("layout", Layout)
def test_zen5_prices_choose_batches_as_they_were_recorded(layout: Layout) -> None:
    """Or what took no longer with more columns."""
    recorded = batches_on_zen5(layout)
    assert len(recorded) == 64
    for batch in BATCHES:
        family = chosen(ALL_PROBLEMS["A"], "float32", zen5("avx512"), batch, layout).template.family
        larger = [ns for size, (name, ns) in recorded.items() if size >= batch and name == family]
        assert larger and min(larger) <= NOISE * recorded[batch][1], f"{family} for {batch}"
