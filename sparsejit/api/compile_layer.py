"""`compile_matrix`: arguments checked, a kernel chosen, its code written."""

import os
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from typing import Any

from sparsejit.api.kernel import Kernel
from sparsejit.api.options import KernelSource, Options
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.frontends.files import read_layer
from sparsejit.frontends.layers import weights_and_bias
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, Layout
from sparsejit.lowering.context import Progress, told
from sparsejit.lowering.planned_code import emit_split
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.planner.layer_planner import LayerPlanner
from sparsejit.planner.plan import AUTO
from sparsejit.planner.split import parse_threads
from sparsejit.runtime.program import build, debug_level
from sparsejit.runtime.workers import available_cores


def compile_matrix(
    weights: Any,
    bias: Any = None,
    *,
    activation: str | Activation | None = None,
    batch: int = 1,
    dtype: str = "float32",
    strategy: str = AUTO,
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    layout: str | Layout = Layout.BATCH_MAJOR,
    input_scale: float | None = None,
    pitch: int | None = None,
    progress: Progress | None = None,
) -> Kernel:
    """Compile y = activation(W x + bias) for weights of shape (out_features, in_features).

    weights, bias: arrays or tensors of any real dtype, dense or sparse (torch, scipy); zeros cost
        nothing. Weights of a convolution count as (out, rest). Or a torch.nn.Linear or ungrouped
        convolution, a state dict of one layer, masks of torch.nn.utils.prune included, or the path
        of a file with one; these bring a bias of their own, unless one is given.
    activation: "none", "relu", "relu6", "tanh" or "sigmoid".
    batch: above 1, x is (batch, in_features) and y (batch, out_features), or where `layout` is
        "feature-major", which is faster, (in_features, batch) and (out_features, batch).
    dtype: how weights are stored. "float32", or "bfloat16" or "float16", all else being float32;
        or "int8", which also quantises x, by `input_scale` or else by its largest magnitude / 127,
        and sums integers.
    strategy: "auto", or a family of kernels. {families}
        Not all exist for every dtype and target.
    target: "native", a level ("avx2", "avx512") or a Target.
    threads: how many may share the rows, or the columns of a batch, where that pays, or "auto" for
        one a core.
    tune: time the most promising kernels here, or recall earlier times, and take the fastest.
    exact: only kernels that keep every weight as `dtype` holds it; others may keep an index in a
        weight's lowest bits, which changes it by at most 2^-17 of itself (`explain` says so).
    pitch: the length of the rows of a feature-major x and y, padding included (see `MatMul`). An
        odd multiple of 16, not less than the batch, is fastest: no copies, no masks.
    progress: is told each stage as it begins and the share of the work done by then, 0 to 1.

    Raises InvalidInput for arguments that make no sense and UnsupportedTarget for a target this
    machine cannot run.
    """
    layer = partial(Options, activation=activation, batch=batch, dtype=dtype, layout=layout)
    kernel = partial(layer, strategy=strategy, threads=threads, tune=tune, exact=exact)
    options = kernel(target=target, input_scale=input_scale, pitch=pitch)
    return _compiled(weights, bias, options, told(progress))


def _families() -> str:
    """Those of the tables, in a few lines of the docstring above."""
    tables = (("For one x", MATVEC_TEMPLATES), ("For a batch", MATMUL_TEMPLATES))
    parts = (f"{when}: {', '.join(dict.fromkeys(row.family for row in t))}." for when, t in tables)
    lines = textwrap.wrap(" ".join(parts), 92)
    return "\n        ".join(["", *lines]).rstrip()


if compile_matrix.__doc__:  # there is none under python -OO
    compile_matrix.__doc__ = compile_matrix.__doc__.replace(" {families}", _families())


def compile_source(source: KernelSource) -> Kernel:
    """The kernel that a source was kept of, for this machine."""
    return _compiled(source.weights, source.bias, source.options)


def _compiled(
    weights: Any, bias: Any, options: Options, progress: Progress = lambda stage, share: None
) -> Kernel:
    started = time.perf_counter()
    progress("reading the weights", 0.0)
    source = read_layer(weights) if isinstance(weights, str | os.PathLike) else weights
    array, own_bias = weights_and_bias(source, bias)
    matrix = SparseMatrix(array)
    spec = options.layer(matrix, own_bias)
    target = calibrated(Target.resolve(options.target))
    target.check_allowed(_needed_sets(options.strategy) - target.instruction_sets)
    threads = parse_threads(options.threads)
    planner = LayerPlanner(target, options.strategy, options.exact, options.tune)
    progress("choosing a kernel", 0.1)
    choice = planner.plan(spec, matrix)
    division = planner.split(spec, matrix, choice, threads)
    if options.threads == AUTO and available_cores() == 1:
        alone = "'auto' is one a core; this process may use one core"
        division = replace(division, reason=alone)
    choice = choice.record()  # a part has what was lowered
    progress("writing the code", 0.8)
    program = build(choice.chosen.template.name, target, partial(emit_split, split=division))
    progress("done", 1.0)
    kept = KernelSource(matrix.held, spec.bias, options)
    compile_ms = 1e3 * (time.perf_counter() - started)
    division = division.record()
    kernel = Kernel(spec, matrix, choice, division, program, target, compile_ms, kept)
    if debug_level() >= 1:
        print(f"sparsejit: {kernel.explain()}", file=sys.stderr)
    return kernel


def _needed_sets(strategy: str) -> frozenset[str]:
    """All instruction sets that batch kernels of a family need, beyond those of their level."""
    rows = (row for row in MATMUL_TEMPLATES if row.family == strategy)
    return frozenset[str]().union(*(row.requires for row in rows))
