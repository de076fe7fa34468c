"""Choose the kernels of one layer, or of all layers of a model, with one record of options.

The compiler sets the options once; lowering requests plans and emits them. For a model, the planner
has the bytes of all layers, and prices each layer as one among the others.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.batch_plan import (
    adds_in_place,
    expected_batch_ns,
    plan_batch,
    prefers_panels,
)
from sparsejit.planner.batch_split import split_batch, ways_to_split
from sparsejit.planner.kernel_choice import AUTO, Plan, expected_ns, plan
from sparsejit.planner.split import Part, Split, row_parts, split
from sparsejit.planner.tuning import tuned

_BYTES_A_NONZERO = 12  # the weight, and the code that multiplies by it


def weight_bytes(nnz: int, all_bytes: int) -> int:
    """Approximate bytes of a layer's code and data: without zeros where that is shorter."""
    return min(_BYTES_A_NONZERO * nnz, all_bytes)


@dataclass(frozen=True)
class LayerPlanner:
    """Options of every kernel; `compile_matrix` documents its own arguments in more detail.

    target: the machine that code is made for.
    strategy: the family to use, or "auto".
    exact: whether every weight must stay as its dtype holds it.
    tune: whether candidates are measured.
    alike: whether every column of a batch is summed in the same order.
    any_length: whether to prefer kernels whose weights serve batches of all lengths.
    rounds_x: whether layers in bfloat16 or float16 may round x as their weights, in a batch.
    model_bytes: approximate bytes of code and data of the whole model; 0 for a layer alone.
    cores: number of cores that share these bytes.
    """

    target: Target
    strategy: str = AUTO
    exact: bool = False
    tune: bool = False
    alike: bool = False
    any_length: bool = False
    rounds_x: bool = False
    model_bytes: int = 0
    cores: int = 1

    @property
    def alone(self) -> "LayerPlanner":
        """The planner of a layer that has the caches to itself, without the rest of the model."""
        return replace(self, model_bytes=0)

    @property
    def l3_bytes(self) -> int:
        """Bytes of L3 that a process can count on."""
        return int(self.target.core.l3_share * self.target.l3_bytes)

    def beside(self, matrix: SparseMatrix) -> "LayerPlanner":
        """The planner of one layer inside the model, whose other layers evict it from L2.

        Each core has a share of the model's bytes; a model that fits L2 changes nothing.
        """
        whole = self.model_bytes // self.cores
        if whole <= self.target.l2_bytes:
            return self
        between = max(0, whole - weight_bytes(matrix.nnz, 4 * matrix.size))
        return _with_target(self, self.target.beside(between))

    def plan(self, layer: Layer, matrix: SparseMatrix) -> Plan:
        """Choose the kernel of a layer; with `tune`, the fastest as measured.

        Raises InvalidInput for a strategy that does not exist, or not for this dtype and target.
        """
        target = self.beside(matrix).target
        if isinstance(layer, MatMul):
            how = self.strategy, self.exact, self.alike, self.any_length, self.rounds_x
            choice = plan_batch(layer, matrix, target, *how)
        else:
            choice = plan(layer, matrix, target, self.strategy, self.exact)
        measure = self.tune and self.strategy == AUTO
        return tuned(choice, layer, matrix, target) if measure else choice

    def expected_ns(self, layer: Layer, matrix: SparseMatrix) -> float:
        """Predicted nanoseconds of the best kernel, from zeros alone; infinite without one."""
        target = self.beside(matrix).target
        if isinstance(layer, MatMul):
            own = self.exact, self.alike, self.rounds_x
            return expected_batch_ns(layer, matrix, target, *own)
        return expected_ns(layer, matrix, target, self.exact)

    def split(self, layer: Layer, matrix: SparseMatrix, whole: Plan, threads: int) -> Split:
        """Split a layer over at most `threads` threads, where that gains; `whole` is its plan."""
        if isinstance(layer, MatMul):
            return split_batch(layer, matrix, whole, self.target, self.plan, threads)
        return split(layer, matrix, whole, self.target, self.plan, threads)

    def ways_to_split(
        self, layer: Layer, matrix: SparseMatrix, whole: Plan, threads: int
    ) -> list[list[Part]]:
        """Divisions of a layer over `threads` threads, by columns and by rows; may be empty."""
        if isinstance(layer, MatMul):
            return ways_to_split(layer, matrix, whole, self.target, self.plan, threads)
        division = split(layer, matrix, whole, self.target, self.plan, threads)
        return [list(division.parts)] if len(division.parts) > 1 else []

    def row_parts(
        self, layer: MatVec, matrix: SparseMatrix, whole: Plan, part_bytes: int
    ) -> tuple[Part, ...]:
        """Divide a layer by rows into parts that read about `part_bytes` of weights each."""
        return row_parts(layer, matrix, whole, self.beside(matrix).target, part_bytes)

    def adds_in_place(self, layer: Layer, choice: Plan) -> bool:
        """Whether the operand added to a layer's result may lie where the result does."""
        template = choice.chosen.template
        return isinstance(layer, MatMul) and adds_in_place(template, layer, self.target)

    def prefers_panels(self, each: MatVec, batch: int, matrix: SparseMatrix) -> bool:
        """Whether panels (a vector of samples at a time) are expected to be clearly cheapest.

        Only the layer's zeros are looked at.
        """
        target = self.beside(matrix).target
        return prefers_panels(MatMul(each, batch), matrix, target, self.exact, self.any_length)


@lru_cache(maxsize=512)  # many layers are equal
def _with_target(planner: LayerPlanner, target: Target) -> LayerPlanner:
    return replace(planner, target=target)
