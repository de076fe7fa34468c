"""A step of elementwise functions between views, with its predicted cost and its code key."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from sparsejit.asm_templates.pointwise.row_chain import (
    LoweredChain,
    Strided,
    emit_chain,
    lower_chain,
)
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.values import Element, Origin
from sparsejit.lowering.memory.storage import ShapePart, StridedShape, View, ways_to_cut
from sparsejit.lowering.step import CodeKey, Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.cost import chain_cost
from sparsejit.x86.assembler import Assembler


def chain_step(
    chain: Chain,
    reads: Sequence[View],
    scalars: Sequence[float | None],
    writes: Sequence[View],
    origin: Origin,
    target: Target,
) -> Step:
    """The step that computes a chain from the views `reads`, its operands in order, into `writes`.

    `scalars` are the numbers of operands that are known at compile time, None for the others.
    """
    given = tuple((view.place, view.type.element) for view in reads)
    taken = tuple((view.place, view.type.element) for view in writes)
    numbers = tuple(scalars), tuple(map(repr, scalars))
    lowered, facts, key = _planned(chain, chain.title, given, *numbers, taken, target)

    def emit(asm: Assembler, at: Locations) -> None:
        emit_chain(asm, lowered, at.reads, at.writes, at.scratch)

    def divide(threads: int) -> list[list[Step]]:
        dense = -2 if lowered.is_across else -1
        whole = 1 if chain.reduces else 0  # last axes that must stay whole
        ways = ways_to_cut(chain.shape, threads, whole, dense)
        return [[*map(part_step, parts)] for parts in ways]

    def part_step(part: ShapePart) -> Step:
        some, into = [*map(part.of, reads)], [*map(part.of, writes)]
        made = chain_step(replace(chain, shape=part.shape), some, scalars, into, origin, target)
        return replace(made, share=part.share)

    return Step(
        chain.title,
        origin,
        tuple(reads),
        tuple(writes),
        emit,
        facts,
        lowered.scratch_bytes,
        # An operand that broadcasts over rows is read again after the first row is written.
        in_place=0 if reads and prod(reads[0].shape[:-1]) == prod(chain.shape[:-1]) else None,
        divide=divide,
        code_key=key,
    )


_Typed = tuple[StridedShape, Element]


@lru_cache(maxsize=256)  # layers are alike
def _planned(
    chain: Chain,
    title: str,
    reads: tuple[_Typed, ...],
    scalars: tuple[float | None, ...],
    texts: tuple[str, ...],
    writes: tuple[_Typed, ...],
    target: Target,
) -> tuple[LoweredChain, Facts, CodeKey]:
    """The lowered chain, its facts and its code key.

    `texts` are the scalars as text, because 0.0 and -0.0 are equal.
    """
    operands = [
        Strided(_broadcast(place, chain.shape), element, scalar)
        for (place, element), scalar in zip(reads, scalars, strict=True)
    ]
    results = [Strided(_broadcast(place, chain.shape), element) for place, element in writes]
    lowered = lower_chain(chain, operands, results, target)
    key = CodeKey("chain", chain, *operands, None, *results)
    return lowered, _chain_facts(lowered, target), key


def _broadcast(place: StridedShape, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Byte strides of `place` along every axis of `shape`; 0 where it repeats."""
    missing = (0,) * (len(shape) - len(place.shape))
    own = zip(place.shape, place.strides, strict=True)
    return (*missing, *(0 if length == 1 else stride for length, stride in own))


def _chain_facts(lowered: LoweredChain, target: Target) -> Facts:
    """Description and predicted cost of a chain."""
    chain, cost = lowered.chain, chain_cost(lowered, target)
    fused = "fused: " if "+" in chain.title else ""
    what = f"{fused}{chain.title.replace('+', ', ')} of {list(chain.shape)}"
    if cost is None:
        return Facts(what)
    moved, bound = cost.data_bytes, cost.bound
    functions = sum(2 if step.kind == "fma" else 1 for step in chain.steps)
    flops = prod(chain.shape) * functions
    reason = (
        f"{what}: {len(chain.steps)} functions, {moved:,} bytes read and written, bound by {bound}"
    )
    return Facts(
        reason, cost.ns, effective_flops=flops, flops=flops, bound=bound, moved_bytes=moved
    )
