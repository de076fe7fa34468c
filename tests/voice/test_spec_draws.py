"""Draws of samples, by the formulas of the outputs, from numbers of the counted stream."""

import numpy as np
import pytest

from sparsejit.ir import reference
from sparsejit.ir.values import Array, Element, TensorType, float_type
from sparsejit.lowering.sample_loop import Role
from sparsejit.perf.voice.voice_networks import GraphTurns
from sparsejit.voice.spec.sample_graph import SampleDraw, SampleGraph, SampleWriter, UniformNumbers
from sparsejit.voice.spec.sample_loop import LoopArrays
from sparsejit.voice.spec.voice_spec import (
    BinaryTree,
    Categorical,
    Gaussian,
    MixtureOfLogistics,
    SampleOutput,
)

SEED, TEMPERATURE, SAMPLES = 11, 0.7, 400


def draws_of(output: SampleOutput) -> SampleGraph:
    """A graph that is nothing but the draw of parameters that are given."""
    make, index = SampleWriter(SAMPLES), TensorType((), Element.INT64)
    seed = make.given(Role.CALL, "seed", index)
    parameters = make.given(Role.SAMPLE, "parameters", float_type((output.parameters,)))
    uniform = UniformNumbers(make, seed, make.state("counter", np.array(0, np.int64)))
    choice = SampleDraw(make, TEMPERATURE, uniform).of(output, parameters)  # type: ignore[arg-type]
    make.give(choice)
    make.keep(uniform.counter)
    return make.loop()


def softmax(logits: Array) -> Array:
    weights = np.exp((logits - logits.max()) / TEMPERATURE)
    return weights / weights.sum()


def chosen(logits: Array, uniform: float) -> int:
    return int((np.cumsum(softmax(logits)) <= uniform).sum())


def logistic(parameters: Array, numbers: Array) -> float:
    logits, means, scales = parameters.reshape(3, -1)
    k, u = chosen(logits, numbers[0]), 1e-5 + (1 - 2e-5) * numbers[1]
    spread = TEMPERATURE * np.exp(max(scales[k], -2.5))
    return float(np.clip(means[k] + spread * np.log(u / (1 - u)), -1, 1))


def normal(parameters: Array, numbers: Array) -> float:
    z = np.sqrt(-2 * np.log(1 - numbers[0])) * np.cos(2 * np.pi * numbers[1])
    return float(np.clip(parameters[0] + TEMPERATURE * np.exp(max(parameters[1], -3)) * z, -1, 1))


def leaf(parameters: Array, numbers: Array) -> float:
    node = 1
    for number in numbers:
        node = 2 * node + (number < reference.sigmoid(parameters[node] / TEMPERATURE))
    return node - len(parameters)


def of_softmax(parameters: Array, numbers: Array) -> float:
    return chosen(parameters, numbers[0])


OUTPUTS = [
    (Categorical(32), of_softmax, 1),
    (MixtureOfLogistics(4, -2.5), logistic, 2),
    (Gaussian(-3), normal, 2),
    (BinaryTree(5), leaf, 5),
]


@pytest.mark.parametrize(("output", "formula", "numbers"), OUTPUTS)
def test_a_choice_is_what_its_formula_says(output, formula, numbers):  # type: ignore[no-untyped-def]
    parameters = np.random.default_rng(4).normal(0, 1.5, (SAMPLES, output.parameters))
    turns = GraphTurns(draws_of(output), LoopArrays(1, (), (parameters,)), SEED)
    counters = np.arange(SAMPLES * numbers, dtype=np.uint64).reshape(SAMPLES, numbers)
    stream = reference.random_uniform(SEED, counters).astype(np.float64)
    for row, drawn_by in zip(parameters, stream, strict=True):
        (choice,), margin = turns.next()
        assert abs(choice - formula(row, drawn_by)) < 1e-5 or margin < 1e-6
