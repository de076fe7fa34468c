import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from sparsejit.artefact.sealed import write_sealed
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.voice import bundled
from sparsejit.voice.bundled import UTTERANCE, VOICE, bundled_utterance
from sparsejit.voice.weights import IDENTITY, VoiceWeights


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


def test_zeros_are_not_stored(tmp_path):
    weights = VoiceWeights.random(64, density=0.1)
    weights.save(tmp_path / "sparse.safetensors")
    tensors, _ = stored(tmp_path / "sparse.safetensors")
    for name in ("rnn.weight_hh_l0", "fc1.weight", "fc2.weight"):
        matrix = weights.tensors[name].astype(np.float16)
        assert tensors[name + ".values"].nbytes == 2 * np.count_nonzero(matrix)
        assert tensors[name + ".bits"].nbytes == matrix.size / 8
        assert name not in tensors
    VoiceWeights.random(64, density=1.0).save(tmp_path / "dense.safetensors")
    assert "fc1.weight" in stored(tmp_path / "dense.safetensors")[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc1.weight.bits": np.zeros(3, np.uint8)}, r"fc1\.weight\.bits has shape \(3,\)"),
        ({"fc1.weight.values": np.ones(3, np.float16)}, r"fc1\.weight\.values has shape \(3,\)"),
        ({"fc1.weight.values": None}, r"fc1\.weight\.values"),
        ({"rnn.bias_hh_l0": None}, r"rnn\.bias_hh_l0"),
    ],
)
def test_packed_matrices_that_do_not_fit_are_refused(tmp_path, change, message):
    path = tmp_path / "voice.safetensors"
    VoiceWeights.random(16).save(path)
    tensors, metadata = stored(path)
    tensors = {name: value for name, value in {**tensors, **change}.items() if value is not None}
    write_sealed(path, tensors, {n: v for n, v in metadata.items() if n != "sha256"})
    with pytest.raises(DamagedFile, match=message):
        VoiceWeights.load(path)


def test_a_temperature_of_numpy_s_is_a_number_in_the_file(tmp_path):
    weights = VoiceWeights(VoiceWeights.random(8).tensors, np.float32(0.5))
    weights.save(tmp_path / "voice.safetensors")
    assert VoiceWeights.load(tmp_path / "voice.safetensors").temperature == 0.5


def test_random_weights_are_sparse_in_blocks_of_eight_outputs():
    recurrent = VoiceWeights.random(64, density=0.25).tensors["rnn.weight_hh_l0"]
    blocks = recurrent.reshape(-1, 8, 64) != 0
    assert (blocks.all(axis=1) == blocks.any(axis=1)).all()
    assert 0.2 < blocks.mean() < 0.3


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of a sound file, and where its header ends."""
    path = tmp_path_factory.mktemp("sound") / "voice.safetensors"
    VoiceWeights(VoiceWeights.random(16).tensors, 0.9, ("a", "b")).save(path)
    content = path.read_bytes()
    return content, 8 + int.from_bytes(content[:8], "little")


def assert_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"hurt\.safetensors .*copy it again"):
        VoiceWeights.load(path)


def test_no_byte_of_a_file_can_change_unnoticed(tmp_path, sound):
    content, header = sound
    generator = np.random.default_rng(0)
    elsewhere = generator.choice(np.arange(header, len(content)), 300, replace=False)
    for place in [*range(header), *elsewhere.tolist()]:
        changed = bytearray(content)
        changed[place] ^= int(generator.integers(1, 256))
        assert_refused(tmp_path / "hurt.safetensors", changed)


def test_the_case_of_a_letter_is_noticed(tmp_path, sound):
    """Hexadecimal digits, names and numbers read the same in either case."""
    content, header = sound
    letters = [i for i in range(8, header) if chr(content[i]).isalpha()]
    for place in letters:
        changed = bytearray(content)
        changed[place] ^= 0x20
        assert_refused(tmp_path / "hurt.safetensors", changed)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 1000, 5000, -100, -1])
def test_a_truncated_file_is_refused(tmp_path, sound, length):
    assert_refused(tmp_path / "hurt.safetensors", sound[0][:length])


@pytest.mark.parametrize("more", [b"\0", b" ", b"x" * 1000])
def test_an_extended_file_is_refused(tmp_path, sound, more):
    content, header = sound
    assert_refused(tmp_path / "hurt.safetensors", content + more)
    assert_refused(tmp_path / "hurt.safetensors", content[:header] + more + content[header:])


def test_files_of_no_voice_are_refused(tmp_path):
    path = tmp_path / "hurt.safetensors"
    assert_refused(path, b"not a voice")
    save_file({"weight": np.zeros(3, np.float32)}, path)
    assert_refused(path, path.read_bytes())
    write_sealed(path, {"weight": np.zeros(3, np.float32)}, {"format": "another"})
    with pytest.raises(DamagedFile, match="has format 'another', not 'sparsejit-voice-3'"):
        VoiceWeights.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": "0.0"}, "the temperature is 0.0; give 0.01 to 100"),
        ({"temperature": "nan"}, "the temperature is nan"),
        ({"temperature": "-1"}, "the temperature is -1"),
        ({"temperature": "warm"}, "warm"),
        ({"held_out": "[1"}, "not a voice"),
        ({"held_out": "3"}, "not a voice"),
        ({"hop_length": "256"}, "has hop_length '256', not '220'"),
    ],
)
def test_a_whole_file_with_a_field_that_cannot_be_is_refused(tmp_path, change, message):
    path = tmp_path / "odd.safetensors"
    fields = {**IDENTITY, "temperature": "0.9", "held_out": "[]", **change}
    write_sealed(path, VoiceWeights.random(16).tensors, fields)
    with pytest.raises(DamagedFile, match=message):
        VoiceWeights.load(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc1.weight", np.zeros((256, 8), np.float32), r"fc1\.weight has shape \(256, 8\)"),
        ("fc1.weight", None, r"fc1\.weight has shape None, not \(256, 16\)"),
        ("rnn.weight_hh_l0", None, r"has shape None"),
        ("rnn.weight_hh_l0", np.zeros(48, np.float32), r"has shape"),
        ("more", np.zeros(3, np.float32), r"more has shape \(3,\), not None"),
        ("fc2.bias", np.full(256, np.nan, np.float32), r"fc2\.bias contains NaN or infinity"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, name, value, message):
    tensors = {**VoiceWeights.random(16).tensors, name: value}
    tensors = {name: found for name, found in tensors.items() if found is not None}
    with pytest.raises(InvalidInput, match=message):
        VoiceWeights(tensors)
    path = tmp_path / "voice.safetensors"
    write_sealed(path, tensors, {**IDENTITY, "temperature": "0.9", "held_out": "[]"})
    with pytest.raises(DamagedFile, match=message):
        VoiceWeights.load(path)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf"), 1e-40, "0.9"])
def test_a_temperature_that_cannot_be_is_refused(temperature):
    with pytest.raises(InvalidInput, match=r"the temperature is .*; give 0\.01 to 100"):
        VoiceWeights(VoiceWeights.random(16).tensors, temperature)


def test_a_value_that_the_file_s_type_cannot_hold_is_refused(tmp_path):
    weights = VoiceWeights.random(16)
    weights.tensors["fc2.bias"][3] = 1e6
    with pytest.raises(InvalidInput, match=r"fc2\.bias exceeds the range of float16; save as"):
        weights.save(tmp_path / "voice.safetensors")
    assert not list(tmp_path.iterdir())
    weights.save(tmp_path / "voice.safetensors", np.float32)
    assert VoiceWeights.load(tmp_path / "voice.safetensors").tensors["fc2.bias"][3] == 1e6


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"no voice file .*absent"):
        VoiceWeights.load(tmp_path / "absent.safetensors")


def test_the_bundled_voice_is_small_and_pruned_per_gate():
    assert VOICE.stat().st_size < 1_000_000
    tensors = VoiceWeights.load(VOICE).tensors
    for name, gates, most in [
        ("rnn.weight_hh_l0", 3, 0.0501),
        ("fc1.weight", 1, 0.0801),
        ("fc2.weight", 1, 0.0801),
    ]:
        for gate in np.split(tensors[name], gates):
            assert 0.9 * most < np.count_nonzero(gate) / gate.size <= most


def test_the_bundled_utterance_was_held_out():
    utterance = bundled_utterance()
    assert utterance.name in VoiceWeights.load(VOICE).held_out
    assert utterance.mel.shape[0] == 80
    assert utterance.text


def test_a_damaged_utterance_is_refused(tmp_path, monkeypatch):
    content = bytearray(UTTERANCE.read_bytes())
    place = content.index(b"modern figures")
    content[place] ^= 1
    monkeypatch.setattr(bundled, "UTTERANCE", tmp_path / "utterance.safetensors")
    bundled.UTTERANCE.write_bytes(content)
    with pytest.raises(DamagedFile, match="install sparsejit again"):
        bundled_utterance()


def test_a_voice_is_saved_as_floats_where_a_file_can_be(tmp_path):
    weights = VoiceWeights.random(32)
    with pytest.raises(InvalidInput, match="saved as float16 or float32"):
        weights.save(tmp_path / "voice.safetensors", np.int8)
    with pytest.raises(InvalidInput, match="cannot be written"):
        weights.save(tmp_path)
