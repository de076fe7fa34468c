"""Reports of a kernel and of a model: the kernel of each layer, its reason, and its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any

from sparsejit.api.reports.report_page import Bands, Column, html_page, html_table
from sparsejit.api.reports.shown import Shown, share_of_limit_text, table_of
from sparsejit.ir.values import Decision, Origin
from sparsejit.lowering.step import Facts
from sparsejit.machine.target import Target
from sparsejit.planner.cost import limit_ns
from sparsejit.planner.kernel_choice import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType

_LAYERS = (
    Column("layer", lambda layer: layer.layer, True),
    Column("kernel", lambda layer: layer.kernel, True),
    Column("size", lambda layer: "{} x {}".format(*layer.shape) if layer.shape else ""),
    Column("nnz", lambda layer: f"{layer.nnz:,}" if layer.weights else ""),
    Column("density", lambda layer: _percent(layer.density)),
    Column("KiB", lambda layer: f"{layer.weight_bytes / 1024:.0f}" if layer.weights else ""),
    Column("predicted ns", lambda layer: _number(layer.predicted_ns)),
    Column("measured ns", lambda layer: _number(layer.measured_ns)),
    Column("share", lambda layer: _percent(layer.share)),
    Column("effective GFLOPS", lambda layer: _number(layer.effective_gflops)),
    Column("real GFLOPS", lambda layer: _number(layer.real_gflops)),
    Column("of limit", lambda layer: _of_limit(layer)),
    Column("error", lambda layer: "" if layer.error is None else f"{layer.error:.1e}"),
    Column("why", lambda layer: layer.why, True, True),
)
_CANDIDATES = (
    Column("candidate", lambda candidate: candidate.kernel, True),
    Column("steps", lambda candidate: str(candidate.steps)),
    Column("code", lambda candidate: str(candidate.code_bytes)),
    Column("data", lambda candidate: str(candidate.data_bytes)),
    Column("predicted ns", lambda candidate: _number(candidate.predicted_ns)),
    Column("measured", lambda candidate: _number(candidate.measured_ns)),
    Column("bound by", lambda candidate: candidate.bound, True),
)

# Characters of a line, and of a name: two such columns and two of figures take a line.
_BRIEF_WIDTH, _BRIEF_NAME = 80, 27

_BARS = """
.bar { display: flex; height: 3.2em; margin: 1em 0; border: 1px solid var(--line);
  overflow: hidden }
.bar div { overflow: hidden; white-space: nowrap; font-size: 11px; padding: .3em 0 0 .2em;
  border-right: 1px solid var(--page); color: #1c2127; box-sizing: border-box }
"""


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
        from rich.console import Group
        from rich.text import Text

        tables = [Bands(columns, rows) for columns, rows in self._tables()]
        texts = [Text(line) for line in (self.title, *self.lines)]
        return Group(*texts, *tables, *map(Text, self.schedule))

    def brief(self) -> RenderableType:
        """Return a table within 80 columns: each layer's kernel, its time in us, and its share."""
        from rich.console import Group
        from rich.text import Text

        times = [layer.measured_ns or layer.predicted_ns or 0.0 for layer in self.layers]
        is_measured = any(layer.measured_ns is not None for layer in self.layers)
        total = sum(times) or 1.0
        table = table_of("", frame="none")
        table.add_column("layer", no_wrap=True)
        table.add_column("kernel", no_wrap=True)
        for heading in ("us" if is_measured else "us, predicted", "share"):
            table.add_column(heading, justify="right")
        for layer, ns in zip(self.layers, times, strict=True):
            names = (_cut(layer.layer, 0), _cut(layer.kernel, _BRIEF_NAME // 3))
            is_known = (layer.measured_ns, layer.predicted_ns) != (None, None)
            figures = (f"{ns / 1000:,.2f}", f"{ns / total:.1%}") if is_known else ()
            table.add_row(*map(Text, names), *figures)
        table.add_row("all", "", f"{sum(times) / 1000:,.2f}", "", style="bold")
        return Group(Text(fill(self.title, _BRIEF_WIDTH)), table)

    def html(self) -> str:
        """Return one self-contained HTML page."""
        bars = "".join(map(_segment, enumerate(self.layers)))
        tables = "".join(html_table(columns, rows) for columns, rows in self._tables())
        body = f'<div class="bar">{bars}</div>{tables}{self._schedule_html()}'
        facts = self.title, *self.lines
        return html_page("sparsejit model", "Time by layer", facts, body, _BARS)

    def _tables(self) -> list[tuple[Sequence[Column], Sequence[Any]]]:
        """Return the columns and rows of each table, without empty columns."""
        tables: list[tuple[Sequence[Column], Sequence[Any]]] = [(_LAYERS, self.layers)]
        if len(self.layers) == 1 and self.layers[0].candidates:
            tables.append((_CANDIDATES, self.layers[0].candidates))
        return [
            ([each for each in columns if any(map(each.cell, rows))], rows)
            for columns, rows in tables
        ]

    def _schedule_html(self) -> str:
        """Return the schedule as HTML; "" for a report without one."""
        lines = escape("\n".join(self.schedule))
        return f"<h2>Steps of each thread</h2><pre>{lines}</pre>" if lines else ""


def _cut(name: str, head: int) -> str:
    """Shorten a name to `_BRIEF_NAME` characters: its first `head`, an ellipsis, and its end."""
    if len(name) <= _BRIEF_NAME:
        return name
    return f"{name[:head]}…{name[head + 1 - _BRIEF_NAME :]}"


def _segment(numbered: tuple[int, LayerReport]) -> str:
    """Return a layer's part of the bar, as wide as its share, in a colour of its own."""
    number, layer = numbered
    if not layer.share:
        return ""
    hue = number * 137 % 360  # by the golden angle neighbours differ
    source = f"{layer.source} {layer.code}".strip()
    title = f"{layer.layer}: {layer.kernel}, {_number(layer.measured_ns)} ns, {source}"
    return (
        f'<div style="flex:{layer.share:.5f} 0 0;background:hsl({hue} 60% 75%)" '
        f'title="{escape(title)}">{escape(layer.layer)}<br>{_percent(layer.share)}</div>'
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _of_limit(layer: LayerReport) -> str:
    return "" if layer.share_of_limit is None else share_of_limit_text(layer.share_of_limit)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


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


def layer_report(
    origin: Origin,
    kernels: Sequence[str],
    facts: Sequence[Facts],
    target: Target,
    other_bytes: int = 0,
    ns: float | None = None,
    total: float = 0.0,
) -> LayerReport:
    """Return the report of one operator.

    Its kernels take `ns` of the model's `total` nanoseconds, if measured. `other_bytes` are the
    bytes of all other weights of the model.
    """
    main = max(facts, key=lambda each: (each.weights, each.predicted_ns or 0.0))
    numbers = Counter(kernels)
    predicted = [each.predicted_ns for each in facts if each.predicted_ns is not None]
    predicted_ns = sum(predicted) if len(predicted) == len(facts) else None
    flops = sum(each.flops for each in facts)
    effective_flops = sum(each.effective_flops for each in facts)
    own_bytes = sum(each.weight_bytes for each in facts)
    limit = sum(
        limit_ns(
            each.flops,
            each.weight_bytes + each.moved_bytes,
            other_bytes + own_bytes - each.weight_bytes,
            target,
        )
        for each in facts
    )
    time = ns if ns is not None else predicted_ns
    return LayerReport(
        layer=origin.layer,
        kernel=", ".join(f"{n} x {name}" if n > 1 else name for name, n in numbers.items()),
        source=origin.source,
        code=origin.code,
        nnz=main.nnz,
        weights=main.weights,
        weight_bytes=main.weight_bytes,
        predicted_ns=predicted_ns,
        measured_ns=ns,
        share=ns / total if ns is not None and total else None,
        effective_gflops=effective_flops / time if time and effective_flops else None,
        real_gflops=flops / time if time and flops else None,
        share_of_limit=limit / ns if ns and flops else None,
        reason=main.reason,
        shape=None if main.layer is None else (main.layer.out_features, main.layer.in_features),
        candidates=() if main.plan is None else candidates_of(main.plan),
    )
