"""`sparsejit synth --voice CHECKPOINT`: mels spoken by a network that another project trained."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

torch = pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")

from torch_wavernn import FatchordModule  # noqa: E402

from sparsejit.commands.cli import app  # noqa: E402
from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.voice.speak.bulk import Manner  # noqa: E402
from sparsejit.voice.speak.wavernn import WaveRNN  # noqa: E402
from sparsejit.voice.weights import VoiceWeights, is_voice_file  # noqa: E402

BANDS, FRAMES = 20, 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("foreign") / "pruned.pyt"
    torch.save(FatchordModule(classes=256, bands=BANDS).eval().state_dict(), path)
    return path


@pytest.fixture
def mel(tmp_path: Path) -> Path:
    path = tmp_path / "mel.npy"
    np.save(path, np.random.default_rng(0).uniform(0, 1, (BANDS, FRAMES)).astype(np.float32))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["synth", *map(str, arguments)])


def refused(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, InvalidInput), done.output
    return str(done.exception)


def test_a_mel_is_spoken_at_the_rate_that_is_told(
    checkpoint: Path, mel: Path, tmp_path: Path
) -> None:
    out = tmp_path / "spoken.wav"
    options = ("--sample-rate", "16000", "--temperature", "0.7", "--dtype", "bfloat16")
    done = run(mel, out, "--voice", checkpoint, "--seed", "4", *options, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["sample_rate"], report["temperature"]) == (16_000, 0.7)
    voice = WaveRNN.from_checkpoint(
        checkpoint, sample_rate=16_000, temperature=0.7, dtype="bfloat16")
    assert report["seconds"] == FRAMES * voice.hop_length / 16_000
    written, rate = soundfile.read(out, dtype="float32")
    assert rate == 16_000
    expected = voice.generate(np.load(mel), 4)
    np.testing.assert_allclose(written, np.clip(expected, -1, 1), atol=2.0**-15)


def test_unspeakable_inputs_are_refused_in_a_sentence(
    checkpoint: Path, mel: Path, tmp_path: Path
) -> None:
    out, audio = tmp_path / "out.wav", tmp_path / "a.wav"
    soundfile.write(audio, np.zeros(22_050), 22_050)
    voice = ("--voice", checkpoint)
    assert "project's mels; compute mels as that project does" in refused(audio, out, *voice)
    np.save(mel, np.load(mel).T)
    assert f"has shape ({FRAMES}, {BANDS}); give ({BANDS}, frames)" in refused(mel, out, *voice)
    np.save(mel, np.full((BANDS, 3), -80.0))
    assert f"{mel}: the mel has values of size 80" in refused(mel, out, *voice)
    assert "the temperature is 0" in refused(mel, out, *voice, "--temperature", "0")
    assert "companding 'cubic' is unknown" in refused(mel, out, *voice, "--companding", "cubic")
    assert not out.exists()


def test_a_folder_of_mels_is_spoken_and_then_kept(
    checkpoint: Path, mel: Path, tmp_path: Path
) -> None:
    out = tmp_path.with_name(f"{tmp_path.name}-spoken")
    arguments = (mel.parent, out, "--voice", checkpoint, "--workers", "1", "--json")
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))
    assert [Path(each["out"]) for each in first["spoken"]] == [out / "mel.wav"]
    assert (first["sample_rate"], second["kept"]) == (22_050, [str(out / "mel.wav")])


def test_our_own_voices_say_their_sample_rate(tmp_path: Path, checkpoint: Path) -> None:
    own = tmp_path / "voice.safetensors"
    VoiceWeights.random(hidden=8).save(own)
    assert is_voice_file(own) and not is_voice_file(checkpoint)
    message = "holds its sample rate and companding; leave both options out"
    with pytest.raises(InvalidInput, match=message):
        Manner(own, sample_rate=16_000).compile()
    own.write_bytes(own.read_bytes()[:1000])
    assert is_voice_file(own)
