"""Times of a pruned model's layers, compiled: predicted and measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.frontends.layers import weights_and_bias
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.cost import lane_use
from sparsejit.prune.calibration import call
from sparsejit.prune.convolutions import CompiledConvolution, convolutions_in_model
from sparsejit.prune.in_model import CompiledLayer, us_in_turn
from sparsejit.prune.report import LayerTime, SparsityReport
from sparsejit.runtime.native_timing import median_of_least, time_copies

PLACES = 5
# A share of the sum of magnitudes. An index in a weight's lowest bits changes it by 2^-17 at most.
TOLERANCE = 2.0**-16
IMAGE_TOLERANCES = {
    DType.FLOAT32: TOLERANCE,
    DType.FLOAT16: 2.0**-11,
    DType.BFLOAT16: 2.0**-8,
    DType.INT8: 2.0**-6,
}


def time_layers(
    model: nn.Module,
    report: SparsityReport,
    dtype: str = "float32",
    progress: Callable[[str], None] = lambda name: None,
    example_inputs: Any = None,
    run: Callable[[nn.Module, Any], Any] = call,
) -> SparsityReport:
    """The report with the predicted and measured times of each weight on this machine.

    >>> print(time_layers(model, pruner.finalize()))

    Args:
        model: the torch module that was pruned
        report: the result of `Pruner.finalize`
        dtype: how compiled weights are stored; a weight counts as (out, everything else)
        progress: a function that gets the name of each weight before it is timed
        example_inputs: as for `latency_table`; without them a convolution is timed as the product
            for one position
        run: as for `latency_table`

    Raises:
        InvalidInput: the model lacks the report's weights
        CompileError: a kernel's output differs from its reference by more than rounding
    """
    parameters = {layer.name: _parameter(model, layer.name) for layer in report.layers}
    found = {}
    if example_inputs is not None:
        found = convolutions_in_model(model, parameters, example_inputs, run)
    layers, kernels = [], list[CompiledLayer]()
    for layer in report.layers:
        progress(layer.name)
        parameter = parameters[layer.name]
        if layer.name in found:
            calls = found[layer.name].compiled(parameter.flatten(1).float(), dtype)
            time = time_convolution(calls)
            kernels += calls
        else:
            weight, _ = weights_and_bias(parameter)
            kernel = compile_matrix(weight, dtype=dtype)
            time = time_kernel(kernel, SparseMatrix(weight))
            kernels.append(kernel)
        layers.append(replace(layer, time=time))
    progress("all in turn")
    return SparsityReport(layers, us_in_turn(kernels))


def _parameter(model: nn.Module, name: str) -> nn.Parameter:
    try:
        return model.get_parameter(name)
    except AttributeError as error:
        raise InvalidInput(
            f"the model has no weight {name!r}, which the report names; give its own report"
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
        effective_gflops=2 * matrix.size / measured_ns,
        real_gflops=2 * matrix.nnz / measured_ns,
    )


def time_convolution(calls: Sequence[CompiledConvolution]) -> LayerTime:
    """Check and time all calls of a convolution, an image each, on one core, by themselves."""
    for kernel in dict.fromkeys(calls):
        _check_image(kernel)
    weights, uses = calls[0].weights, sum(kernel.uses for kernel in calls)
    measured_ns = 1e3 * us_in_turn(calls, PLACES)
    return LayerTime(
        kernel=", ".join(dict.fromkeys(kernel.strategy for kernel in calls)),
        lane_use=None,
        predicted_ns=sum(kernel.price[1] for kernel in calls),
        measured_ns=measured_ns,
        effective_gflops=2 * weights.size * uses / measured_ns,
        real_gflops=2 * np.count_nonzero(weights) * uses / measured_ns,
    )


def _check_image(kernel: CompiledConvolution) -> None:
    """Check a kernel against its graph in float64, which does not round weights."""
    graph, weights, op = kernel.variant.graph, kernel.weights, kernel.op
    shape = graph.inputs[0].shape
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (y,), (wanted,) = kernel.variant.call.run(x), graph.evaluate([x])
    error = np.abs(y - wanted).max()
    axes = (0, *range(2, weights.ndim)) if op.transposed else tuple(range(1, weights.ndim))
    most = np.abs(weights).sum(axis=axes).max() * np.abs(x).max()
    if not error <= IMAGE_TOLERANCES[op.dtype] * most:  # NaN too
        raise CompileError(
            f"{kernel.strategy} is off by {error:.3g} against its float64 reference: "
            "its time would mean nothing; please report this"
        )


def _check(kernel: Kernel, matrix: SparseMatrix, x: np.ndarray) -> None:
    error = np.abs(kernel(x) - reference.product(kernel.spec, matrix, x)).max()
    each = MatVec(*kernel.shape)
    allowed = TOLERANCE * reference.error_scale(each, matrix, x).max()
    if not error <= allowed:  # NaN too
        raise CompileError(
            f"{kernel.plan.chosen.template.name} is off by {error:.3g} against its float64 "
            "reference: "
            "its time would mean nothing; please report this"
        )
