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

from sparsejit.prune.criteria import Criterion, Magnitude, Movement, Random
from sparsejit.prune.folding import fold
from sparsejit.prune.patterns import PATTERNS, BlockPattern, LanePattern, NofM, Pattern
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
    "ConstantRate",
    "Criterion",
    "CubicSchedule",
    "GroupLasso",
    "IterativeSchedule",
    "LanePattern",
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
    "fold",
]
