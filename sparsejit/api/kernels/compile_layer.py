"""`compile_matrix`: checks arguments, chooses a kernel and writes its code."""

import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

from sparsejit.api.compiled import Loader
from sparsejit.api.kernels.kernel import Kernel, read_kernel
from sparsejit.api.options import KernelSource, Options
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.errors import called
from sparsejit.frontends.files import read_layer
from sparsejit.frontends.layers import weights_and_bias
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, Layout
from sparsejit.lowering.context import Progress, progress_function
from sparsejit.lowering.products.product_parts import emit_split
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.planner.kernel_choice import AUTO
from sparsejit.planner.layer_planner import LayerPlanner
from sparsejit.planner.split import parse_threads
from sparsejit.runtime.program import build, debug_level
from sparsejit.runtime.workers import available_cores


@called("compile_matrix")
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
    """Compile y = activation(W x + bias) for one weight matrix.

    Zeros of the weights cost nothing. Weights of a convolution count as (out, everything else).

    Args:
        weights: (out_features, in_features), an array or tensor of any real dtype, dense or sparse
            (numpy, torch, scipy). Or a torch.nn.Linear, an ungrouped convolution, a state dict of
            one layer (masks of torch.nn.utils.prune included), or the path of a file with one.
        bias: (out_features,). By default the bias of the layer, if it has one.
        activation: "none", "relu", "relu6", "tanh" or "sigmoid".
        batch: samples a call. Above 1, x is (batch, in_features) and y is (batch, out_features).
        dtype: how weights are stored: "float32"; "bfloat16" or "float16", with float32 arithmetic
            except in dense-pairs and halves; or "int8", which also quantises x and sums whole
            numbers.
        strategy: "auto", or a family of kernels. For one x: broadcast, broadcast-loop,
            broadcast-mixed, broadcast-4x4, broadcast-4x1, dense, dot, permute, permute-inline,
            immediate, lane16, lookup, int8-permute, int8-single, int8-staged, int8-dense,
            int8-pairs. For a batch: panels, csr, quads, dense, dense-pairs (bfloat16), halves
            (float16), rows, mixed, int8-dense, int8-tiles. Not all exist for every dtype and
            target.
        target: "native", a level ("avx2", "avx512") or a `Target`.
        threads: the number of threads that may share the rows, or the columns of a batch; "auto" is
            one a core. They are used where that is predicted to save a quarter of the time.
        tune: time the most promising kernels here, or recall earlier times, and take the fastest.
        exact: use only kernels that keep every weight as `dtype` holds it. Others may keep an index
            in a weight's lowest bits, which changes it by at most 2^-17 of itself.
        layout: "batch-major", or "feature-major", which is faster: x is then (in_features, batch)
            and y is (out_features, batch).
        input_scale: for "int8", the step by which x is quantised. By default the largest magnitude
            of x at each call, over 127.
        pitch: the length of the rows of a feature-major x and y, padding included. An odd multiple
            of 16, not less than the batch, is fastest: it needs no copies and no masks.
        progress: a function that is called at the start of each stage, with its name and the share
            of the work done, 0 to 1.

    Returns:
        The compiled layer, a callable.

    Raises:
        InvalidInput: an argument has a value that makes no sense
        UnsupportedTarget: this machine cannot run the target
    """
    layer = partial(Options, activation=activation, batch=batch, dtype=dtype, layout=layout)
    kernel = partial(layer, strategy=strategy, threads=threads, tune=tune, exact=exact)
    options = kernel(target=target, input_scale=input_scale, pitch=pitch)
    return _compiled(weights, bias, options, progress_function(progress))


def compile_source(source: KernelSource) -> Kernel:
    """Compile a kernel's source for this machine."""
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
    choice = choice.record()  # without the lowered code: the parts of `division` have it
    progress("writing the code", 0.8)
    prefetch_distance = target.prefetch_distance(choice.chosen.cost.all_bytes)
    emit = partial(emit_split, split=division)
    program = build(choice.chosen.template.name, target, emit, prefetch_distance)
    progress("done", 1.0)
    kept = KernelSource(matrix.held, spec.bias, options)
    compile_ms = 1e3 * (time.perf_counter() - started)
    division = division.record()
    kernel = Kernel(spec, matrix, choice, division, program, target, compile_ms, kept)
    if debug_level() >= 1:
        print(f"sparsejit: {kernel.explain()}", file=sys.stderr)
    return kernel


def _needed_sets(strategy: str) -> frozenset[str]:
    """Return the instruction sets that batch kernels of a family need beyond their level's."""
    rows = (row for row in MATMUL_TEMPLATES if row.family == strategy)
    return frozenset[str]().union(*(row.requires for row in rows))


LOADER = Loader(read_kernel, compile_source)
