"""WaveRNNs that other projects trained, against torch on the same weights."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_wavernn import FatchordModule, OneGruModule  # noqa: E402

from sparsejit.errors import DamagedFile, InvalidInput  # noqa: E402
from sparsejit.ir import reference  # noqa: E402
from sparsejit.machine.target import Target  # noqa: E402
from sparsejit.perf.voice.voice_networks import GraphTurns  # noqa: E402
from sparsejit.planner.calibration import calibrated  # noqa: E402
from sparsejit.voice.speak.wavernn import WaveRNN  # noqa: E402
from sparsejit.voice.spec.forced_network import ForcedNetwork, choose_dtypes  # noqa: E402
from sparsejit.voice.spec.known_checkpoints import known_network, read_checkpoint  # noqa: E402
from sparsejit.voice.spec.sample_loop import Sampler, compile_sample_loop  # noqa: E402
from sparsejit.voice.spec.trained import TrainedNetwork  # noqa: E402
from sparsejit.voice.spec.voice_spec import Categorical, Companding, MixtureOfLogistics  # noqa: E402

ONE_GRU = Path("/work/shared/data/wavernn-16k")
BANDS, ROUNDING_TIE = 20, 2e-5


def fatchord(classes: int = 512) -> FatchordModule:
    """Random weights, its batch norms as after some training."""
    torch.manual_seed(classes)
    module = FatchordModule(classes=classes, bands=BANDS).eval()
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return module


def random_mel(frames: int, bands: int = BANDS) -> np.ndarray:
    return np.random.default_rng(frames).uniform(0, 1, (bands, frames)).astype(np.float32)


def torch_nats(module: torch.nn.Module, mel: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """In float64."""
    count = module.double()(torch.zeros(mel.shape[1] * hop_of(module)).double(), wide(mel)).shape[1]
    levels = 2 * classes / (count - 1) - 1
    before = torch.tensor(np.append(0.0, levels[:-1]))
    with torch.no_grad():
        logits = module(before, wide(mel))
    each = torch.nn.functional.cross_entropy(logits, torch.tensor(classes), reduction="none")
    return each.numpy()


def wide(mel: np.ndarray) -> "torch.Tensor":
    return torch.tensor(mel).double()


def hop_of(module: torch.nn.Module) -> int:
    return int(np.prod(module.upsample.scales))


def test_raw_scores_as_torch_does() -> None:
    module = fatchord()
    voice = known_network(read_checkpoint(module.state_dict()))
    assert voice.hop_length == 24 and voice.sample_rate == 22_050 and voice.n_mels == BANDS
    assert voice.spec.output == Categorical(512, Companding.MU_LAW)
    mel = random_mel(12)
    classes = np.random.default_rng(0).integers(0, 512, 12 * 24)
    found = ForcedNetwork(voice, Target.detect()).nats(mel, classes)
    np.testing.assert_allclose(found, torch_nats(module, mel, classes), atol=2e-5)


def test_a_mixture_draws_from_torch_s_parameters() -> None:
    """Fed with the drawn classes, torch gives the parameters that each sample came from."""
    module = fatchord(30)
    voice = WaveRNN.from_checkpoint(module.state_dict())
    assert voice.source.spec.output == MixtureOfLogistics(10)
    mel = random_mel(10)
    audio = voice.generate(mel, seed=5)
    with torch.no_grad():
        before = torch.tensor(np.append(0, audio[:-1]))
        parameters = module.double()(before.double(), wide(mel)).numpy()
    counters = np.arange(2 * len(audio), dtype=np.uint64).reshape(-1, 2)
    numbers = reference.random_uniform(5, counters).astype(np.float64)
    ties = 0
    for sample, row, (first, second) in zip(audio, parameters, numbers, strict=True):
        logits, means, scales = row.reshape(3, 10)
        sums = np.cumsum(np.exp(logits)) / np.exp(logits).sum()
        k, u = int((sums <= first).sum()), 1e-5 + (1 - 2e-5) * second
        wanted = np.clip(means[k] + np.exp(scales[k]) * np.log(u / (1 - u)), -1, 1)
        if abs(sample - wanted) > 1e-4:
            assert np.abs(sums - first).min() < ROUNDING_TIE
            ties += 1
    assert ties <= 1


def test_upsampling_that_reads_too_far_is_refused() -> None:
    """Three repeats by one still smooth, over three frames more."""
    state = FatchordModule(bands=BANDS, scales=(1, 1, 1, 4)).state_dict()
    with pytest.raises(InvalidInput, match=r"by \[1, 1, 1, 4\] with smoothing reads"):
        WaveRNN.from_checkpoint(state)


@pytest.mark.parametrize("cuts", [[1, 2], [3, 3, 9], [5]])
def test_a_stream_gives_the_samples_of_one_call(cuts: list[int]) -> None:
    voice = WaveRNN.from_checkpoint(fatchord().state_dict())
    mel = random_mel(12)
    streamed = np.concatenate(list(voice.stream(np.split(mel, cuts, axis=1), seed=2)))
    np.testing.assert_array_equal(streamed, voice.generate(mel, seed=2))


def test_training_that_goes_on_does_not_change_a_voice() -> None:
    module = fatchord()
    tensors = read_checkpoint(module.state_dict())
    before = tensors["fc1.weight"].copy()
    with torch.no_grad():
        module.fc1.weight.zero_()
    np.testing.assert_array_equal(tensors["fc1.weight"], before)


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    state = fatchord().state_dict()
    torch.save(state, tmp_path / "voice.pyt")
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(state, tmp_path / "voice.safetensors")
    for name in ("voice.pyt", "voice.safetensors"):
        found = read_checkpoint(tmp_path / name)
        np.testing.assert_array_equal(found["I.weight"], state["I.weight"].numpy())
        assert "step" not in found
    short = {name: value.bfloat16() for name, value in state.items()}
    safetensors.save_file(short, tmp_path / "short.safetensors")
    found = read_checkpoint(tmp_path / "short.safetensors")
    np.testing.assert_array_equal(found["I.weight"], short["I.weight"].float().numpy())


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no file"):
        read_checkpoint(tmp_path / "none.pyt")
    for name in ("wrong.pyt", "wrong.safetensors"):
        (tmp_path / name).write_bytes(b"not a checkpoint")
        with pytest.raises(DamagedFile, match=name):
            read_checkpoint(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pyt")
    with pytest.raises(DamagedFile, match=r"list\.pyt holds no tensors; save model\.state_dict"):
        read_checkpoint(tmp_path / "list.pyt")


def without(state: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in state.items() if key != name}


def test_the_first_tensor_that_does_not_fit_is_named() -> None:
    state = {name: value.numpy() for name, value in fatchord().state_dict().items()}
    cases = {
        r"no tensor 'rnn2.weight_hh_l0', \(144, 48\)": without(state, "rnn2.weight_hh_l0"),
        r"'fc1.weight' has shape \(32, 50\), not \(32, 54\)": {
            **state,
            "fc1.weight": np.zeros((32, 50)),
        },
        "'attention.weight' of shape .* is in no WaveRNN of this kind": {
            **state,
            "attention.weight": np.zeros(3),
        },
        "'fc3.weight' has 500 outputs, neither": {**state, "fc3.weight": np.zeros((500, 32))},
        "begins with tensor 'encoder.weight'": {"encoder.weight": np.zeros(3)},
        "'rnn1.bias_hh_l0' has NaN": {**state, "rnn1.bias_hh_l0": np.full(144, np.nan)},
    }
    for message, wrong in cases.items():
        with pytest.raises(InvalidInput, match=message):
            WaveRNN.from_checkpoint(wrong)


def test_a_mel_on_another_scale_is_refused() -> None:
    voice = WaveRNN.from_checkpoint(fatchord().state_dict())
    with pytest.raises(InvalidInput, match="values of size 80; scale it as in"):
        voice.generate(-80 * np.ones((BANDS, 3)))
    with pytest.raises(InvalidInput, match=r"shape \(80, 3\); give \(20, frames\)"):
        voice.generate(np.zeros((80, 3)))
    with pytest.raises(InvalidInput, match=r"another project's mels"):
        voice.features(np.zeros(1000), 16_000)


def test_a_voice_of_another_project_shows_itself_and_has_no_weights_of_ours() -> None:
    voice = WaveRNN.from_checkpoint(fatchord().state_dict(), sample_rate=24_000)
    assert repr(voice).startswith("<WaveRNN, 48 units, ")
    assert repr(voice).endswith("temperature 1, 24,000 Hz>")
    assert [layer.layer for layer in voice.layers] == [
        "rnn1",
        "rnn2.input",
        "rnn2",
        "fc1",
        "fc2",
        "fc3",
    ]
    with pytest.raises(InvalidInput, match=r"voice\.source has its tensors"):
        _ = voice.weights


@pytest.fixture(scope="module")
def one_gru() -> TrainedNetwork:
    if not ONE_GRU.is_dir():
        pytest.skip(f"there is no {ONE_GRU}")
    return known_network(read_checkpoint(ONE_GRU / "model.safetensors"))


def test_the_one_gru_network_scores_its_own_audio_as_torch_does(one_gru: TrainedNetwork) -> None:
    mel = np.load(ONE_GRU / "mel.npy").T[:, 100:140]
    sampler = Sampler(WaveRNN(one_gru).loop, 1)
    sampler.generate(one_gru.conditioning(mel))
    module = OneGruModule(read_checkpoint(ONE_GRU / "model.safetensors"))
    found = ForcedNetwork(one_gru, Target.detect()).nats(mel, sampler.classes)
    assert abs(found.mean() - torch_nats(module, mel, sampler.classes).mean()) < 0.0005


def test_the_one_gru_network_draws_as_its_graph_does(one_gru: TrainedNetwork) -> None:
    arrays = one_gru.conditioning(np.load(ONE_GRU / "mel.npy").T[:, 100:101])
    sampler = Sampler(WaveRNN(one_gru).loop, 1)
    audio = sampler.generate(arrays)
    turns, ties = GraphTurns(one_gru.graph.sample, arrays, 1), 0
    for sample, chosen in zip(audio, sampler.classes, strict=True):
        (_, drawn), margin = turns.next()
        if drawn != chosen:
            ties += 1
            assert abs(drawn - chosen) == 1 and margin < ROUNDING_TIE
        turns.follow("last sample", float(sample))
    assert ties <= 1


# The nats that each layer of a dtype costs a sample.
NATS = {"int8": 0.01, "bfloat16": 0.001}


class PricedNetwork:
    """Takes dtypes for as bad as `NATS` says."""

    def __init__(self, voice: TrainedNetwork, target: Target, dtypes: Mapping[str, str]) -> None:
        self.extra = sum(NATS[dtype] for dtype in dtypes.values())

    def nats(self, mel: np.ndarray, classes: np.ndarray) -> np.ndarray:
        assert len(classes) == 24 * mel.shape[1]
        return np.full(len(classes), 3 + self.extra)


def predicted_gains(voice: TrainedNetwork) -> dict[tuple[str, str], float]:
    """Nanoseconds that a layer saves in a dtype, where it is a twentieth of its time or more."""
    machine = calibrated(Target.detect())
    plans = {
        dtype: compile_sample_loop(voice.graph.sample, machine, dtype).plans
        for dtype in ("float32", *NATS)
    }
    return {
        (layer, dtype): plan.chosen.cost.ns - plans[dtype][layer].chosen.cost.ns
        for layer, plan in plans["float32"].items()
        for dtype in NATS
        if plans[dtype][layer].chosen.cost.ns < 0.95 * plan.chosen.cost.ns
    }


@pytest.mark.plans
def test_dtypes_are_chosen_by_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsejit.voice.spec.forced_network.ForcedNetwork", PricedNetwork)
    voice, mel = known_network(read_checkpoint(fatchord(64).state_dict())), random_mel(3)
    gains = predicted_gains(voice)
    falling = sorted(gains, key=gains.__getitem__, reverse=True)
    assert choose_dtypes(voice, mel, most_nats=0) == {}
    assert choose_dtypes(voice, mel, most_nats=1) == dict(reversed(falling))
    chosen = choose_dtypes(voice, mel, most_nats=0.0205)
    left = 0.0205 - sum(NATS[dtype] for dtype in chosen.values())
    assert left >= 0
    assert set(falling[:1]) <= chosen.items()
    assert all(NATS[dtype] > left for layer, dtype in gains if layer not in chosen)
    with pytest.raises(InvalidInput, match="most_nats=-1; give the nats that may be lost"):
        choose_dtypes(voice, mel, most_nats=-1)
