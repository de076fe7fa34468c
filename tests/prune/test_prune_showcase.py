"""The demo's short gradual prune."""

import numpy as np
import pytest
import torch

from sparsejit.prune import showcase


@pytest.fixture(scope="module")
def finished() -> tuple[showcase.Showcase, list[showcase.PrunePoint]]:
    show = showcase.Showcase(seed=0)
    return show, list(show.run())


def test_density_falls_to_a_tenth_in_blocks(finished):
    show, points = finished
    densities = [point.density for point in points]
    assert densities == sorted(densities, reverse=True)
    weight = show.model.get_parameter(showcase.PRUNED_LAYER).detach()
    blocks = (weight.reshape(32, 8, 256) != 0).any(1)
    assert blocks.sum() == 32 * 256 - round(0.9 * 32 * 256)
    assert show.result.density == densities[-1] == blocks.float().mean().item()


def test_gradual_pruning_beats_cutting_at_once(finished):
    show, points = finished
    result = show.result
    assert points[0].loss == result.dense and points[-1].loss == result.gradual
    assert result.gradual < result.one_shot - 0.2
    assert result.dense_longer < result.dense < result.one_shot


def test_the_same_seed_gives_the_same_points(finished, monkeypatch):
    monkeypatch.setattr(showcase, "DENSE_STEPS", 5)
    monkeypatch.setattr(showcase, "PRUNE_STEPS", 20)
    global_state = torch.random.get_rng_state()
    first, again, other = (list(showcase.Showcase(seed).run()) for seed in (3, 3, 4))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), global_state)


def test_vowels_repeat_at_a_voice_pitch():
    sound = showcase.vowels(seed=5, voices=8)[:, 400:1000]
    spectrum = np.abs(np.fft.rfft(sound - sound.mean(1, keepdims=True), 2048)) ** 2
    correlation = np.fft.irfft(spectrum)[:, :200]
    periods = slice(showcase.SAMPLE_RATE // 300, showcase.SAMPLE_RATE // 80)
    assert (correlation[:, periods].max(1) > 0.5 * correlation[:, 0]).all()
