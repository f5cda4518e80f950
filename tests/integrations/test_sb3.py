"""Stable-Baselines3: what its policies see through FrozenFeatures is what the encoder says, frozen or fine-tuned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.preprocessing import preprocess_obs

import protovalue
from protovalue.encoder import FrozenEncoder, save_encoder
from protovalue.errors import UserError
from protovalue.integrations.sb3 import FrozenFeatures, vec_env
from protovalue.nets.encoders import make_encoder

SHAPES: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "flags in four dimensions": ("minatar", (1, 10, 10, 4), np.bool_),
    "bytes that are an image": ("nature", (4, 84, 84), np.uint8),
    "bytes in four dimensions": ("nature", (2, 40, 40, 3), np.uint8),
}


def made(architecture: str, shape: tuple[int, ...], rms: float | None = 0.5) -> FrozenEncoder:
    about = {"summary": {"feature_rms": rms}} if rms else {}
    return FrozenEncoder(make_encoder(architecture, shape, 1, torch.Generator().manual_seed(3)), about)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    encoder = make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(3))
    save_encoder(tmp_path / "encoder", encoder, "minatar", 1, {"env_id": "minatar/breakout"}, ["# A card"])
    return tmp_path / "encoder"


def parameters(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}


@pytest.mark.parametrize("case", SHAPES)
def test_features_are_the_encoder_s_own_whatever_a_policy_did_to_the_observation(case: str) -> None:
    """Stable-Baselines3 turns all of them into floats, and divides the second by 255."""
    architecture, shape, dtype = SHAPES[case]
    encoder = made(architecture, shape)
    high = 1 if dtype == np.bool_ else 255
    space = Box(0, high, shape, dtype)
    obs = np.random.default_rng(0).integers(0, high, (3, *shape), endpoint=True).astype(dtype)
    seen = preprocess_obs(torch.from_numpy(obs), space)
    assert isinstance(seen, torch.Tensor)
    assert seen.is_floating_point()
    extractor = FrozenFeatures(space, encoder)
    assert extractor.features_dim == encoder.num_features
    assert torch.equal(extractor(seen), encoder.features(obs))
    assert torch.equal(FrozenFeatures(space, encoder, scale=4.0)(seen), encoder.features(obs) / 4)
    assert torch.equal(FrozenFeatures(space, encoder, scale="rms")(seen), encoder.features(obs) * 2)


def test_images_that_were_not_normalised_are_refused() -> None:
    space = Box(0, 255, (4, 84, 84), np.uint8)
    with pytest.raises(UserError, match="found floats from 0 to 255, expected bytes, flags, or floats between 0 and 1"):
        FrozenFeatures(space, made("nature", (4, 84, 84)))(
            torch.tensor([0.0, 255.0]).repeat(2 * 84 * 84).view(1, 4, 84, 84)
        )


def test_frozen_stays_and_fine_tuned_moves(folder: Path) -> None:
    for frozen in (True, False):
        env = vec_env(protovalue.make("minatar/breakout", num_envs=2))
        settings = {"encoder": str(folder), "frozen": frozen}
        kwargs = {"features_extractor_class": FrozenFeatures, "features_extractor_kwargs": settings}
        model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, policy_kwargs=kwargs, seed=0, device="cpu")
        before = parameters(model)
        model.learn(16)
        moved = {name for name, tensor in parameters(model).items() if not torch.equal(tensor, before[name])}
        assert any("action_net" in name for name in moved)
        assert any("features_extractor.layer.encoder" in name for name in moved) == (not frozen)
    untouched = protovalue.load_encoder(folder).encoder.state_dict()
    fresh = make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(3)).state_dict()
    assert all(torch.equal(untouched[name], fresh[name]) for name in fresh)


def test_dqn_with_a_replay_of_frames_is_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    env = vec_env(protovalue.make("minatar/breakout", num_envs=2))
    kwargs = {"features_extractor_class": FrozenFeatures, "features_extractor_kwargs": {"encoder": str(folder)}}
    model = DQN("MlpPolicy", env, buffer_size=64, learning_starts=8, train_freq=2, policy_kwargs=kwargs, device="cpu")
    model.learn(24)
    model.save(tmp_path / "agent")
    obs: Any = env.reset()
    again = DQN.load(tmp_path / "agent", device="cpu")
    assert np.array_equal(again.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])


def test_an_environment_without_features_has_the_frames_and_the_last_ones() -> None:
    """A falling pixel's worth: what comes out of the wrapper is what comes out of the environment."""
    plain, wrapped = protovalue.make("minatar/breakout", 2), vec_env(protovalue.make("minatar/breakout", 2))
    wrapped.seed(0)
    rng = np.random.default_rng(0)
    seeds: Any = list(wrapped._seeds)
    obs, _ = plain.reset(seed=seeds)
    first: Any = wrapped.reset()
    assert np.array_equal(first, obs)
    ended = 0
    for _ in range(120):
        actions = rng.integers(plain.num_actions, size=2)
        obs, rewards, terminated, truncated, info = plain.step(actions)
        found: Any = wrapped.step(actions)
        seen, got, done, infos = found
        assert np.array_equal(seen, obs)
        assert np.array_equal(got, rewards)
        assert np.array_equal(done, terminated | truncated)
        for number in np.flatnonzero(done):
            ended += 1
            assert np.array_equal(infos[number]["terminal_observation"], info["final_obs"][number])
    assert ended


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": 7}, "encoder: found int, expected one of protovalue.load_encoder, or its name"),
        ({"encoder": "nowhere"}, "nowhere: no encoder here"),
        ({"encoder": made("minatar", (1, 10, 10, 6))}, r"found one for observations \(1, 10, 10, 6\), expected"),
        ({"encoder": made("minatar", (1, 10, 10, 4)), "scale": 0.0}, "scale: found 0.0, expected more than 0"),
        ({"encoder": made("minatar", (1, 10, 10, 4)), "scale": "big"}, "scale: found big, expected more than 0"),
        ({"encoder": made("minatar", (1, 10, 10, 4), None), "scale": "rms"}, "no feature_rms in its summary"),
    ],
)
def test_mistakes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FrozenFeatures(Box(0, 1, (1, 10, 10, 4), np.bool_), **settings)
