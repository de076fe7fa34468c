"""Convolutions by channel from bytes to bytes against exact integers, at guard pages, in parts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import built_model, check_at_guard_pages, run_built
from sketch import Sketch
from test_byte_convolutions import (
    LEVEL,
    NARROW,
    TARGET,
    WITH_VEX,
    check_bins,
    is_near,
    quantised,
)
from test_divided_steps import divided

from sparsejit.asm_templates.convolution.int8_convolution import NARROW_PRODUCT
from sparsejit.asm_templates.convolution.int8_tap_pairs import bins_of_taps, taps_in_pairs
from sparsejit.asm_templates.convolution.int8_tap_words import _TapWordCode
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, RoundedResult, windows
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.machine.target import Target

SETS = TARGET.instruction_sets | {"avx512vbmi"}
WITH_VBMI = replace(LEVEL, instruction_sets=SETS)
needs_vbmi = pytest.mark.skipif(not WITH_VBMI.runs_on(Target.detect()), reason="needs VBMI")
at_both_levels = pytest.mark.parametrize(
    "target",
    [
        pytest.param(WITH_VBMI, marks=needs_vbmi, id="avx512"),
        pytest.param(NARROW, id="avx2"),
        pytest.param(WITH_VEX, marks=needs_vbmi, id="avx-vnni"),
    ],
)


@pytest.fixture(scope="module", autouse=True)
def _product_that_runs_here() -> Iterator[None]:
    """AVX-VNNI is tried by the same instruction in its longer encoding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_TapWordCode, "product", "vpdpbusd")
        yield


SCALE = 0.0071


@dataclass(frozen=True)
class Channels:
    """A convolution by channel, whose weights are whole steps of `SCALE`."""

    channels: int
    space: tuple[int, ...]
    kernel: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (1, 1)
    samples: int = 1
    shift: int = -128
    y_shift: int = 3
    activation: Activation = Activation.NONE
    table: bool = False

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.channels, *self.space])

    @property
    def weights(self) -> Array:
        """Integers; the second channel has no nonzeros."""
        weights = self.random.integers(-127, 128, (self.channels, 1, *self.kernel))
        weights.reshape(self.channels, -1)[:, 0] = 127
        weights[1:2] = 0
        return weights

    @property
    def bias(self) -> Array:
        return self.random.standard_normal(self.channels).astype(np.float32)

    @property
    def steps(self) -> tuple[Quantisation, Quantisation]:
        spread = 0.021 * float(np.sqrt(np.prod(self.kernel)))
        return Quantisation(0.0211, self.shift), Quantisation(spread, self.y_shift)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(np.random.default_rng(1).integers(-128, 128, 256).tolist())

    def graph(self) -> Graph:
        s, (x_steps, y_steps) = Sketch(), self.steps
        rounding = RoundedResult(y_steps)
        if self.table:
            rounding = RoundedResult(y_steps, y_steps, table=self.numbers)
        op = Convolution(
            *(self.stride, self.padding, (1,) * len(self.space)),
            groups=self.channels,
            activation=self.activation,
            dtype=DType.INT8,
            x_steps=x_steps,
            rounding=rounding,
        )
        weights = (self.weights * np.float32(SCALE)).astype(np.float32)
        x = s.input(self.samples, self.channels, *self.space)
        return s.finish(s(op, x, s.constant(weights), s.constant(self.bias)))

    def inputs(self) -> list[Array]:
        low, high = (np.array([-140, 140]) - self.shift) * 0.0211
        shape = self.samples, self.channels, *self.space
        return [self.random.uniform(low, high, shape).astype(np.float32)]

    def check(self, x: Array, found: Array) -> None:
        x_steps, y_steps = self.steps
        integers = quantised(x, x_steps) - x_steps.zero_point
        around = [(0, 0), (0, 0), *((p, p) for p in self.padding)]
        ones = (1,) * len(self.kernel)
        seen = windows(np.pad(integers, around), self.kernel, self.stride, ones)
        axes = tuple(range(-len(self.kernel), 0))
        weights = self.weights.reshape(self.channels, *(1,) * len(self.kernel), *self.kernel)
        scale = (np.float32(127) * np.float32(SCALE) / np.float32(127)).astype(np.float64)
        bias = self.bias.astype(np.float64).reshape(-1, *ones)
        product = (seen * weights).sum(axis=axes) * (scale * x_steps.scale) + bias
        near = is_near(product / y_steps.scale)
        low = 0.0 if self.activation is not Activation.NONE else -np.inf
        high = 6.0 if self.activation is Activation.RELU6 else np.inf
        wanted = np.rint(product.clip(low, high) / y_steps.scale) + y_steps.zero_point
        wanted = wanted.clip(-128, 127).astype(int)
        got = np.rint(found / np.float32(y_steps.scale)).astype(int) + y_steps.zero_point
        if self.table:
            wanted = np.array(self.numbers)[wanted + 128]
        else:
            assert np.abs(got - wanted).max() <= 1
        np.testing.assert_array_equal(got[~near], wanted[~near])


def run(case: Channels, x: Array, target: Target) -> Array:
    lowered = lower_model(case.graph(), ModelOptions(target))
    assert any(step.kernel.startswith("byte-depthwise") for step in lowered.steps)
    return run_built(built_model(lowered), [x[None]]).outputs[0][0]


@st.composite
def cases(draw: st.DrawFn) -> Channels:
    sizes = st.sampled_from([1, 2, 7, 8, 14, 15, 16, 17, 31, 33, 63, 64, 65, 130])
    kernel = draw(st.sampled_from([(3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (2, 2), (4, 9)]))
    padding = draw(st.sampled_from([(0, 0), (1, 1), (kernel[0] // 2, kernel[1] // 2), (2, 3)]))
    least = [k - 2 * p for k, p in zip(kernel, padding, strict=True)]
    return Channels(
        channels=draw(st.sampled_from([2, 3, 5, 16])),
        space=(max(draw(sizes), least[0]), max(draw(sizes), least[1])),
        kernel=kernel,
        stride=draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (1, 2), (3, 2)])),
        padding=padding,
        samples=draw(st.sampled_from([1, 1, 2, 3])),
        shift=draw(st.sampled_from([-128, -100, 0, 127])),
        y_shift=draw(st.sampled_from([-128, 0, 7, 127])),
        activation=draw(st.sampled_from([Activation.NONE, Activation.RELU, Activation.RELU6])),
        table=draw(st.booleans()),
    )


@at_both_levels
@settings(max_examples=150)
@given(case=cases())
def test_any_windows(case: Channels, target: Target) -> None:
    (x,) = case.inputs()
    case.check(x, run(case, x, target))


@at_both_levels
@pytest.mark.parametrize("size", [3, 16, 17, 64, 100])
def test_one_axis(size: int, target: Target) -> None:
    case = Channels(6, (size,), (3,), (1,), (1,), samples=2)
    (x,) = case.inputs()
    case.check(x, run(case, x, target))


SAME = Channels(7, (15, 17), shift=9)
STRIDED = replace(SAME, stride=(2, 2), space=(15, 90))
WIDE = replace(SAME, kernel=(5, 5), padding=(2, 2), table=True)
each_way = pytest.mark.parametrize("case", [SAME, STRIDED, WIDE], ids=["whole", "rows", "copied"])


@at_both_levels
@each_way
def test_at_guard_pages(case: Channels, target: Target) -> None:
    (x,) = case.inputs()
    built = built_model(lower_model(case.graph(), ModelOptions(target)))
    check_at_guard_pages(built, [x], lambda found: case.check(x, found[0]))


@at_both_levels
@each_way
def test_bits_do_not_depend_on_the_batch_or_on_threads(case: Channels, target: Target) -> None:
    several = replace(case, samples=3)
    (x,) = several.inputs()
    together = run(several, x, target)
    for number in range(3):
        alone = run(case, x[number : number + 1], target)
        assert alone.tobytes() == together[number : number + 1].tobytes()
    for threads in (2, 3):
        lowered, count = divided(case.graph(), target, threads, 0)
        assert count
        parts = run_built(built_model(lowered), [x[None, :1]]).outputs[0][0]
        assert parts.tobytes() == together[:1].tobytes()


@needs_vbmi
@settings(max_examples=40)
@given(case=cases())
def test_both_levels_give_the_same_bytes(case: Channels) -> None:
    (x,) = case.inputs()
    wanted = run(case, x, WITH_VBMI).tobytes()
    assert run(case, x, NARROW).tobytes() == run(case, x, WITH_VEX).tobytes() == wanted


def test_a_processor_with_words_of_four_taps_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_TapWordCode, "product", NARROW_PRODUCT)
    lowered = lower_model(SAME.graph(), ModelOptions(WITH_VEX))
    text = "\n".join(build_model(lowered, "test", listed=True).image.listing())
    assert "{vex} vpdpbusd" in text
    assert "vpmaddubsw" not in text


@settings(max_examples=80)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 7),
    largest=st.sampled_from([3, 64, 65, 128]),
    share=st.sampled_from([0.2, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_no_bin_of_taps_exceeds_16_bits(
    rows: int, columns: int, largest: int, share: float, seed: int
) -> None:
    """Pairs sum to the weights, from -128 to 127, and no bin sums beyond 255 times 128."""
    random = np.random.default_rng(seed)
    weights = random.integers(-largest, largest + 1, (9, rows, columns)).clip(-128, 127)
    weights[random.random(weights.shape) > share] = 0
    weights[0], weights[1], weights[2] = -128, 127, 0
    check_bins(bins_of_taps(weights.astype(np.int8)), 9)
    pairs, found = taps_in_pairs(weights.astype(np.int8)), np.zeros((9, rows, columns + 1), int)
    for side in range(2):
        at = pairs.row, pairs.places[:, 0], pairs.places[:, 1] + side
        np.add.at(found, at, pairs.weights[:, side])
    np.testing.assert_array_equal(found[..., :columns], weights)
    assert not found[..., columns:].any()


@at_both_levels
def test_layers_behind_read_what_lies_around(target: Target) -> None:
    """A second convolution by channel reads the gaps that the first one has left."""
    s = Sketch()
    x = s.input(2, 5, 9, 31)
    for number, stride in enumerate((1, 2, 1)):
        steps = Quantisation(0.02, 9 + number), Quantisation(0.02, 10 + number)
        op = Convolution(
            *((stride, stride), (1, 1), (1, 1)),
            groups=5,
            dtype=DType.INT8,
            x_steps=steps[0],
            rounding=RoundedResult(steps[1]),
        )
        weights = np.random.default_rng(number).integers(-127, 128, (5, 1, 3, 3))
        weights.reshape(5, -1)[:, 0] = 127
        x = s(op, x, s.constant((weights * np.float32(0.003)).astype(np.float32)))
    graph = s.finish(x)
    array = np.random.default_rng(8).uniform(-2, 2, (2, 5, 9, 31)).astype(np.float32)
    built = built_model(lower_model(graph, ModelOptions(target)))
    found = run_built(built, [array[None]]).outputs[0][0]
    (wanted,) = graph.evaluate([array])
    off = np.abs(found - wanted) / 0.02
    assert off.max() < 1.01
    assert (off > 0.01).mean() < 0.01
