"""What a kernel should cost, from counts alone: micro-operations and bytes.

A kernel is a sequence of equal steps (`lowered.Counts`), whose prices are data of the target's
core. Time is the largest of what the execution ports need for them and what their code and data
need to arrive, which overlap.
"""

from dataclasses import dataclass

from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.shared.padding import DENSE, stride_padding
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.machine.target import Target
from sparsejit.planner.prices import FAMILY_STEPS


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one call, x and weights warm.

    `steps` are the family's units of work, `ns` the prediction, `bound` the resource that sets
    it: "execution", or "code from L2" and the like.
    """

    steps: int
    code_bytes: int
    data_bytes: int
    ns: float
    bound: str


def price(counts: Counts) -> Cost:
    """The cost of a kernel of which so much was counted."""
    target, core = counts.target, counts.target.core
    steps = [(work, _cycles(counts, work)) for work in counts.work]
    code_bytes = int(sum(_code_bytes(counts, work) for work in counts.work))
    data_bytes = counts.pool_bytes + counts.vector_bytes
    execution = sum(cycles for _, cycles in steps)
    # Code that runs several times arrives during the first.
    later = sum(cycles * (1 - 1 / work.runs) for work, cycles in steps)
    code_level = cache_level(code_bytes, data_bytes, target, target.l1i_bytes)
    data_level = cache_level(data_bytes, code_bytes, target, target.l1d_bytes)
    code_rate = core.code_rates.get(counts.work[0].kind, 1.0) * core.rates.code[code_level]
    transfers = {
        f"code from {code_level}": code_bytes / code_rate,
        f"data from {data_level}": data_bytes / core.rates.data[_data_rate(counts, data_level)],
    }
    if code_level == data_level != "L1":
        added = core.shared_way * min(transfers.values())
        transfers = {name: cycles + added for name, cycles in transfers.items()}
    far = {name: cycles for name, cycles in transfers.items() if not name.endswith("L1")}
    transfers[f"code from {code_level}"] += later
    resources = {"execution": execution, **transfers}
    bound = max(resources, key=lambda name: resources[name])
    far["execution"] = execution
    lesser = sum(cycles for name, cycles in far.items() if name != bound)
    ns = (resources[bound] + core.unhidden * lesser) / core.rates.cycles_per_ns
    return Cost(counts.steps, code_bytes, data_bytes, ns, bound)


def _cycles(counts: Counts, work: Work) -> float:
    target = counts.target
    return work.steps * target.core.step_cycles(work.kind, target.isa, counts.stored.value)


def _code_bytes(counts: Counts, work: Work) -> float:
    """Of steps that stand in the code."""
    each = FAMILY_STEPS[work.kind].code_bytes[counts.target.isa, counts.stored]
    return work.steps * each / work.runs


def _data_rate(counts: Counts, level: str) -> str:
    """The key of the rate at which the pool comes."""
    has_padding = counts.padded and stride_padding(counts.pool_bytes, counts.target) != DENSE
    return "padded L2" if level == "L2" and has_padding else level


def lane_use(family: str, matrix: SparseMatrix, steps: int, target: Target) -> float:
    """Nonzeros over the weights that so many steps could take; 1 where no lane ever idles."""
    places = max(steps, 1) * target.lanes * FAMILY_STEPS[family].weights_a_lane
    return matrix.nnz / places


def cache_level(own_bytes: int, other_bytes: int, target: Target, level_one: int) -> str:
    """The nearest cache that holds code or data: L1 is its own, the rest it shares."""
    if own_bytes <= level_one:
        return "L1"
    for name, size in (("L2", target.l2_bytes), ("L3", target.l3_bytes)):
        if own_bytes + other_bytes <= size:
            return name
    return "memory"
