import json
from dataclasses import asdict, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.perf import history  # noqa: E402
from sparsejit.perf.history import read_rows  # noqa: E402
from sparsejit.perf.studies import voice_pruning  # noqa: E402
from sparsejit.perf.studies.voice_pruning import Arm, Sizes, VoiceStudy, arms  # noqa: E402
from sparsejit.perf.studies.voice_pruning_report import (  # noqa: E402
    add_kernel_times,
    markdown,
)
from sparsejit.voice.features import SAMPLE_RATE  # noqa: E402
from sparsejit.voice.train.dataset import encode_clips  # noqa: E402

SIZES = Sizes(hidden_size=32, dense_samples=4 * 880, streams=2)
DENSE, EVEN, ACROSS, BLOCKS, OTHER_ORDER = ARMS = [
    replace(arm, samples=10 * 880)
    for arm in (
        voice_pruning.DENSE,
        Arm("lane16", 0.9),
        Arm("lane16", 0.9, per_gate=False),
        Arm("1x16", 0.8),
        Arm("unstructured", 0.9, order=2),
    )
]


@pytest.fixture(scope="module", autouse=True)
def commit():
    """The sdist is no git checkout, whose commit a row names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "_commit", lambda: "abc")
        yield


@pytest.fixture(scope="module")
def clips():
    time = np.arange(SAMPLE_RATE // 4) / SAMPLE_RATE
    tones = {f"clip{i}": np.sin(2 * np.pi * (120 + 20 * i) * time) ** 9 for i in range(4)}
    return encode_clips({name: (0.3 * tone).astype(np.float32) for name, tone in tones.items()})


@pytest.fixture(scope="module")
def study(clips, tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    study = VoiceStudy(clips, out, out / "rows.jsonl", SIZES)
    assert len(list(study.run(ARMS))) == len(ARMS)
    return study


def row_of(study, arm):
    (row,) = (row for row in read_rows(study.results) if row["matrix"] == arm.matrix)
    return row


def test_every_arm_leaves_the_same_checkpoint_and_names_its_circumstances(study):
    rows = read_rows(study.results)
    assert len({row["checkpoint"] for row in rows}) == 1
    for row in rows:
        assert 0 < row["nats"] < 7
        assert row["machine"] and row["commit"] and row["time"]
        assert row["samples"] == DENSE.samples


def test_recorded_arms_are_not_trained_again(study, clips, tmp_path):
    results = tmp_path / "rows.jsonl"
    lines = study.results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-1]))
    (row,) = VoiceStudy(clips, study.out, results, SIZES).run(ARMS)
    again = json.loads(lines[-1])
    assert {**row, "time": "", "commit": ""} == {**again, "time": "", "commit": ""}
    assert not list(VoiceStudy(clips, study.out, results, SIZES).run(ARMS))


def test_rows_of_another_checkpoint_are_refused(study, clips, tmp_path):
    results = tmp_path / "rows.jsonl"
    results.write_text(study.results.read_text())
    sizes = replace(SIZES, dense_samples=5 * 880)
    with pytest.raises(InvalidInput, match=r"'dense_samples': 3520.*'dense_samples': 4400"):
        list(VoiceStudy(clips, tmp_path, results, sizes).run(ARMS))


def test_densities_are_exact(study):
    # Slots of 16 weights: round(0.9 * 64) of a gate's 64 go, round(0.9 * 192) of all 192.
    assert row_of(study, EVEN)["nnz"] == 3 * (64 - 58) * 16
    assert row_of(study, ACROSS)["nnz"] == (192 - 173) * 16
    assert row_of(study, BLOCKS)["nnz"] == 3 * (64 - 51) * 16
    assert row_of(study, DENSE)["nnz"] == 96 * 32
    assert len(set(row_of(study, EVEN)["gate_density"])) == 1


def test_lanes_stay_even_across_gates(study):
    matrix = np.load(study.out / ACROSS.matrix)
    counts = np.count_nonzero(matrix.reshape(6, 16, 2, 16), axis=3)
    assert (counts == counts[:, :1]).all()


def test_a_cut_short_dense_training_goes_on(study, clips, tmp_path, monkeypatch):
    run_step = voice_pruning.Trainer.run_step

    def stop_after_step_2(self, batch):
        run_step(self, batch)
        if self.step == 2:
            self.save(tmp_path / "dense.pt")
            raise KeyboardInterrupt

    resumed = VoiceStudy(clips, tmp_path, tmp_path / "rows.jsonl", SIZES)
    monkeypatch.setattr(voice_pruning.Trainer, "run_step", stop_after_step_2)
    with pytest.raises(KeyboardInterrupt):
        resumed.checkpoint()
    monkeypatch.undo()
    (row,) = resumed.run([DENSE])
    assert row["nats"] == row_of(study, DENSE)["nats"]


def test_kernels_are_timed_once_and_change_nothing_else(study, tmp_path):
    results = tmp_path / "rows.jsonl"
    before = read_rows(study.results)[1:2]
    results.write_text(json.dumps(before[0]) + "\n")
    add_kernel_times(results, study.out)
    (row,) = read_rows(results)
    assert row.pop("kernel_ns") and row.pop("kernel") and row.pop("kernel_commit")
    assert row == before[0]
    content = results.read_text()
    add_kernel_times(results, tmp_path / "no matrices here")
    assert results.read_text() == content


def test_all_arms_differ():
    assert len(set(arms())) == len(list(arms())) == 1 + 4 * 4 * 2 + 5 + 3


def test_the_tables_show_changes_against_the_dense_arm_of_the_same_run():
    def row(arm, nats, **more):
        return {**asdict(arm), "nats": nats, "gate_density": [0.1, 0.05, 0.15], **more}

    dense, lanes = voice_pruning.DENSE, Arm("lane16", 0.9)
    rows = [
        row(dense, 4.5, kernel_ns=5000.4),
        row(lanes, 4.52),
        row(replace(lanes, per_gate=False), 4.49, kernel_ns=100),
        row(replace(dense, order=2), 4.6),
        row(replace(lanes, order=2), 4.63),
    ]
    assert markdown(rows).splitlines()[2:] == [
        "| 0% | dense | 4.500 |  | 5000 |",
        "| 90% | unstructured |  |  |  |  |  |  |  |",
        "| 90% | lane16 | 4.520 | +0.020 |  | 4.490 | -0.010 | 100 | 10.0%, 5.0%, 15.0% |",
        "",
        "| extra samples | order | dense | unstructured | lane16 |",
        "|---|---|---|---|---|",
        "| 3.5 M | 1 | 4.500 |  | +0.020 |",
        "| 3.5 M | 2 | 4.600 |  | +0.030 |",
    ]
