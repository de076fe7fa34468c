import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")

from sparsejit.errors import DamagedFile, InvalidInput  # noqa: E402
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE  # noqa: E402
from sparsejit.voice.prediction import ZERO_CLASS  # noqa: E402
from sparsejit.voice.speak.bulk import Manner  # noqa: E402
from sparsejit.voice.train import dataset  # noqa: E402
from sparsejit.voice.train import trainer as training  # noqa: E402
from sparsejit.voice.train.dataset import Streams, held_out_names, load_clips  # noqa: E402
from sparsejit.voice.train.likelihood import (  # noqa: E402
    evaluate,
    held_out_nats,
    negative_log_likelihood,
)
from sparsejit.voice.train.module import WaveRNNModule  # noqa: E402
from sparsejit.voice.train.trainer import TrainingPlan, train  # noqa: E402
from sparsejit.voice.weights import PRUNED, VoiceWeights, is_voice_file  # noqa: E402

PLAN = TrainingPlan(
    hidden_size=16, samples=20 * 2 * 440, streams=2, amount=15 / 16, dense_amount=14 / 16
)
SAMPLE_ARRAYS = ("classes", "signal", "prediction")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight short recordings of a gliding, pulsed tone."""
    root = tmp_path_factory.mktemp("speech")
    time = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
    for i in range(8):
        pulses = np.sin(2 * np.pi * (120 + 20 * i) * time * (1 + time)) ** 9
        soundfile.write(root / f"clip{i}.wav", 0.3 * pulses, SAMPLE_RATE)
    return root


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return train(folder, out, PLAN, device="cpu")


def test_training_writes_a_pruned_voice_and_a_log(trained):
    weights = VoiceWeights.load(trained)
    assert weights.held_out == ("clip2", "clip6")
    (row,) = map(json.loads, (trained.parent / "log.jsonl").read_text().splitlines())
    assert row["samples"] == PLAN.samples
    assert 0 < row["held_out_nats"] < 7
    assert row["int8"]
    recurrent, *dense = (weights.tensors[name] for name in PRUNED)
    matrices = [*np.split(recurrent, 3), *dense]
    # One of the 16 weights of a row's window is left, and in the dense layers two.
    kept = [np.count_nonzero(matrix) / matrix.size for matrix in matrices]
    assert kept == pytest.approx([1 / 16] * 3 + [2 / 16] * 2)
    assert row["gate_densities"] + row["dense_densities"] == pytest.approx(kept)


def test_a_plan_that_prunes_nothing_leaves_every_weight(folder, tmp_path):
    plan = replace(PLAN, amount=0.0, dense_amount=None, samples=4 * PLAN.samples_a_step)
    weights = VoiceWeights.load(train(folder, tmp_path, plan, device="cpu"))
    for matrix in (weights.tensors[name] for name in PRUNED):
        assert np.count_nonzero(matrix) > 0.99 * matrix.size


def test_training_goes_on_from_a_voice(folder, trained, tmp_path):
    start = replace(VoiceWeights.load(trained), held_out=("clip0",))
    plan = replace(PLAN, hidden_size=24, samples=PLAN.samples_a_step, warm_up_steps=10**9)
    weights = VoiceWeights.load(train(folder, tmp_path, plan, "cpu", start=start))
    gates = (np.split(each.tensors[PRUNED[0]], 3) for each in (weights, start))
    for gate, given in zip(*gates, strict=True):
        np.testing.assert_allclose(gate[:16, :16][given != 0], given[given != 0], atol=1e-3)
    assert weights.held_out == ("clip0",)


def test_a_voice_speaks_from_the_checkpoint_of_its_training(trained, tmp_path):
    checkpoint = trained.with_name("checkpoint.pt")
    assert is_voice_file(checkpoint) and not is_voice_file(trained.with_name("none.pt"))
    found, wanted = VoiceWeights.load(checkpoint), VoiceWeights.load(trained)
    assert found.temperature == wanted.temperature == PLAN.temperature
    for name, value in wanted.tensors.items():
        np.testing.assert_array_equal(found.tensors[name].astype(np.float16), value)
    voice = Manner(checkpoint, temperature=0.5).compile()
    assert voice.weights.temperature == 0.5 and voice.post_filter
    content = torch.load(checkpoint, weights_only=True)
    del content["model"]["fc2.bias"]
    torch.save(content, tmp_path / "part.pt")
    with pytest.raises(DamagedFile, match=r"fc2\.bias has shape None.*give the voice\.safetensors"):
        VoiceWeights.load(tmp_path / "part.pt")
    torch.save({"fc2.bias": torch.zeros(3)}, tmp_path / "other.pt")
    assert not is_voice_file(tmp_path / "other.pt")
    with pytest.raises(DamagedFile, match=r"other\.pt is not sparsejit's checkpoint"):
        VoiceWeights.load(tmp_path / "other.pt")


def test_rounding_starts_where_the_plan_says():
    plan = TrainingPlan(samples=100 * 7040, int8_start=0.85)
    assert [plan.rounds_at(step) for step in (0, 84, 85, 99)] == [False, False, True, True]
    assert not replace(plan, int8_start=1.0).rounds_at(99)


@pytest.mark.parametrize("int8", [False, True])
def test_a_step_rounds_where_the_plan_says(folder, tmp_path, int8):
    clips = load_clips(folder, tmp_path)
    trainer = training.Trainer(replace(PLAN, int8_start=0.0 if int8 else 1.0), clips, "cpu")
    batch = next(iter(trainer.streams))
    with torch.no_grad():
        wanted, _ = negative_log_likelihood(trainer.model, batch, trainer.state, int8)
        other, _ = negative_log_likelihood(trainer.model, batch, trainer.state, not int8)
    assert trainer.run_step(batch) == wanted.item() != other.item()


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(folder, trained, tmp_path, monkeypatch):
    run_step = training.Trainer.run_step

    def stop_after_step_13(self, batch):
        run_step(self, batch)
        if self.step == 13:
            self.save(tmp_path / "checkpoint.pt")
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(training.Trainer, "run_step", stop_after_step_13)
    with pytest.raises(KeyboardInterrupt):
        train(folder, tmp_path, PLAN, device="cpu")
    monkeypatch.undo()
    resumed = VoiceWeights.load(train(folder, tmp_path, PLAN, device="cpu"))
    for name, value in VoiceWeights.load(trained).tensors.items():
        np.testing.assert_array_equal(resumed.tensors[name], value)


def test_training_learns(folder, tmp_path):
    clips = load_clips(folder, tmp_path)
    trainer = training.Trainer(TrainingPlan(hidden_size=32, samples=10**7, streams=4), clips, "cpu")
    losses = [trainer.run_step(batch) for batch in islice(trainer.streams, 40)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1


def test_evaluation_does_not_depend_on_the_length_of_its_pieces(folder, tmp_path):
    clips = load_clips(folder, tmp_path)[:3]
    model = training.Trainer(PLAN, clips, "cpu").model
    parts = [evaluate(model, clips, "cpu", frames) for frames in (5, 23)]
    assert parts[0] == pytest.approx(parts[1], rel=1e-5)


def test_every_sample_of_clips_of_any_length_weighs_the_same(folder, tmp_path):
    whole, other = load_clips(folder, tmp_path)[:2]
    short = replace(
        other,
        mel=other.mel[:, :7],
        **{name: getattr(other, name)[: 7 * HOP_LENGTH] for name in SAMPLE_ARRAYS},
    )
    model = training.Trainer(PLAN, [whole], "cpu").model
    alone = [evaluate(model, [clip], "cpu", 10) for clip in (whole, short)]
    wanted = np.average(alone, weights=[whole.frames, 7])
    assert evaluate(model, [whole, short], "cpu", 10) == pytest.approx(wanted, rel=1e-5)
    assert evaluate(model, [whole], "cpu", 10, most_frames=whole.frames) == alone[0]


def test_held_out_nats_of_every_dtype(folder, trained, tmp_path):
    weights = VoiceWeights.load(trained)
    nats = held_out_nats(weights, folder, tmp_path)
    clips = [clip for clip in load_clips(folder, tmp_path) if clip.name in weights.held_out]
    model = WaveRNNModule.from_weights(weights)
    assert nats["float32"] == pytest.approx(evaluate(model, clips, "cpu"), rel=1e-5)
    assert nats["bfloat16"] != nats["float32"] != nats["int8"]
    assert nats["float16"] == pytest.approx(nats["float32"], abs=0.001)
    assert nats["bfloat16"] == pytest.approx(nats["float32"], abs=0.01)
    assert nats["int8"] == pytest.approx(nats["float32"], abs=0.05)


def test_nats_of_a_voice_from_another_folder_are_refused(folder, tmp_path):
    weights = VoiceWeights(VoiceWeights.random(8).tensors, held_out=("absent",))
    with pytest.raises(InvalidInput, match="lacks the recording absent"):
        held_out_nats(weights, folder, tmp_path)


def test_streams_follow_each_clip_from_its_start_to_its_end(folder, tmp_path):
    clips = load_clips(folder, tmp_path)
    whole = {clip.name: clip.inputs() for clip in clips}
    steps = clips[0].frames // 4
    batches = list(islice(Streams(clips, 3, 4), steps))
    assert batches[0].starts.all() and not any(batch.starts.any() for batch in batches[1:])
    for stream in range(3):
        heard = np.concatenate([batch.inputs[:, stream] for batch in batches])
        assert any(np.array_equal(heard, inputs[: len(heard)]) for inputs in whole.values())
    # The class a step predicts is the class it sees next.
    for batch in batches:
        np.testing.assert_array_equal(batch.targets[:-1], batch.inputs[1:, :, 1])
    assert (batches[0].inputs[0, :, 1] == ZERO_CLASS).all()
    assert batches[0].mel.shape == (3, 80, 8)
    assert batches[0].inputs.shape == (4 * HOP_LENGTH, 3, 3)


def test_an_epoch_of_streams_uses_every_clip(folder, tmp_path):
    clips = load_clips(folder, tmp_path)
    streams = Streams(clips, 2, clips[0].frames)
    heard = {mel.tobytes() for batch in islice(streams, 4) for mel in batch.mel}
    assert len(heard) == 8


def test_only_the_recordings_asked_for_are_encoded(folder, tmp_path, monkeypatch):
    encode, asked = dataset.encode_clips, []

    def watched(recordings):
        asked.append(sorted(recordings))
        return encode(recordings)

    monkeypatch.setattr(dataset, "encode_clips", watched)
    two = load_clips(folder, tmp_path, ("clip3", "clip5"))
    everything = load_clips(folder, tmp_path)
    again = load_clips(folder, tmp_path, ("clip3", "clip5"))
    assert asked == [["clip3", "clip5"], [f"clip{i}" for i in range(8)]]
    for one, other, whole in zip(two, again, everything[3:6:2], strict=True):
        assert one.name == other.name == whole.name
        np.testing.assert_array_equal(one.classes, whole.classes)
        np.testing.assert_array_equal(other.classes, whole.classes)


def test_held_out_recordings_are_spread_and_few():
    names = [f"{i:03}" for i in range(366)]
    held_out = held_out_names(names)
    assert len(held_out) == 8 and len(set(held_out)) == 8
    assert max(np.diff([int(name) for name in held_out])) < 50
    assert held_out_names(names[:8]) == ["002", "006"]


def test_a_folder_without_recordings_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no audio here")
    with pytest.raises(InvalidInput, match=r"holds no \.flac, \.ogg, \.wav"):
        train(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unreadable_recording_is_named_and_nothing_is_written(tmp_path):
    (tmp_path / "noise.wav").write_bytes(b"RIFF, or so it says")
    with pytest.raises(InvalidInput, match=r"noise\.wav"):
        train(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_few_recordings_are_refused(folder, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.wav").write_bytes((folder / f"clip{i}.wav").read_bytes())
    with pytest.raises(InvalidInput, match="3 recordings; give at least 4"):
        train(tmp_path, tmp_path / "out", PLAN)


def test_a_device_that_is_not_here_is_refused(folder, tmp_path):
    with pytest.raises(InvalidInput, match="'tpu' is not here"):
        train(folder, tmp_path, PLAN, device="tpu")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half a checkpoint"])
def test_a_damaged_checkpoint_is_refused(folder, tmp_path, content):
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"checkpoint\.pt .*delete it"):
        train(folder, tmp_path, PLAN)


def test_a_checkpoint_of_another_network_is_refused(folder, trained):
    with pytest.raises(InvalidInput, match="hidden_size 16, the plan 24"):
        train(folder, trained.parent, TrainingPlan(hidden_size=24, samples=10**6))


def test_a_damaged_cache_is_refused(folder, tmp_path):
    load_clips(folder, tmp_path)
    (cache,) = tmp_path.glob("clips-*.npz")
    cache.write_bytes(cache.read_bytes()[:1000])
    with pytest.raises(DamagedFile, match="delete it to encode again"):
        load_clips(folder, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prune_start": 0.8}, "from 0.8 to 0.6"),
        ({"int8_start": 1.5}, "int8_start is 1.5"),
        ({"dense_amount": 1.0}, "amount=1.0 is outside"),
        ({"samples": 100}, "100 samples are less than one step"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        TrainingPlan(**change)
