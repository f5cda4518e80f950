"""Environments whose observations are an encoder's features, for agents of other libraries."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from protovalue.encoder import FrozenEncoder
from protovalue.envs.base import Env
from protovalue.envs.probe import random_observations
from protovalue.envs.sb3 import as_sb3
from protovalue.errors import UserError

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

Array = NDArray[Any]


def feature_scale(encoder: FrozenEncoder, env: VectorEnv[Any, Any, Any]) -> float:
    """Return the root mean square of an encoder's features: one number, so that their geometry stays as it is.

    Taken on the data that the encoder was made with; where there were none, on 512 observations of a random policy,
    always the same ones for an environment.
    """
    recorded = encoder.about.get("summary", {}).get("feature_rms")
    if recorded is None:
        if not isinstance(env, Env):
            raise UserError(
                "scale: found rms with an encoder that has no feature_rms in its summary, expected a number, or an "
                "environment of protovalue.make to measure it in"
            )
        recorded = float(encoder.features(random_observations(env)).square().mean().sqrt())
    if not recorded > 0:
        raise UserError("--feature-scale: the encoder's features are all zero on its data, expected some that are not")
    return float(recorded)


class FeatureEnv(VectorWrapper[Any, Any, Any]):
    """A Gymnasium vector environment that shows features (N, k), float32, in place of observations.

    The final observation of an episode, `info["final_obs"]`, becomes features too. Works around any vector environment
    whose observations the encoder takes; those of `protovalue.make` do.

        env = protovalue.FeatureEnv(protovalue.make("minatar/breakout", 8), protovalue.load_encoder("runs/pvn"))
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], encoder: FrozenEncoder, scale: float | Literal["rms"] = 1.0
    ) -> None:
        """Wrap `env`; features are divided by `scale`, or by their root mean square ("rms"), as `pvn online` does."""
        if not isinstance(env, VectorEnv):
            raise UserError(f"env: found {type(env).__name__}, expected a vector environment, as of protovalue.make")
        if not isinstance(encoder, FrozenEncoder):
            raise UserError(f"encoder: found {type(encoder).__name__}, expected one of protovalue.load_encoder")
        super().__init__(env)
        shape = env.single_observation_space.shape
        if shape != encoder.observation_shape:
            raise UserError(f"encoder: found one for observations {encoder.observation_shape}, expected {shape}")
        divisor = feature_scale(encoder, env) if scale == "rms" else scale
        if isinstance(divisor, str) or not divisor > 0:
            raise UserError(f"scale: found {scale}, expected more than 0, or rms")
        self._encoder, self._factor = encoder, 1.0 / divisor
        # What ends in a ReLU is at least 0; a projection, which self-predictive encoders end in, can be anything.
        lowest = 0.0 if encoder.encoder.readout.endswith("relu") else -np.inf
        self.single_observation_space = Box(lowest, np.inf, (encoder.num_features,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode in every environment."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self.features(obs), info

    def step(self, actions: Any) -> tuple[Array, Any, Any, Any, dict[str, Any]]:
        """Step every environment."""
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            final, ended = np.zeros((self.num_envs, self._encoder.num_features), np.float32), info["_final_obs"]
            final[ended] = self.features(np.stack([info["final_obs"][i] for i in np.flatnonzero(ended)]))
            info = {**info, "final_obs": final}
        return self.features(obs), rewards, terminated, truncated, info

    def features(self, obs: Array) -> Array:
        """Return the features (N, k) of observations."""
        features: Array = self._encoder.features(obs).mul(self._factor).cpu().numpy()
        return features

    def to_sb3(self) -> "VecEnv":
        """Return this environment as Stable-Baselines3 wants it, for `DQN("MlpPolicy", env.to_sb3())` and others."""
        return as_sb3(self)
