"""Runs chains as native functions, over arrays that end or begin at inaccessible memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.pointwise.row_chain import (
    LoweredChain,
    Strided,
    emit_chain,
    lower_chain,
)
from sparsejit.asm_templates.shared.location import ByPointer
from sparsejit.ir.ops.pointwise import Chain, ChainStep
from sparsejit.ir.values import Element, TensorType
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.guard_pages import Edge, GuardedArray
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import Image
from sparsejit.x86.operands import rbp, rdi

Array = npt.NDArray[np.generic]
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 256, 257, 300)
# Exact on small whole numbers, so that results can be held to equality.
EXACT = ("add", "sub", "mul", "maximum", "minimum", "neg", "abs", "relu", "fma", "sign", "square")


@dataclass
class Operand:
    """`stored` is row-major; the chain reads it permuted by `axes`. `known`: a constant."""

    stored: Array
    axes: tuple[int, ...] | None = None
    known: bool = False

    @property
    def view(self) -> Array:
        return self.stored if self.axes is None else self.stored.transpose(self.axes)


class Guarded:
    """Bytes flush against an inaccessible page; what is left of a word is at the other end."""

    def __init__(self, values: Array, edge: Edge) -> None:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        words = -(-raw.nbytes // 4)
        self._array = GuardedArray(np.zeros(words, np.float32), edge)
        pad = 4 * words - raw.nbytes if edge == "end" else 0
        self._bytes = self._array.values.view(np.uint8)
        self.values = self._bytes[pad : pad + raw.nbytes]
        self.values[:] = raw
        self.address = self._array.address + pad

    def intact(self) -> bool:
        return self._array.surroundings_intact()


def element_of(array: Array) -> Element:
    return Element(str(array.dtype))


def result_types(chain: Chain, operands: Sequence[Operand]) -> tuple[TensorType, ...]:
    return chain.infer(*(TensorType(o.view.shape, element_of(o.stored)) for o in operands))


def lowered(
    chain: Chain,
    operands: Sequence[Operand],
    target: Target,
    axes: tuple[int, ...] | None = None,
) -> LoweredChain:
    """Lower for results, each of its own shape: row-major, or stored as an operand of `axes` is."""
    ins = [
        Strided((0,) * len(chain.shape), element_of(o.stored), o.stored.reshape(-1)[0].item())
        if o.known
        else Strided(np.broadcast_to(o.view, chain.shape).strides, element_of(o.stored))
        for o in operands
    ]
    outs = []
    for kind in result_types(chain, operands):
        view = Operand(_stored(kind, axes), axes).view
        outs.append(Strided(np.broadcast_to(view, chain.shape).strides, kind.element))
    return lower_chain(chain, ins, outs, target)


def image_of(chain: LoweredChain, target: Target) -> Image:
    """A function of a table of addresses: operands, results, scratch."""
    asm = Assembler(target)
    count = len(chain.operands) + len(chain.results)
    places = [ByPointer(8 * number) for number in range(count + 1)]
    asm.emit("push", rbp)
    asm.emit("mov", rbp, rdi)
    operands, results = places[: len(chain.operands)], places[len(chain.operands) : count]
    emit_chain(asm, chain, operands, results, places[-1])
    asm.emit("pop", rbp)
    asm.emit("vzeroupper")
    asm.emit("ret")
    return asm.finish()


def run(
    chain: Chain,
    operands: Sequence[Operand],
    isa: str,
    edge: Edge = "end",
    in_place: int | None = None,
    axes: tuple[int, ...] | None = None,
) -> list[Array]:
    """The results; the first lies where operand `in_place` does, if given. `axes` as in `lowered`.

    Asserts that nothing beside the results and scratch is written.
    """
    target = Target.named(isa)
    plan = lowered(chain, operands, target, axes)
    reads = [Guarded(o.stored, edge) for o in operands]
    kinds = result_types(chain, operands)
    writes = [Guarded(_stored(kind, axes), edge) for kind in kinds]
    if in_place is not None:
        writes[0] = reads[in_place]
    scratch = Guarded(np.zeros(max(plan.scratch_bytes, 1), np.uint8), edge)
    every = [*reads, *writes, scratch]
    table = np.array([guarded.address for guarded in every], np.uint64)
    memory = ExecutableMemory(image_of(plan, target).data)
    call: Callable[..., None] = memory.function(1)
    call(table.ctypes.data)
    assert all(guarded.intact() for guarded in every)
    for guarded, operand in zip(reads, operands, strict=True):
        if in_place is None or guarded is not writes[0]:
            raw = np.ascontiguousarray(operand.stored).reshape(-1).view(np.uint8)
            assert np.array_equal(guarded.values, raw), "an operand was written to"
    stored = [
        guarded.values.view(kind.element.value).reshape(_stored(kind, axes).shape)
        for guarded, kind in zip(writes, kinds, strict=True)
    ]
    return [Operand(array, axes).view.copy() for array in stored]


def _stored(kind: TensorType, axes: tuple[int, ...] | None) -> Array:
    """Zeros for a result, as it lies in memory."""
    order = range(len(kind.shape)) if axes is None else np.argsort(axes)
    return np.zeros([kind.shape[axis] for axis in order], kind.element.value)


def expected(chain: Chain, operands: Sequence[Operand]) -> list[Array]:
    """The results in float64, of the shapes that `run` gives."""
    wide = [
        o.view.astype(np.float64) if o.stored.dtype == np.float32 else o.view for o in operands
    ]
    kinds = result_types(chain, operands)
    results = chain.reference(*wide)
    return [np.broadcast_to(r, k.shape) for r, k in zip(results, kinds, strict=True)]


def step(kind: str, *arguments: int) -> ChainStep:
    return ChainStep(kind, arguments)


def floats(seed: int, shape: tuple[int, ...], scale: float = 2.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def is_exact(chain: Chain, operands: list[Operand]) -> bool:
    """Whether every value, and every sum on the way, is a whole number that float32 holds."""
    every = tuple(range(chain.operands, chain.operands + len(chain.steps)))
    whole = Chain(chain.shape, chain.operands, chain.steps, every)
    wide = [o.view.astype(np.float64) if o.stored.dtype.kind == "f" else o.view for o in operands]
    sizes = [np.abs(np.asarray(v, np.float64)).max() for v in whole.reference(*wide)]
    return max(sizes, default=0.0) * chain.shape[-1] < 2**24
