"""Padding lines: where what is read lies, which streams have them, and kernels that have."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from matvec_checks import block_weights, check, target_of, templates_of

import sparsejit
from sparsejit.asm_templates.gather.int8_elements import stream_paddings
from sparsejit.asm_templates.shared.padding import ALTERNATE, DENSE, PADDED, literal, stride_padding
from sparsejit.machine.microarchitecture import UNKNOWN, core_named
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

TARGET = Target.named("avx512")


def test_no_four_lines_follow_each_other():
    lines = PADDED.place(np.arange(1000))
    runs = [len(list(run)) for _, run in groupby(lines - np.arange(len(lines)))]
    assert max(runs) == 3


@pytest.mark.parametrize("space", [DENSE, ALTERNATE, PADDED])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7, 1000])
def test_spread_data_lies_where_it_is_read_and_runs_follow_each_other(space, count):
    lines = np.arange(1, 2 * count * 8 + 1).reshape(2, count, 8)
    spread = space.spread(lines)
    assert spread.shape == (2, space.room(count), 8)
    assert np.array_equal(spread[:, space.place(np.arange(count))], lines)
    assert np.count_nonzero(spread) == lines.size


def test_streams_from_l2_have_padding():
    assert stride_padding(2 * TARGET.l1d_bytes, TARGET) == PADDED


@pytest.mark.parametrize("l1s", [0.9, 1.5, 2.9, 3.1, 6, 11])
def test_int8_weights_leave_out_every_other_line_near_l1(l1s):
    streams = stream_paddings(int(l1s * TARGET.l1d_bytes), TARGET)
    far = PADDED if 3 < l1s < 10 else DENSE
    assert streams == ((ALTERNATE, DENSE) if 1.5 <= l1s < 3 else (far, far))


@pytest.mark.parametrize("space", [ALTERNATE, PADDED])
def test_padding_of_all_streams_belong_to_the_same_sets(space):
    asm = Assembler(TARGET)
    for _ in range(2):
        asm.literal(np.zeros(16, np.float32))
        offset = literal(asm, np.ones((1, 9, 16), np.float32), space)
        assert offset % (space.period * 64) == 0


def test_streams_of_half_lines_are_dense():
    assert stride_padding(2 * TARGET.l1d_bytes, Target.named("avx2")) == DENSE


@pytest.mark.parametrize("share_of_l1", [0.5, 1.0])
def test_streams_within_l1_are_dense(share_of_l1):
    assert stride_padding(int(share_of_l1 * TARGET.l1d_bytes), TARGET) == DENSE


def test_streams_over_half_of_l2_are_dense():
    assert stride_padding(TARGET.l2_bytes // 2, TARGET) == DENSE


FAMILIES = ("permute", "lane16", "int8-permute", "broadcast", "broadcast-mixed")


@pytest.mark.parametrize("row", [row for family in FAMILIES for row in templates_of(family)])
@pytest.mark.parametrize("shape", [(600, 900), (1000, 1000)])
@pytest.mark.parametrize("block_rows", [1, 8])
def test_kernels_beyond_l1_compute_the_product(row, shape, block_rows):
    image = check(row, block_weights(shape, 0.16, block_rows))
    assert image.pool_bytes > target_of(row).l1d_bytes


@pytest.mark.plans
@pytest.mark.skipif(Target.detect().isa != "avx512", reason="needs AVX-512")
def test_a_kernel_says_how_much_of_its_pool_is_padding():
    weights = block_weights((512, 512), 0.1, 1)
    gaining, losing = (replace(Target.detect(), core=core_named(k)) for k in ("zen5", UNKNOWN))
    kernel = sparsejit.compile_matrix(weights, strategy="permute", target=gaining)
    assert kernel.stats["padding_bytes"] == pytest.approx(kernel.stats["pool_bytes"] / 4, rel=0.02)
    other = sparsejit.compile_matrix(weights, strategy="permute", target=losing)
    assert other.stats["padding_bytes"] == 0
    small = sparsejit.compile_matrix(block_weights((64, 64), 0.1, 1), strategy="permute")
    assert small.stats["padding_bytes"] == 0
