"""Quantised transformers as ONNX has them: what stays in bytes, and what it computes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator
from sketch import kinds
from test_byte_convolutions import NARROW, TARGET, at_both_levels
from test_byte_depthwise import WITH_VBMI, needs_vbmi
from test_byte_layers import Qdq
from test_onnx import graph_model

import sparsejit
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.int8_columns import ByteAttention
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.int8_choice import with_byte_layers
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.int8_columns import byte_columns
from sparsejit.passes.int8_layers import byte_layers
from sparsejit.passes.quantised_layers import quantised_layers

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

    def layer(self, length: int, is_by_rows: bool = False, mask: str = "") -> str:
        x = self.norm("x")
        q, k, v = (self.linear(self.steps(x, 0.021, 126), FEATURES, FEATURES, 0.04) for _ in "qkv")
        if is_by_rows:  # as Gemm has them, which the next view then turns back
            q, k, v = (self.shaped(each, -1, FEATURES) for each in (q, k, v))
        split = [self.shaped(each, -1, length, HEADS, FEATURES // HEADS) for each in (q, k, v)]
        axes = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (self("Transpose", a, perm=p) for a, p in zip(split, axes, strict=True))
        q, k, v = (self.steps(each, 0.042, 121) for each in (q, k, v))
        scores = self.steps(self("MatMul", q, k), 0.2, 117)
        scores = self("Div", scores, self.constant(np.float32(4)))
        shares = self("Softmax", self("Add", scores, mask) if mask else scores, axis=-1)
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


    def masked(self, samples: int, length: int) -> Any:
        """As transformers writes a mask: by key, seen by all queries, 0 or the least number."""
        ones = self.constant(np.ones((1, 1, length, 1), np.bool_))
        there = self("And", ones, self("Greater", "mask", self.constant(np.float32(0.5))))
        least = self.constant(np.array(np.finfo(np.float32).min))
        self.layer(length, mask=self("Where", there, self.constant(np.float32(0)), least))
        self.nodes[-1].output[0] = "y"
        shapes = {"x": (samples, length, FEATURES), "mask": (samples, 1, 1, length)}
        return graph_model(self.nodes, shapes, self.constants, 17, 3)


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


@at_both_levels
@pytest.mark.parametrize(("samples", "length"), [(1, 64), (1, 50), (3, 33), (2, 64)])
def test_it_computes_what_the_file_says(samples: int, length: int, target: Target) -> None:
    model = Transformer().transformer(samples, length, samples > 1)
    fast = sparsejit.compile(model, target=target)
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


@needs_vbmi
@pytest.mark.parametrize(("samples", "length"), [(1, 64), (3, 33)])
def test_every_bit_is_as_with_avx512(samples: int, length: int) -> None:
    model = Transformer().transformer(samples, length)
    x = np.random.default_rng(5).standard_normal((samples, length, FEATURES)).astype(np.float32)
    found, wanted = (
        sparsejit.compile(model, target=target)(x) for target in (NARROW, WITH_VBMI)
    )
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.plans
def test_layers_of_many_tokens_are_turned_where_there_is_code() -> None:
    layers = quantised_layers(import_onnx(Transformer().transformer(1, 64)).graph())
    detected, plain = Target.detect(), Target.named("avx512").instruction_sets
    for isa, sets, wanted in (
        ("avx512", TARGET.instruction_sets, True),
        ("avx512", plain, False),
        ("avx2", NARROW.instruction_sets, True),
    ):
        target = replace(detected, isa=isa, instruction_sets=sets)
        graph = with_byte_layers(layers, ModelOptions(target))
        assert any(isinstance(node.op, ByteAttention) for node in graph.nodes) is wanted


@at_both_levels
@pytest.mark.parametrize(("samples", "length"), [(1, 64), (2, 40)])
def test_a_mask_by_key_stays_with_attention_in_bytes(
    samples: int, length: int, target: Target
) -> None:
    model = Transformer().masked(samples, length)
    fast = sparsejit.compile(model, target=target)
    kernels = [step.kernel for step in fast.parts.variants[0].steps]
    assert sum(kernel.startswith("byte-attention") for kernel in kernels) == 1
    random = np.random.default_rng(5)
    x = random.standard_normal((samples, length, FEATURES)).astype(np.float32)
    mask = (np.arange(length) < length // 4) + np.zeros((samples, 1, 1, length))
    given = {"x": x, "mask": mask.astype(np.float32)}
    (same,) = model.opset_import
    same.version = 19
    (wanted,) = ReferenceEvaluator(model).run(None, given)
    off = np.abs(fast(*given.values()) - wanted)
    assert np.median(off) < 1e-4
    assert off.max() < 0.2
    unmasked = fast(x, np.ones_like(given["mask"]))
    assert np.median(np.abs(unmasked - wanted)) > 5e-3
