"""Roundings to float16 and bfloat16 in compiled code, beside torch's and numpy's casts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chain_checks import Array, Operand, image_of, lowered, run, step
from hypothesis import given
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.errors import CompileError
from sparsejit.ir.dtypes import SHORT_FLOATS, dtype_named, promoted_dtype, rounded
from sparsejit.ir.ops.pointwise import ROUNDINGS, Chain, Pointwise
from sparsejit.machine.target import Target

isas = pytest.mark.parametrize("isa", LEVELS)
names = pytest.mark.parametrize("name", SHORT_FLOATS)


def by_torch(x: Array, name: str) -> Array:
    short = torch.from_numpy(x).to(getattr(torch, name))
    found: Array = short.float().numpy()
    return found


def compiled(x: Array, name: str, isa: str) -> Array:
    kind = ROUNDINGS[SHORT_FLOATS[name]]
    return run(Chain(x.shape, 1, (step(kind, 0),), (1,)), [Operand(x)], isa)[0]


def assert_same_bits(found: Array, wanted: Array) -> None:
    """Signs of zeros included; any NaN is as good as another."""
    same = (found.view(np.int32) == wanted.view(np.int32)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), [(found[n], wanted[n]) for n in np.flatnonzero(~same)[:5]]


def patterns(name: str) -> Array:
    """Every number of the dtype, the middles between neighbours, and float32 beside both."""
    words = np.arange(1 << 16, dtype=np.uint16)
    if name == "float16":
        every = words.view(np.float16).astype(np.float32)
    else:
        every = (words.astype(np.uint32) << 16).view(np.float32)
    finite = np.sort(every[np.isfinite(every)]).astype(np.float64)
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    near = np.concatenate([every, middles])
    with np.errstate(all="ignore"):
        beside = [np.nextafter(near, np.float32(way)) for way in (-np.inf, np.inf)]
    return np.concatenate([near, *beside]).astype(np.float32)


@isas
@names
def test_every_number_and_what_lies_beside_it_rounds_as_in_torch(name: str, isa: str) -> None:
    x = patterns(name)
    found, wanted = compiled(x, name, isa), by_torch(x, name)
    assert_same_bits(found, wanted)
    assert_same_bits(rounded(x, SHORT_FLOATS[name]), wanted)
    short = np.isfinite(found)
    assert (np.abs(found[short]) > 0).sum() > 50_000 and np.isnan(found).any()
    assert np.isposinf(found[np.isfinite(x)]).any(), "no finite number is beyond the range"


@isas
@names
@given(words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_any_float32_rounds_as_in_torch(name: str, isa: str, words: list[int]) -> None:
    x = np.array(words, np.uint32).view(np.float32)
    assert_same_bits(compiled(x, name, isa), by_torch(x, name))


@names
def test_the_reference_takes_float64(name: str) -> None:
    op = Pointwise(ROUNDINGS[SHORT_FLOATS[name]])
    (found,) = op.reference(np.array([1 + 2.0**-7 + 2.0**-12, 1e300, -1e-300, np.nan]))
    assert found.dtype == np.float64
    assert abs(found[0] - 1 - 2.0**-7) < 2.0**-10 and found[1] == np.inf and found[2] == 0
    assert np.signbit(found[2]) and np.isnan(found[3])


def test_rounding_to_float16_needs_f16c() -> None:
    chain, x = Chain((5,), 1, (step("round_float16", 0),), (1,)), [Operand(np.zeros(5, np.float32))]
    target = Target.named("avx2")
    assert "f16c" in image_of(lowered(chain, x, target), target).instruction_sets
    without = replace(target, instruction_sets=target.instruction_sets - {"f16c"})
    with pytest.raises(CompileError, match="F16C"):
        image_of(lowered(chain, x, without), without)


TORCHS = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


@pytest.mark.parametrize("first", TORCHS)
def test_dtypes_are_promoted_as_in_torch(first: str) -> None:
    for second in TORCHS:
        wanted = torch.promote_types(getattr(torch, first), getattr(torch, second))
        found = promoted_dtype(dtype_named(first), dtype_named(second))
        assert f"torch.{found}" == str(wanted), (first, second)
