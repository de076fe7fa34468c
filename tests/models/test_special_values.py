"""Every row of the operator table as machine code, against torch, with numbers at the edges.

Whole numbers beyond 2^24 and at the ends of int64; huge numbers, infinities and NaN; numbers below
the normal ones of float32, and zeros of both signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from native import built_model, run_built, run_lowered
from operator_calls import as_array
from operator_cases import OF_POSITIVE, UNARY, Call
from runnable import ISAS, LEVELS
from test_operators import CALLS, as_module, overload

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.torch_export import graph_of
from sparsejit.frontends.torch_export.interpreting import leaves
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.microarchitecture import MICROARCHITECTURES, core_named
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes

LARGE = [2**24 + 1, 2**24, -(2**24) - 3, 2**31, 2**53 + 1, 2**53, -(2**53) - 1, 7, -7, 0]
LARGE += [2**62 + 1, -(2**62) - 1, 2**63 - 1, -(2**63)]
FLOATS = {
    "infinite": [math.inf, -math.inf, 1.5, -2.5, 0.0, -0.0, 3e4, -0.75],
    "nan": [math.nan, 1.5, -2.5, math.inf, 0.0, -0.75, 3.0, -math.inf],
    "denormal": [1e-40, -1e-40, 1.5e-45, -1.5e-45, 0.0, -0.0, 1.1754944e-38, -1.1e-38],
    "huge": [1e30, -1e30, 3e38, -3e38, 1e10, -88.5, 104.0, -20.0],
    "large": [16777216.0, 16777218.0, -16777216.0, 33554436.0, 1.0, -3.0, 8388609.0, 0.5],
}
# Huge numbers are defined for these alone: sums of such overflow, each in its own order.
OF_ONE_NUMBER = {f"aten.{name}.default" for name in (*UNARY, *OF_POSITIVE)}
# Whose whole numbers say a place.
PLACES = ("embedding", "gather", "grouped_mm", "index", "one_hot", "scatter", "take", "put")
# The differences from torch: the row, the numbers, and why. Rows under "" differ with all.
DIFFERENT: dict[tuple[str, str], str] = {
    ("gelu.default", "huge"): "torch's overflows in float32, not in float64",
    ("hardswish.default", "huge"): "torch's overflows in float32, not in float64",
    ("gelu.default", "infinite"): "torch's gelu of infinity is NaN in float32, not in float64",
    ("gelu.default", "nan"): "torch's gelu of infinity is NaN in float32, not in float64",
    ("var_mean.correction", "infinite"): "torch's mean is NaN there, its own mean() infinite",
    **{
        (f"std.{overload}", "denormal"): "the squares are below all of float32; torch has float64"
        for overload in ("default", "dim", "correction")
    },
    **{
        (name, kind): "products take zeros in as well, or leave weights of zero out"
        for kind in ("infinite", "nan")
        for name in (
            *("conv_transpose1d.default", "upsample_linear1d.vec", "upsample_bilinear2d.vec"),
            *("upsample_trilinear3d.vec", "upsample_bicubic2d.vec"),
            "scaled_dot_product_attention.default",
            *("stft.default", "stft.center", "col2im.default"),
        )
    },
    **{
        (name, kind): "points without number, or as far away as float32's last place is a pixel"
        for name, kinds in (
            ("grid_sampler.default", ("large",)),
            ("grid_sampler_3d.default", ("infinite", "nan", "large")),
        )
        for kind in kinds
    },
    ("adaptive_avg_pool3d.default", "denormal"): "a mean of means rounds twice there",
    **{
        (name, ""): "torch takes any of equals, we the first"
        for name in ("topk.default", "kthvalue.default")
    },
    ("median.dim", "nan"): "torch takes any of equals, we the first",
    **{
        (f"{name}.{kind}", ""): "numbers that are not sorted"
        for name, kind in product(("searchsorted", "bucketize"), ("Tensor", "Scalar"))
    },
    **{
        ("cdist.default", kind): "torch counts NaN in no distance, or passes it over"
        for kind in ("infinite", "nan")
    },
}


def edged(each: Call, row: str, kind: str) -> Call:
    """The call with its inputs, whole numbers too, replaced in all places by such numbers."""
    random = np.random.default_rng(5)

    def changed(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [changed(item) for item in x]
        if not isinstance(x, torch.Tensor) or x.dtype is torch.bool:
            return x
        if x.is_floating_point():
            numbers = np.array(FLOATS[kind], np.float32)
        elif any(name in row for name in PLACES):
            return x
        else:
            numbers = np.array(LARGE).astype(x.numpy().dtype)
        count = x.numel()
        every = np.concatenate([random.permutation(numbers) for _ in range(count)] or [numbers])
        return torch.from_numpy(every[:count].reshape(x.shape).copy())

    return replace(
        each,
        args=tuple(changed(x) for x in each.args),
        kwargs={name: changed(x) for name, x in each.kwargs.items()},
    )


def by_torch(row: str, each: Call) -> list[Array]:
    """Torch's results for the same numbers in float32."""

    def plain(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [plain(item) for item in x]
        return getattr(x, "tensor", x)

    kwargs = {name: plain(x) for name, x in each.kwargs.items()}
    return [np.asarray(x) for x in leaves(overload(row)(*map(plain, each.args), **kwargs))]


def compared(found: Array, wanted: Array, scale: float) -> str:
    """The fault, or nothing. Whole numbers and truths are equal; floats to rounding."""
    if found.dtype.kind != "f":
        return "" if np.array_equal(found, wanted) else f"{found} instead of {wanted}"
    wide, like = found.astype(np.float64), wanted.astype(np.float64)
    regular = np.isfinite(like)
    same = np.where(regular, np.isfinite(wide), (wide == like) | (np.isnan(wide) & np.isnan(like)))
    with np.errstate(invalid="ignore"):
        near = np.abs(wide - like) <= 1e-5 * np.abs(like) + 4e-6 * scale
    wrong = ~(same & (near | ~regular))
    if not wrong.any():
        return ""
    return f"{wide[wrong][:4]} instead of {like[wrong][:4]}"


def largest_of(arrays: list[Array]) -> float:
    """The largest finite number, to which rounding is held."""
    sizes = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in arrays if a.dtype.kind == "f"]
    return float(max(sizes, default=1.0))


def differences(row: str, each: Call, kinds: Sequence[str], target: Target) -> list[str]:
    """The faults of each output, by the kind of numbers. One code takes all kinds."""
    module, constants, _ = as_module(row, each)
    built = built_model(lower_model(run_passes(graph_of(module, constants)), ModelOptions(target)))
    wrong = []
    for kind in kinds:
        case = edged(each, row, kind)
        _, _, inputs = as_module(row, case)
        ran = run_built(built, [as_array(tensor)[None] for tensor in inputs])
        pairs = zip(ran.outputs, by_torch(row, case), strict=False)
        texts = [compared(got[0], like, largest_of([like])) for got, like in pairs]
        wrong += [f"{kind}: {text}" for text in texts if text]
    return wrong


def reason(row: str, kind: str) -> str:
    if kind == "huge" and row not in OF_ONE_NUMBER:
        return "of several numbers"
    name = row.removeprefix("aten.")
    return DIFFERENT.get((name, kind)) or DIFFERENT.get((name, ""), "")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("row", dict.fromkeys(row for row, _ in CALLS))
def test_machine_code_does_with_numbers_at_the_edges_as_torch(row: str, isa: str) -> None:
    wrong = []
    for number, (name, each) in enumerate(CALLS):
        if name != row:
            continue
        kinds = [kind for kind in FLOATS if not reason(row, kind)]
        try:
            texts = differences(row, each, kinds, Target.named(isa))
        except UnsupportedOperator as refused:
            texts = [] if "whole numbers" in str(refused) else [str(refused)]
        wrong += [f"call {number}, {text}" for text in texts]
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif("avx512" not in LEVELS, reason="needs avx512: some differ there alone")
def test_every_difference_is_still_one() -> None:
    """On one of the instruction sets that run here, planned as for one of the processors known."""
    cores = [Target.detect().core, *map(core_named, MICROARCHITECTURES)]
    targets = [replace(Target.named(isa), core=core) for isa in reversed(LEVELS) for core in cores]
    for name, kind in DIFFERENT:
        row = f"aten.{name}"
        kinds = [kind] if kind else list(FLOATS)
        calls = [each for other, each in CALLS if other == row]
        assert any(differences(row, *given) for given in product(calls, [kinds], targets)), row


def test_whole_numbers_between_int64_and_float32_round_once() -> None:
    """Halves of float32's numbers, with a bit more or less far below."""
    numbers = [sign * ((1 << 62) + (1 << 38) + more) for sign in (1, -1) for more in (-1, 0, 1)]
    numbers += [sign * ((1 << 61) + (3 << 37) + more) for sign in (1, -1) for more in (-1, 0, 1)]
    x = torch.tensor(numbers)
    module, constants, _ = as_module("aten.to.dtype", Call((x, torch.float32), {}))
    graph = graph_of(module, constants)
    (known,) = graph.evaluate([x.numpy()])
    np.testing.assert_array_equal(known, x.float().numpy())
    for name in ("avx2", "avx512"):
        target = Target.named(name)
        if target.runs_on(Target.detect()):
            ran = run_lowered(lower_model(graph, ModelOptions(target)), [x.numpy()[None]])
            np.testing.assert_array_equal(ran.outputs[0][0], x.float().numpy())


def test_layers_that_differ_in_the_sign_of_a_zero_do_not_share_code() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.tanh(x) * 0.0, torch.tanh(y) * -0.0

    x, model = torch.rand(4, 64), Scaled().eval()
    fast = sparsejit.compile(model, (x, x + 1))
    for found, wanted in zip(fast(x, x + 1), model(x, x + 1), strict=True):
        assert torch.equal(torch.signbit(found), torch.signbit(wanted))
