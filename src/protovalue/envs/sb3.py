"""Vector environments as Stable-Baselines3 wants them."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from protovalue.errors import UserError

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def as_sb3(env: VectorEnv[Any, Any, Any]) -> "VecEnv":
    """Return a vector environment, which must reset in the step that ends an episode, for Stable-Baselines3."""
    if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise UserError("environment: found another autoreset mode, expected SAME_STEP, as protovalue.make has it")
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv

    class Sb3Env(VecEnv):
        """Stable-Baselines3's own vector interface: `done`, and the last observation of an episode in its info."""

        def __init__(self) -> None:
            self._actions: Any = None
            self._returns, self._lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
            self._started = time.time()
            super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

        def reset(self) -> Any:
            seeded = self._seeds[0] is not None
            seeds: Any = list(self._seeds) if seeded else None
            obs, _ = env.reset(seed=seeds)
            self._reset_seeds()
            self._returns[:], self._lengths[:] = 0.0, 0
            return obs

        def step_async(self, actions: Any) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            obs, rewards, terminated, truncated, info = env.step(self._actions)
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
            env.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            value = getattr(env, attr_name)
            return [value for _ in self._get_indices(indices)]

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError("the environments of a vector cannot be changed one by one")

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise NotImplementedError("the environments of a vector cannot be called one by one")

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [wrapper_class is Monitor for _ in self._get_indices(indices)]  # whose reports it gives

    return Sb3Env()
