"""`WaveRNN(target=)` takes what `compile_matrix` takes."""

import pytest

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedTarget
from sparsejit.machine.target import MAX_ISA_VARIABLE, Target
from sparsejit.voice.bundled import VOICE
from sparsejit.voice.weights import VoiceWeights


def test_a_target_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = VoiceWeights.load(VOICE)
    sparsejit.WaveRNN(weights, target="avx2")
    sparsejit.WaveRNN(weights, target=Target.named("avx2"))
    with pytest.raises(InvalidInput, match="target=3; give 'native'"):
        sparsejit.WaveRNN(weights, target=3)  # type: ignore[arg-type]
    monkeypatch.setenv(MAX_ISA_VARIABLE, "avx2")
    with pytest.raises(UnsupportedTarget, match="avx512 does not run here"):
        sparsejit.WaveRNN(weights, target="avx512")
