"""End to end: an encoder for each seed, what it sees and is trained on, and how a run of `pvn dqn` begins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.cli import main
from protovalue.envs.options import EnvOptions
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.online import dqn
from protovalue.online.agent import Rule
from protovalue.online.config import DqnConfig
from protovalue.online.dqn import Dqn, train_dqn
from protovalue.presets import resolved
from protovalue.randomness import Purpose, seeded
from protovalue.runs import read_run
from tests.online.test_agent import frames

RULE = Rule(learning_rate=0.1, adam_epsilon=1e-3, max_gradient_norm=0.0, target_every=1000)
SHAPE = (1, 10, 10, 4)


def encoder(seed: Any) -> Encoder:
    return make_encoder("minatar", SHAPE, 1, torch.Generator().manual_seed(seed))


def observations(count: Any) -> np.ndarray:
    return np.random.default_rng(0).random((count, *SHAPE)) < 0.3


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_each_seed_sees_its_own_observations_with_its_own_encoder(seeds: int, scale: float) -> None:
    agent = Dqn(RULE, range(seeds), 3, [encoder(s) for s in range(seeds)], scale)
    obs = observations(2 * seeds)
    found = agent.see(obs)
    assert found.shape == (seeds, 2, 128)
    for s in range(seeds):
        expected = encoder(s)(torch.from_numpy(obs[2 * s : 2 * s + 2])) / scale
        torch.testing.assert_close(found[s], expected, rtol=1e-5, atol=1e-6)
    items, features = agent.items(obs)
    np.testing.assert_array_equal(items, obs[:, 0])
    assert features is None


def test_one_encoder_is_where_all_seeds_start_from() -> None:
    first = encoder(5)
    agent = Dqn(RULE, (0, 1), 3, first)
    obs = np.concatenate([observations(3)] * 2)
    found = agent.see(obs)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], first(torch.from_numpy(obs[:3])).detach(), rtol=1e-5, atol=1e-6)
    before = [parameter.detach().clone() for parameter in first.parameters()]
    agent.update(frames(2))
    assert not torch.equal(agent.see(obs)[0], agent.see(obs)[1])  # copies, which go their own ways
    assert all(torch.equal(a, b) for a, b in zip(before, first.parameters(), strict=True))


@pytest.mark.parametrize("double", [False, True])
def test_what_is_encoded_by_whom(double: bool) -> None:
    """x by the trained encoders, x' by the target's and, for double Q-learning, by the trained ones too."""
    agent = Dqn(replace(RULE, double=double), (0, 1), 3, [encoder(0), encoder(1)], 2.0)
    agent.update(frames(2))  # now they differ
    data = frames(2, seed=1)
    x, next_x, choice = agent.features_of(data)
    for s in range(2):
        obs, following = (torch.from_numpy(part[s]) for part in (data.obs, data.next_obs))
        torch.testing.assert_close(x[s], agent.encoders[s](obs) / 2)
        torch.testing.assert_close(next_x[s], agent.target_encoders[s](following) / 2)
        assert not torch.allclose(next_x[s], agent.encoders[s](following) / 2)
        if double:
            assert choice is not None
            torch.testing.assert_close(choice[s], agent.encoders[s](following) / 2)
    assert (choice is not None) == double
    assert (x.requires_grad, next_x.requires_grad) == (True, False)


def test_a_run_begins_with_the_encoders_of_its_seeds() -> None:
    config = DqnConfig(env="minatar/breakout", out=Path("x"), seeds="3,9", width=2, options=EnvOptions(stack=2))
    env, agent, recorded = dqn.prepare(resolved(config, config.env))
    assert (env.num_envs, env.env_id, recorded["kind"], recorded["architecture"]) == (
        2,
        "minatar/breakout",
        "dqn",
        "minatar",
    )
    assert recorded["options"] == {
        "actions": "minimal", "sticky": 0.1, "stack": 2, "max_steps": 10_000, "frameskip": None, "noop_max": None,
        "episodic_life": None,
    }  # fmt: skip
    assert isinstance(agent, Dqn)
    for found, seed in zip(agent.encoders, (3, 9), strict=True):
        expected = make_encoder("minatar", (2, 10, 10, 4), 2, seeded(seed, Purpose.ENCODER))
        assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))
    obs, _ = env.reset(seed=0)
    assert agent.see(obs).shape == (2, 1, 256)  # not scaled
    torch.testing.assert_close(agent.see(obs)[0], agent.encoders[0](torch.from_numpy(obs[:1])).detach())


def test_the_command_says_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--env minatar/breakout --steps 12 --replay-min 8 --replay-size 20"
    assert main(f"dqn {flags} --out {tmp_path}/r".split()) == 0
    printed = capsys.readouterr()
    assert f"play with it: pvn evaluate {tmp_path}/r --video episode.gif" in printed.out
    assert "train minatar/breakout (1 thread): 12/12 steps" in printed.err
    assert read_run(tmp_path / "r")["done"]["updates"] == 3  # after steps 8, 10 and 12
    assert list(tmp_path.iterdir()) == [tmp_path / "r"]  # no data set
    train_dqn(DqnConfig(env="minatar/breakout", out=tmp_path / "q", steps=6, replay_min=5, replay_size=9), quiet=True)
    assert capsys.readouterr() == ("", "")
