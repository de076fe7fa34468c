"""Results of a survey of the planner, in a few figures and as tables."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from sparsejit.api.reports.shown import table_of
from sparsejit.ir.spec import DType
from sparsejit.perf.survey.planner_survey import WITHIN, SurveyRow

TOLERABLE = 1.1


@dataclass(frozen=True)
class SurveySummary:
    """Figures of the layers of one batch size; losses are of layers with a choice of kernels.

    `geometric_mean` and `worst` are losses, the chosen kernel's time over the fastest one's; `over`
    counts losses above `TOLERABLE`. `share_within` is the share of all chosen kernels whose
    prediction is within a factor of `WITHIN`. `ratios` has the median of predicted over measured
    time by kernel and dtype.
    """

    batch: int
    isa: str
    layers: int
    with_choice: int
    geometric_mean: float
    worst: float
    worst_layer: str
    over: int
    share_within: float
    ratios: dict[str, dict[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def summary(rows: Sequence[SurveyRow]) -> SurveySummary:
    """A summary of rows of one batch size and level, at least one."""
    contested = [row for row in rows if len(row.kernels) > 1]
    losses = [row.loss for row in contested] or [1.0]
    worst = max(contested or rows, key=lambda row: row.loss)
    return SurveySummary(
        *(rows[0].batch, rows[0].isa, len(rows), len(contested)),
        geometric_mean=math.exp(statistics.fmean(map(math.log, losses))),
        worst=worst.loss,
        worst_layer=_in_words(worst),
        over=sum(loss > TOLERABLE for loss in losses),
        share_within=statistics.fmean(row.is_within for row in rows),
        ratios=_ratios(rows),
    )


def _ratios(rows: Iterable[SurveyRow]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for one in row.kernels:
            found.setdefault(one.name, {}).setdefault(row.dtype, []).append(one.ratio)
    return {
        name: {dtype: statistics.median(ratios) for dtype, ratios in sorted(of.items())}
        for name, of in sorted(found.items())
    }


def _in_words(row: SurveyRow) -> str:
    layout = f", batch {row.batch} {row.layout}" if row.batch > 1 else ""
    return f"{row.layer}, {row.dtype}{layout}: {row.chosen}, best {row.kernels[0].name}"


def lines(found: SurveySummary) -> list[str]:
    """The figures in words."""
    return [
        f"batch {found.batch}, {found.isa}: {found.layers} layers, "
        f"{found.with_choice} with a choice of kernels",
        f"choice over the fastest: geometric mean {found.geometric_mean:.3f}, "
        f"worst {found.worst:.2f}, {found.over} over {TOLERABLE}",
        f"the worst: {found.worst_layer}",
        f"predictions within {WITHIN} times: {found.share_within:.0%}",
    ]


def losses_table(rows: Iterable[SurveyRow]) -> Table:
    """The layers whose choice loses more than `TOLERABLE` or was predicted badly, worst first."""
    figures = ("ns", "fastest, ns", "loss", "predicted over measured")
    table = table_of("", ("layer", "chosen", "fastest"), figures)
    for row in sorted(rows, key=lambda row: row.loss, reverse=True):
        if row.loss <= TOLERABLE and row.is_within:
            continue
        choice, best = row.choice, row.kernels[0]
        layout = f" {row.layout}" if row.batch > 1 else ""
        table.add_row(
            *(f"{row.layer}, {row.dtype}{layout}", choice.name, best.name, f"{choice.ns:.0f}"),
            *(f"{best.ns:.0f}", f"{row.loss:.2f}", f"{choice.ratio:.2f}"),
        )
    return table


def ratios_table(found: SurveySummary) -> Table:
    """Table of median predicted over measured time of every kernel, chosen or not."""
    dtypes = [dtype.value for dtype in DType]
    table = table_of("", ["predicted over measured"], dtypes)
    for name, by_dtype in found.ratios.items():
        table.add_row(name, *(f"{by_dtype[d]:.2f}" if d in by_dtype else "" for d in dtypes))
    return table
