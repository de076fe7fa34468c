"""What a kernel should cost, from counts alone: micro-operations and bytes.

A kernel is a sequence of equal steps (`lowered.Counts`), whose prices are data (`prices`). Time is
the largest of what the execution ports need for them and what their code and data need to arrive,
which overlap. Rates per cache level are built in until this machine has been calibrated
(`calibration.py`).
"""

from dataclasses import dataclass, replace

from sparsejit.asm_templates.lowered import Counts
from sparsejit.asm_templates.shared.padding import DENSE, stride_padding
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.machine.rates import Rates
from sparsejit.machine.target import Target
from sparsejit.planner.prices import FAMILY_PRICES

# What code adds to data that comes from the same cache, or data to code: predictions for 45 layers
# of 768 to 3072 outputs, permute and broadcast, were 0.84 of the measured times without, 0.99 with.
SHARED_WAY = 0.25


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


def price(counts: Counts, rates: Rates) -> Cost:
    """The cost of a kernel of which so much was counted."""
    target = counts.target
    key = target.isa, counts.stored
    steps = [(FAMILY_PRICES[work.kind].steps[key], work) for work in counts.work]
    code_bytes = int(sum(work.steps * each.code_bytes / work.runs for each, work in steps))
    data_bytes = counts.pool_bytes + counts.vector_bytes
    cycles = {(kind, isa): number for kind, isa, number in target.traits.step_cycles}
    steps = [
        (replace(each, cycles=cycles.get((work.kind, target.isa), each.cycles)), work)
        for each, work in steps
    ]
    execution = sum(work.steps * each.cycles for each, work in steps)
    # Code that runs several times arrives during the first.
    later = sum(work.steps * each.cycles * (1 - 1 / work.runs) for each, work in steps)
    code_level = cache_level(code_bytes, data_bytes, target, target.l1i_bytes)
    data_level = cache_level(data_bytes, code_bytes, target, target.l1d_bytes)
    code_rate = FAMILY_PRICES[counts.work[0].kind].code_rate * rates.code[code_level]
    transfers = {
        f"code from {code_level}": code_bytes / code_rate,
        f"data from {data_level}": data_bytes / rates.data[_data_rate(counts, data_level)],
    }
    if code_level == data_level != "L1":
        lesser = min(transfers.values())
        transfers = {name: cycles + SHARED_WAY * lesser for name, cycles in transfers.items()}
    transfers[f"code from {code_level}"] += later
    resources = {"execution": execution, **transfers}
    bound = max(resources, key=lambda name: resources[name])
    return Cost(counts.steps, code_bytes, data_bytes, resources[bound] / rates.cycles_per_ns, bound)


def _data_rate(counts: Counts, level: str) -> str:
    """The key of the rate at which the pool comes."""
    has_padding = counts.padded and stride_padding(counts.pool_bytes, counts.target) != DENSE
    return "padded L2" if level == "L2" and has_padding else level


def lane_use(family: str, matrix: SparseMatrix, steps: int, target: Target) -> float:
    """Nonzeros over the weights that so many steps could take; 1 where no lane ever idles."""
    places = max(steps, 1) * target.lanes * FAMILY_PRICES[family].weights_a_lane
    return matrix.nnz / places


def cache_level(own_bytes: int, other_bytes: int, target: Target, level_one: int) -> str:
    """The nearest cache that holds code or data: L1 is its own, the rest it shares."""
    if own_bytes <= level_one:
        return "L1"
    for name, size in (("L2", target.l2_bytes), ("L3", target.l3_bytes)):
        if own_bytes + other_bytes <= size:
            return name
    return "memory"
