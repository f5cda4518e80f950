"""The five MinAtar games: 10x10 boolean grids with one channel per kind of object, all stepped by one compiled call."""

import operator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from protovalue.envs.base import Array, Env, Family, StepResult
from protovalue.envs.minatar_games import VERSION
from protovalue.errors import UserError
from protovalue.randomness import entropy

if TYPE_CHECKING:
    from protovalue.envs.minatar_games.shared import Field

# An array of 16 elements is made faster from these than from the types: a step takes microseconds.
_INT64, _FLOAT32, _BOOL = np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.bool_)
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtarEnv(Env):
    """A vector of one MinAtar game. What a game does depends on its own seed and actions, not on its neighbours."""

    def __init__(self, env_id: str, game: str, num_envs: int, options: dict[str, Any]) -> None:
        from protovalue.envs.minatar_games import shared, stepping  # here and not above, because they import numba

        rules = shared.rules_of(game)
        self._action_set = np.arange(6) if options["actions"] == "full" else np.array(rules.ACTIONS)
        frame = (shared.SIZE, shared.SIZE, rules.CHANNELS)
        self._describe(env_id, options, num_envs, frame, np.bool_, len(self._action_set))
        self._sticky = float(options["sticky"])
        self._max_steps = int(options["max_steps"])
        self._fields = shared.COMMON | rules.FIELDS
        self._step = stepping.compile_step(game)
        self._games = np.zeros(num_envs, shared.record(rules))
        self._games["random"] = entropy(num_envs)
        self._obs = np.zeros((num_envs, self.stack, *frame), np.bool_)
        self._stacks = self._obs.reshape(num_envs, -1)  # the same memory
        self._finals = np.zeros(self._stacks.shape, np.bool_)
        self._begun = False

    def start(self, seeds: list[int] | None) -> Array:
        """Start an episode in every environment."""
        if seeds is not None:
            self._games["random"] = np.array(seeds, np.uint64)
            self._games["last_action"] = 0
        self._play(True, np.zeros(self.num_envs, _INT64))
        self._begun = True
        return self._obs.copy()

    def step(self, actions: Array) -> StepResult:
        """Step every environment; see the package's docstring for what is returned at the end of an episode."""
        if not self._begun:
            raise ResetNeeded(f"{self.env_id}: reset comes before the first step")
        actions = np.asarray(actions, _INT64)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions of shape {actions.shape} for {self.num_envs} environments")
        ended, rewards, terminated, truncated = self._play(False, actions)
        if ended == 0:
            return self._obs.copy(), rewards, terminated, truncated, {}
        if ended < 0:
            raise ValueError(f"actions {actions.tolist()}, expected 0 to {self.num_actions - 1}")
        info = {"final_obs": self._finals.reshape(self._obs.shape), "_final_obs": terminated | truncated}
        self._finals = np.zeros(self._stacks.shape, _BOOL)
        return self._obs.copy(), rewards, terminated, truncated, info

    def _play(
        self, starting: bool, actions: NDArray[np.int64]
    ) -> tuple[int, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Call the compiled loop; return how many episodes ended, and for each game reward, terminated, truncated."""
        n = self.num_envs
        rewards, terminated, truncated = np.empty(n, _FLOAT32), np.empty(n, _BOOL), np.empty(n, _BOOL)
        ended = self._step(
            self._games, starting, actions, self._action_set, self._sticky, self._max_steps,
            self._stacks, rewards, terminated, truncated, self._finals,
        )  # fmt: skip
        return ended, rewards, terminated, truncated

    def save_state(self) -> Any:
        """Return all of the games' state as JSON values."""
        names = ("random", *self._fields)
        games = [{name: _plain(game[name]) for name in names} for game in self._games]
        return {"version": VERSION, "games": games, "frames": np.packbits(self._stacks).tobytes().hex()}

    def load_state(self, state: Any) -> Array:
        """Go back to a saved state and return its observations.

        Raises:
            UserError: a state of other games, such as those of the package `minatar`, or one that no game can be in.
        """
        found = state.get("version")
        if found != VERSION:
            raise UserError(
                f"{self.env_id}: cannot go on from a state that other games saved: found version {found}, "
                f"expected {VERSION}; start again in another folder"
            )
        try:
            games = np.zeros_like(self._games)
            for game, saved in zip(games, state["games"], strict=True):
                game["random"] = operator.index(saved["random"])
                for name, field in self._fields.items():
                    game[name] = _restored(name, field, saved[name])
            frames = np.frombuffer(bytes.fromhex(state["frames"]), np.uint8)
            if len(frames) != -(-self._stacks.size // 8):
                raise ValueError(f"frames: found {len(frames)} bytes, expected {self._stacks.size} bits")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise UserError(f"{self.env_id}: the saved state is damaged: {error!r}") from error
        self._games[:] = games
        self._stacks[:] = np.unpackbits(frames, count=self._stacks.size).reshape(self._stacks.shape)
        self._begun = True
        return self._obs.copy()


def _plain(value: Any) -> Any:
    """Turn a field into JSON values; zeros at the end of an array are left out."""
    if not value.shape:
        return value.item()
    used = np.flatnonzero(value.reshape(len(value), -1).any(axis=1))
    return value[: used[-1] + 1 if len(used) else 0].tolist()


def _restored(name: str, field: "Field", value: Any) -> NDArray[np.int64]:
    """Turn what `_plain` returned back, if it is something that the field can be."""
    array = np.zeros(field.shape, np.int64)
    if value != [] or not field.shape:
        given = np.array(value)
        shorter = given.shape[:1] <= field.shape[:1] and given.shape[1:] == field.shape[1:]
        if given.ndim != array.ndim or not shorter or given.dtype.kind != "i":
            raise ValueError(f"{name}: found {str(value)[:80]}, expected integers of shape {field.shape}")
        array[tuple(slice(length) for length in given.shape)] = given
    if np.any(array < field.low) or np.any(array > field.high):
        raise ValueError(f"{name}: found {str(value)[:80]}, expected {field.low} to {field.high}")
    return array


class MinAtar(Family):
    """The five MinAtar games: 10 x 10 boolean grids with one channel per kind of object."""

    games = GAMES

    # MinAtar has no time limit of its own, and a perfect Breakout player never loses: 10,000 steps bound an evaluation.
    def __init__(
        self,
        actions: Literal["minimal", "full"] = "minimal",
        sticky: float = 0.1,
        stack: int = 1,
        max_steps: int = 10_000,
    ) -> None:
        """Options are checked before they come here, and kept in `options`."""

    def make(self, env_id: str, game: str, num_envs: int) -> MinAtarEnv:
        """Make `num_envs` of one game."""
        return MinAtarEnv(env_id, game, num_envs, self.options)


ENVIRONMENT = MinAtar
