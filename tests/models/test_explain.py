"""Reports of a compiled model about the time of its layers."""

import ctypes
import io
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fake_clock import TICK_NS, FakeClock
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from small_models import compiled, pruned, small_graph, with_steps
from whole_page import WholePage

from sparsejit.api.models.variant import Variant, sizes_text
from sparsejit.api.reports import layers_report
from sparsejit.api.reports.layers_report import (
    example_arrays,
    groups_of,
    report_of,
    unexpected_lines,
)
from sparsejit.api.reports.report import LayerReport, Report
from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul, MatVec
from sparsejit.lowering.model_code import build_model
from sparsejit.lowering.probes import PrefixProbe, StampProbe
from sparsejit.machine.target import Target
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.runtime.program import build
from sparsejit.runtime.step_timing import (
    ModelTimer,
    ProbedFunction,
    increments,
    wants_prefixes,
)
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, rax

pytestmark = pytest.mark.plans

ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]
HOSTILE = 'a<script>alert("&")</script>'


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_what_prefixes_take_longer_adds_up(prefixes: list[float]) -> None:
    found = increments(prefixes)
    assert len(found) == len(prefixes)
    assert all(each >= 0 for each in found)
    assert sum(found) == pytest.approx(prefixes[-1])


def test_what_prefixes_take_longer() -> None:
    assert increments([2, 5, 4, 9, 8]) == [2, 3, 0, 3, 0]


def test_short_steps_are_not_stamped() -> None:
    assert wants_prefixes(100, 3)
    assert not wants_prefixes(100_000, 3)


class Probed:
    """A model's function with a probe, run on the same arrays in a workspace that stays."""

    def __init__(self, variant: Variant, kind: type[StampProbe | PrefixProbe]) -> None:
        lowered = variant.lowered_again()
        self.steps = len(lowered.steps)
        self.program = build_model(lowered, "probed", kind(lowered.probe_offset))
        self.inputs, self.outputs = example_arrays(variant.graph)
        room = np.zeros(lowered.workspace_bytes + 64, np.uint8)
        self.workspace = room[-room.ctypes.data % 64 :]
        slots = self.workspace[lowered.probe_offset :][: 8 * (len(lowered.waves) + 2)]
        self.slots = slots.view(np.int64)

    def run(self) -> list[np.ndarray]:
        tables = [
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            for arrays in (self.inputs, self.outputs)
        ]
        for output in self.outputs:
            output[...] = 7
        self.program.memory.function(4)(*tables, self.workspace.ctypes.data, 1)
        return self.outputs


@pytest.mark.parametrize("isa", ISAS)
def test_time_stamps_leave_results_alone(isa: str) -> None:
    model, variant = compiled(small_graph(), isa)
    probed = Probed(variant, StampProbe)
    expected = model.run(probed.inputs)
    for found, wanted in zip(probed.run(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    once = probed.slots.copy()
    probed.run()
    ticks = probed.slots - once
    assert (ticks[1:] >= 0).all()  # the others are sums
    assert ticks[0] >= ticks[1:].sum()  # the last stamp is later by more than all steps
    assert (once[2:] >= 0).all()
    assert once[2:].any()


@dataclass(frozen=True)
class FirstStampKept(StampProbe):
    """Leaves the stamp before the first step in slot 1."""

    def emit(self, asm: Assembler, number: int, end: Label) -> None:
        super().emit(asm, number, end)
        if number == 0:
            asm.emit("mov", rax, Memory(WORKSPACE, self.first_slot))
            asm.emit("mov", Memory(WORKSPACE, self.first_slot + 8), rax)


def test_ticks_of_steps_are_those_between_first_and_last_stamp() -> None:
    _, variant = compiled(small_graph())
    probed = Probed(variant, FirstStampKept)
    probed.run()
    last, first, *steps = probed.slots.tolist()
    assert sum(steps) == last - first


@pytest.mark.parametrize("isa", ISAS)
def test_prefixes_leave_later_steps_out(isa: str) -> None:
    model, variant = compiled(small_graph(), isa)
    probed = Probed(variant, PrefixProbe)
    head, hidden = model.run(probed.inputs)
    done = []
    for prefix in range(probed.steps + 1):
        probed.slots[0] = prefix
        found = probed.run()
        done.append([np.array_equal(a, b) for a, b in zip(found, (head, hidden), strict=True)])
    assert done == [[False, False], [False, True], [False, True], [True, True]]


def test_a_report_has_every_layer() -> None:
    model, variant = compiled(small_graph())
    report = model.explain(measure=False)
    assert [layer.layer for layer in report.layers] == ["fc", "add", "head"]
    first, chain, _ = report.layers
    weights = pruned(np.random.default_rng(0), 32, 32)
    assert (first.nnz, first.weights) == (np.count_nonzero(weights), 1024)
    assert first.weight_bytes == 4 * first.nnz
    assert first.predicted_ns == variant.steps[0].facts.plan.chosen.cost.ns
    assert first.effective_gflops == pytest.approx(2 * 1024 / first.predicted_ns)
    assert first.real_gflops == pytest.approx(2 * first.nnz / first.predicted_ns)
    assert (first.source, first.code) == ("net.py:7", "self.fc(x)")
    assert "predicted cheapest" in first.reason
    assert chain.reason.startswith("fused: add, softmax of [1, 32]: 7 functions, ")
    assert chain.predicted_ns > 0
    assert {layer.measured_ns for layer in report.layers} == {None}
    assert report.whole_ns is None


@pytest.mark.usefixtures("steady_clock")
def test_steps_that_stamps_do_not_see_take_some_time() -> None:
    """Else they would have no share of it."""
    nothing = build("stamps nothing", Target.detect(), lambda asm: asm.emit("xor", rax, rax))
    memory = nothing.memory
    timer = ModelTimer(memory, 64, ([], []), 1)
    times = timer.by_stamps(ProbedFunction(memory, 64, first_slot=0, steps=3))
    assert len(times.steps) == 3
    assert all(ns > 0 for ns in times.steps)


@pytest.mark.parametrize("prefixes", [True, False])
def test_measured_layers_add_up(
    prefixes: bool, steady_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_report, "wants_prefixes", lambda whole_ns, steps: prefixes)
    report = compiled(small_graph())[0].explain(measure=True)
    names = ["fc", "add", "head", *(["(call)"] if prefixes else [])]
    assert [layer.layer for layer in report.layers] == names
    assert report.whole_ns == TICK_NS
    assert all(layer.measured_ns >= 0 for layer in report.layers)
    assert sum(layer.share for layer in report.layers) == pytest.approx(1)
    if prefixes:  # the clock says that all of them take as long as nothing does
        assert [layer.measured_ns for layer in report.layers] == [0, 0, 0, TICK_NS]


@pytest.mark.parametrize(
    ("measured", "predicted", "is_named"),
    [(200, 100, True), (140, 100, False), (2, 1, False), (200, None, False), (None, 100, False)],
)
def test_layers_that_take_much_longer_than_predicted_are_named(
    measured: float | None, predicted: float | None, is_named: bool
) -> None:
    """Not those that take a share of 1 % at most, nor what has no prediction."""
    layer = LayerReport("fc", measured_ns=measured, predicted_ns=predicted)
    lines = ["layer fc takes 2.0 times its predicted 100 ns"] if is_named else []
    assert list(unexpected_lines(1000, [layer])) == lines


def test_kernels_of_one_operator_are_one_layer() -> None:
    _, variant = compiled(small_graph())
    first, *others = variant.steps
    twin = replace(first, kernel="copy")
    assert groups_of([first, twin, first, *others]) == [[0, 1, 2], [3], [4]]
    several = with_steps(variant, (first, twin, first, *others))
    layer, *_ = report_of(several, "", several.statistics, measure=False).layers
    assert layer.kernel == f"2 x {first.kernel}, copy"
    assert layer.nnz == first.facts.nnz
    assert layer.predicted_ns == pytest.approx(3 * first.facts.predicted_ns)
    other = replace(others[-1], origin=first.origin)  # of other weights
    assert groups_of([first, twin, other, other]) == [[0, 1], [2, 3]]


def test_equal_families_are_told_apart_by_name() -> None:
    weights = SparseMatrix(pruned(np.random.default_rng(0), 256, 256, 0.1))
    plan = plan_batch(MatMul(MatVec(256, 256), 2), weights, Target.named("avx512"))
    first, second = plan.candidates[:2]
    assert first.template.family == second.template.family == "rows"
    assert plan.reason.startswith(f"{first.template.name} is predicted cheapest")
    assert f"next is {second.template.name} at" in plan.reason


@pytest.mark.usefixtures("steady_clock")
def test_a_page_is_whole_and_needs_nothing_else() -> None:
    report = compiled(small_graph(name=HOSTILE))[0].explain(measure=True)
    html = report.html()
    page = WholePage(html)
    assert "script" not in page.tags
    assert not {"link", "img", "iframe", "object"}.intersection(page.tags)
    names = {name for name, _ in page.attributes}
    assert names <= {"lang", "charset", "class", "style", "title", "name", "content"}
    assert "url(" not in html
    assert "@import" not in html
    assert HOSTILE in page.text
    assert any(value and HOSTILE in value for name, value in page.attributes if name == "title")
    assert all(layer.share for layer in report.layers)
    assert sum("flex:" in (value or "") for _, value in page.attributes) == len(report.layers)


@pytest.mark.usefixtures("steady_clock")
def test_a_report_as_data_text_and_table() -> None:
    report = compiled(small_graph(name="net[bold]"))[0].explain(measure=True)
    data = json.loads(json.dumps(report.as_dict()))
    assert data["samples"] == 1
    assert data["facts"]["kernels"] == 3
    assert [layer["layer"] for layer in data["layers"]] == ["net[bold]", "add", "head"]
    text = str(report)
    assert "the layers add up to" in text
    assert all(layer.kernel in text for layer in report.layers)
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(report)
    assert "net[bold]" in console.export_text()


def whole_report() -> Report:
    """A report with every column, of long names and figures."""
    layer = LayerReport(
        "encoder.layers.11.intermediate.dense",
        "12 x f32-broadcast-mixed-avx512, 3 x transpose",
        nnz=1_234_567,
        weights=12_345_678,
        weight_bytes=987_654_321,
        predicted_ns=123_456_789.0,
        measured_ns=123_456_789.0,
        share=1.0,
        effective_gflops=1234.0,
        real_gflops=1234.0,
        share_of_limit=1.04,
        reason="broadcast-mixed is predicted cheapest: " + 30 * "reason " + "; and so it is",
        error=1e-6,
        shape=(30_000, 30_000),
    )
    return Report("title " * 30, ("line " * 50,), (layer, replace(layer, layer="next")), {})


@pytest.mark.parametrize("width", [80, 120])
def test_a_report_fits_the_terminal_and_loses_nothing(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = whole_report()
    monkeypatch.setenv("COLUMNS", str(width))
    text = str(report)
    assert max(map(len, text.splitlines())) <= width
    assert "\u2026" not in text
    for cell in ("1,234,567", "123,456,789", "30000 x 30000", "so it is", "1.0e-06", "1,234"):
        assert text.count(cell) >= len(report.layers)


def test_a_column_without_cells_is_left_out() -> None:
    report = replace(whole_report(), layers=(LayerReport("view", predicted_ns=1.0),))
    assert "predicted" in str(report)
    assert "measured" not in str(report)
    assert "measured" not in report.html()


def test_a_share_above_the_measured_limit_is_all_of_it() -> None:
    text = str(whole_report())
    assert "100%" in text
    assert "104%" not in text


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((0, 0, 0, 1), "no weights, 1 kernel"),
        ((1, 4, 16, 2), "1 layer, 4 of 16 weights nonzero (25.0%), 2 kernels"),
    ],
)
def test_sizes_in_words(counts: tuple[int, ...], words: str) -> None:
    names = ("layers", "nnz", "weights", "kernels")
    assert sizes_text(dict(zip(names, counts, strict=True))) == words
