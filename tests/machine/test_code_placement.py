"""Code that lies at the ends of pages: where it may lie, how it gets there, what it computes."""

import numpy as np
import pytest
from disassembly import decode
from hypothesis import given
from hypothesis import strategies as st
from iced_x86 import Mnemonic

import sparsejit
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import dword, r8, rax, rdi
from sparsejit.x86.placement import JUMP_BYTES, PAGE_BYTES, Placement

QUARTERS = Placement(2 * PAGE_BYTES, 1024)


def may_lie(position: int, length: int, placement: Placement) -> bool:
    if position + length <= placement.whole:
        return True
    last = position + length - 1
    start = PAGE_BYTES - placement.part
    return position // PAGE_BYTES == last // PAGE_BYTES and position % PAGE_BYTES >= start


@given(
    position=st.integers(0, 4 * PAGE_BYTES),
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=2000),
    part=st.sampled_from([512, 1024, 2048]),
)
def test_every_piece_lies_where_it_may_and_every_gap_has_room_for_its_jump(
    position, lengths, part
):
    placement, start = Placement(2 * PAGE_BYTES, part), position
    gaps = placement.gaps(position, np.array(lengths))
    for gap, length in zip(gaps, lengths, strict=True):
        if gap:
            assert gap >= JUMP_BYTES
            inside = position < placement.whole or position % PAGE_BYTES >= PAGE_BYTES - part
            # Nothing before the first piece could leave room for its jump.
            assert not inside or position == start or may_lie(position, JUMP_BYTES, placement)
            position += int(gap)
            assert may_lie(position, length, placement)
        position += length


def test_nothing_is_left_out_of_the_first_pages():
    assert not QUARTERS.gaps(0, np.full(1000, 8)).any()


def counting(placement: Placement | None) -> Assembler:
    """rax = rdi + 5 * 3000 + 7, by stamped, single and jumping instructions."""
    asm = Assembler(Target.named("avx2"))
    again, out = asm.label("again"), asm.label("out")
    with asm.placed(placement):
        asm.emit("mov", rax, rdi)
        asm.emit("mov", dword(r8), 3)
        asm.bind(again)
        asm.stamp(3000, [line("add", rax, 1)])
        for _ in range(2000):
            asm.emit("add", rax, 1)
        asm.emit("sub", dword(r8), 1)
        asm.jump("jnz", again)
        asm.jump("jmp", out)
        asm.stamp(900, [line("add", rax, 1)])
        asm.bind(out)
        asm.stamp(7, [line("add", rax, 1)])
        asm.emit("ret")
    return asm


def test_code_runs_over_its_gaps():
    for placement in (None, QUARTERS):
        image = counting(placement).finish()
        memory = ExecutableMemory(image.data)
        function = memory.function(1)
        function.restype = np.ctypeslib.ctypes.c_int64
        assert function(100) == 100 + 3 * 5000 + 7


def test_the_listing_has_every_instruction_that_is_not_left_out():
    image = counting(QUARTERS).finish()
    listed = {int(entry.split()[0], 16) for entry in image.listing()}
    found = decode(image.data[: image.code_bytes])
    start = found[0].ip
    assert listed == {one.ip - start for one in found if one.mnemonic != Mnemonic.INT3}
    left_out = sum(one.mnemonic == Mnemonic.INT3 for one in found)
    jumps = sum(one.mnemonic == Mnemonic.JMP for one in found) - 1
    assert image.counts["gap_bytes"] == left_out + JUMP_BYTES * jumps > 10 * 3072


@pytest.mark.skipif(Target.detect().isa != "avx512", reason="needs AVX-512")
def test_a_batch_counts_its_code_without_what_is_left_out():
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    weights[np.random.default_rng(1).random(weights.shape) < 0.88] = 0
    kernel = sparsejit.compile_matrix(  # with data of a core that gains from it
        weights, batch=16, layout="feature-major", strategy="panels", target="avx512"
    )
    assert kernel.stats["code_bytes"] < 15 * kernel.stats["nnz"] < kernel.image.code_bytes
