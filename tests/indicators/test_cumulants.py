"""Random cumulants of a data set: right for every transition, the last of an episode too; computed once; checked."""

import numpy as np
import pytest
import torch

from protovalue.data.format import End
from protovalue.data.sampler import Sampler
from protovalue.files import read_json, write_json
from protovalue.indicators.cumulants import CumulantSpec, cumulants
from protovalue.indicators.precompute import IndicatorSpec, indicator_rewards
from protovalue.indicators.random_network import RandomNetworks
from tests.data.helpers import made_up, manifest, write

SPEC = CumulantSpec(tasks=7, seed=3, normalize=True, tasks_per_module=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    like, rng = manifest(frame_shape=(5, 6)), np.random.default_rng(0)
    ends = (End.TERMINATED, End.TRUNCATED, End.CUT, End.TERMINATED)
    lengths = (1, 300, 2, 400)  # 703 transitions, 707 states: two batches of 512
    made = [made_up(length, rng, end, like) for length, end in zip(lengths, ends, strict=True)]
    return write(tmp_path_factory.mktemp("d") / "set", made, frame_shape=(5, 6))


def test_differences_are_those_of_the_networks(data, tmp_path):
    found = cumulants(data, SPEC, tmp_path, quiet=True)
    batch = Sampler(data, 1, 0).transitions(np.arange(703))
    before, after = (found.of(torch.from_numpy(part.copy())) for part in (batch.obs, batch.next_obs))
    assert np.allclose(found.differences(np.arange(703)), (after - before).numpy(), atol=1e-6)
    assert found.values.shape == (707, 7)
    assert found.values.dtype == np.float32
    assert np.allclose(found.deviation, found.values.astype(np.float64).std(axis=0), rtol=1e-6)


def test_the_discounted_sum_telescopes(data, tmp_path):
    """sum_{t<T} g^t (f_{t+1} - f_t) = -f_0 + (1 - g) sum_{0<t<T} g^(t-1) f_t + g^(T-1) f_T, for every episode."""
    found, gamma = cumulants(data, SPEC, tmp_path, quiet=True), 0.9
    for episode in range(4):
        length = int(data.lengths[episode])
        obs = torch.from_numpy(data.episode(episode).observations(data.stack))
        f = found.of(obs).numpy().astype(np.float64)  # (T + 1, m)
        rewards = found.differences(data.starts[episode] + np.arange(length)).astype(np.float64)
        summed = (gamma ** np.arange(length)[:, None] * rewards).sum(axis=0)
        inner = (gamma ** np.arange(length - 1)[:, None] * f[1:-1]).sum(axis=0)
        closed = -f[0] + (1 - gamma) * inner + gamma ** (length - 1) * f[-1]
        assert np.allclose(summed, closed, atol=1e-5)


def test_the_same_seed_has_the_networks_of_the_indicators(data, tmp_path):
    """f >= threshold is the indicator, up to the rounding of its scores."""
    found = cumulants(data, SPEC, tmp_path, quiet=True)
    spec = IndicatorSpec("rni", 7, 0.25, seed=3, normalize=True, tasks_per_module=4)
    bits = indicator_rewards(data, spec, tmp_path, quiet=True)
    states = np.arange(703) + data.locate(np.arange(703))[0]
    fires = found.values[states] >= bits.indicator.thresholds.numpy()
    assert (fires == bits.rewards(np.arange(703))).mean() > 0.995


def test_computed_once_and_shared_but_not_with_another_specification(data, tmp_path, monkeypatch):
    first = cumulants(data, SPEC, tmp_path, quiet=True)

    def refuse(self, obs):
        raise AssertionError("evaluated again")

    monkeypatch.setattr(RandomNetworks, "forward", refuse)
    assert np.array_equal(first.values, cumulants(data, SPEC, tmp_path, quiet=True).values)
    for other in (CumulantSpec(7, 4, True, 4), CumulantSpec(7, 3, False, 4), CumulantSpec(7, 3, True, 5)):
        with pytest.raises(AssertionError, match="evaluated again"):
            cumulants(data, other, tmp_path, quiet=True)


def test_an_interrupted_pass_continues(data, tmp_path, monkeypatch):
    whole = cumulants(data, SPEC, tmp_path / "whole", quiet=True)
    real, calls = RandomNetworks.forward, []

    class Killed(BaseException):
        pass

    def dies(self, obs):
        calls.append(len(obs))
        if calls == [512, 195]:
            raise Killed
        return real(self, obs)

    monkeypatch.setattr(RandomNetworks, "forward", dies)
    with pytest.raises(Killed):
        cumulants(data, SPEC, tmp_path / "cut", quiet=True)
    found = cumulants(data, SPEC, tmp_path / "cut", quiet=True)
    assert calls == [512, 195, 195]
    assert np.array_equal(found.values, whole.values)


@pytest.mark.parametrize("name", ["values.bin", "indicator.safetensors", "indicator.json"])
def test_damage_is_told_removed_and_computed_again(data, tmp_path, caplog, name):
    first = cumulants(data, SPEC, tmp_path, quiet=True)
    values = np.array(first.values)
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "indicator.json", "indicator.safetensors", "lock", "values.bin",
    ]  # fmt: skip
    raw = bytearray((folder / name).read_bytes())
    raw[len(raw) // 2] ^= 4
    (folder / name).write_bytes(raw)
    again = cumulants(data, SPEC, tmp_path, quiet=True)
    assert f"{folder / name}: damaged" in caplog.text
    assert f"removed {folder}, to compute the cumulants again" in caplog.text
    assert np.array_equal(again.values, values)
    assert np.array_equal(again.deviation, first.deviation)


def test_cumulants_of_something_else_are_computed_again(data, tmp_path, caplog):
    """Checksums hold, contents do not: other tasks, another kind, too few deviations."""
    first = cumulants(data, SPEC, tmp_path, quiet=True)
    (folder,) = tmp_path.iterdir()
    for change, message in (
        ({"deviation": [1.0] * 6}, "found rni with 6 deviations, expected rni with 7"),
        ({"deviation": ["1"] * 7}, "field deviation[0]: found '1', expected a number"),
    ):
        about = read_json(folder / "indicator.json")
        write_json(folder / "indicator.json", {**about, **change})
        caplog.clear()
        assert np.array_equal(cumulants(data, SPEC, tmp_path, quiet=True).deviation, first.deviation)
        assert f"indicator.json: {message}; removed" in caplog.text


def test_a_constant_network_is_warned_about(data, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(RandomNetworks, "forward", lambda self, obs: torch.ones(len(obs), 7))
    found = cumulants(data, SPEC, tmp_path, quiet=True)
    assert found.deviation.tolist() == [0.0] * 7
    assert "7 of 7 networks are constant" in caplog.text
