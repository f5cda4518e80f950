"""Presets: the paper's table of online hyperparameters value by value, Dopamine's DQN, and those of small machines."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.online import loop
from protovalue.online.agent import Rule
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import epsilon_at
from protovalue.online.replay import Replay
from protovalue.presets import DQN, Preset, SameAs, resolved
from protovalue.runs import config_fields, config_from, renamed
from tests.online.rigged import one_hot

OUT = Path("x")


def online(env: str = "atari/Pong", **given: Any) -> OnlineConfig:
    return resolved(OnlineConfig(env=env, out=OUT, encoder="e", **given), env)


def end_to_end(env: str = "atari/Pong", **given: Any) -> DqnConfig:
    return resolved(DqnConfig(env=env, out=OUT, **given), env)


def values(config: Any, expected: Any) -> dict[Any, Any]:
    return {name: getattr(config, name) for name in expected}


def test_the_paper_s_table_of_online_hyperparameters() -> None:
    """Each row of the paper's table "Online Hyperparameters", in its order."""
    paper, game = online(preset="paper"), make("atari/Pong")
    assert (paper.head, paper.double, paper.huber, paper.prioritised) == ("dqn", False, False, False)  # DQN
    assert paper.hidden == ()  # number of layers: 1 (linear)
    assert paper.steps == 3_750_000  # number of agent steps: 3.75M
    assert game.options["frameskip"] == 4  # frame skip
    assert paper.steps * game.options["frameskip"] == 15_000_000  # total frames: 15M
    explored = [
        epsilon_at(step, paper.epsilon_start, paper.epsilon, paper.replay_min, paper.epsilon_steps)
        for step in (0, 1_999, 2_000, 2_001, 3_749_999)
    ]
    assert explored == [0.01] * 5  # train epsilon
    assert EvaluateConfig(OUT).epsilon == 0.001  # evaluation epsilon
    assert paper.n_step == 1  # n step
    assert paper.gamma == 0.99  # discount factor
    assert paper.learning_rate == 6.25e-5  # Adam's learning rate
    assert paper.adam_epsilon == 1.5e-4  # Adam's epsilon
    assert paper.max_gradient_norm == 10  # maximum gradient norm
    assert paper.batch_size == 32  # batch size
    assert paper.replay_min == 2_000  # minimum replay size
    assert paper.replay_size == 1_000_000  # maximum replay size
    assert paper.updates / paper.update_every == 1  # gradient updates per agent step
    # What the paper does not say: the reference code's target network and rewards, features as they are, no schedule.
    assert (paper.target_every, paper.clip_rewards, paper.feature_scale) == (2_000, True, "none")
    assert (paper.log_every, paper.checkpoint_every) == (10_000, 50_000)
    assert online("minatar/breakout", preset="paper") == replace(paper, env="minatar/breakout")


def test_the_paper_s_values_are_what_the_loop_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table again, seen from inside: when, how often and on what the agents learn in the first 2,003 steps."""
    made, updates, capacities = [], [], []
    learn = LinearDqn.learn

    def spy(self: Any, replay: Any, slot: Any, n_step: int, gamma: float, weight: Any = None) -> Any:
        before = self.theta.clone()
        result = learn(self, replay, slot, n_step, gamma, weight)
        updates.append((replay.batch(slot, n_step, gamma), (self.theta - before).abs().max().item()))
        made.append(self.rule)
        return result

    def counted(seeds: Any, capacity: Any, *rest: Any) -> Replay:
        capacities.append(capacity)
        return Replay(seeds, 5_000, *rest)

    monkeypatch.setattr(LinearDqn, "learn", spy)
    monkeypatch.setattr(loop, "Replay", counted)
    config = online("gym/Corridor-v0", preset="paper")
    config = replace(config, steps=2_003, out=tmp_path / "run")
    env = make(config.env)
    loop.train(config, {}, env, LinearDqn(Rule.of(config), (0,), 2, one_hot(), 1.0), quiet=True)
    assert capacities == [1_000_000]
    assert len(updates) == 4  # after steps 2,000, 2,001, 2,002 and 2,003
    for batch, change in updates:
        assert batch.obs.shape == (1, 32, 7)
        assert set(np.unique(batch.discount)) <= {np.float32(0), np.float32(0.99)}
        assert set(np.unique(batch.reward)) <= {np.float32(-0.25), np.float32(1)}  # of one step each
        assert 0 < change <= 6.25e-5 * 1.01  # Adam's first steps are at most the learning rate
    assert (made[0].max_gradient_norm, made[0].adam_epsilon, made[0].hidden) == (10.0, 1.5e-4, ())


def test_dopamine_s_dqn() -> None:
    expected = {
        "architecture": "nature", "width": 1, "steps": 50_000_000, "epsilon": 0.01, "epsilon_start": 1.0,
        "epsilon_steps": 250_000, "n_step": 1, "gamma": 0.99, "learning_rate": 6.25e-5, "adam_epsilon": 1.5e-4,
        "max_gradient_norm": 0.0, "batch_size": 32, "replay_min": 20_000, "replay_size": 1_000_000, "update_every": 4,
        "updates": 1, "target_every": 8_000 // 4, "clip_rewards": True, "double": False, "huber": False, "head": "dqn",
        "prioritised": False, "hidden": (), "log_every": 10_000, "checkpoint_every": 50_000,
    }  # fmt: skip
    assert values(end_to_end(preset="paper"), expected) == expected
    there = {**expected, "architecture": "minatar"}
    assert values(end_to_end("minatar/breakout", preset="paper"), expected) == there


def test_small_linear_agents() -> None:
    expected = {
        "steps": 100_000, "epsilon": 0.01, "epsilon_start": 1.0, "epsilon_steps": 10_000, "n_step": 1, "gamma": 0.99,
        "learning_rate": 2.5e-4, "adam_epsilon": 1.5e-4, "max_gradient_norm": 10.0, "batch_size": 32,
        "replay_min": 1_000, "replay_size": 100_000, "update_every": 1, "updates": 1, "target_every": 500,
        "feature_scale": "rms", "log_every": 1_000, "checkpoint_every": 10_000, "double": False,
        "replay_dtype": "float16",
    }  # fmt: skip
    assert values(online("gym/Corridor-v0"), expected) == expected
    assert values(online("atari/Pong"), expected) == {**expected, "n_step": 5, "double": True}
    there = {**expected, "steps": 60_000, "learning_rate": 5e-4, "target_every": 250}
    assert values(online("minatar/freeway"), expected) == there


def test_small_end_to_end_agents() -> None:
    expected = {
        "architecture": "nature", "steps": 1_000_000, "epsilon": 0.01, "epsilon_start": 1.0, "epsilon_steps": 100_000,
        "n_step": 1, "gamma": 0.99, "learning_rate": 1e-4, "adam_epsilon": 1.5e-4, "max_gradient_norm": 10.0,
        "batch_size": 32, "replay_min": 10_000, "replay_size": 100_000, "update_every": 4, "updates": 1,
        "target_every": 1_000, "log_every": 5_000, "checkpoint_every": 25_000, "double": False,
    }  # fmt: skip
    assert values(end_to_end("gym/Corridor-v0"), expected) == expected
    atari = {
        **expected, "architecture": "der", "steps": 500_000, "epsilon_steps": 50_000, "n_step": 5, "double": True,
        "learning_rate": 2.5e-4, "replay_min": 5_000, "target_every": 500,
    }  # fmt: skip
    assert values(end_to_end(), expected) == atari
    there = {
        **expected, "architecture": "minatar", "steps": 300_000, "n_step": 3, "learning_rate": 1e-3, "update_every": 2,
        "target_every": 500,
    }  # fmt: skip
    assert values(end_to_end("minatar/breakout"), expected) == there
    asterix = {
        **there, "n_step": 1, "double": True, "batch_size": 256, "update_every": 32, "target_every": 40,
        "replay_size": 300_000,
    }  # fmt: skip
    assert values(end_to_end("minatar/asterix"), expected) == asterix


def test_a_preset_may_know_a_single_environment() -> None:
    table = {
        ("*", "minatar/asterix"): Preset("all presets", updates=9, epsilon=0.1),
        ("small", "*"): Preset("all", steps=1, n_step=1, epsilon=0.5, double=True, epsilon_start=SameAs("epsilon")),
        ("small", "minatar"): Preset("its family", n_step=2, epsilon=0.4),
        ("small", "minatar/asterix"): Preset("itself", epsilon=0.3, batch_size=7),
        ("paper", "minatar/asterix"): Preset("another", epsilon=0.2),
    }

    class Own(DqnConfig):
        presets = (DQN, table)

    found = resolved(Own(env="minatar/asterix", out=OUT, double=False), "minatar/asterix")
    assert (found.steps, found.n_step, found.epsilon, found.batch_size, found.double) == (1, 2, 0.3, 7, False)
    found = resolved(Own(env="minatar/breakout", out=OUT), "minatar/breakout")
    assert (found.n_step, found.epsilon, found.batch_size, found.double) == (2, 0.4, 32, True)
    assert found.epsilon_start == 0.4  # no schedule
    assert resolved(Own(env="minatar/breakout", out=OUT, epsilon=0.6), "minatar/breakout").epsilon_start == 0.6


def test_what_applies_gets_a_value_and_what_does_not_stays_unset() -> None:
    plain = online()
    assert (plain.atoms, plain.value_range, plain.replay_dtype) == (None, None, "float16")
    categorical = online(head="c51")
    assert (categorical.atoms, categorical.value_range) == (51, 10.0)
    categorical = online(head="c51", atoms=7, value_range=2.0)
    assert (categorical.atoms, categorical.value_range) == (7, 2.0)
    assert (Rule.of(categorical).atoms, Rule.of(categorical).value_range) == (7, 2.0)
    assert online(finetune=True).replay_dtype is None
    assert online(replay_dtype="float32").replay_dtype == "float32"
    assert end_to_end().iterations is None
    assert end_to_end(record=OUT).iterations == 50
    assert end_to_end(record=OUT, iterations=3).iterations == 3


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (online, {"atoms": 21}, "--atoms: found 21, expected it with --head c51 only"),
        (end_to_end, {"value_range": 5.0}, "--value-range: found 5.0, expected it with --head c51 only"),
        (online, {"finetune": True, "replay_dtype": "float32"},
         "--replay-dtype: found float32, expected it without --finetune only, whose replay holds frames"),
        (end_to_end, {"iterations": 5}, "--iterations: found 5, expected it with --record only"),
        (online, {"preset": "paper", "epsilon_steps": 500},
         "--epsilon-steps: found 500, expected --epsilon-start with it"),
        (online, {"head": "c51", "huber": True}, "--huber: found it together with --head c51, expected one of them"),
        (online, {"env": "", "other_game": True}, "--other-game: found it without --env, expected the other game as"),
        (online, {"head": "c51", "atoms": 1}, "--atoms: found 1, expected 2 to 10,000"),
        (online, {"head": "c51", "value_range": 0.0}, "--value-range: found 0.0, expected more than 0"),
        (end_to_end, {"record": OUT, "iterations": 0}, "--iterations: found 0, expected at least 1"),
    ],
)  # fmt: skip
def test_an_option_that_does_not_apply_is_refused_by_name(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        kind(**given)
    assert str(error.value).startswith(message)


def test_an_option_of_trained_encoders_is_refused_with_a_random_one() -> None:
    with pytest.raises(UserError, match="--other-game: found it with random:minatar:1, expected an encoder that was"):
        OnlineConfig(env="minatar/breakout", out=OUT, encoder="random:minatar:1", other_game=True)


def test_an_evaluation_has_at_most_as_many_environments_as_episodes() -> None:
    assert EvaluateConfig(OUT, episodes=3).num_envs is None
    assert EvaluateConfig(OUT, episodes=3, num_envs=3).num_envs == 3
    for wrong in (0, 4):
        with pytest.raises(UserError, match=f"--num-envs: found {wrong}, expected 1 to 3, as many as episodes"):
            EvaluateConfig(OUT, episodes=3, num_envs=wrong)


def test_a_schedule_that_is_set_is_taken() -> None:
    found = online(preset="paper", epsilon_start=0.5, epsilon_steps=500)
    assert (found.epsilon, found.epsilon_start, found.epsilon_steps) == (0.01, 0.5, 500)
    assert online(preset="paper", epsilon_steps=0).epsilon_start == 0.01
    assert online(epsilon_steps=500).epsilon_start == 1.0


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (OnlineConfig, online(hidden=(4, 3), replay_dir=Path("there"))),
        (OnlineConfig, online(head="c51", atoms=9, finetune=True)),
        (DqnConfig, end_to_end(record=Path("d"), iterations=4, preset="paper")),
    ],
)
def test_a_config_is_read_back_from_what_is_recorded(kind: Any, config: Any) -> None:
    recorded = config_fields(config)
    assert config_from(kind, recorded) == config
    assert config_from(kind, recorded, out=Path("moved")) == replace(config, out=Path("moved"))
    # The first version recorded a value also where it did not apply, and had other names.
    defaults = {"atoms": 51, "value_range": 10.0, "replay_dtype": "float16", "iterations": 50}
    known = {field.name for field in fields(kind)}
    older = {name: value for name, value in defaults.items() if name in known and recorded[name] is None}
    names = {"architecture": "encoder", "record": "data", "iterations": "stages"}
    before = {names.get(name, name): value for name, value in (recorded | older).items()}
    before["kind"] = "dqn" if kind is DqnConfig else "online"
    assert config_from(kind, renamed(before)) == config
