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
        "sparsejit.prune needs torch, which cannot be imported: pip install torch==2.13.0"
    ) from error

from sparsejit.prune.calibration import Calibration, LayerCalibration, calibrate
from sparsejit.prune.criteria import Criterion, Magnitude, Movement, Random
from sparsejit.prune.folding import fold
from sparsejit.prune.patterns import PATTERNS, BlockPattern, LanePattern, NofM, Pattern
from sparsejit.prune.post_training import prune_second_order, prune_wanda, refit
from sparsejit.prune.pruner import Pruner
from sparsejit.prune.regularisers import ADMM, L1, GroupLasso, Regulariser
from sparsejit.prune.report import LayerSparsity, SparsityReport
from sparsejit.prune.schedules import (
    ConstantRate,
    CubicSchedule,
    IterativeSchedule,
    OneShot,
    Schedule,
)

__all__ = [
    "ADMM",
    "L1",
    "PATTERNS",
    "BlockPattern",
    "Calibration",
    "ConstantRate",
    "Criterion",
    "CubicSchedule",
    "GroupLasso",
    "IterativeSchedule",
    "LanePattern",
    "LayerCalibration",
    "LayerSparsity",
    "Magnitude",
    "Movement",
    "NofM",
    "OneShot",
    "Pattern",
    "Pruner",
    "Random",
    "Regulariser",
    "Schedule",
    "SparsityReport",
    "calibrate",
    "fold",
    "prune_second_order",
    "prune_wanda",
    "refit",
]
