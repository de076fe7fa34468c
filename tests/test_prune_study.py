"""The pruning study at a tenth of its length: every method meets its budget, tables are whole."""

import copy

import pytest
import torch

pytest.importorskip("sklearn")
from sparsejit.perf import pruning_study as study


@pytest.fixture(scope="module")
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "PHASE", 50)
        yield study


@pytest.mark.parametrize("task", study.TASKS)
def test_every_method_meets_amount_and_pattern_from_one_checkpoint(short, task):
    run = short.Run(task, seed=0)
    before = copy.deepcopy(run.dense.state_dict())
    chance = 0.1
    assert run.accuracy(run.dense) > 3 * chance
    for name, method in short.METHODS.items():
        model = method(run, 0.9, "1x16")
        total = sum(model.get_parameter(target).count_nonzero() for target in run.task.targets)
        full = sum(model.get_parameter(target).numel() for target in run.task.targets)
        assert total == pytest.approx(0.1 * full, rel=0.01), name
        for target in run.task.targets:
            blocks = model.get_parameter(target).detach().unflatten(0, (-1, 16)) != 0
            gates = 3 if "rnn" in target else 1
            per_gate = blocks[:, 0].numel() // gates
            assert torch.equal(blocks.any(1), blocks.all(1)), name
            if "LAMP" not in name:
                assert blocks[:, 0].sum() == gates * (per_gate - round(0.9 * per_gate)), name
    for name, value in run.dense.state_dict().items():
        assert torch.equal(value, before[name])


def test_methods_train_equally_long(short):
    run = short.Run("images", seed=0)
    steps = []
    train = run.train
    run.train = lambda model, n, pruner=None: (steps.append(n), train(model, n, pruner))[1]
    for name in ("gradual", "ADMM", "rewinding", "random mask"):
        short.METHODS[name](run, 0.9, "1x8")
    assert steps == [50, 50, 100, 100]  # the first two after the checkpoint's 50


def test_tables_average_the_seeds_by_method(short):
    results = [short.Result("images", "dense", 0.0, "dense", seed, 0.97) for seed in (0, 1)]
    for place, method in enumerate(short.METHODS):
        for seed in (0, 1):
            accuracy = 0.5 + 0.01 * place + 0.1 * seed
            results.append(short.Result("images", "1x8", 0.9, method, seed, accuracy))
    table = short.markdown(results)
    assert "**images**, dense 97.0 %:" in table
    assert "| 1x8 | 90% | 55.0 | 56.0 | 57.0 | 58.0 | 59.0 | 60.0 | 61.0 |" in table


def test_seeds_draw_different_halves_and_repeat(short):
    first, again, other = (short.Digits.load(seed) for seed in (3, 3, 4))
    assert torch.equal(first.train[0], again.train[0])
    assert not torch.equal(first.train[0], other.train[0])
    assert len(first.train[0]) + len(first.held_out[0]) == 1797
    assert first.train[0].min() == 0 and first.train[0].max() == 1


def test_refitting_on_training_digits_helps_held_out_ones(short):
    rows = short.reconstruction(["images"]).splitlines()[2:]
    assert len(rows) == 2 * len(short.PATTERNS)
    for row in rows:
        magnitude, _, refitted, second_order = map(float, row.split("|")[3:-1])
        assert second_order <= refitted < magnitude
