"""The survey of the planner: which layers, what is timed beside what was chosen, what it says."""

import json
from collections import Counter

import numpy as np
import pytest
from fake_clock import TICK_NS, FakeClock
from typer.testing import CliRunner

from sparsejit import compile_matrix
from sparsejit.commands.cli import app
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import UNSTRUCTURED, SparseMatrix
from sparsejit.ir.spec import DType, Layout
from sparsejit.machine.microarchitecture import UNKNOWN, core_named
from sparsejit.machine.target import Target
from sparsejit.perf import planner_survey
from sparsejit.perf.kernels import exact_output
from sparsejit.perf.planner_survey import (
    PATTERNS,
    SHAPES,
    SPARSITIES,
    ContenderTime,
    SurveyLayer,
    SurveyRow,
    kernel_name,
    summary,
    survey_layer,
    survey_layers,
)
from sparsejit.perf.problems import Problem

pytestmark = pytest.mark.plans

TARGET = Target.detect()


def layer(
    dtype: DType = DType.FLOAT32, batch: int = 1, layout: Layout = Layout.BATCH_MAJOR
) -> SurveyLayer:
    return SurveyLayer(Problem("a layer", 48, 64, 0.9, UNSTRUCTURED, 1, batch, layout), dtype)


def row(
    *times: float, predicted: float = 100.0, dtype: str = "float32", chosen: str = "0"
) -> SurveyRow:
    """A layer whose kernels "0", "1", ... take such times, all with the same prediction."""
    kernels = sorted(
        (ContenderTime(str(number), predicted, ns) for number, ns in enumerate(times)),
        key=lambda one: one.ns,
    )
    place = ("8x8, 50% zero, 1x8", (8, 8), 0.5, "1x8", dtype, 1, "batch-major", "avx2")
    return SurveyRow(*place, chosen, tuple(kernels), {})


def test_layers_are_many_and_of_every_kind() -> None:
    layers = survey_layers()
    assert len(layers) >= 100
    assert len({(one.problem.name, one.dtype) for one in layers}) > 0.9 * len(layers)
    kinds = Counter((one.problem.pattern, one.dtype) for one in layers)
    assert len(kinds) == len(PATTERNS) * len(DType) and len(set(kinds.values())) == 1
    shapes = Counter((one.problem.out_features, one.problem.in_features) for one in layers)
    assert set(shapes) == set(SHAPES) and max(shapes.values()) <= min(shapes.values()) + 1
    assert {one.problem.sparsity for one in layers} == set(SPARSITIES)


def test_a_layer_stays_the_same_whatever_else_is_asked_for() -> None:
    layers, batch = survey_layers(), survey_layers(16)
    names = [(one.problem.name, one.dtype) for one in layers]
    assert [(one.problem.name, one.dtype) for one in batch] == names
    assert {one.problem.layout for one in batch} == set(Layout)
    of_int8 = survey_layers(dtypes=[DType.INT8])
    assert of_int8 == [one for one in layers if one.dtype is DType.INT8]
    with pytest.raises(InvalidInput, match="batch 0 is out of range"):
        survey_layers(0)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(
    ("batch", "layout"), [(1, Layout.BATCH_MAJOR), *((3, layout) for layout in Layout)]
)
def test_every_kernel_of_a_layer_is_made_and_timed(
    dtype: DType, batch: int, layout: Layout, steady_clock: FakeClock
) -> None:
    asked = layer(dtype, batch, layout)
    found = survey_layer(asked, TARGET)
    plan = compile_matrix(
        asked.problem.weights(), dtype=dtype, batch=batch, layout=layout, input_scale=scale(asked)
    ).plan
    assert found.chosen == kernel_name(plan.chosen.template)
    assert found.choice.predicted_ns == plan.chosen.cost.ns
    names = {kernel_name(candidate.template) for candidate in plan.candidates}
    assert {one.name for one in found.kernels} | found.skipped.keys() == names
    assert all(one.ns == TICK_NS for one in found.kernels) and found.loss == 1
    assert json.loads(json.dumps(found.as_dict()))["loss"] == 1


def scale(asked: SurveyLayer) -> float | None:
    return float(np.abs(asked.problem.input()).max()) / 127 if asked.dtype is DType.INT8 else None


def test_a_wrong_kernel_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    weights = reference.stored_weights
    monkeypatch.setattr(
        reference, "stored_weights", lambda matrix, dtype: 1.001 * weights(matrix, dtype)
    )
    with pytest.raises(CompileError, match="largest error"):
        survey_layer(layer(), TARGET)


@pytest.mark.parametrize("dtype", DType)
def test_exact_outputs_equal_the_reference(dtype: DType) -> None:
    asked = layer(dtype, 3, Layout.FEATURE_MAJOR)
    weights, x = asked.problem.weights(), asked.problem.input()
    spec = compile_matrix(weights, dtype=dtype, batch=3, layout="feature-major").spec
    exact = reference.product(spec, SparseMatrix(weights), x)
    np.testing.assert_allclose(exact_output(spec, SparseMatrix(weights), x), exact)


def test_long_code_and_hopeless_kernels_are_left_out(
    monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    monkeypatch.setattr(planner_survey, "MOST_CODE_BYTES", 0)
    found = survey_layer(layer(), TARGET)
    assert [one.name for one in found.kernels] == [found.chosen]
    assert "0 MB of code" in found.skipped.values()
    monkeypatch.setattr(planner_survey, "MOST_CODE_BYTES", 1 << 30)
    monkeypatch.setattr(planner_survey, "_HOPELESS", 0.0)
    monkeypatch.setattr(planner_survey, "_FASTEST_BYTES", 1e-9)
    found = survey_layer(layer(), TARGET)
    assert [one.name for one in found.kernels] == [found.chosen]
    assert all("times slower" in why for why in found.skipped.values())


def test_a_loss_is_against_the_fastest() -> None:
    assert row(130.0, 100.0, 200.0).loss == pytest.approx(1.3)
    assert row(100.0, 130.0).loss == 1
    assert row(99.0).is_within and row(67.0).is_within and not row(66.0).is_within
    assert row(149.0).is_within and not row(151.0).is_within


def test_the_summary_of_losses_and_predictions() -> None:
    """Layers without a choice count for predictions alone."""
    rows = [row(200.0, 100.0), row(100.0, 110.0), row(100.0, dtype="int8"), row(105.0, 100.0)]
    found = summary(rows)
    assert (found.layers, found.with_choice, found.over) == (4, 3, 1)
    assert found.geometric_mean == pytest.approx((2 * 1 * 1.05) ** (1 / 3))
    assert found.worst == 2 and "best 1" in found.worst_layer
    assert found.share_within == 0.75
    assert found.ratios["0"] == {"float32": pytest.approx(100 / 105), "int8": 1.0}
    assert summary([row(100.0)]).geometric_mean == 1


def test_the_command(steady_clock: FakeClock) -> None:
    """All takes a tick, so nothing is lost."""
    arguments = ["bench", "planner", "--layers", "1", "--batch", "1", "--dtype", "int8"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "geometric mean 1.000" in shown.stdout and "predicted over measured" in shown.stdout
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    (found,) = json.loads(as_json.stdout)
    assert found["summary"]["worst"] == 1 and len(found["rows"]) == 1
    assert {"microarchitecture", "clock_ghz", "rates"} <= found.keys()
    generic = CliRunner().invoke(app, [*arguments, "--json", "--generic"])
    assert json.loads(generic.stdout)[0]["prices"] == core_named(UNKNOWN).origin
    refused = CliRunner().invoke(app, [*arguments, "--from", "1000"])
    assert isinstance(refused.exception, InvalidInput)
    assert "there are fewer" in str(refused.exception)
