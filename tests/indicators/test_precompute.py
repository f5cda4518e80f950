"""Indicator rewards of a data set: right for every transition, computed once, continued, checked."""

import os
import shutil

import numpy as np
import pytest
import torch

from protovalue.config import CollectConfig
from protovalue.data.collect import collect
from protovalue.data.sampler import Sampler
from protovalue.errors import UserError
from protovalue.indicators import precompute
from protovalue.indicators.hashing import HashIndicator
from protovalue.indicators.precompute import IndicatorSpec, channel_statistics, indicator_rewards
from protovalue.indicators.random_network import RandomNetworkIndicator
from tests.data.helpers import made_up, manifest, write

RNI = IndicatorSpec("rni", tasks=13, proportion=0.1, seed=3, tasks_per_module=5)
HASH = IndicatorSpec("hash", tasks=13, proportion=0.1, seed=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    config = CollectConfig("minatar/breakout", tmp_path_factory.mktemp("d") / "set", steps=1200)
    return collect(config, quiet=True)


@pytest.mark.parametrize("spec", [RNI, HASH], ids=["rni", "hash"])
def test_bits_are_the_indicators_rewards(data, tmp_path, spec):
    found = indicator_rewards(data, spec, tmp_path, quiet=True)
    index = np.random.default_rng(0).integers(data.num_transitions, size=200)
    obs = Sampler(data, 1, 0).transitions(index).obs
    expected = found.indicator.rewards(torch.from_numpy(obs.copy())).numpy()
    assert np.array_equal(found.rewards(index), expected)
    everything = found.rewards(np.arange(data.num_transitions))
    assert np.allclose(found.proportions, everything.mean(axis=0))
    assert 0 < everything.mean() < 0.5


def test_exact_thresholds_give_the_wanted_proportion(data, tmp_path):
    """1200 states at p = 0.1: 120 each, but for states that occur more than once and tie."""
    found = indicator_rewards(data, RNI, tmp_path, quiet=True)
    scores = np.concatenate([
        found.indicator.scores(torch.from_numpy(Sampler(data, 1, 0).transitions(part).obs.copy())).numpy()
        for part in np.array_split(np.arange(1200), 3)
    ])  # fmt: skip
    for task in range(13):
        reachable = [(scores[:, task] >= value).mean() for value in np.unique(scores[:, task])]
        assert found.proportions[task] == pytest.approx(min(reachable, key=lambda share: abs(share - 0.1)))


def test_quantile_regression_comes_near_the_proportion(data, tmp_path):
    spec = IndicatorSpec("rni", 4, 0.2, seed=0, threshold="sgd", burn_in=8000)
    found = indicator_rewards(data, spec, tmp_path, quiet=True)
    assert np.abs(found.proportions - 0.2).max() < 0.06


def test_computed_once_and_shared(data, tmp_path, monkeypatch):
    first = indicator_rewards(data, RNI, tmp_path, quiet=True)

    def refuse(self, obs):
        raise AssertionError("evaluated again")

    monkeypatch.setattr(RandomNetworkIndicator, "scores", refuse)
    again = indicator_rewards(data, RNI, tmp_path, quiet=True)
    assert np.array_equal(first.bits, again.bits)
    assert sorted(path.name for path in tmp_path.iterdir()) == [precompute.cache_key(data, RNI)]
    assert not (tmp_path / precompute.cache_key(data, RNI) / precompute.SCORES).exists()


def test_the_key_knows_data_and_specification(data, tmp_path):
    other = write(tmp_path / "other", [made_up(3, np.random.default_rng(0))])
    specs = [RNI, HASH, IndicatorSpec("rni", 13, 0.1, seed=4), IndicatorSpec("rni", 13, 0.2, seed=3)]
    keys = [precompute.cache_key(data, spec) for spec in specs] + [precompute.cache_key(other, RNI)]
    assert len(set(keys)) == 5


@pytest.mark.parametrize("when", [0, 1, 2])
def test_an_interrupted_pass_continues(data, tmp_path, monkeypatch, when):
    """Killed in the given batch of 512: the batches before it are not evaluated again, and the result is the same."""
    whole = indicator_rewards(data, RNI, tmp_path / "whole", quiet=True)
    real, calls = RandomNetworkIndicator.scores, []

    class Killed(BaseException):
        pass

    def dies(self, obs):
        if len(calls) == when:
            raise Killed
        calls.append(len(obs))
        return real(self, obs)

    monkeypatch.setattr(RandomNetworkIndicator, "scores", dies)
    with pytest.raises(Killed):
        indicator_rewards(data, RNI, tmp_path / "cut", quiet=True)
    calls.clear()

    def counts(self, obs):
        calls.append(len(obs))
        return real(self, obs)

    monkeypatch.setattr(RandomNetworkIndicator, "scores", counts)
    found = indicator_rewards(data, RNI, tmp_path / "cut", quiet=True)
    assert calls == [512, 512, 176][when:]
    assert np.array_equal(found.bits, whole.bits)


def test_damage_is_found_and_says_what_to_do(data, tmp_path):
    indicator_rewards(data, HASH, tmp_path, quiet=True)
    folder = tmp_path / precompute.cache_key(data, HASH)
    raw = bytearray((folder / "bits.bin").read_bytes())
    raw[100] ^= 4
    (folder / "bits.bin").write_bytes(raw)
    with pytest.raises(UserError, match=f"bits.bin: damaged.*remove {folder}"):
        indicator_rewards(data, HASH, tmp_path, quiet=True)


def test_no_room_is_said_before_the_work(data, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: os.terminal_size((0, 0)) and type("U", (), {"free": 1000}))
    with pytest.raises(UserError, match="no room for scores.bin"):
        indicator_rewards(data, RNI, tmp_path, quiet=True)


def test_a_full_disk_leaves_nothing_behind(data, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(precompute, "save_indicator", full)
    with pytest.raises(UserError, match="cannot write the indicator rewards: No space left on device"):
        indicator_rewards(data, HASH, tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_constant_network_is_warned_about(tmp_path, caplog, monkeypatch):
    data = write(tmp_path / "set", [made_up(50, np.random.default_rng(0), like=manifest(frame_shape=(4, 4)))],
                 frame_shape=(4, 4))  # fmt: skip
    monkeypatch.setattr(RandomNetworkIndicator, "scores", lambda self, obs: torch.zeros(len(obs), self.num_tasks))
    indicator_rewards(data, IndicatorSpec("rni", 2, 0.1, seed=0), tmp_path / "cache", quiet=True)
    assert "2 of 2 tasks never fire" in caplog.text


def test_channel_statistics_by_hand(tmp_path):
    """Two states (the last frame of an episode is none): channel 0 is 0 and 255 in half, channel 1 is 51 throughout."""
    episode = made_up(2, np.random.default_rng(0), like=manifest(frame_shape=(1, 2, 2)))
    episode.frames = np.array([[[[0, 51], [255, 51]]], [[[255, 51], [0, 51]]], [[[9, 9], [9, 9]]]], np.uint8)
    data = write(tmp_path / "set", [episode], frame_shape=(1, 2, 2))
    mean, deviation = channel_statistics(data)
    assert mean == pytest.approx([0.5, 0.2])
    assert deviation == pytest.approx([0.5, 0.0], abs=1e-7)


def test_a_users_own_file(data, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from protovalue.indicators.base import Indicator, register\n"
        "@register('paddle-left')\n"
        "class PaddleLeft(Indicator):\n"
        "    tuned_on_data = False\n"
        "    def __init__(self, observation_shape, num_tasks, proportion, generator):\n"
        "        super().__init__(observation_shape, num_tasks, proportion)\n"
        "        self.thresholds.fill_(0.5)\n"
        "    def scores(self, obs):\n"
        "        return obs[:, -1, 9, :5, 0].any(1).float()[:, None].repeat(1, self.num_tasks)\n"
    )
    spec = IndicatorSpec(str(tmp_path / "mine.py"), 2, 0.5, seed=0)
    found = indicator_rewards(data, spec, tmp_path / "cache", quiet=True)
    obs = Sampler(data, 1, 0).transitions(np.arange(300)).obs
    assert np.array_equal(found.rewards(np.arange(300))[:, 1], obs[:, -1, 9, :5, 0].any(axis=1))


def test_hash_refuses_normalisation(data, tmp_path):
    with pytest.raises(UserError, match="--normalize: only random network indicators have it"):
        indicator_rewards(data, IndicatorSpec("hash", 3, 0.1, seed=0, normalize=True), tmp_path, quiet=True)
    assert HashIndicator.tuned_on_data is False
