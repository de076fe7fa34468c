"""Merging and tidying of chains: the arithmetic on steps that `fuse_chains` needs.

a = chain(x, k)[mul(0, 1)]            b = chain(x, k)[mul(0, 1), exp(2)]
b = chain(a)[exp(0)]             ->
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from math import prod

import numpy as np

from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import FUNCTIONS, Chain, ChainStep, Pointwise
from sparsejit.ir.values import Element, Value

# Most names of parts in a fused chain's title.
MOST_TITLES = 4


def as_chain(node: Node) -> Node:
    """A Pointwise node as a chain of one step; a Chain node as it is."""
    if isinstance(node.op, Chain):
        return node
    assert isinstance(node.op, Pointwise)
    count = len(node.inputs)
    step = ChainStep(node.op.kind, tuple(range(count)))
    chain = Chain(node.output.shape, count, (step,), (count,), node.op.kind)
    return Node(chain, node.inputs, node.outputs)


def merged(producer: Node, consumer: Node, also: Collection[Value]) -> Node | None:
    """Merge two chains into one, which returns the producer's results in `also` as well.

    None where the two do not walk the same rows, so that work would be repeated, and where types
    would change.
    """
    first, second = producer.op, consumer.op
    assert isinstance(first, Chain) and isinstance(second, Chain)
    shape = common_shape(first, second)
    if shape is None:
        return None
    outside = [*producer.inputs, *(v for v in consumer.inputs if v not in producer.outputs)]
    inputs = tuple(dict.fromkeys(outside))
    known = {value: number for number, value in enumerate(inputs)}
    steps: list[ChainStep] = []
    for node, chain in ((producer, first), (consumer, second)):
        numbers = [known[value] for value in node.inputs]
        for step in chain.steps:
            numbers.append(len(inputs) + len(steps))
            steps.append(ChainStep(step.kind, tuple(numbers[n] for n in step.arguments)))
        results = zip(node.outputs, chain.results, strict=True)
        known.update((value, numbers[n]) for value, n in results)
    outputs = (*(v for v in producer.outputs if v in also), *consumer.outputs)
    chosen = tuple(known[value] for value in outputs)
    whole = Chain(shape, len(inputs), tuple(steps), chosen, _title(first.title, second.title))
    made = tidied(Node(whole, inputs, outputs))
    types = made.op.infer(*(value.type for value in made.inputs))
    return made if types == tuple(value.type for value in outputs) else None


def common_shape(first: Chain, second: Chain) -> tuple[int, ...] | None:
    """The shape over which both chains do the same work as alone, or None.

    They must have equally many rows. A chain whose rows have one element must not reduce them: it
    becomes work once a row.
    """
    try:
        shape = np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return None
    for chain in (first, second):
        if prod(chain.shape[:-1]) != prod(shape[:-1]):
            return None
        if chain.shape[-1:] != shape[-1:] and chain.reduces:
            return None
    return shape


def _title(*titles: str) -> str:
    """The first MOST_TITLES names of the parts, in order."""
    names = [name for title in titles for name in title.split("+") if name not in ("chain", "...")]
    shown = list(dict.fromkeys(names))
    more = ["..."] if len(shown) > MOST_TITLES else []
    return "+".join([*shown[:MOST_TITLES], *more]) or "chain"


def tidied(node: Node) -> Node:
    """A chain's node without equal steps, unread steps, unread or repeated operands.

    A product that only a sum reads becomes an fma with it, where all operands are float32.
    """
    op = node.op
    assert isinstance(op, Chain)
    inputs = tuple(dict.fromkeys(node.inputs))
    numbers = [inputs.index(value) for value in node.inputs]
    steps: list[ChainStep] = []
    seen: dict[ChainStep, int] = {}
    for step in op.steps:
        same = ChainStep(step.kind, tuple(numbers[n] for n in step.arguments))
        if same not in seen:
            seen[same] = len(inputs) + len(steps)
            steps.append(same)
        numbers.append(seen[same])
    results = tuple(numbers[n] for n in op.results)
    if all(value.type.element is Element.FLOAT32 for value in inputs):
        steps = _with_fma(steps, results, len(inputs))
    made = _without_unread(Node(op, inputs, node.outputs), steps, results)
    return node if made.op == op and made.inputs == node.inputs else made


def _with_fma(
    steps: Sequence[ChainStep], results: tuple[int, ...], operands: int
) -> list[ChainStep]:
    """The steps with add(mul(a, b), c) as fma(a, b, c); the mul is left unread."""
    uses = Counter([*results, *(n for step in steps for n in step.arguments)])
    bools = {i for i, s in enumerate(steps, operands) if s.kind in FUNCTIONS and _answers(s)}
    fused = list(steps)
    for place, step in enumerate(steps):
        if step.kind != "add":
            continue
        for product, other in (step.arguments, step.arguments[::-1]):
            if product < operands or steps[product - operands].kind != "mul":
                continue
            arguments = (*steps[product - operands].arguments, other)
            if uses[product] == 1 and product != other and not bools.intersection(arguments):
                fused[place] = ChainStep("fma", arguments)
                break
    return fused


def _answers(step: ChainStep) -> bool:
    return FUNCTIONS[step.kind].to_bool


def _without_unread(node: Node, steps: list[ChainStep], results: tuple[int, ...]) -> Node:
    """The node with only the steps and operands that a result depends on."""
    op, count = node.op, len(node.inputs)
    assert isinstance(op, Chain)
    needed = set(results)
    for number in reversed(range(len(steps))):
        if count + number in needed:
            needed.update(steps[number].arguments)
    kept = sorted(needed)
    new = {old: place for place, old in enumerate(kept)}
    chosen = tuple(
        ChainStep(steps[n - count].kind, tuple(new[a] for a in steps[n - count].arguments))
        for n in kept
        if n >= count
    )
    inputs = tuple(node.inputs[n] for n in kept if n < count)
    results = tuple(new[n] for n in results)
    whole = Chain(op.shape, len(inputs), chosen, results, op.title)
    return Node(whole, inputs, node.outputs)
