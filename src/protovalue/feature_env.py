"""Environments whose observations are an encoder's features, for agents of other libraries."""

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from protovalue.encoder import FrozenEncoder
from protovalue.errors import UserError

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

Array = NDArray[Any]


class FeatureEnv(VectorWrapper[Any, Any, Any]):
    """A Gymnasium vector environment that shows features (N, k), float32, in place of observations.

    The final observation of an episode, `info["final_obs"]`, becomes features too. Works around any vector environment
    whose observations the encoder takes; those of `protovalue.make` do.

        env = protovalue.FeatureEnv(protovalue.make("minatar/breakout", 8), protovalue.load_encoder("runs/pvn"))
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], encoder: FrozenEncoder, scale: float = 1.0) -> None:
        """Wrap `env`; features are divided by `scale`, such as `encoder.about["summary"]["feature_rms"]`."""
        super().__init__(env)
        shape = env.single_observation_space.shape
        if shape != encoder.observation_shape:
            raise UserError(f"encoder: found one for observations {encoder.observation_shape}, expected {shape}")
        if not scale > 0:
            raise UserError(f"scale: found {scale}, expected more than 0")
        self._encoder, self._factor = encoder, 1.0 / scale
        # What ends in a ReLU is at least 0; a projection, which self-predictive encoders end in, can be anything.
        lowest = 0.0 if encoder.encoder.readout == "relu" else -np.inf
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
        from stable_baselines3.common.vec_env import VecEnv

        outer = self

        class Sb3FeatureEnv(VecEnv):
            """Stable-Baselines3's own vector interface: `done`, and the last observation of an episode in its info."""

            def __init__(self) -> None:
                self._actions: Any = None
                super().__init__(outer.num_envs, outer.single_observation_space, outer.single_action_space)

            def reset(self) -> Any:
                seeded = self._seeds[0] is not None
                obs, _ = outer.reset(seed=list(self._seeds) if seeded else None)
                self._reset_seeds()
                return obs

            def step_async(self, actions: Any) -> None:
                self._actions = actions

            def step_wait(self) -> Any:
                obs, rewards, terminated, truncated, info = outer.step(self._actions)
                infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
                for i in np.flatnonzero(terminated | truncated):
                    infos[i] = {
                        "terminal_observation": info["final_obs"][i],
                        "TimeLimit.truncated": bool(truncated[i]),
                    }
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
                return [False for _ in self._get_indices(indices)]

        return Sb3FeatureEnv()
