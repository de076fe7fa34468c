"""Forms of the permute kernels: a step on an instruction set, and the rules of folding there.

Folding runs one piece of code several times, each time for other outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.scheduling.covering import (
    Covering,
    Demand,
    Windows,
    one_register_schedule,
    two_register_schedule,
)
from sparsejit.asm_templates.shared.storage import UNPACKING_REGISTERS
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType
from sparsejit.machine.core import FoldingRule
from sparsejit.machine.price_records import LayoutPrices
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div


@dataclass(frozen=True)
class Machine:
    """A form of the permute kernel: its step on an instruction set, and the rules of folding.

    A step picks from `sources` registers of `lanes` inputs by indices of `index_bits`. `inputs`
    registers hold a window of x, `accumulators` registers a vector of sums each: with four, the
    four cycles that an FMA takes allow one step a cycle. The pool pointer reaches `reach` vectors
    to either side. The last of the `folding` rules that a matrix meets gives the number of runs of
    its code. Weights are stored as `dtype`; short ones are unpacked into registers that x then
    lacks. With `index_in_weight` each is a float32 whose lowest bits are its index. An exchange of
    rows takes as long as `exchange_steps` steps.
    """

    lanes: int
    sources: int
    index_bits: int
    inputs: int
    accumulators: int
    reach: int
    most_stages: int = 0
    dtype: DType = DType.FLOAT32
    index_in_weight: bool = False
    folding: tuple[FoldingRule, ...] = ()
    exchange_steps: float = LayoutPrices().exchange

    def storing(self, dtype: DType) -> "Machine":
        """Return the same machine with weights of another dtype."""
        spare = UNPACKING_REGISTERS[dtype]
        # A half-wide operand halves what a one-byte displacement counts in (EVEX disp8*N).
        reach = self.reach // 2 if dtype is DType.FLOAT16 else self.reach
        return replace(self, dtype=dtype, inputs=self.inputs - spare, reach=reach)

    def priced_on(self, target: Target) -> "Machine":
        """Return the same machine with the rules and prices of the target's core."""
        rules = target.core.folding[target.isa, self.steps_a_vector > 1]
        return replace(self, folding=rules, exchange_steps=target.core.layouts.exchange)

    def accumulators_beside(self, windows: Windows) -> int:
        """Return the registers for sums, with the registers that windows leave over."""
        return self.accumulators + self.inputs - windows.width

    @property
    def steps_a_vector(self) -> int:
        """Steps whose weights share a vector of the pool."""
        return 1 if self.dtype is DType.FLOAT32 else 2

    @property
    def fields(self) -> int:
        """Steps served by one vector of packed indices."""
        return 32 // self.index_bits

    @property
    def shifts(self) -> npt.NDArray[np.integer]:
        """Bits by which a lane is shifted right for each step's index.

        The last shift is 0, so that its step may overwrite the packed indices.
        """
        return np.roll(np.arange(self.fields, dtype=np.uint32) * self.index_bits, -1)

    @property
    def schedule(self) -> Callable[[Demand], Covering]:
        return two_register_schedule if self.sources == 2 else one_register_schedule

    def least_steps(self, wants: npt.NDArray[np.uint16]) -> npt.NDArray[np.integer]:
        """Return a lower bound of a schedule's steps for each fold group and window.

        `wants` (fold groups, lanes, windows, registers): the nonzeros of each lane that read from
        each register of inputs. The method is a `row_order.Bound`.
        """
        fullest_lane = wants.sum(axis=3, dtype=np.int64).max(axis=1)
        by_register = wants.max(axis=1).sum(axis=2, dtype=np.int64)
        rounds = ceil_div(by_register, self.sources)
        least: npt.NDArray[np.integer] = np.maximum(fullest_lane, rounds)
        return least

    def fold_for(self, matrix: SparseMatrix) -> int:
        """Return how often the code of a batch of outputs runs, each time for other outputs."""
        folds = [
            rule.times
            for rule in self.folding
            if matrix.nnz >= rule.nnz and matrix.density >= rule.density
        ]
        return folds[-1] if folds else 1
