"""Reports of a kernel and of a model: the kernel of each layer, its reason, and its time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sparsejit.api.shown import Shown
from sparsejit.ir.values import Decision
from sparsejit.planner.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class CandidateReport:
    """A candidate for the kernel of a layer.

    Attributes:
        kernel: dtype, family and level, such as "f32-lookup-avx512"
        family: the family, as listed in `compile_matrix(strategy=...)`
        steps: the number of steps in a run
        code_bytes: bytes of code
        data_bytes: bytes of weights, indices and padding
        predicted_ns: predicted nanoseconds of one run
        measured_ns: nanoseconds of one run as `tune` timed it, else None
        bound: the limit of its speed, such as "data from L2"
        is_lowered: whether the prediction is of the lowered kernel, not estimated from the zeros
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
    """The kernels of one operator, mostly one.

    Attributes:
        layer: the name of the layer in the model
        kernel: dtype, family and level of its main kernel
        source: the line of your code that it came from, as `file:line`
        code: the text of that line
        nnz: the number of weights that are not zero
        weights: the number of all weights
        weight_bytes: bytes of the stored weights
        predicted_ns: predicted nanoseconds in one run of the native function
        measured_ns: the same, measured within the model; None where nothing was measured
        share: the share of the measured times of all layers, 0 to 1; None where nothing was
            measured
        effective_gflops: operations a nanosecond with zeros counted, by the measured time or else
            by the predicted time
        real_gflops: the same without zeros
        share_of_limit: the least time that the processor could take, over the time taken; None
            where nothing was measured or nothing is computed
        reason: the reason for this kernel
        error: the largest difference from float64, over the layer's largest value, on the data that
            `accuracy` was given last; None where nothing was measured
        shape: (out_features, in_features) of a product's main kernel
        candidates: the candidates for the main kernel, in order of predicted time
        decisions: the choices of its kernels' forms, layouts and element types
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
    error: float | None = None
    shape: tuple[int, int] | None = None
    candidates: tuple[CandidateReport, ...] = field(default=(), repr=False)
    decisions: tuple[Decision, ...] = field(default=(), repr=False)

    @property
    def why(self) -> str:
        """The reason for the kernel, and the decisions."""
        return "; ".join(filter(None, [self.reason, *map(str, self.decisions)]))

    @property
    def density(self) -> float | None:
        """The share of weights that are not zero; None where there are none."""
        return self.nnz / self.weights if self.weights else None


@dataclass(frozen=True)
class Report(Shown):
    """All kernels in order, and the time of the whole, measured without time stamps in it.

    `print` shows tables.

    Attributes:
        title: the title, in one line
        lines: `facts` in words
        layers: one report a layer
        facts: sizes, options and origins as plain data
        whole_ns: nanoseconds of one run, measured; else None
        samples: the number of samples of one run
        schedule: lines with the steps of each thread; for one thread, of samples that share steps
    """

    title: str
    lines: tuple[str, ...]
    layers: tuple[LayerReport, ...]
    facts: dict[str, Any]
    whole_ns: float | None = None
    samples: int = 1
    schedule: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON; `facts` include the `stats` of the kernel or model."""
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
        """Return a table within 80 columns: each layer's kernel, its time in us, and its share."""
        from sparsejit.api.report_page import as_brief

        return as_brief(self)

    def html(self) -> str:
        """Return one self-contained HTML page."""
        from sparsejit.api.report_page import as_page

        return as_page(self)


def candidates_of(plan: Plan) -> tuple[CandidateReport, ...]:
    """Return the candidates of a plan."""
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
