"""Evaluation: exactly N complete episodes, all that were begun, whatever their lengths; results and video."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image

from protovalue.cli import main
from protovalue.config import EvaluateConfig, OnlineConfig
from protovalue.encoder import save_encoder
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.episodes import Quotas, evaluate_run, play
from protovalue.nets.encoders import make_encoder
from protovalue.online.linear_dqn import train_online


class ShortAndLong(gymnasium.Env[np.ndarray, np.int64]):
    """Half of the episodes last 1 step and pay 0, half last 50 steps and pay 1 at the end: the mean return is 1/2."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (1, 3), np.uint8)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.length, self.t = (1, 50)[int(self.np_random.integers(2))], 0
        return np.zeros((1, 3), np.uint8), {}

    def step(self, action: np.int64) -> Any:
        self.t += 1
        over = self.t == self.length
        return np.zeros((1, 3), np.uint8), float(over and self.length == 50), over, False, {}


@pytest.fixture(scope="module", autouse=True)
def _register_short_and_long() -> None:
    gymnasium.register("ShortAndLong-v0", ShortAndLong)


class Pressing:
    """An agent that prefers action 0, for any number of seeds."""

    num_actions = 2

    def __init__(self, seeds: int) -> None:
        self.seeds, self.seen = seeds, []

    def see(self, obs):
        self.seen.append(len(obs))
        return torch.zeros(self.seeds, len(obs) // self.seeds, 1)

    def values(self, features):
        return torch.tensor([1.0, 0.0]).expand(*features.shape[:2], 2)


def naive(env, episodes: int, seed: int) -> list[float]:
    """Count the first `episodes` that end, wherever: what must not be done."""
    returns, running = [], np.zeros(env.num_envs)
    env.reset(seed=100 * seed)
    while len(returns) < episodes:
        _, rewards, terminated, truncated, _ = env.step(np.zeros(env.num_envs, int))
        running += rewards
        for e in np.flatnonzero(terminated | truncated):
            returns.append(running[e])
            running[e] = 0
    return returns[:episodes]


def test_long_episodes_count_as_much_as_short_ones():
    counted = [
        one
        for seed in range(20)
        for one in play(make("gym/ShortAndLong-v0", 40), Pressing(2), [0, 1], 20, 0.0, seed, quiet=True)
    ]
    returns = np.concatenate([one.returns for one in counted])
    lengths = np.concatenate([one.lengths for one in counted])
    assert len(returns) == 20 * 2 * 20
    assert set(lengths) == {1, 50}
    np.testing.assert_array_equal(returns, lengths == 50)
    assert abs(returns.mean() - 0.5) < 4 * 0.5 / len(returns) ** 0.5
    biased = np.concatenate([naive(make("gym/ShortAndLong-v0", 20), 20, seed) for seed in range(5)])
    assert biased.mean() < 0.3  # naive counting ends with the long ones still under way


def test_quotas_by_hand():
    quotas = Quotas(3, 2)  # the first environment plays two episodes, the second one
    assert quotas.quota.tolist() == [2, 1]
    no, both = np.array([False, False]), np.array([True, True])
    assert quotas.add(np.array([1.0, 10.0]), no) == 0
    assert quotas.add(np.array([2.0, 20.0]), both) == 2
    assert quotas.open.tolist() == [True, False]
    assert quotas.add(np.array([4.0, 40.0]), both) == 1  # the second environment's second episode does not count
    assert not quotas.open.any()
    played = quotas.played()
    assert (played.returns, played.lengths) == ([3.0, 4.0, 30.0], [2, 1, 2])


def test_a_seed_s_episodes_do_not_depend_on_the_others():
    both = play(make("gym/ShortAndLong-v0", 6), Pressing(2), [4, 9], 10, 0.3, quiet=True)
    alone = play(make("gym/ShortAndLong-v0", 3), Pressing(1), [9], 10, 0.3, quiet=True)
    assert both[1] == alone[0]
    assert play(make("gym/ShortAndLong-v0", 3), Pressing(1), [9], 10, 0.3, seed=1, quiet=True) != alone


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "r"
    config = OnlineConfig(
        env="minatar/breakout",
        out=out,
        encoder="random:minatar:1",
        seeds="0,5",
        steps=60,
        replay_min=20,
        replay_size=50,
    )
    return train_online(config, quiet=True)


def test_the_result_has_every_episode(run, tmp_path, capsys):
    assert (
        main(f"evaluate {run} --episodes 7 --num-envs 3 --video {tmp_path}/v.gif --out {tmp_path}/e.json".split()) == 0
    )
    result = json.loads((tmp_path / "e.json").read_text())
    assert result["env"] == "minatar/breakout"
    assert (result["steps"], result["episodes"], result["epsilon"]) == (60, 7, 0.001)
    assert [row["seed"] for row in result["seeds"]] == [0, 5]
    for row in result["seeds"]:
        assert len(row["returns"]) == len(row["lengths"]) == 7
        assert row["mean_return"] == pytest.approx(np.mean(row["returns"]))
    assert result["mean_return"] == pytest.approx(np.mean([row["mean_return"] for row in result["seeds"]]))
    with Image.open(tmp_path / "v.gif") as film:
        assert film.size == (240, 240)
        assert 2 <= film.n_frames <= result["seeds"][0]["lengths"][0] + 1  # Pillow joins frames that are the same
    assert "every return" in capsys.readouterr().out


def test_the_same_evaluation_twice_is_the_same(run, tmp_path):
    first, second = (
        evaluate_run(EvaluateConfig(run, 4, out=tmp_path / f"{i}.json", num_envs=2), quiet=True) for i in range(2)
    )
    assert first == second


def test_episodes_are_cut_where_the_environment_says():
    env = make("gym/ShortAndLong-v0", 10, max_steps=20)
    (played,) = play(env, Pressing(1), [0], 30, 0.0, quiet=True)
    assert set(played.lengths) == {1, 20}


def test_another_encoder_in_the_place_of_the_one_trained_on_is_refused(tmp_path):
    def encoder(seed):
        made = make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(seed))
        about = {"env_id": "minatar/breakout", "summary": {"feature_rms": 0.5}}
        save_encoder(tmp_path / "encoder", made, "minatar", 1, about, ["card"])

    encoder(0)
    config = OnlineConfig(
        env="minatar/breakout", out=tmp_path / "r", encoder=str(tmp_path / "encoder"), steps=12, replay_min=5
    )
    run = train_online(config, quiet=True)
    assert len(evaluate_run(EvaluateConfig(run, 1), quiet=True)["seeds"]) == 1
    encoder(1)
    with pytest.raises(UserError, match="is not the encoder that the run was trained on any more"):
        evaluate_run(EvaluateConfig(run, 1), quiet=True)


def test_a_folder_that_is_no_agent_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run"):
        evaluate_run(EvaluateConfig(tmp_path))
