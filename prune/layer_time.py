"""What the layers of a pruned model cost, compiled: predicted and measured."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import nn

from sparsejit.api import Kernel, compile_matrix
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.frontends.layers import weights_and_bias
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.machine.target import Target
from sparsejit.planner.cost import lane_use
from sparsejit.prune.in_model import us_in_turn
from sparsejit.prune.report import LayerTime, SparsityReport
from sparsejit.runtime.native_timing import median_of_least, time_copies

PLACES = 5
# Of the sum of magnitudes. An index in a weight's lowest bits changes it by 2^-17 at most.
TOLERANCE = 2.0**-16


def time_layers(
    model: nn.Module,
    report: SparsityReport,
    dtype: str = "float32",
    progress: Callable[[str], None] = lambda name: None,
) -> SparsityReport:
    """The report with what each weight costs here; `progress` is told the name of each first.

    >>> print(time_layers(model, pruner.finalize()))

    dtype: of the compiled weights. A weight counts as (out, everything else).
    Raises InvalidInput for a model without the report's weights, and CompileError if a kernel's
    output is not its oracle's, but for rounding.
    """
    layers, kernels = [], []
    for layer in report.layers:
        progress(layer.name)
        weight, _ = weights_and_bias(_parameter(model, layer.name))
        kernels.append(compile_matrix(weight, dtype=dtype))
        layers.append(replace(layer, time=time_kernel(kernels[-1], SparseMatrix(weight))))
    progress("all in turn")
    return SparsityReport(layers, us_in_turn(kernels))


def _parameter(model: nn.Module, name: str) -> nn.Parameter:
    try:
        return model.get_parameter(name)
    except AttributeError as error:
        raise InvalidInput(
            f"the model has no weight {name!r}, which the report names; give the model it is of"
        ) from error


def time_kernel(kernel: Kernel, matrix: SparseMatrix) -> LayerTime:
    """Check and time a kernel for a vector on one core, by itself."""
    x = np.random.default_rng(0).standard_normal(matrix.in_features).astype(np.float32)
    _check(kernel, matrix, x)
    times = time_copies(kernel.image.data, x, kernel.spec.y_shape, PLACES, samples=100)
    measured_ns = median_of_least(times)
    cost = kernel.plan.chosen.cost
    use = lane_use(kernel.strategy, matrix, cost.steps, Target.detect())
    return LayerTime(
        kernel=kernel.strategy,
        lane_use=min(use, 1.0),  # the steps are an estimate, at times a few too few
        predicted_ns=cost.ns,
        measured_ns=measured_ns,
        effective_gflops=2 * matrix.dense.size / measured_ns,
        real_gflops=2 * matrix.nnz / measured_ns,
    )


def _check(kernel: Kernel, matrix: SparseMatrix, x: np.ndarray) -> None:
    error = np.abs(kernel(x) - reference.product(kernel.spec, matrix, x)).max()
    allowed = TOLERANCE * (np.abs(matrix.dense) @ np.abs(x)).max()
    if not error <= allowed:  # NaN too
        raise CompileError(
            f"{kernel.plan.chosen.template.name} is off by {error:.3g} against its oracle: "
            "its time would mean nothing; please report this"
        )
