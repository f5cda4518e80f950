"""The five MinAtar games: 10x10 boolean grids with one channel per kind of object."""

from typing import Any

import numpy as np

from protovalue.envs.base import Array, PythonEnv
from protovalue.errors import unknown
from protovalue.interrupt import deferred

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
# MinAtar has no time limit of its own, and a perfect Breakout player never loses: 10,000 steps bound an evaluation.
DEFAULTS: dict[str, Any] = {"actions": "minimal", "sticky": 0.1, "stack": 1, "max_steps": 10_000}


class _MinAtarGame:
    """One MinAtar game whose action i is the i-th of the chosen action set."""

    def __init__(self, name: str, sticky: float, actions: str) -> None:
        with deferred():  # it has an `except:` around its own imports
            from minatar import Environment

        self._env = Environment(name, sticky_action_prob=sticky)
        full = actions == "full"
        self.actions: list[int] = list(range(6)) if full else [int(a) for a in self._env.minimal_action_set()]
        self.frame_shape: tuple[int, ...] = tuple(self._env.state_shape())

    def reset(self, seed: int | None) -> Array:
        if seed is not None:
            self._env.seed(seed)
            self._env.last_action = 0
        self._env.reset()
        return np.asarray(self._env.state(), np.bool_)

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        reward, terminated = self._env.act(self.actions[action])
        return np.asarray(self._env.state(), np.bool_), float(reward), bool(terminated), False

    def close(self) -> None:
        pass

    def save_state(self) -> Any | None:
        game = {name: _plain(value) for name, value in vars(self._env.env).items() if name not in _CONSTANT}
        kind, keys, position, has_gauss, gauss = self._env.random.get_state()
        random = [kind, keys.tolist(), position, has_gauss, gauss]
        return {"game": game, "last_action": int(self._env.last_action), "random": random}

    def load_state(self, state: Any) -> None:
        for name, value in state["game"].items():
            setattr(self._env.env, name, _restored(value))
        self._env.last_action = state["last_action"]
        self._env.random = self._env.env.random = np.random.RandomState()  # one generator for both, as `seed` does
        kind, keys, *rest = state["random"]
        self._env.random.set_state((kind, np.array(keys, np.uint32), *rest))


_CONSTANT = ("channels", "action_map", "random")  # attributes of a game that are not its state
_ARRAY = "array"


def _plain(value: Any) -> Any:
    """Turn a value of a game's attribute into JSON values: numbers, None, lists of them, arrays with their type."""
    if isinstance(value, np.ndarray):
        return {_ARRAY: value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a MinAtar game holds {value!r}, which cannot be saved")


def _restored(value: Any) -> Any:
    """Turn what `_plain` returned back."""
    if isinstance(value, dict):
        return np.array(value[_ARRAY], value["dtype"])
    return value


def make_minatar(env_id: str, game: str, num_envs: int, options: dict[str, Any]) -> PythonEnv:
    """Make `num_envs` of one game; `options` has every key of DEFAULTS."""
    if game not in GAMES:
        raise unknown("environment", env_id, [f"minatar/{name}" for name in GAMES])
    games = [_MinAtarGame(game, options["sticky"], options["actions"]) for _ in range(num_envs)]
    return PythonEnv(env_id, options, games, games[0].frame_shape, np.bool_, len(games[0].actions))
