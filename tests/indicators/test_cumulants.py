"""Random cumulants of a data set: right for every transition, the last of an episode too; computed once; checked."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.data.sampler import Sampler
from protovalue.files import read_json, write_json
from protovalue.indicators.cumulants import CumulantSpec, _deviation, cumulants
from protovalue.indicators.precompute import IndicatorSpec, indicator_rewards
from protovalue.indicators.rni import RandomNetworks
from tests.data.helpers import made_up, manifest, write

SPEC = CumulantSpec(tasks=7, seed=3, normalize=True, tasks_per_module=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    like, rng = manifest(frame_shape=(5, 6)), np.random.default_rng(0)
    ends = (End.TERMINATED, End.TRUNCATED, End.CUT, End.TERMINATED)
    lengths = (1, 300, 2, 400)  # 703 transitions, 707 states: two batches of 512
    made = [made_up(length, rng, end, like) for length, end in zip(lengths, ends, strict=True)]
    return write(tmp_path_factory.mktemp("d") / "set", made, frame_shape=(5, 6))


def test_differences_are_those_of_the_networks(data: Dataset, tmp_path: Path) -> None:
    found = cumulants(data, SPEC, tmp_path, quiet=True)
    batch = Sampler(data, 1, 0).transitions(np.arange(703))
    before, after = (found.of(torch.from_numpy(part.copy())) for part in (batch.obs, batch.next_obs))
    assert np.allclose(found.differences(np.arange(703)), (after - before).numpy(), atol=1e-6)
    assert found.values.shape == (707, 7)
    assert found.values.dtype == np.float32
    assert np.allclose(found.deviation, found.values.astype(np.float64).std(axis=0), rtol=1e-6)


def test_differences_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """f_0 is a hundredth of the newest frame, f_1 minus the one before it, which is 0 at the start of an episode."""

    def rigged(self: Any, obs: Any) -> torch.Tensor:
        old, new = obs[:, 0, 0, 0].float(), obs[:, 1, 0, 0].float()
        return torch.stack([new / 100, -old], dim=1)

    monkeypatch.setattr(RandomNetworks, "forward", rigged)
    like, made = manifest(frame_shape=(3, 3)), []
    for frames, end in (([10, 30, 20], End.TERMINATED), ([50, 40], End.TRUNCATED)):
        episode = made_up(len(frames) - 1, np.random.default_rng(0), end, like)
        episode.frames = np.array(frames, np.uint8)[:, None, None].repeat(3, 1).repeat(3, 2)
        made.append(episode)
    data = write(tmp_path / "set", made, frame_shape=(3, 3))
    found = cumulants(data, CumulantSpec(tasks=2, seed=0), tmp_path / "cache", quiet=True)
    values = [[0.1, 0], [0.3, -10], [0.2, -30], [0.5, 0], [0.4, -50]]  # of all five states
    assert found.values == pytest.approx(np.array(values))
    differences = [[0.2, -10], [-0.1, -20], [-0.1, -50]]  # the last ones to an end: no difference to the next episode
    assert found.differences(np.array([0, 1, 2])) == pytest.approx(np.array(differences), abs=1e-6)
    assert found.differences(np.array([2, 0])) == pytest.approx(np.array(differences)[[2, 0]], abs=1e-6)
    # f_0: mean 0.3, squares .04 + 0 + .01 + .04 + .01 over 5; f_1: mean -18, squares 324 + 64 + 144 + 324 + 1024
    assert found.deviation.tolist() == pytest.approx([np.sqrt(0.02), np.sqrt(376)])


def test_without_more_said_ten_to_a_network_and_pixels_as_they_are(data: Dataset, tmp_path: Path) -> None:
    found = cumulants(data, CumulantSpec(tasks=12, seed=3), tmp_path, quiet=True)
    networks = RandomNetworks((2, 5, 6), 12, torch.Generator().manual_seed(3), tasks_per_module=10)
    obs = torch.from_numpy(data.episode(2).observations(2))  # states 303, 304 and 305 of the data set
    np.testing.assert_allclose(found.values[303:306], networks(obs).numpy(), atol=1e-6)
    assert re.fullmatch("[0-9a-f]{32}", next(tmp_path.iterdir()).name)


def test_deviations_by_hand_whatever_the_blocks() -> None:
    values = np.array([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0], [4.0, 7.0], [10.0, 7.0]], np.float32)
    for size in (1, 2, 5, 6):  # mean 4, squares 9 + 4 + 1 + 0 + 36
        assert _deviation(values, size).tolist() == pytest.approx([np.sqrt(10), 0])
    assert _deviation(values[:1]).tolist() == [0.0, 0.0]


def test_a_small_spread_around_a_large_value_is_not_lost() -> None:
    """Thirds of 1/16 around a million: squares of the values themselves would leave no digit of their difference."""
    values = np.array([[1e6], [1e6 + 0.0625], [1e6]], np.float32)
    assert _deviation(values)[0] == pytest.approx(0.0625 * np.sqrt(2) / 3, rel=1e-9)


def test_values_are_on_the_disk_before_their_folder_has_its_name(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = [], os.fsync

    def record(descriptor: Any) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    cumulants(data, SPEC, tmp_path, quiet=True)
    (folder,) = tmp_path.iterdir()
    assert (folder / "values.bin").stat().st_ino in synced


def test_progress_is_shown_unless_not_wanted(data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cumulants(data, SPEC, tmp_path / "one", quiet=True)
    assert capsys.readouterr().err == ""
    cumulants(data, SPEC, tmp_path / "two")
    assert "707/707 states" in capsys.readouterr().err


def test_the_discounted_sum_telescopes(data: Dataset, tmp_path: Path) -> None:
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


def test_the_same_seed_has_the_networks_of_the_indicators(data: Dataset, tmp_path: Path) -> None:
    """f >= threshold is the indicator, up to the rounding of its scores."""
    found = cumulants(data, SPEC, tmp_path, quiet=True)
    spec = IndicatorSpec("rni", 7, 0.25, seed=3, normalize=True, tasks_per_module=4)
    bits = indicator_rewards(data, spec, tmp_path, quiet=True)
    states = np.arange(703) + data.locate(np.arange(703))[0]
    fires = found.values[states] >= bits.indicator.thresholds.numpy()
    assert (fires == bits.rewards(np.arange(703))).mean() > 0.995


def test_computed_once_and_shared_but_not_with_another_specification(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cumulants(data, SPEC, tmp_path, quiet=True)

    def refuse(self: Any, obs: Any) -> None:
        raise AssertionError("evaluated again")

    monkeypatch.setattr(RandomNetworks, "forward", refuse)
    assert np.array_equal(first.values, cumulants(data, SPEC, tmp_path, quiet=True).values)
    for other in (CumulantSpec(7, 4, True, 4), CumulantSpec(7, 3, False, 4), CumulantSpec(7, 3, True, 5)):
        with pytest.raises(AssertionError, match="evaluated again"):
            cumulants(data, other, tmp_path, quiet=True)


def test_cumulants_of_large_frames_are_not_shared_between_ways_to_compute_them(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, large in enumerate((False, True), 1):
        monkeypatch.setattr("protovalue.indicators.cumulants.by_patches", lambda shape, large=large: large)
        cumulants(data, CumulantSpec(3, 0), tmp_path, quiet=True)
        assert len(list(tmp_path.iterdir())) == number


def test_an_interrupted_pass_continues(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cumulants(data, SPEC, tmp_path / "whole", quiet=True)
    real, calls = RandomNetworks.forward, []

    class Killed(BaseException):
        pass

    def dies(self: Any, obs: Any) -> torch.Tensor:
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
def test_damage_is_told_removed_and_computed_again(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
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


def test_cumulants_of_something_else_are_computed_again(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_constant_network_is_warned_about(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomNetworks, "forward", lambda self, obs: torch.ones(len(obs), 7))
    found = cumulants(data, SPEC, tmp_path, quiet=True)
    assert found.deviation.tolist() == [0.0] * 7
    assert "7 of 7 networks are constant" in caplog.text


def test_networks_that_tell_states_apart_are_not_warned_about(
    data: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        cumulants(data, SPEC, tmp_path, quiet=True)
    assert caplog.text == ""
