"""Prune a torch model while it trains; import as `sparsejit.prune`."""

if __name__ != "sparsejit.prune":
    raise ImportError(
        f"this package was imported as {__name__!r}; write `from sparsejit.prune import Pruner`"
    )

from sparsejit.errors import MissingDependency

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingDependency(
        "sparsejit.prune needs torch, which cannot be imported: pip install 'sparsejit[torch]'"
    ) from error

from sparsejit.prune.budget import TradeOff
from sparsejit.prune.calibration import Calibration, LayerCalibration, calibrate
from sparsejit.prune.criteria import Criterion, Magnitude, Movement, Random
from sparsejit.prune.factorise import Factorisation, factorise
from sparsejit.prune.fake_quantisation import FakeQuantisation
from sparsejit.prune.latency import LatencyTable, latency_table
from sparsejit.prune.layer_time import time_layers
from sparsejit.prune.patterns import PATTERNS, BlockPattern, LanePattern, NofM, Pattern
from sparsejit.prune.post_training import prune_second_order, prune_wanda, refit
from sparsejit.prune.pruner import Pruner
from sparsejit.prune.recipe import Recipe
from sparsejit.prune.regularisers import ADMM, L1, GroupLasso, Regulariser
from sparsejit.prune.report import LayerSparsity, LayerTime, SparsityReport
from sparsejit.prune.run import PruningResult, RunProgress, run_recipe
from sparsejit.prune.schedules import (
    ConstantRate,
    CubicSchedule,
    IterativeSchedule,
    OneShot,
    Schedule,
)
from sparsejit.prune.targets import fold
from sparsejit.prune.workload import Workload, load_weights, load_workload

__all__ = [
    "ADMM",
    "L1",
    "PATTERNS",
    "BlockPattern",
    "Calibration",
    "ConstantRate",
    "Criterion",
    "CubicSchedule",
    "Factorisation",
    "FakeQuantisation",
    "GroupLasso",
    "IterativeSchedule",
    "LanePattern",
    "LatencyTable",
    "LayerCalibration",
    "LayerSparsity",
    "LayerTime",
    "Magnitude",
    "Movement",
    "NofM",
    "OneShot",
    "Pattern",
    "Pruner",
    "PruningResult",
    "Random",
    "Recipe",
    "Regulariser",
    "RunProgress",
    "Schedule",
    "SparsityReport",
    "TradeOff",
    "Workload",
    "calibrate",
    "factorise",
    "fold",
    "latency_table",
    "load_weights",
    "load_workload",
    "prune_second_order",
    "prune_wanda",
    "refit",
    "run_recipe",
    "time_layers",
]
