"""Choose the steps that several samples run in turn, so that weights are read from memory once.

A model whose code and weights exceed L3 reads them from memory for every sample. Its last layers
often have most of the weights and small activations: there, samples take turns with each step.
Layers whose weights are data gain nothing: their weights are prefetched in order.

    sample 0: step 0, step 1, step 2      sample 1: step 0, step 1, step 2
    step 3: sample 0, sample 1            step 4: sample 0, sample 1 ...

A sample runs the same code whichever samples take turns with it, so its bits do not depend on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.memory_plan import live_bytes
from sparsejit.lowering.step import Step

MOST_IN_TURN = 8
_FEWEST_IN_TURN = 4
# Share of a process's part of L3 that activations may take: weights pass through L3 too.
_SHARE = 0.5


@dataclass(frozen=True)
class SampleTurns:
    """From step `first` on `samples` take turns; regions of the workspace are `stride` bytes apart.

    samples: the greatest number; a batch may end with fewer.
    """

    first: int
    samples: int
    stride: int


def bytes_of_turns(options: ModelOptions) -> int:
    """Most bytes that the regions of all samples in turn may take."""
    return int(_SHARE * options.planner.l3_bytes)


def first_of_turns(steps: Sequence[Step], options: ModelOptions) -> int | None:
    """The step from which on samples take turns; None where they do not.

    From there on, live buffers must be small, and code must exceed L2.
    """
    if options.threads > 1 or options.weight_bytes <= options.planner.l3_bytes:
        return None
    if sum(step.facts.code_bytes for step in steps) <= options.target.l2_bytes:
        return None
    most = bytes_of_turns(options) // _FEWEST_IN_TURN
    live = live_bytes(steps)
    first = next((n + 1 for n in reversed(range(len(live))) if live[n] > most), 0)
    code = sum(step.facts.code_bytes for step in steps[first:])
    return first if code > options.target.l2_bytes else None
