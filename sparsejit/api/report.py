"""What was built and why, layer by layer, and where the time goes: of a kernel and of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sparsejit.api.shown import Shown
from sparsejit.planner.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class CandidateReport:
    """A kernel that a layer might have had; bytes, and nanoseconds of one run.

    `measured_ns` is None unless `tune` timed it. `is_lowered`: the prediction is of what was made,
    not of what its zeros let expect.
    """

    kernel: str
    family: str
    steps: int
    code_bytes: int
    data_bytes: int
    predicted_ns: float
    measured_ns: float | None
    bound: str
    is_lowered: bool


@dataclass(frozen=True)
class LayerReport:
    """Kernels of one operator, mostly one.

    Times are in nanoseconds for one run of the native function. `share` is that of all measured
    times, `share_of_limit` the least time the processor could take over what is taken; both None
    where nothing was measured or nothing is computed. GFLOPS are of the measured time, else of the
    predicted; `effective_gflops` count pruned weights too. A product's `shape` is (out_features,
    in_features) of its main kernel; its `candidates` are what that was chosen from, in order of
    predicted time.
    """

    layer: str
    kernel: str = ""
    source: str = ""
    code: str = ""
    nnz: int = 0
    weights: int = 0
    weight_bytes: int = 0
    predicted_ns: float | None = None
    measured_ns: float | None = None
    share: float | None = None
    effective_gflops: float | None = None
    real_gflops: float | None = None
    share_of_limit: float | None = None
    reason: str = ""
    shape: tuple[int, int] | None = None
    candidates: tuple[CandidateReport, ...] = field(default=(), repr=False)

    @property
    def density(self) -> float | None:
        """The share of weights that are not zero; None where there are none."""
        return self.nnz / self.weights if self.weights else None


@dataclass(frozen=True)
class Report(Shown):
    """All kernels in order, and the whole as it was measured without time stamps in it.

    `facts` are sizes, options and origins as plain data, `lines` what they say in words. `schedule`
    draws which thread runs what, a line each; empty for one thread.
    """

    title: str
    lines: tuple[str, ...]
    layers: tuple[LayerReport, ...]
    facts: dict[str, Any]
    whole_ns: float | None = None
    samples: int = 1
    schedule: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; `facts` hold the `stats` of what is reported."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "whole_ns": self.whole_ns,
            "samples": self.samples,
            "schedule": list(self.schedule),
            "facts": self.facts,
        }

    def __rich__(self) -> RenderableType:
        from sparsejit.api.report_page import as_tables

        return as_tables(self)

    def brief(self) -> RenderableType:
        """Within 80 columns: every layer's kernel, its time in microseconds, and its share."""
        from sparsejit.api.report_page import as_brief

        return as_brief(self)

    def html(self) -> str:
        """One self-contained page."""
        from sparsejit.api.report_page import as_page

        return as_page(self)


def candidates_of(plan: Plan) -> tuple[CandidateReport, ...]:
    """What a plan chose from."""
    return tuple(
        CandidateReport(
            candidate.template.name,
            candidate.template.family,
            candidate.cost.steps,
            candidate.cost.code_bytes,
            candidate.cost.data_bytes,
            candidate.cost.ns,
            plan.measured_ns.get(candidate.template.name),
            candidate.cost.bound,
            candidate.is_lowered,
        )
        for candidate in plan.candidates
    )
