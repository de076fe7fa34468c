"""Edges of every family's kernels: masked loads of x, bias in, activation and y out.

A vector covers `target.lanes` consecutive outputs. The last one may be partial: it is loaded and
stored under a mask, so that nothing beyond the array is touched.
"""

from collections.abc import Callable

import numpy as np

from sparsejit.asm_templates.scheduling.grouping import exchanges
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.masks import load_masked, store_masked, tail_mask
from sparsejit.ir.spec import MatVec
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    VECTOR_BYTES,
    Literal,
    Memory,
    Number,
    Register,
    rsp,
    xmm,
    ymm,
    zmm,
)


def vector(asm: Assembler, number: Number) -> Register:
    """Return the vector register of that number, or an array of them, at the target's width."""
    return zmm(number) if asm.target.isa == "avx512" else ymm(number)


def half_vector(asm: Assembler, number: Number) -> Register:
    """Return the lower half of the vector register of that number."""
    return ymm(number) if asm.target.isa == "avx512" else xmm(number)


def load(
    asm: Assembler, register: Register, base: Register, first: int, length: int, scratch: Register
) -> None:
    """register = base[first : first + lanes], zeros past `length`. AVX2 clobbers `scratch`."""
    lanes = asm.target.lanes
    place = Memory(base, 4 * first)
    missing = first + lanes - length
    if missing <= 0:
        asm.emit("vmovups", register, place)
    else:
        load_masked(asm, register, tail_mask(asm, lanes - missing, scratch), place)


def store(
    asm: Assembler, register: Register, base: Register, first: int, length: int, scratch: Register
) -> None:
    """base[first : first + lanes of register] = register, up to `length`.

    AVX2 clobbers `scratch`.
    """
    lanes = VECTOR_BYTES[register.kind] // 4
    place = Memory(base, 4 * first)
    missing = first + lanes - length
    if missing <= 0:
        asm.emit("vmovups", place, register)
    elif missing == lanes - 1:  # loads are forwarded badly from masked stores
        asm.emit("vmovss", place, xmm(register.number))
    else:
        store_masked(asm, place, tail_mask(asm, lanes - missing, scratch), register)


def waiting_place(register: Register, base: Register, first: int, length: int) -> Memory:
    """Return the place where sums wait for the next window of x: base[first : first + lanes].

    If `length` leaves no room for all lanes, the place is at the stack pointer: a row that is
    grouped with others may wait in any lane.
    """
    size = VECTOR_BYTES[register.kind]
    return Memory(base, 4 * first) if first + size // 4 <= length else Memory(rsp)


def start_rows(asm: Assembler, spec: MatVec, register: Register, first: int) -> None:
    """register = bias[first : first + lanes], or zero where the spec has no bias."""
    if spec.bias is None:
        zero(asm, register)
        return
    padded = np.zeros(asm.target.lanes, np.float32)
    part = spec.bias[first : first + asm.target.lanes]
    padded[: len(part)] = part
    asm.emit("vmovups", register, Literal(asm.literal(padded)))


def finish_rows(
    asm: Assembler,
    spec: MatVec,
    registers: list[Register],
    first: int,
    base: Register,
    scratch: list[Register],
) -> None:
    """Apply the activation to consecutive row vectors from `first` on and store them to `base`.

    The activation may clobber the `scratch` registers; `apply_activation` says how many it needs.
    """
    apply_activation(asm, spec.activation, registers, scratch)
    for position, register in enumerate(registers):
        row = first + position * asm.target.lanes
        store(asm, register, base, row, spec.out_features, scratch[0])


def exchange(
    asm: Assembler,
    sums: list[Register],
    stages: int,
    free: tuple[Register, Register],
    load: Callable[[Register], None],
) -> list[Register]:
    """Exchange sums between vectors, and return the registers that hold them in the order of y.

    `load` emits, call by call, the load of a row of `grouping.exchange_indices`. Clobbers `sums`
    and `free`.
    """
    result, spare = list(sums), list(free)
    for pair in exchanges(len(sums), stages):
        held = [result[vector] for vector in pair]
        for vector, register in zip(pair, spare, strict=True):
            load(register)
            asm.emit("vpermi2ps", register, *held)
            result[vector] = register
        spare = held
    return result


def zero(asm: Assembler, register: Register) -> None:
    """register = 0. The ymm form also clears a zmm and is recognised as free of dependence."""
    if register.kind == "zmm" and int(register.number) >= 16:
        asm.emit("vpxord", register, register, register)
    else:
        low = ymm(register.number)
        asm.emit("vxorps", low, low, low)
