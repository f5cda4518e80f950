"""Any registered Gymnasium environment with discrete actions and a uint8 or bool array as observation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from protovalue.envs.base import Array, Family, PythonEnv
from protovalue.errors import UserError


class _GymGame:
    """One Gymnasium environment; its actions may start at any number, ours start at 0."""

    def __init__(self, env: gymnasium.Env[Array, np.int64]) -> None:
        self._env = env
        assert isinstance(env.action_space, Discrete)
        self._first_action = int(env.action_space.start)

    def reset(self, seed: int | None) -> Array:
        return self._env.reset(seed=seed)[0]

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        frame, reward, terminated, truncated, _ = self._env.step(np.int64(self._first_action + action))
        return frame, float(reward), bool(terminated), bool(truncated)

    def close(self) -> None:
        self._env.close()

    def save_state(self) -> Any | None:
        return None  # Gymnasium has no way to ask for it

    def load_state(self, state: Any) -> None:
        raise NotImplementedError("a Gymnasium environment cannot go back to a saved state")


class Gym(Family):
    """Any registered Gymnasium environment with discrete actions and a uint8 or bool array as observation."""

    def __init__(self, stack: int = 1, max_steps: int | None = None) -> None:
        """Options are checked before they come here, and kept in `options`."""

    def make(self, env_id: str, game: str, num_envs: int) -> PythonEnv:
        """Make `num_envs` of a registered environment: its ID, or "module:ID", whose module is not imported."""
        module, _, registered = game.rpartition(":")
        try:
            envs: list[gymnasium.Env[Any, Any]] = [gymnasium.make(registered) for _ in range(num_envs)]
        except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound) as error:
            raise UserError(
                f"environment {env_id!r}: {_line(error)}; {_how_to_register(registered, module)}"
            ) from error
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"environment {env_id!r}: {_line(error)}") from error
        except Exception as error:  # whatever its own code raises
            raise UserError(
                f"environment {env_id!r}: cannot be made: {type(error).__name__}: {_line(error)}"
            ) from error
        actions, observation = envs[0].action_space, envs[0].observation_space
        if not isinstance(actions, Discrete):
            raise UserError(f"environment {env_id!r}: found actions {actions}, expected Discrete")
        if not isinstance(observation, Box) or observation.dtype not in (np.uint8, np.bool_):
            raise UserError(f"environment {env_id!r}: found observation {observation}, expected a uint8 or bool Box")
        games = [_GymGame(env) for env in envs]
        return PythonEnv(env_id, self.options, games, observation.shape, observation.dtype, int(actions.n))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _how_to_register(registered: str, module: str) -> str:
    named = f"gym/{module or 'MODULE'}:{registered}"
    return (
        f"a module that registers it is imported only if it is named on the command line (--env {named}) or in your "
        "study file, or if your own program imports it"
    )


ENVIRONMENT = Gym
