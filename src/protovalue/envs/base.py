"""What all environments share: families, the vector interface, and stacking for games stepped in Python."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from protovalue.errors import UserError

Array: TypeAlias = NDArray[Any]
StepResult: TypeAlias = tuple[Array, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
Seeds: TypeAlias = int | Sequence[int] | NDArray[np.integer[Any]] | None


class Env(VectorEnv[Array, Array, Array]):
    """A vector of environments that follows the convention in this package's docstring.

    Attributes:
        env_id: the name it was made by, such as "minatar/breakout".
        options: every option with its resolved value; `make(env_id, **options)` gives the same environment.
        stack: frames in one observation.
    """

    env_id: str
    options: dict[str, Any]
    stack: int
    single_observation_space: Box
    single_action_space: Discrete

    def _describe(
        self, env_id: str, options: dict[str, Any], num_envs: int, frame: tuple[int, ...], dtype: Any, actions: int
    ) -> None:
        """Set the attributes and spaces."""
        self.env_id, self.options, self.num_envs = env_id, options, num_envs
        self.stack = int(options["stack"])
        high = 1 if dtype == np.bool_ else 255
        self.single_observation_space = Box(0, high, (self.stack, *frame), dtype)
        self.single_action_space = Discrete(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode in every environment; see `seed_list` for seeds. There are no reset options."""
        if options:
            raise ValueError(f"reset takes no options, found {sorted(options)}")
        return self.start(seed_list(seed, self.num_envs)), {}

    @abstractmethod
    def start(self, seeds: list[int] | None) -> Array:
        """Start an episode in every environment and return the observations; without seeds, go on drawing."""

    @abstractmethod
    def step(self, actions: Array) -> StepResult:
        """Step every environment; see the package's docstring for what is returned at the end of an episode."""

    def save_state(self) -> Any | None:
        """Return all of the environments' state as JSON values, or None where that is not possible."""
        return None

    def load_state(self, state: Any) -> Array:
        """Go back to a saved state and return its observations."""
        raise NotImplementedError(f"{self.env_id} cannot go back to a saved state")

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return self.single_observation_space.shape[1:]

    @property
    def num_actions(self) -> int:
        """Number of discrete actions."""
        return int(self.single_action_space.n)


class Family(ABC):
    """Environments that are made in one way: FAMILY/GAME, where FAMILY is the name of the file.

    A subclass is one file that ends with `ENVIRONMENT = TheClass`: in this folder, or a user's own. The parameters of
    its constructor are the options, values that JSON can hold, each with its default; `stack` and `max_steps` must be
    among them.
    """

    games: ClassVar[Sequence[str]] = ()
    """Names of the games, and no other is made; empty where they cannot be listed."""
    if_given: ClassVar[Collection[str]] = ()
    """Options that are recorded only where they are not the default: what was made before they were there goes on."""
    options: dict[str, Any]
    """Every option with its value, but for those; set before `make` is called."""

    @abstractmethod
    def make(self, env_id: str, game: str, num_envs: int) -> Env:
        """Make `num_envs` of one game with these options; `env_id` is its whole name.

        A family without `games` raises a UserError for an unknown one.
        """

    def frame_shape(self, env_id: str, game: str) -> tuple[int, ...]:
        """Return the shape of a frame of a game, by making it; a family that knows it need not."""
        env = self.make(env_id, game, 1)
        env.close()
        return env.frame_shape


def seed_list(seed: Seeds, num_envs: int) -> list[int] | None:
    """Return one seed per environment: an integer counts upwards as Gymnasium does, a sequence is taken as it is."""
    if seed is None:
        return None
    if isinstance(seed, int):
        return [seed + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"{len(seed)} seeds for {num_envs} environments")
    return [int(s) for s in seed]


class Game(Protocol):
    """One game stepped in Python, frame by frame."""

    def reset(self, seed: int | None) -> Array:
        """Start an episode and return its first frame."""
        ...

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        """Return frame, raw reward, terminated and truncated."""
        ...

    def close(self) -> None:
        """Release what the game holds."""
        ...

    def save_state(self) -> Any | None:
        """Return the game's state as JSON values, with its generator; None where that is not possible."""
        ...

    def load_state(self, state: Any) -> None:
        """Go back to a saved state."""
        ...


class PythonEnv(Env):
    """A vector of `Game`s, stepped one after the other, with frame stacking and a time limit."""

    def __init__(
        self,
        env_id: str,
        options: dict[str, Any],
        games: Sequence[Game],
        frame: tuple[int, ...],
        dtype: Any,
        actions: int,
    ) -> None:
        self._describe(env_id, options, len(games), frame, dtype, actions)
        self._games = list(games)
        self._max_steps = options["max_steps"]
        self._steps = np.zeros(len(games), np.int64)
        self._stacks = np.zeros((len(games), self.stack, *frame), dtype)

    def start(self, seeds: list[int] | None) -> Array:
        """Start an episode in every environment."""
        for i in range(self.num_envs):
            self._begin(i, seeds[i] if seeds else None)
        return self._stacks.copy()

    def step(self, actions: Array) -> StepResult:
        """Step every environment; see the package's docstring for what is returned at the end of an episode."""
        n = self.num_envs
        rewards = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        info: dict[str, Any] = {}
        for i, game in enumerate(self._games):
            frame, rewards[i], terminated[i], cut = game.step(int(actions[i]))
            self._steps[i] += 1
            truncated[i] = not terminated[i] and (cut or self._steps[i] == self._max_steps)
            if self.stack > 1:
                self._stacks[i, :-1] = self._stacks[i, 1:]
            self._stacks[i, -1] = self._checked(frame)
            if terminated[i] or truncated[i]:
                if not info:
                    info = {"final_obs": np.zeros_like(self._stacks), "_final_obs": np.zeros(n, np.bool_)}
                info["final_obs"][i], info["_final_obs"][i] = self._stacks[i], True
                self._begin(i, None)
        return self._stacks.copy(), rewards, terminated, truncated, info

    def save_state(self) -> Any | None:
        """Return all of the games' state as JSON values, or None where a game cannot do that."""
        games = [game.save_state() for game in self._games]
        if any(game is None for game in games):
            return None
        return {"games": games, "steps": self._steps.tolist(), "stacks": self._stacks.tolist()}

    def load_state(self, state: Any) -> Array:
        """Go back to a saved state and return its observations."""
        for game, saved in zip(self._games, state["games"], strict=True):
            game.load_state(saved)
        self._steps[:] = state["steps"]
        self._stacks[:] = state["stacks"]
        return self._stacks.copy()

    def close_extras(self, **kwargs: Any) -> None:
        """Close every game."""
        for game in self._games:
            game.close()

    def _begin(self, i: int, seed: int | None) -> None:
        self._stacks[i] = 0
        self._stacks[i, -1] = self._checked(self._games[i].reset(seed))
        self._steps[i] = 0

    def _checked(self, frame: Array) -> Array:
        """Refuse a frame that is not of the declared kind: NumPy would cast it, and stretch it to the shape."""
        found = (getattr(frame, "shape", None), getattr(frame, "dtype", type(frame).__name__))
        expected = (self.frame_shape, self._stacks.dtype)
        if found != expected:
            raise UserError(
                f"environment {self.env_id!r}: found a frame of shape {found[0]} {found[1]}, expected {expected[0]} "
                f"{expected[1]}, as it declares"
            )
        return frame
