"""Pruning a trained model without training and without labels, layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor, nn

from sparsejit.errors import InvalidInput
from sparsejit.prune.allocation import Amount, amounts_by_gate, check_amount, choose_least
from sparsejit.prune.calibration import Calibration, LayerCalibration, check_calibration
from sparsejit.prune.patterns import BlockPattern, NofM, Pattern, choose_pattern, on_weight
from sparsejit.prune.report import SparsityReport, describe_layer
from sparsejit.prune.second_order import choose_by_second_order, damped, refit_survivors
from sparsejit.prune.targets import count_gates

# Returns a layer's pruned weights, float64 (out, in), for the share that each of its gates loses,
# in a pattern that fits the weight's shape.
_Method = Callable[[LayerCalibration, Pattern, Sequence[float]], Tensor]


def prune_wanda(
    model: nn.Module,
    calibration: Calibration,
    amount: Amount,
    pattern: str | Pattern = "unstructured",
    per_gate: bool | Mapping[str, int] = True,
) -> SparsityReport:
    """Zero the weights of least |w| * norm of the input; the others stay as they are.

    Sun et al. 2024, "A simple and effective pruning approach for large language models".
    Unstructured, every output gives up round(amount * in_features) weights, as in the paper; in
    blocks and lanes every gate gives up round(amount * blocks).

    Args:
        model: a torch module, pruned in place
        calibration: the result of `calibrate` for it
        amount: as for `Pruner`, one share or one for each glob or gate
        pattern: as for `Pruner`
        per_gate: as for `Pruner`

    Raises:
        InvalidInput: amount, pattern or per_gate do not fit the weights, or these are not as they
            were calibrated
    """
    chosen = choose_pattern(pattern)

    def method(layer: LayerCalibration, lying: Pattern, amounts: Sequence[float]) -> Tensor:
        if lying == BlockPattern(1, 1):
            rows = len(layer.weight) // len(amounts)
            amounts = [amount for amount in amounts for _ in range(rows)]
        importance = layer.weight.square() * layer.gram.diagonal()
        counts = _counts(layer.weight, lying, amounts)
        return layer.weight.masked_fill(choose_least(importance, lying, counts), 0)

    return _prune(model, calibration, amount, chosen, per_gate, method)


def prune_second_order(
    model: nn.Module,
    calibration: Calibration,
    amount: Amount,
    pattern: str | Pattern = "unstructured",
    per_gate: bool | Mapping[str, int] = True,
    damping: float = 0.01,
) -> SparsityReport:
    """Zero the weights that outputs miss least, and refit the others to make up for them.

    Every gate gives up round(amount * blocks). Three choices are refitted, and the one of least
    error on the calibration inputs is taken: by optimal brain surgery (see `second_order.py`) over
    the whole gate, by the same with an even share for every output (or group of outputs that share
    blocks), and by magnitude. So the error is never above the error of magnitude pruning. Weights
    that are zero already compete like others.

    Args:
        model: a torch module, pruned in place
        calibration: the result of `calibrate` for it
        amount: as for `Pruner`, one share or one for each glob or gate
        pattern: as for `Pruner`
        per_gate: as for `Pruner`
        damping: share of the inputs' mean square that is added to each, for inputs that are few or
            linearly dependent

    Raises:
        InvalidInput: amount, pattern or per_gate do not fit the weights, the inputs do not
            determine these, or they are not as they were calibrated
    """
    chosen = choose_pattern(pattern)

    def method(layer: LayerCalibration, lying: Pattern, amounts: Sequence[float]) -> Tensor:
        hessian = _hessian(layer, damping)
        # Weights that no input reaches cost nothing, though damping gives them a cost.
        heard = layer.weight.masked_fill(layer.gram.diagonal() == 0, 0)
        counts = _counts(layer.weight, lying, amounts)
        even = _even_counts(layer.weight, lying, counts)
        candidates = [
            choose_by_second_order(heard, hessian, lying, counts).pruned,
            choose_by_second_order(heard, hessian, lying, even).pruned,
            choose_least(layer.weight.square(), lying, counts),
        ]
        target = layer.weight @ hessian
        refitted = [refit_survivors(target, hessian, pruned) for pruned in candidates]
        return min(refitted, key=layer.error)

    return _prune(model, calibration, amount, chosen, per_gate, method)


@torch.no_grad()
def refit(model: nn.Module, calibration: Calibration, damping: float = 0.01) -> None:
    """Set the weights that are not zero to the least squares fit of the calibrated outputs.

    For any mask: calibrate the dense model, prune it in any way, then call this. The error on the
    calibration inputs is the least that these zeros allow, except for `damping`.

    Args:
        model: a torch module, refitted in place
        calibration: the result of `calibrate` before it was pruned
        damping: as for `prune_second_order`

    Raises:
        InvalidInput: the inputs do not determine the weights, or these are not as they were
            calibrated
    """
    check_calibration(model, calibration)
    for name, layer in calibration.items():
        weight = model.get_parameter(name)
        pruned = weight.flatten(1) == 0
        hessian = _hessian(layer, damping)
        _assign(weight, layer, refit_survivors(layer.weight @ hessian, hessian, pruned))


def _prune(
    model: nn.Module,
    calibration: Calibration,
    amount: Amount,
    pattern: Pattern,
    per_gate: bool | Mapping[str, int],
    method: _Method,
) -> SparsityReport:
    check_amount(amount, pattern)
    check_calibration(model, calibration)
    gates = {name: count_gates(model, name, per_gate) for name in calibration}
    everywhere = amount if isinstance(amount, Mapping) else {"*": amount}
    layers = []
    for name, amounts in amounts_by_gate(everywhere, gates).items():
        weight = model.get_parameter(name)
        lying = on_weight(pattern, weight.shape)
        layer = calibration[name]
        _assign(weight, layer, method(layer, lying, amounts))
        layers.append(describe_layer(name, weight.detach(), pattern, gates[name]))
    return SparsityReport(layers)


def _counts(weight: Tensor, pattern: Pattern, amounts: Sequence[float]) -> list[int]:
    """Blocks to prune in each of `len(amounts)` equal parts of the rows."""
    blocks = pattern.count(len(weight) // len(amounts), weight.shape[1])
    return [round(amount * blocks) for amount in amounts]


def _even_counts(weight: Tensor, pattern: Pattern, counts: list[int]) -> list[int]:
    """Blocks to prune in each group of `pattern.rows` outputs, evenly from each gate's count.

    Returns the counts of the gates where rows do not divide into groups, and for N:M.
    """
    rows = len(weight) // len(counts)
    groups = rows // pattern.rows
    if isinstance(pattern, NofM) or rows % pattern.rows:
        return counts
    return [
        (group + 1) * count // groups - group * count // groups
        for count in counts
        for group in range(groups)
    ]


def _hessian(layer: LayerCalibration, damping: float) -> Tensor:
    if not isinstance(damping, Real) or not damping >= 0:
        raise InvalidInput(f"damping={damping!r}: give a number of 0 or more, such as 0.01")
    hessian = damped(layer.gram, damping)
    if torch.linalg.cholesky_ex(hessian).info != 0:
        raise InvalidInput(
            f"{layer.count} inputs do not determine {len(hessian)} weights with "
            f"damping={damping}: calibrate with more, or use damping=0.01"
        )
    return hessian


@torch.no_grad()
def _assign(weight: nn.Parameter, layer: LayerCalibration, values: Tensor) -> None:
    weight.copy_(values.view(weight.shape))
    layer.written = weight.detach().flatten(1).to(layer.weight)
