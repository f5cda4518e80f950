"""Environments whose observations are an encoder's features, for agents of other libraries."""

import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from protovalue.encoder import FrozenEncoder
from protovalue.envs.base import Env
from protovalue.envs.probe import random_observations
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
        if self.env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise UserError("environment: found another autoreset mode, expected SAME_STEP, as protovalue.make has it")
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import VecEnv

        outer = self

        class Sb3FeatureEnv(VecEnv):
            """Stable-Baselines3's own vector interface: `done`, and the last observation of an episode in its info."""

            def __init__(self) -> None:
                self._actions: Any = None
                self._returns, self._lengths = np.zeros(outer.num_envs), np.zeros(outer.num_envs, np.int64)
                self._started = time.time()
                super().__init__(outer.num_envs, outer.single_observation_space, outer.single_action_space)

            def reset(self) -> Any:
                seeded = self._seeds[0] is not None
                obs, _ = outer.reset(seed=list(self._seeds) if seeded else None)
                self._reset_seeds()
                self._returns[:], self._lengths[:] = 0.0, 0
                return obs

            def step_async(self, actions: Any) -> None:
                self._actions = actions

            def step_wait(self) -> Any:
                obs, rewards, terminated, truncated, info = outer.step(self._actions)
                infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
                self._returns += rewards
                self._lengths += 1
                passed = round(time.time() - self._started, 6)
                for i in np.flatnonzero(terminated | truncated):
                    infos[i] = {
                        "terminal_observation": info["final_obs"][i],
                        "TimeLimit.truncated": bool(truncated[i]),
                        # what its Monitor reports: return, length, seconds since the start
                        "episode": {"r": float(self._returns[i]), "l": int(self._lengths[i]), "t": passed},
                    }
                    self._returns[i], self._lengths[i] = 0.0, 0
                return obs, rewards, terminated | truncated, infos

            def close(self) -> None:
                outer.close()

            def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
                value = getattr(outer, attr_name)
                return [value for _ in self._get_indices(indices)]

            def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
                raise NotImplementedError("the environments of a vector cannot be changed one by one")

            def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
                raise NotImplementedError("the environments of a vector cannot be called one by one")

            def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
                return [wrapper_class is Monitor for _ in self._get_indices(indices)]  # whose reports it gives

        return Sb3FeatureEnv()
