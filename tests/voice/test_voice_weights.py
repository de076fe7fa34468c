import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.voice.bundled import VOICE, bundled_utterance
from sparsejit.voice.weights import VoiceWeights


@pytest.fixture
def mel():
    return np.random.default_rng(1).uniform(-6, 0, (80, 30)).astype(np.float32)


def stored(path):
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_saving_and_loading_keeps_everything(tmp_path):
    weights = VoiceWeights(VoiceWeights.random(32).tensors, 0.9, ("a", "b"))
    weights.save(tmp_path / "voice.safetensors", np.float32)
    loaded = VoiceWeights.load(tmp_path / "voice.safetensors")
    assert (loaded.temperature, loaded.held_out, loaded.hidden_size) == (0.9, ("a", "b"), 32)
    for name, value in weights.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name], value)


def test_random_weights_are_sparse_in_blocks_of_eight_outputs():
    recurrent = VoiceWeights.random(64, density=0.25).recurrent
    blocks = recurrent.reshape(-1, 8, 64) != 0
    assert (blocks.all(axis=1) == blocks.any(axis=1)).all()
    assert 0.2 < blocks.mean() < 0.3


def test_run_time_arrays_are_contiguous_float32(mel):
    weights = VoiceWeights.random(32)
    arrays = [*vars(weights.conditioning(mel)).values(), weights.input_tables]
    arrays += [weights.recurrent, weights.recurrent_new_bias, weights.dense, weights.output]
    for array in arrays:
        assert array.dtype == np.float32
        assert array.flags.c_contiguous


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)


def replace_by_text(path):
    path.write_text("not a voice")


def empty(path):
    path.write_bytes(b"")


def replace_by_another_model(path):
    save_file({"weight": np.zeros(3, np.float32)}, path)


def drop_the_digest(path):
    tensors, metadata = stored(path)
    del metadata["sha256"]
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    "damage",
    [truncate, flip_a_bit, replace_by_text, empty, replace_by_another_model, drop_the_digest],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "hurt.safetensors"
    VoiceWeights.random(16).save(path)
    damage(path)
    with pytest.raises(DamagedFile, match=r"hurt\.safetensors .*train"):
        VoiceWeights.load(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.zeros((256, 8), np.float32), r"fc1\.weight of shape"), (None, r"fc1\.weight of shape")],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, value, message):
    tensors = {**VoiceWeights.random(16).tensors, "fc1.weight": value}
    path = tmp_path / "voice.safetensors"
    VoiceWeights({name: found for name, found in tensors.items() if found is not None}).save(path)
    with pytest.raises(DamagedFile, match=message):
        VoiceWeights.load(path)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    weights = VoiceWeights.random(16)
    weights.tensors["fc2.bias"][3] = np.nan
    weights.save(tmp_path / "voice.safetensors")
    with pytest.raises(DamagedFile, match=r"NaN or infinity in fc2\.bias"):
        VoiceWeights.load(tmp_path / "voice.safetensors")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"no voice file .*absent"):
        VoiceWeights.load(tmp_path / "absent.safetensors")


def test_the_bundled_voice_is_small_and_pruned_per_gate_in_blocks():
    tensors, _ = stored(VOICE)
    assert VOICE.stat().st_size < 8_000_000
    assert {value.dtype for value in tensors.values()} == {np.dtype(np.float16)}
    for name, gates in [("rnn.weight_hh_l0", 3), ("fc1.weight", 1), ("fc2.weight", 1)]:
        for gate in np.split(tensors[name], gates):
            kept = (gate.reshape(-1, 8, gate.shape[1]) != 0).any(axis=1)
            assert kept.mean() <= 0.1


def test_the_bundled_utterance_was_held_out():
    utterance = bundled_utterance()
    assert utterance.name in VoiceWeights.load(VOICE).held_out
    assert utterance.mel.shape[0] == 80
    assert utterance.text
