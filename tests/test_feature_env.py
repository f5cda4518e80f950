"""FeatureEnv: features in place of observations, and Stable-Baselines3's own agents on it, unchanged."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

import protovalue
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.encoder import FrozenEncoder
from protovalue.envs.probe import random_observations
from protovalue.errors import UserError
from protovalue.feature_env import FeatureEnv
from protovalue.nets.encoders import make_encoder
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.method_configs import SprConfig


@pytest.fixture
def encoder() -> FrozenEncoder:
    return FrozenEncoder(make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(0)), {})


def test_observations_are_features_also_at_the_end_of_an_episode(encoder: FrozenEncoder) -> None:
    plain, wrapped = protovalue.make("minatar/breakout", 4), protovalue.make("minatar/breakout", 4)
    env = protovalue.FeatureEnv(wrapped, encoder, scale=0.5)
    assert env.single_observation_space == Box(0.0, np.inf, (128,), np.float32)
    obs, _ = plain.reset(seed=0)
    features, _ = env.reset(seed=0)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        expected = encoder.features(obs).numpy() * 2
        np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
        assert features.dtype == np.float32
        assert env.observation_space.contains(features)
        actions = rng.integers(3, size=4)
        obs, rewards, terminated, _, info = plain.step(actions)
        features, same_rewards, same_terminated, _, wrapped_info = env.step(actions)
        np.testing.assert_array_equal(rewards, same_rewards)
        np.testing.assert_array_equal(terminated, same_terminated)
        assert ("final_obs" in info) == ("final_obs" in wrapped_info)
        for i in np.flatnonzero(terminated):
            last = encoder.features(info["final_obs"][i : i + 1]).numpy()[0] * 2
            np.testing.assert_allclose(wrapped_info["final_obs"][i], last, rtol=1e-5, atol=1e-6)
            ends += 1
    assert ends > 3


def test_features_are_within_the_bounds_that_are_declared(encoder: FrozenEncoder, tmp_path: Path) -> None:
    """Those of a ReLU are at least 0; self-predictive encoders end in a projection, which can be negative."""
    game = "minatar/breakout"
    collect(CollectConfig(game, tmp_path / "data", steps=100), quiet=True)
    config = SprConfig(data=(tmp_path / "data",), out=tmp_path / "run", steps=1, batch_size=8)
    pretrain(config, quiet=True)
    for one, lowest in ((protovalue.load_encoder(tmp_path / "run"), -np.inf), (encoder, 0.0)):
        env = protovalue.FeatureEnv(protovalue.make(game, 3), one, scale=0.5)
        assert env.single_observation_space == Box(lowest, np.inf, (128,), np.float32)
        assert env.observation_space == Box(lowest, np.inf, (3, 128), np.float32)
        obs, _ = env.reset(seed=0)
        assert env.observation_space.contains(obs)
        assert (obs < 0).any() == (lowest < 0)
        assert env.single_observation_space.contains(env.step(np.zeros(3, int))[0][2])


def test_an_encoder_of_another_shape_is_refused(encoder: FrozenEncoder) -> None:
    with pytest.raises(UserError, match=r"found one for observations \(1, 10, 10, 4\), expected \(1, 10, 10, 7\)"):
        protovalue.FeatureEnv(protovalue.make("minatar/freeway", 2), encoder)
    with pytest.raises(UserError, match="scale: found 0, expected more than 0"):
        protovalue.FeatureEnv(protovalue.make("minatar/breakout", 2), encoder, scale=0)


@pytest.mark.filterwarnings("default")
def test_stable_baselines3_trains_on_it_unchanged(encoder: FrozenEncoder) -> None:
    from stable_baselines3 import DQN, PPO

    env = protovalue.FeatureEnv(protovalue.make("minatar/breakout", 2, max_steps=30), encoder).to_sb3()
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (DQN, {"learning_starts": 50, "buffer_size": 500}),
        (PPO, {"n_steps": 64, "n_epochs": 1}),
    ]
    for cls, options in kinds:
        agent = cls("MlpPolicy", env, policy_kwargs={"net_arch": []}, seed=0, device="cpu", **options)
        before = [p.detach().clone() for p in agent.policy.parameters()]
        agent.learn(300)
        assert agent.num_timesteps >= 300
        assert agent.ep_info_buffer, "ep_rew_mean has nothing to be the mean of"
        assert any(not torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True))
        action, _ = agent.predict(env.reset(), deterministic=True)
        assert action.shape == (2,)
        assert set(action.tolist()) <= {0, 1, 2}


def test_the_adapter_tells_truncation_from_termination(encoder: FrozenEncoder) -> None:
    vector = protovalue.FeatureEnv(protovalue.make("minatar/breakout", 3, max_steps=4), encoder)
    env = vector.to_sb3()
    env.seed(0)
    first = env.reset()
    assert isinstance(first, np.ndarray)
    assert first.shape == (3, 128)
    infos = []
    for _ in range(30):
        _, _, dones, info = env.step(np.zeros(3, int))
        infos += [info[i] for i in np.flatnonzero(dones)]
    assert {row["TimeLimit.truncated"] for row in infos} == {True}  # four steps are too few to lose the ball
    assert all(row["terminal_observation"].shape == (128,) for row in infos)


class Scripted(VectorEnv):
    """Two environments of one-pixel frames: at step 1 the first terminates, at step 2 the second is truncated."""

    num_envs = 2
    # gymnasium declares it as if every instance had its own
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # type: ignore[misc]
    single_observation_space = Box(0, 255, (1, 10, 10), np.uint8)
    single_action_space = Discrete(2)
    seeds: ClassVar[list[Any]] = []
    t = 0

    def obs(self, first: Any, second: Any) -> np.ndarray:
        return np.stack([np.full((1, 10, 10), value, np.uint8) for value in (first, second)])

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, bool]]:
        self.seeds.append(seed)
        return self.obs(1, 2), {"fresh": True}

    def step(self, actions: Any) -> Any:
        self.t += 1
        ended = np.array([self.t == 1, self.t == 2])
        info = {"final_obs": self.obs(30 * self.t, 40 * self.t), "_final_obs": ended} if self.t < 3 else {}
        rewards = np.array([0.5, -0.5]) * self.t
        return self.obs(10 * self.t, 20 * self.t), rewards, ended & (self.t == 1), ended & (self.t == 2), info


@pytest.fixture
def scripted() -> tuple[FeatureEnv, FrozenEncoder]:
    made = make_encoder("minatar", (1, 10, 10), 1, torch.Generator().manual_seed(1))
    inner = FrozenEncoder(made, {})
    Scripted.seeds.clear()
    return FeatureEnv(Scripted(), inner), inner


def test_each_step_of_a_scripted_environment(scripted: tuple[FeatureEnv, FrozenEncoder]) -> None:
    env, inner = scripted

    def expected(first: Any, second: Any) -> Any:
        return inner.features(Scripted().obs(first, second)).numpy()

    features, info = env.reset(seed=5)
    np.testing.assert_array_equal(features, expected(1, 2))  # not scaled where nothing is said
    assert info == {"fresh": True}
    for t, (final, ended) in enumerate(((30, 0), (80, 1), (None, None)), start=1):
        features, rewards, terminated, truncated, info = env.step(np.zeros(2, int))
        np.testing.assert_allclose(features, expected(10 * t, 20 * t), rtol=1e-5, atol=1e-6)
        assert (rewards.tolist(), terminated.tolist()) == ([0.5 * t, -0.5 * t], [t == 1, False])
        assert truncated.tolist() == [False, t == 2]
        if final is None or ended is None:
            assert info == {}
        else:
            np.testing.assert_allclose(info["final_obs"][ended], expected(final, final)[0], rtol=1e-5, atol=1e-6)
            assert not info["final_obs"][1 - ended].any()
            assert info["_final_obs"].tolist() == [t == 1, t == 2]


def test_stable_baselines3_sees_the_same_steps(scripted: tuple[FeatureEnv, FrozenEncoder]) -> None:
    env, inner = scripted
    adapter = env.to_sb3()
    assert (adapter.num_envs, adapter.observation_space.shape) == (2, (128,))
    assert adapter.action_space == Discrete(2)
    adapter.seed(7)
    adapter.reset()
    adapter.reset()
    assert Scripted.seeds == [[7, 8], None]  # a seed is for one reset
    found = [adapter.step(np.zeros(2, int)) for _ in range(3)]
    assert [dones.tolist() for _, _, dones, _ in found] == [[True, False], [False, True], [False, False]]
    assert [rewards.tolist() for _, rewards, _, _ in found] == [[0.5, -0.5], [1.0, -1.0], [1.5, -1.5]]
    (first, none), (also_none, second), nothing = (infos for *_, infos in found)
    assert (none, also_none, nothing) == ({}, {}, [{}, {}])
    assert (first["TimeLimit.truncated"], second["TimeLimit.truncated"]) == (False, True)
    # the first episode of each: rewards 0.5; -0.5 and -1.0. Of the last step no episode ends.
    assert [{**info["episode"], "t": 0} for info in (first, second)] == [
        {"r": 0.5, "l": 1, "t": 0},
        {"r": -1.5, "l": 2, "t": 0},
    ]
    assert 0 <= first["episode"]["t"] <= second["episode"]["t"]
    for info, value in ((first, 30), (second, 80)):
        expected = inner.features(Scripted().obs(value, value)).numpy()[0]
        np.testing.assert_allclose(info["terminal_observation"], expected, rtol=1e-5, atol=1e-6)
    assert adapter.get_attr("num_envs") == [2, 2]
    assert adapter.get_attr("num_envs", [1]) == [2]
    assert adapter.env_is_wrapped(gymnasium.Wrapper) == [False, False]
    for wrong in (lambda: adapter.set_attr("t", 1), lambda: adapter.env_method("reset")):
        with pytest.raises(NotImplementedError):
            wrong()
    assert not env.env.closed
    adapter.close()
    assert env.env.closed


def test_returns_of_episodes_begin_again(scripted: tuple[FeatureEnv, FrozenEncoder]) -> None:
    """After an end, and after a reset in the middle of an episode."""
    env, _ = scripted
    adapter = env.to_sb3()
    adapter.reset()
    adapter.step(np.zeros(2, int))  # the second is in the middle of an episode
    adapter.reset()
    *_, infos = adapter.step(np.zeros(2, int))  # its rewards are 1 and -1, at t = 2, where the second ends
    assert (infos[1]["episode"]["r"], infos[1]["episode"]["l"]) == (-1.0, 1)


@pytest.mark.filterwarnings("error")
def test_stable_baselines3_evaluates_without_a_warning(encoder: FrozenEncoder) -> None:
    from stable_baselines3 import DQN
    from stable_baselines3.common.evaluation import evaluate_policy

    env = protovalue.FeatureEnv(protovalue.make("minatar/breakout", 2, max_steps=5), encoder, scale="rms").to_sb3()
    agent = DQN("MlpPolicy", env, policy_kwargs={"net_arch": []}, device="cpu", buffer_size=100)
    _, lengths = evaluate_policy(agent, env, n_eval_episodes=4, return_episode_rewards=True)
    assert isinstance(lengths, list)
    assert max(lengths) <= 5


def test_the_scale_rms_is_that_of_pvn_online(encoder: FrozenEncoder) -> None:
    """With what the encoder's folder says or, for one that says nothing, on observations of the environment."""
    env = protovalue.make("minatar/breakout", 2)
    obs, _ = env.reset(seed=0)
    plain = encoder.features(obs).numpy()
    measured = float(encoder.features(random_observations(env)).square().mean().sqrt())
    np.testing.assert_allclose(protovalue.FeatureEnv(env, encoder, "rms").features(obs), plain / measured, rtol=1e-5)
    said = FrozenEncoder(encoder.encoder, {"summary": {"feature_rms": 0.5}})
    np.testing.assert_allclose(protovalue.FeatureEnv(env, said, "rms").features(obs), plain * 2, rtol=1e-5)
    with pytest.raises(UserError, match="scale: found mean, expected more than 0, or rms"):
        protovalue.FeatureEnv(env, encoder, "mean")  # type: ignore[arg-type]
    small = FrozenEncoder(make_encoder("minatar", (1, 10, 10), 1, torch.Generator()), {})
    with pytest.raises(UserError, match="scale: found rms with an encoder that has no feature_rms in its summary"):
        protovalue.FeatureEnv(Scripted(), small, "rms")


def test_a_single_environment_is_seeded_too(encoder: FrozenEncoder) -> None:
    adapter = protovalue.FeatureEnv(protovalue.make("minatar/breakout", 1), encoder).to_sb3()
    first = []
    for seed in (*range(8), 0):  # Breakout begins in one of two ways
        adapter.seed(seed)
        obs = adapter.reset()
        assert isinstance(obs, np.ndarray)
        first.append(obs.tobytes())
    assert first[0] == first[-1]
    assert len(set(first)) == 2


def test_another_way_to_end_episodes_is_refused(scripted: tuple[FeatureEnv, FrozenEncoder]) -> None:
    env, _ = scripted
    env.env.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    with pytest.raises(UserError, match="environment: found another autoreset mode, expected SAME_STEP, as"):
        env.to_sb3()


def test_scales(encoder: FrozenEncoder) -> None:
    env = protovalue.make("minatar/breakout", 2)
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="scale: found .*, expected more than 0"):
            protovalue.FeatureEnv(env, encoder, scale)
    obs, _ = env.reset(seed=0)
    for scale in (0.5, 1.0):
        found = protovalue.FeatureEnv(env, encoder, scale).features(obs)
        np.testing.assert_allclose(found, encoder.features(obs).numpy() / scale, rtol=1e-6)
