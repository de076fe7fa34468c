"""Transformers in bytes: linear layers as columns, norms and attention between them."""

from dataclasses import dataclass, replace
from typing import Any

import native
import numpy as np
import pytest

pytest.importorskip("onnx")

from guard import EDGES, Edge, GuardedArray, run_in_child
from native import built_model, run_built
from onnx.reference import ReferenceEvaluator
from sketch import Sketch, kinds
from test_byte_convolutions import TARGET, is_near, needs_vnni, quantised
from test_byte_layers import Qdq
from test_divided_steps import divided
from test_onnx import graph_model

import sparsejit
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.graph import Array, Graph
from sparsejit.ir.ops.byte_columns import ByteAttention, NormalisedColumns
from sparsejit.ir.ops.convolution import Convolution, RoundedResult
from sparsejit.ir.quantised_steps import QuantisedSteps
from sparsejit.ir.reference import on_steps
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.int8_convolutions import with_byte_layers
from sparsejit.lowering.model import lower_model
from sparsejit.machine.target import Target
from sparsejit.passes.byte_columns import byte_columns
from sparsejit.passes.byte_layers import byte_layers
from sparsejit.passes.default import run_passes
from sparsejit.passes.quantised_layers import quantised_layers

STEPS = QuantisedSteps(0.0211, -9)
OTHER = QuantisedSteps(0.0307, 100)
READ = QuantisedSteps(0.0173, 3)


def run(graph: Graph, inputs: list[Array]) -> list[Array]:
    built = built_model(lower_model(graph, ModelOptions(TARGET)))
    return [each[0] for each in run_built(built, [array[None] for array in inputs]).outputs]


@dataclass(frozen=True)
class Norm:
    """A norm of a sum: what its operands are rounded to, and whether bytes and floats are read."""

    channels: int
    columns: int
    steps: tuple[QuantisedSteps | None, ...] = (STEPS, OTHER)
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
                input_scale=READ.scale,
                input_shift=READ.shift,
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
            x if s is None else (quantised(x, s) - s.shift) * np.float64(np.float32(s.scale))
            for x, s in zip(inputs, self.steps, strict=True)
        ]
        op = NormalisedColumns(1e-5, (None,) * len(self.steps))
        (wanted,) = op.reference(*map(np.float64, rounded), self.parameters.astype(np.float64))
        if self.floats:
            np.testing.assert_allclose(found[0], wanted, rtol=2e-5, atol=2e-5)
        if self.in_bytes:
            near = is_near(wanted / READ.scale)
            steps = on_steps(wanted, READ.scale, READ.shift)
            off = np.abs(found[-1] - steps) / READ.scale
            assert off.max() < 1.01
            assert not (off > 0.01)[~near].any()


@needs_vnni
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("channels", [1, 5, 48])
def test_norms_of_any_size(channels: int, columns: int) -> None:
    norm = Norm(channels, columns)
    inputs = norm.inputs()
    norm.check(inputs, run(norm.graph(), inputs))


@needs_vnni
@pytest.mark.parametrize("steps", [(None,), (STEPS,), (None, None), (STEPS, None), (None, OTHER)])
@pytest.mark.parametrize(("in_bytes", "floats"), [(True, False), (False, True), (True, True)])
def test_norms_of_any_operands(
    steps: tuple[QuantisedSteps | None, ...], in_bytes: bool, floats: bool
) -> None:
    norm = Norm(24, 70, steps, in_bytes, floats)
    inputs = norm.inputs()
    norm.check(inputs, run(norm.graph(), inputs))


@dataclass(frozen=True)
class Attending:
    """Attention of so many samples, in steps that the values of random operands fill."""

    heads: int = 3
    features: int = 8
    length: int = 64
    samples: int = 1
    shift: int = 5

    @property
    def op(self) -> ByteAttention:
        steps = tuple(QuantisedSteps(0.023, self.shift + n) for n in (-2, 0, 2))
        scores = QuantisedSteps(0.09, -self.shift)
        shares = QuantisedSteps(0.0041, -128)
        result = QuantisedSteps(0.031, 7)
        sizes = self.heads, self.length, 1 / np.sqrt(self.features)
        return ByteAttention(*sizes, steps, scores, shares, result)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, self.heads * self.features, self.samples * self.length

    def graph(self) -> Graph:
        s = Sketch()
        return s.finish(s(self.op, *(s.input(*self.shape) for _ in range(3))))

    def inputs(self) -> list[Array]:
        random = np.random.default_rng([self.heads, self.features, self.length])
        return [random.uniform(-4, 4, self.shape).astype(np.float32) for _ in range(3)]

    def check(self, inputs: list[Array], found: Array) -> None:
        """To a step, which a tie that is rounded otherwise on the way may move."""
        pairs = zip(inputs, self.op.steps, strict=True)
        rounded = [(quantised(x, s) - s.shift) * np.float64(np.float32(s.scale)) for x, s in pairs]
        (wanted,) = self.op.reference(*rounded)
        off = np.abs(found - wanted) / self.op.result.scale
        assert off.max() < 1.01
        assert (off > 0.01).mean() < 0.01
        assert np.ptp(wanted) > 20 * self.op.result.scale


@needs_vnni
@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 33, 63, 64, 65, 100, 128, 200])
@pytest.mark.parametrize("samples", [1, 3])
def test_attention_of_any_length(length: int, samples: int) -> None:
    case = Attending(length=length, samples=samples)
    inputs = case.inputs()
    case.check(inputs, run(case.graph(), inputs)[0])


@needs_vnni
@pytest.mark.parametrize("features", [4, 12, 64])
@pytest.mark.parametrize("shift", [-125, 0, 121])
def test_attention_of_any_features_and_zero_points(features: int, shift: int) -> None:
    case = Attending(2, features, 70, shift=shift)
    inputs = case.inputs()
    inputs = [x / np.float32(8 if shift else 1) for x in inputs]
    (found,) = run(case.graph(), inputs)
    pairs = zip(inputs, case.op.steps, strict=True)
    rounded = [(quantised(x, s) - s.shift) * np.float64(np.float32(s.scale)) for x, s in pairs]
    (wanted,) = case.op.reference(*rounded)
    off = np.abs(found - wanted) / case.op.result.scale
    assert off.max() < 1.01
    assert (off > 0.01).mean() < 0.02


GUARDED = [Norm(21, 70), Norm(21, 64), Attending(2, 8, 70), Attending(2, 8, 64, samples=2)]


@needs_vnni
@pytest.mark.parametrize("case", GUARDED)
def test_at_guard_pages(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = case.inputs()
    built = built_model(lower_model(case.graph(), ModelOptions(TARGET)))

    def at(edge: Edge) -> None:
        kept = []

        def guarded(size: int) -> Array:
            kept.append(GuardedArray(np.full(-(-size // 64) * 16, np.nan, np.float32), "end"))
            return kept[-1].values.view(np.uint8)

        monkeypatch.setattr(native, "_aligned", guarded)
        found = [each[0] for each in run_built(built, [x[None] for x in inputs], edge).outputs]
        case.check(inputs, found if isinstance(case, Norm) else found[0])

    run_in_child([(f"{edge} of memory", lambda e=edge: at(e)) for edge in EDGES]).assert_clean()


@needs_vnni
def test_bits_do_not_depend_on_samples_or_threads() -> None:
    case = Attending(4, 8, 50, samples=3)
    inputs = case.inputs()
    (together,) = run(case.graph(), inputs)
    alone = replace(case, samples=1)
    for number in range(3):
        some = slice(50 * number, 50 * number + 50)
        (found,) = run(alone.graph(), [x[..., some].copy() for x in inputs])
        assert found.tobytes() == together[..., some].tobytes()
    for threads in (2, 3):
        lowered, count = divided(case.graph(), TARGET, threads, 0)
        assert count
        parts = run_built(built_model(lowered), [x[None] for x in inputs]).outputs[0][0]
        assert parts.tobytes() == together.tobytes()


def test_operators_refuse_what_there_is_no_code_for() -> None:
    with pytest.raises(InvalidInput, match="1 to 2"):
        NormalisedColumns(1e-5, ())
    with pytest.raises(InvalidInput, match="1 or more"):
        replace(Attending().op, heads=0)
    with pytest.raises(InvalidInput, match="by fours"):
        Attending(features=6).graph()
    for case in (Norm(3, 5), Attending()):
        with pytest.raises(CompileError, match="VNNI"):
            lower_model(case.graph(), ModelOptions(Target.named("avx2")))


HEADS, FEATURES, HIDDEN = 4, 32, 64


class Transformer(Qdq):
    """A layer of BERT's form as quantize_static writes it, of random weights at 85 % zeros."""

    def weights(self, inputs: int, outputs: int) -> str:
        shape = inputs, outputs
        numbers = self.random.integers(-127, 128, shape) * (self.random.random(shape) < 0.15)
        scales = self.constant(self.random.uniform(0.004, 0.006, outputs).astype(np.float32))
        zeros = self.constant(np.zeros(outputs, np.int8))
        integers = self.constant(numbers.astype(np.int8))
        return self("DequantizeLinear", integers, scales, zeros, axis=1)

    def vector(self, size: int, least: float = -1.0) -> str:
        return self.constant(self.random.uniform(least, 1, size).astype(np.float32))

    def linear(self, x: str, inputs: int, outputs: int, scale: float) -> str:
        y = self.steps(self("MatMul", x, self.weights(inputs, outputs)), scale, 120)
        return self("Add", self.vector(outputs), y)

    def norm(self, x: str) -> str:
        weight, bias = self.vector(FEATURES, 0.5), self.vector(FEATURES)
        return self("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-5)

    def shaped(self, x: str, *shape: int) -> str:
        return self("Reshape", x, self.constant(np.array(shape, np.int64)))

    def layer(self, length: int, is_by_rows: bool = False) -> str:
        x = self.norm("x")
        q, k, v = (self.linear(self.steps(x, 0.021, 126), FEATURES, FEATURES, 0.04) for _ in "qkv")
        if is_by_rows:  # as Gemm has them, which the next view then turns back
            q, k, v = (self.shaped(each, -1, FEATURES) for each in (q, k, v))
        split = [self.shaped(each, -1, length, HEADS, FEATURES // HEADS) for each in (q, k, v)]
        axes = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (self("Transpose", a, perm=p) for a, p in zip(split, axes, strict=True))
        q, k, v = (self.steps(each, 0.042, 121) for each in (q, k, v))
        scores = self.steps(self("MatMul", q, k), 0.2, 117)
        shares = self("Softmax", self("Div", scores, self.constant(np.float32(4))), axis=-1)
        mixed = self.steps(self("MatMul", self.steps(shares, 1 / 255), v), 0.03, 125)
        mixed = self.shaped(self("Transpose", mixed, perm=[0, 2, 1, 3]), -1, length, FEATURES)
        y = self.linear(self.steps(mixed, 0.03, 125), FEATURES, FEATURES, 0.03)
        x = self.norm(self("Add", self.steps(x, 0.021, 126), y))
        rows = self.shaped(x, -1, FEATURES) if is_by_rows else x
        y = self.steps(self.linear(self.steps(rows, 0.021, 126), FEATURES, HIDDEN, 0.05), 0.05, 120)
        inner = self("Erf", self("Div", y, self.constant(np.float32(np.sqrt(2)))))
        half, one = self.constant(np.float32(0.5)), self.constant(np.float32(1))
        y = self("Mul", self("Mul", y, self("Add", inner, one)), half)
        y = self.linear(self.steps(y, 0.025, 7), HIDDEN, FEATURES, 0.04)
        y = self.shaped(y, -1, length, FEATURES) if is_by_rows else y
        return self.norm(self("Add", x, y))

    def transformer(self, samples: int, length: int, is_by_rows: bool = False) -> Any:
        self.layer(length, is_by_rows)
        self.nodes[-1].output[0] = "y"
        shape = samples, length, FEATURES
        return graph_model(self.nodes, {"x": shape}, self.constants, 17, 3)


def turned(model: Any) -> Graph:
    layers = quantised_layers(import_onnx(model).graph())
    columns = byte_columns(layers, lambda node: True)
    return run_passes(byte_layers(columns, lambda node: True))


@pytest.mark.parametrize("is_by_rows", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_layer_stays_in_bytes(samples: int, is_by_rows: bool) -> None:
    model = Transformer().transformer(samples, 5, is_by_rows)
    graph = turned(model)
    assert set(kinds(graph)) <= {
        *("Convolution", "NormalisedColumns", "ByteAttention", "Reshape", "Permute")
    }
    ops = [node.op for node in graph.nodes if isinstance(node.op, Convolution)]
    assert len(ops) == 6 and all(op.rounding is not None for op in ops)
    assert sum(op.rounding.late for op in ops if op.rounding) == 4
    assert sum(op.rounding.table is not None for op in ops if op.rounding) == 1
    x = np.random.default_rng(5).standard_normal((samples, 5, FEATURES)).astype(np.float32)
    before = run_passes(quantised_layers(import_onnx(model).graph()))
    (found,), (wanted,) = graph.evaluate([x]), before.evaluate([x])
    assert np.abs(found - wanted).mean() < 1e-3


@needs_vnni
@pytest.mark.parametrize(("samples", "length"), [(1, 64), (1, 50), (3, 33), (2, 64)])
def test_it_computes_what_the_file_says(samples: int, length: int) -> None:
    model = Transformer().transformer(samples, length, samples > 1)
    fast = sparsejit.compile(model)
    kernels = [step.kernel for step in fast.parts.variants[0].steps]
    assert sum(kernel.startswith("quads") for kernel in kernels) == 6
    assert sum(kernel.startswith("byte-attention") for kernel in kernels) == 1
    assert sum(kernel.startswith("byte-norm") for kernel in kernels) == 3
    x = np.random.default_rng(5).standard_normal((samples, length, FEATURES)).astype(np.float32)
    (same,) = model.opset_import
    same.version = 19
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    off = np.abs(fast(x) - wanted)
    assert np.median(off) < 1e-4
    assert off.max() < 0.2


@pytest.mark.plans
def test_layers_of_many_tokens_are_turned_where_there_is_code() -> None:
    layers = quantised_layers(import_onnx(Transformer().transformer(1, 64)).graph())
    detected, plain = Target.detect(), Target.named("avx512").instruction_sets
    for sets, wanted in ((TARGET.instruction_sets, True), (plain, False)):
        target = replace(detected, isa="avx512", instruction_sets=sets)
        graph = with_byte_layers(layers, ModelOptions(target))
        assert any(isinstance(node.op, ByteAttention) for node in graph.nodes) is wanted
