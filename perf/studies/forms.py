"""Make `x86/forms.json`: the forms of instructions that kernels and models need.

    python -m sparsejit.perf.studies.forms                                  (some minutes)

Compiles random kernels, the zoo and the voice at every level of instruction sets that this machine
runs, and adds the forms that PeachPy was asked for. A form that the file lacks is learned when it
is needed.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
from sklearn.ensemble import RandomForestClassifier

import sparsejit
from sparsejit.errors import SparseJitError
from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind, RoundedResult
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.machine.target import Target
from sparsejit.perf.zoo.zoo_models import SMALL_ZOO, ZOO, pruned
from sparsejit.planner.calibration import calibrate
from sparsejit.selftest.cases import derive, levels
from sparsejit.selftest.examination import compile_case
from sparsejit.x86 import form_table
from sparsejit.x86.instructions import forms_used
from sparsejit.x86.shipping import ship

_KERNELS = 1500
_DENSITY = 0.1
_DTYPES = ("float32", "bfloat16", "int8")
_SHAPES = ((16, 16), (64, 100), (300, 257), (1000, 500))


def compile_many() -> None:
    """Compile kernels, models and voices that together need most of the forms."""
    for number in range(_KERNELS):
        with suppress(SparseJitError):  # a vast case may be refused
            compile_case(derive(1, number))
    for name, level, dtype, batch in product(ZOO, levels(), _DTYPES, (1, 16)):
        if name in SMALL_ZOO or batch == 1:
            model = ZOO[name]
            inputs = model.inputs(batch)
            sparsejit.compile(pruned(model, _DENSITY), inputs, target=level, dtype=dtype)
    for name, level in product(ZOO, levels()):
        sparsejit.compile(ZOO[name].build(), ZOO[name].inputs(1), target=level)
    for level, dtype in product(levels(), ("float32", "bfloat16", "float16", "int8")):
        sparsejit.WaveRNN.from_pretrained(target=level, dtype=dtype)
        compile_grid(level, dtype)


def compile_grid(level: str, dtype: str) -> None:
    """Compile matrices of a few shapes and densities, with the kernels that the planner chooses."""
    numbers = np.random.default_rng(0)
    grid = product(_SHAPES, (0.02, 0.1, 0.5, 1.0), (1, 5, 16, 64), (None, "tanh", "relu"))
    for shape, density, batch, activation in grid:
        weights = numbers.standard_normal(shape).astype(np.float32)
        weights *= numbers.random(shape) < density
        for layout in ("batch-major", "feature-major")[: 1 + (batch > 1)]:
            sparsejit.compile_matrix(
                weights,
                activation=activation,
                batch=batch,
                dtype=dtype,
                target=level,
                layout=layout,
            )


def compile_bytes() -> None:
    """Compile convolutions from int8 to int8, with every epilogue, and pooling."""
    level = Target.named("avx512")
    target = replace(level, instruction_sets=level.instruction_sets | {"avx512_vnni"})
    x_steps, own, result = (Quantisation(0.02, shift) for shift in (-128, 3, 5))
    pool = Pooling(PoolingKind.MAX, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1))
    rounded = RoundedResult(result), RoundedResult(result, own, x_steps)
    for size, kernel, stride, ends, scale in product(
        (4, 7, 28, 56, 112), (1, 3, 7), (1, 2), rounded, (1e-30, 1.0)
    ):
        build = GraphBuilder()
        weights = np.ones((5, 3, kernel, kernel), np.float32)
        ops = (
            Convolution(
                *((stride,) * 2, (kernel // 2,) * 2, (1, 1)),
                activation=Activation.RELU6,
                dtype=DType.INT8,
                x_steps=replace(x_steps, scale=x_steps.scale / scale),
                rounding=ends,
            ),
            pool,
        )
        values = [build.input(TensorType((1, 3, size, size)), Origin("x"))]
        values += [build.constant(each, Origin("w")) for each in (weights, weights[:, 0, 0, 0])]
        if ends.own is not None:
            values.append(build.input(ops[0].infer(*(v.type for v in values))[0], Origin("added")))
        y = build.one(ops[0], *values, origin=Origin("y"))
        graph = build.finish([build.one(pool, y, origin=Origin("pool"))])
        build_model(lower_model(graph, ModelOptions(target)), "bytes")


def run_some() -> None:
    """Call and time kernels, and calibrate: these need the forms of the runtime's own code."""
    weights = np.eye(16, 24, dtype=np.float32)
    for batch in (1, 5):
        kernel = sparsejit.compile_matrix(weights, batch=batch)
        x = np.zeros((24,) if batch == 1 else (batch, 24), np.float32)
        kernel.bind(x, kernel(x))()
    for threads in (1, 2):
        name = next(iter(SMALL_ZOO))
        inputs = SMALL_ZOO[name].inputs(8)
        model = sparsejit.compile(SMALL_ZOO[name].build(), inputs, threads=threads)
        outputs = model.run(inputs)
        model.bind([np.asarray(x) for x in inputs], outputs)()
        model.explain(measure=True)
    forest = RandomForestClassifier(4, random_state=0).fit(np.eye(8), np.arange(8))
    sparsejit.compile(forest).predict(np.eye(8, dtype=np.float32))
    calibrate(Target.detect())


def main() -> None:
    """Write the table with its old forms and the new ones."""
    warnings.simplefilter("ignore")
    run_some()
    compile_bytes()
    compile_many()
    print(f"{ship(form.key for form in forms_used())} forms in {form_table.FILE}")


if __name__ == "__main__":
    main()
