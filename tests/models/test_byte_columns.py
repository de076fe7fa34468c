"""Norms and attention over columns of bytes: exactly, at guard pages, in parts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from native import built_model, check_at_guard_pages, run_built
from sketch import Sketch
from test_byte_convolutions import (
    LEVEL,
    NARROW,
    TARGET,
    WITH_VEX,
    at_both_levels,
    is_near,
    needs_vnni,
    quantised,
)
from test_divided_steps import divided

from sparsejit.asm_templates.convolution import int8_attention, int8_convolution
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, RoundedResult
from sparsejit.ir.ops.int8_columns import ByteAttention, NormalisedColumns
from sparsejit.ir.reference import on_steps
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.machine.target import Target

STEPS = Quantisation(0.0211, -9)
OTHER = Quantisation(0.0307, 100)
READ = Quantisation(0.0173, 3)


def run(graph: Graph, inputs: list[Array], target: Target) -> list[Array]:
    built = built_model(lower_model(graph, ModelOptions(target)))
    return [each[0] for each in run_built(built, [array[None] for array in inputs]).outputs]


@dataclass(frozen=True)
class Norm:
    """A norm of a sum: what its operands are rounded to, and whether bytes and floats are read."""

    channels: int
    columns: int
    steps: tuple[Quantisation | None, ...] = (STEPS, OTHER)
    in_bytes: bool = True
    floats: bool = True

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.channels, self.columns])

    def graph(self) -> Graph:
        """Bytes are seen through a convolution that leaves them as they are."""
        s = Sketch()
        shape = 1, self.channels, self.columns
        xs = [s.input(*shape) for _ in self.steps]
        y = s(NormalisedColumns(1e-5, self.steps), *xs, s.constant(self.parameters))
        outputs = [y] if self.floats else []
        if self.in_bytes:
            one = np.eye(self.channels, dtype=np.float32)[..., None]
            made = Convolution(
                *((1,), (0,), (1,)),
                dtype=DType.INT8,
                x_steps=READ,
                rounding=RoundedResult(READ),
            )
            outputs.append(s(made, y, s.constant(one)))
        return s.finish(*outputs)

    @property
    def parameters(self) -> Array:
        shape = 3, self.channels
        return self.random.uniform(0.5, 1.5, shape).astype(np.float32)

    def inputs(self) -> list[Array]:
        shape = 1, self.channels, self.columns
        return [3 * self.random.standard_normal(shape).astype(np.float32) for _ in self.steps]

    def check(self, inputs: list[Array], found: list[Array]) -> None:
        """Operands as kernels round them."""
        rounded = [
            x if s is None else (quantised(x, s) - s.zero_point) * np.float64(np.float32(s.scale))
            for x, s in zip(inputs, self.steps, strict=True)
        ]
        op = NormalisedColumns(1e-5, (None,) * len(self.steps))
        (wanted,) = op.reference(*map(np.float64, rounded), self.parameters.astype(np.float64))
        if self.floats:
            np.testing.assert_allclose(found[0], wanted, rtol=2e-5, atol=2e-5)
        if self.in_bytes:
            near = is_near(wanted / READ.scale)
            steps = on_steps(wanted, READ.scale, READ.zero_point)
            off = np.abs(found[-1] - steps) / READ.scale
            assert off.max() < 1.01
            assert not (off > 0.01)[~near].any()


@at_both_levels
@pytest.mark.parametrize("columns", [1, 7, 8, 15, 16, 17, 32, 33, 63, 64, 65, 130])
@pytest.mark.parametrize("channels", [1, 5, 48])
def test_norms_of_any_size(channels: int, columns: int, target: Target) -> None:
    norm = Norm(channels, columns)
    inputs = norm.inputs()
    norm.check(inputs, run(norm.graph(), inputs, target))


@at_both_levels
@pytest.mark.parametrize("steps", [(None,), (STEPS,), (None, None), (STEPS, None), (None, OTHER)])
@pytest.mark.parametrize(("in_bytes", "floats"), [(True, False), (False, True), (True, True)])
def test_norms_of_any_operands(
    steps: tuple[Quantisation | None, ...], in_bytes: bool, floats: bool, target: Target
) -> None:
    norm = Norm(24, 70, steps, in_bytes, floats)
    inputs = norm.inputs()
    norm.check(inputs, run(norm.graph(), inputs, target))


@dataclass(frozen=True)
class Attending:
    """Attention of that many samples, in steps that the values of random operands fill."""

    heads: int = 3
    features: int = 8
    length: int = 64
    samples: int = 1
    shift: int = 5
    is_masked: bool = False

    @property
    def op(self) -> ByteAttention:
        steps = tuple(Quantisation(0.023, self.shift + n) for n in (-2, 0, 2))
        scores = Quantisation(0.09, -self.shift)
        shares = Quantisation(0.0041, -128)
        result = Quantisation(0.031, 7)
        sizes = self.heads, self.length, 1 / np.sqrt(self.features)
        return ByteAttention(*sizes, steps, scores, shares, result)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, self.heads * self.features, self.samples * self.length

    def graph(self) -> Graph:
        s = Sketch()
        operands = [s.input(*self.shape) for _ in range(3)]
        if self.is_masked:
            operands.append(s.input(self.samples, self.length))
        return s.finish(s(self.op, *operands))

    def inputs(self) -> list[Array]:
        """A mask takes a little off, or all; the last sample has no key at all."""
        random = np.random.default_rng([self.heads, self.features, self.length])
        arrays = [random.uniform(-4, 4, self.shape).astype(np.float32) for _ in range(3)]
        if not self.is_masked:
            return arrays
        least = np.finfo(np.float32).min
        mask = random.choice([0.0, 0.0, -0.7, -1e4, least], (self.samples, self.length))
        mask[:, 0] = 0
        mask[-1] = least if self.samples > 1 else mask[-1]
        return [*arrays, mask.astype(np.float32)]

    def check(self, inputs: list[Array], found: Array) -> None:
        """To a step, which a tie that is rounded otherwise on the way may move."""
        pairs = zip(inputs, self.op.steps, strict=False)
        rounded = [
            (quantised(x, s) - s.zero_point) * np.float64(np.float32(s.scale)) for x, s in pairs
        ]
        (wanted,) = self.op.reference(*rounded, *map(np.float64, inputs[3:]))
        off = np.abs(found - wanted) / self.op.result.scale
        assert off.max() < 1.01
        assert (off > 0.01).mean() < 0.01
        assert np.ptp(wanted) > 20 * self.op.result.scale


@at_both_levels
@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 33, 63, 64, 65, 100, 128, 200])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("is_masked", [False, True])
def test_attention_of_any_length(
    length: int, samples: int, is_masked: bool, target: Target
) -> None:
    case = Attending(length=length, samples=samples, is_masked=is_masked)
    inputs = case.inputs()
    case.check(inputs, run(case.graph(), inputs, target)[0])


@at_both_levels
@pytest.mark.parametrize("features", [4, 12, 64])
@pytest.mark.parametrize("shift", [-125, 0, 121])
def test_attention_of_any_features_and_zero_points(
    features: int, shift: int, target: Target
) -> None:
    case = Attending(2, features, 70, shift=shift)
    inputs = case.inputs()
    inputs = [x / np.float32(8 if shift else 1) for x in inputs]
    (found,) = run(case.graph(), inputs, target)
    pairs = zip(inputs, case.op.steps, strict=True)
    rounded = [(quantised(x, s) - s.zero_point) * np.float64(np.float32(s.scale)) for x, s in pairs]
    (wanted,) = case.op.reference(*rounded)
    off = np.abs(found - wanted) / case.op.result.scale
    assert off.max() < 1.01
    assert (off > 0.01).mean() < 0.02


ALIKE = [
    *(Norm(48, columns, in_bytes=True) for columns in (1, 8, 9, 31, 32, 70, 130)),
    *(Norm(24, 70, steps) for steps in ((None,), (STEPS,), (None, None), (STEPS, None))),
    *(Attending(length=length) for length in (1, 5, 15, 16, 17, 33, 64, 70, 128, 197)),
    *(Attending(2, 12, length, samples=3, is_masked=True) for length in (7, 16, 40, 65)),
    *(Attending(2, 64, 128, shift=shift) for shift in (-125, 0, 121)),
]


def inputs_of(case: Norm | Attending) -> Iterator[list[Array]]:
    """Operands, and operands whose bytes are 0 and 255 alone: sums of products are largest."""
    inputs = case.inputs()
    yield inputs
    yield [np.sign(x) * np.float32(1e3) if x.ndim > 2 else x for x in inputs]
    yield [np.full_like(x, 1e3) if x.ndim > 2 else x for x in inputs]


@needs_vnni
@pytest.mark.parametrize("case", ALIKE, ids=str)
def test_every_bit_is_as_with_avx512(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX-VNNI is tried by the same instruction in its longer encoding."""
    names = int8_attention._NarrowHeadsCode.names
    for inputs in inputs_of(case):
        wanted = run(case.graph(), inputs, TARGET)
        for target in (NARROW, WITH_VEX):
            with monkeypatch.context() as patch:
                if target is WITH_VEX:
                    patch.setitem(names, "product", "vpdpbusd")
                    patch.setattr(int8_convolution, "NARROW_PRODUCT", "vpdpbusd")
                found = run(case.graph(), inputs, target)
            for got, each in zip(found, wanted, strict=True):
                assert got.tobytes() == each.tobytes()


@needs_vnni
def test_a_mask_of_nan_gives_the_same_bits() -> None:
    case = Attending(2, 12, 40, samples=2, is_masked=True)
    *operands, mask = case.inputs()
    mask[0, 3], mask[1, 5] = np.nan, np.inf
    wanted, found = (run(case.graph(), [*operands, mask], each)[0] for each in (TARGET, NARROW))
    assert found.tobytes() == wanted.tobytes()


def test_a_processor_with_words_of_four_bytes_uses_them() -> None:
    image = build_model(
        lower_model(Attending().graph(), ModelOptions(WITH_VEX)), "test", listed=True
    ).image
    text = "\n".join(image.listing())
    assert "{vex} vpdpbusd" in text and "vpmaddwd" not in text


GUARDED = [
    *(Norm(21, 70), Norm(21, 64), Attending(2, 8, 70), Attending(2, 8, 64, samples=2)),
    *(Attending(2, 8, 70, samples=2, is_masked=True), Attending(2, 8, 5, samples=3)),
]


@at_both_levels
@pytest.mark.parametrize("case", GUARDED)
def test_at_guard_pages(case: Any, target: Target) -> None:
    inputs = case.inputs()
    built = built_model(lower_model(case.graph(), ModelOptions(target)))

    def check(found: list[Array]) -> None:
        case.check(inputs, found if isinstance(case, Norm) else found[0])

    check_at_guard_pages(built, inputs, check)


@at_both_levels
def test_bits_do_not_depend_on_samples_or_threads(target: Target) -> None:
    case = Attending(4, 8, 50, samples=3, is_masked=True)
    inputs = case.inputs()
    (together,) = run(case.graph(), inputs, target)
    alone = replace(case, samples=1)
    for number in range(3):
        some = slice(50 * number, 50 * number + 50)
        mask = inputs[3][number : number + 1]
        given = [*(x[..., some].copy() for x in inputs[:3]), mask]
        (found,) = run(alone.graph(), given, target)
        assert found.tobytes() == together[..., some].tobytes()
    for threads in (2, 3):
        lowered, count = divided(case.graph(), target, threads, 0)
        assert count
        parts = run_built(built_model(lowered), [x[None] for x in inputs]).outputs[0][0]
        assert parts.tobytes() == together.tobytes()


def test_operators_refuse_what_there_is_no_code_for() -> None:
    with pytest.raises(InvalidInput, match="1 to 2"):
        NormalisedColumns(1e-5, ())
    with pytest.raises(InvalidInput, match="heads and length of at least 1"):
        replace(Attending().op, heads=0)
    with pytest.raises(InvalidInput, match="features of a head in multiples of 4"):
        Attending(features=6).graph()
    for case in (Norm(3, 5), Attending()):
        with pytest.raises(CompileError, match="vnni"):
            lower_model(case.graph(), ModelOptions(LEVEL))
