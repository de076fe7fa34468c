"""The planner: one record chooses the kernels of a layer, or of all layers of a model.

Who compiles says once what is wanted; who lowers asks for plans and emits them. For a model the
planner is told what all layers take, and prices each as one among the others.
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
from sparsejit.planner.plan import AUTO, Plan, expected_ns, plan
from sparsejit.planner.row_parts import row_parts
from sparsejit.planner.split import Part, Split, split
from sparsejit.planner.tuning import tuned

_BYTES_A_NONZERO = 12  # of code that multiplies by it, and itself


def weight_bytes(nnz: int, all_bytes: int) -> int:
    """About what code and data of a layer take: zeros are left out if that is the shorter."""
    return min(_BYTES_A_NONZERO * nnz, all_bytes)


@dataclass(frozen=True)
class LayerPlanner:
    """What is wanted of every kernel; `compile_matrix` says more of its own arguments.

    target: what code is made for.
    strategy: the family that is to be used, or "auto".
    exact: whether every weight must stay as its dtype holds it.
    tune: whether candidates are measured.
    alike: whether every column of a batch is summed in the same order.
    any_length: whether kernels are preferred whose weights serve batches of all lengths.
    model_bytes: about the bytes of code and data of the whole model; 0 for a layer alone.
    cores: among how many cores these are shared.
    """

    target: Target
    strategy: str = AUTO
    exact: bool = False
    tune: bool = False
    alike: bool = False
    any_length: bool = False
    model_bytes: int = 0
    cores: int = 1

    @property
    def of_one_layer(self) -> "LayerPlanner":
        """For a layer as if it were alone."""
        return replace(self, model_bytes=0)

    @property
    def l3_bytes(self) -> int:
        """What a process can count on in L3."""
        return int(self.target.core.l3_share * self.target.l3_bytes)

    def beside(self, matrix: SparseMatrix) -> "LayerPlanner":
        """For one layer of the model: what a core has of the others drives it from L2."""
        whole = self.model_bytes // self.cores
        if whole <= self.target.l2_bytes:
            return self
        between = max(0, whole - weight_bytes(matrix.nnz, 4 * matrix.size))
        return _with_target(self, self.target.beside(between))

    def plan(self, layer: Layer, matrix: SparseMatrix) -> Plan:
        """The choice for a layer, or where asked the fastest as measured.

        Raises InvalidInput for a strategy that does not exist, or not for this dtype and target.
        """
        target = self.beside(matrix).target
        if isinstance(layer, MatMul):
            how = self.strategy, self.exact, self.alike, self.any_length
            choice = plan_batch(layer, matrix, target, *how)
        else:
            choice = plan(layer, matrix, target, self.strategy, self.exact)
        measure = self.tune and self.strategy == AUTO
        return tuned(choice, layer, matrix, target) if measure else choice

    def expected_ns(self, layer: Layer, matrix: SparseMatrix) -> float:
        """What the best kernel should take, from the layer's zeros alone; infinite without one."""
        target = self.beside(matrix).target
        if isinstance(layer, MatMul):
            return expected_batch_ns(layer, matrix, target, self.exact, self.alike)
        return expected_ns(layer, matrix, target, self.exact)

    def split(self, layer: Layer, matrix: SparseMatrix, whole: Plan, threads: int) -> Split:
        """A layer over at most so many threads, where that pays; `whole` is its plan."""
        if isinstance(layer, MatMul):
            return split_batch(layer, matrix, whole, self, threads)
        return split(layer, matrix, whole, self, threads)

    def ways_to_split(
        self, layer: Layer, matrix: SparseMatrix, whole: Plan, threads: int
    ) -> list[list[Part]]:
        """A layer in as many parts, by columns and by rows, where there are as many."""
        if isinstance(layer, MatMul):
            return ways_to_split(layer, matrix, whole, self, threads)
        division = split(layer, matrix, whole, self, threads)
        return [list(division.parts)] if len(division.parts) > 1 else []

    def row_parts(
        self, layer: MatVec, matrix: SparseMatrix, whole: Plan, part_bytes: int
    ) -> tuple[Part, ...]:
        """A layer in parts that read about so many bytes of weights."""
        return row_parts(layer, matrix, whole, self.beside(matrix).target, part_bytes)

    def adds_in_place(self, layer: Layer, choice: Plan) -> bool:
        """Whether what is added to a layer's result may lie where that does."""
        template = choice.chosen.template
        return isinstance(layer, MatMul) and adds_in_place(template, layer, self.target)

    def prefers_panels(self, each: MatVec, batch: int, matrix: SparseMatrix) -> bool:
        """Whether panels are expected to be clearly cheapest, from the layer's zeros alone."""
        target = self.beside(matrix).target
        return prefers_panels(MatMul(each, batch), matrix, target, self.exact, self.any_length)


@lru_cache(maxsize=512)  # layers are alike
def _with_target(planner: LayerPlanner, target: Target) -> LayerPlanner:
    return replace(planner, target=target)
