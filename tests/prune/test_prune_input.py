"""Wrong use of sparsejit.prune: one error that names the value and the remedy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import (
    ConstantRate,
    CubicSchedule,
    IterativeSchedule,
    OneShot,
    Pruner,
    calibrate,
    fold,
    latency_table,
)

ROOT = Path(__file__).parents[2]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.GRU(8, 8))


def prepared(**options) -> Pruner:
    pruner = Pruner(0.5, targets=["*weight*"], **options)
    pruner.prepare(model())
    return pruner


@pytest.mark.parametrize("amount", [-0.1, 1.0, 90, float("nan")])
def test_amount_outside_range(amount):
    with pytest.raises(InvalidInput, match=rf"amount={amount} is outside \[0, 1\).*0\.9 for 90 %"):
        Pruner(amount, targets=["weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pattern": "8x1"},
            r"pattern='8x1' is unknown.*unstructured, 1x8, 1x16, lane16, 4x1in, 4x2in, N:M.*block=",
        ),
        ({"pattern": "1x8", "block": (8, 1)}, r"'1x8' and block=\(8, 1\).*drop one"),
        ({"block": (0, 4)}, r"block=\(0, 4\) is empty"),
        ({"block": (4,)}, r"block=\(4,\) has 1 sizes"),
        ({"block": 3}, r"block=3 is no shape: give whole numbers \(rows, cols\)"),
        ({"block": (2.5, 1)}, r"block=\(2\.5, 1\) is no shape"),
        ({"pattern": None}, r"pattern=None is unknown: use one of unstructured, 1x8"),
        ({"pattern": 8}, r"pattern=8 is unknown"),
        ({"schedule": "cubic"}, r"schedule='cubic' is no schedule: give CubicSchedule\("),
        ({"criterion": "magnitude"}, r"criterion='magnitude' is no criterion: give Magnitude\(\)"),
        ({"amount": "0.9"}, r"amount='0\.9': give the share to prune, 0\.9 for 90 %"),
        ({"amount": {0: 0.5}}, r"amount has 0: give a share by globs"),
        ({"targets": []}, r"targets is empty: name weights"),
        ({"targets": [None]}, r"targets has None: give globs over parameter names"),
        ({"targets": ["*", 3]}, r"targets has 3: give globs"),
        ({"targets": torch.tensor(0.5)}, r"targets has tensor\(0\.5000\): give globs"),
        ({"keep_diagonal": 3}, r"keep_diagonal has 3: give globs"),
        ({"per_gate": "x"}, r"per_gate='x': give True, False or gates by globs"),
        ({"allocation": ["lamp"]}, r"allocation=\['lamp'\] is unknown"),
        ({"amount": None, "budget_us": "3"}, r"budget_us='3': give microseconds above 0"),
        ({"amount": None, "budget_us": True}, r"budget_us=True: give microseconds"),
        ({"dtype": "float8"}, r"'float8' is unknown; use one of float32, bfloat16"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InvalidInput, match=message):
        Pruner(**{"amount": 0.5, "targets": ["*"], **options})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 5, 1), "start=5, end=5"),
        ((-1, 5, 1), "start=-1"),
        ((0, 5, 0), "every=0"),
        ((0.5, 5, 1), r"got start=0\.5: give a whole number of steps"),
        ((0, "5", 1), "got end='5': give a whole number of steps"),
        ((0, 5, 2.5), r"got every=2\.5: give a whole number of steps"),
    ],
)
@pytest.mark.parametrize("schedule", [CubicSchedule, ConstantRate])
def test_wrong_schedules(schedule, arguments, message):
    with pytest.raises(InvalidInput, match=f"{schedule.__name__} .*{message}"):
        schedule(*arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneShot(0.5), r"OneShot got at=0\.5: give a whole number"),
        (lambda: OneShot(-3), r"OneShot got at=-3: choose a step of 0 or more"),
        (lambda: OneShot(None), r"OneShot got at=None: give a whole number"),
        (lambda: IterativeSchedule(2.5, 10), r"got rounds=2\.5: give a whole number"),
        (lambda: IterativeSchedule(2, 10, True), r"got rewind_to=True: give a whole number"),
    ],
)
def test_wrong_steps(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_steps_of_numpy_are_steps():
    assert CubicSchedule(np.int64(1), np.int32(5)).due(5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["0.weight", "fc*"]}, r"'fc\*' matches no parameter.*0\.weight, 0\.bias"),
        ({"targets": ["0.*"]}, r"0\.bias has shape \(8,\), no matrix.*narrow the target"),
        ({"per_gate": {"rnn": 3}}, r"'rnn' matches no parameter"),
        ({"per_gate": {"0.weight": 3}}, r"0\.weight has 8 rows, which 3 gates do not divide"),
    ],
)
def test_targets_that_do_not_fit_the_model(options, message):
    pruner = Pruner(**{"amount": 0.5, "targets": ["0.weight"], **options})
    with pytest.raises(InvalidInput, match=message):
        pruner.prepare(model())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value):
    broken = model()
    pruner = Pruner(0.5, targets=["0.weight"], schedule=CubicSchedule(1, 4, 1))
    pruner.prepare(broken)
    broken[0].weight.data[2, 3] = value
    with pytest.raises(InvalidInput, match=r"0\.weight has 1 NaN or infinite of 64 weights"):
        pruner.step()
    with pytest.raises(InvalidInput, match=r"0\.weight has 1 NaN or infinite"):
        pruner.prepare(broken)


def test_integer_weights():
    quantised = nn.Module()
    quantised.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InvalidInput, match=r"weight has dtype torch\.int8: prune before"):
        Pruner(0.5, targets=["weight"]).prepare(quantised)


@pytest.mark.parametrize(
    "call", ["step", "finalize", "sparsity_report", "mask_gradients", "load_state_dict"]
)
def test_use_before_prepare(call):
    arguments = [{}] if call == "load_state_dict" else []
    with pytest.raises(InvalidInput, match=r"call prepare\(model, optimizer\) first"):
        getattr(Pruner(0.5, targets=["weight"]), call)(*arguments)


def test_states_of_another_pruner_change_nothing():
    pruner = prepared()
    before = pruner.state_dict()
    masks = before["masks"]
    other_shape = {**masks, "0.weight": torch.zeros(1, 2, 2, dtype=torch.bool)}
    for state, message in [
        ({}, r"lacks \['chosen_amounts', 'criterion', 'masks'.*'step'\]"),
        ({**before, "pattern": "1x8"}, r"pattern '1x8', this Pruner 'unstructured'"),
        ({**before, "masks": {"0.weight": masks["0.weight"]}}, r"1\.weight_ih_l0"),
        ({**before, "masks": other_shape}, r"0\.weight.*\(1, 2, 2\)"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            pruner.load_state_dict(state)
    after = pruner.state_dict()
    assert all(torch.equal(masks[name], after["masks"][name]) for name in masks)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.skipif(not (ROOT / "prune").is_dir(), reason="the sdist has it in sparsejit/ only")
def test_top_level_import_fails_with_the_right_name():
    assert "write `from sparsejit.prune import Pruner`" in run_python("import prune")


def test_missing_torch_names_the_remedy():
    error = run_python("import sys; sys.modules['torch'] = None; import sparsejit.prune")
    assert "MissingDependency" in error and "pip install 'sparsejit[torch]'" in error


@pytest.mark.parametrize("given", [None, 3, "model", nn.Linear, {}])
def test_what_is_no_model(given):
    with pytest.raises(InvalidInput, match=r"model is .*: give a torch\.nn\.Module"):
        Pruner(0.5, targets=["*"]).prepare(given)


@pytest.mark.parametrize("block", [(8, 8), (64, 64)])
def test_a_block_as_large_as_a_layer_would_prune_nothing_or_all(block):
    """As one block each of 3 gates of the GRU is 8 x 8; nothing was pruned, without a word."""
    for target, gates in (("0.weight", 1), ("1.weight_hh_l0", 3)):
        pruner = Pruner(0.4, targets=[target], block=block)
        remedy = rf"{target} has {gates} x 8 x 8 weights .*leave it out by '!{target}'"
        with pytest.warns(UserWarning, match=remedy):
            pruner.prepare(model())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, r"the state is None: pass Pruner\.state_dict"),
        ({"masks": 3}, r"masks are no tensors by name"),
        ({"masks": {"0.weight": 1}}, r"masks are no tensors by name"),
        ({"step": "x"}, r"step is 'x': pass Pruner\.state_dict"),
        ({"step": -5}, r"step is -5: pass Pruner\.state_dict"),
        ({"step": True}, r"step is True: pass Pruner\.state_dict"),
    ],
)
def test_what_is_no_state(change, message):
    pruner = prepared()
    state = None if change is None else {**pruner.state_dict(), **change}
    with pytest.raises(InvalidInput, match=message):
        pruner.load_state_dict(state)


def lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(4))


def on_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8, device="meta"))


def scripted() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Linear(8, 8)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lazy, r"1\.weight belongs to a lazy layer and has no shape yet: run the model on an exam"),
        (on_meta, r"0\.weight is on the meta device, which holds no values: load the weights"),
        (scripted, r"0 is a ScriptModule, whose weights cannot be replaced: give the module that"),
    ],
)
def test_models_without_weights_to_prune(make, message):
    broken = make()
    for act in (
        lambda: Pruner(0.5).prepare(broken),
        lambda: Pruner(0.5, targets=["0.weight"]).prepare(broken),
        lambda: calibrate(broken, "0.weight", [torch.zeros(1, 8)]),
        lambda: latency_table(broken, "0.weight"),
    ):
        with pytest.raises(InvalidInput, match=message):
            act()


def test_a_tied_head_is_pruned_by_its_own_name():
    tied = nn.ModuleDict({"table": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    tied["head"].weight = tied["table"].weight
    pruner = Pruner(0.5, targets=["head.weight"])
    pruner.prepare(tied)
    assert [layer.name for layer in pruner.sparsity_report().layers] == ["head.weight"]
    assert tied["table"].weight.count_nonzero() == 20


def test_fold_takes_modules():
    with pytest.raises(InvalidInput, match=r"model is None: give a torch\.nn\.Module"):
        fold(None)
