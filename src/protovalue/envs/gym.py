"""Any registered Gymnasium environment with discrete actions and a uint8 or bool array as observation."""

import inspect
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from PIL import Image

from protovalue.envs.base import Array, Family, PythonEnv
from protovalue.errors import UserError
from protovalue.user_code import known_file, place_of, raised_in

_LUMA = np.array([299, 587, 114], np.uint32)  # thousandths of red, green and blue in a grey value (ITU-R BT.601)


class _Frames:
    """From what an environment declares to the frames that are kept: checked, then grey, then resized."""

    def __init__(self, env_id: str, space: Box, resize: int | None, grey: bool) -> None:
        self._env_id, self._space, self._resize, self._grey = env_id, space, resize, grey
        bytes_ = space.dtype == np.uint8
        # A byte that may be anything needs no look at it.
        self._bounded = bool(bytes_) and bool((space.low > 0).any() or (space.high < 255).any())
        found = f"{space.dtype} frames of shape {space.shape}"
        if grey and (not bytes_ or len(space.shape) != 3 or space.shape[2] != 3):
            raise UserError(f"{env_id}: option grey: found {found}, expected uint8 frames (H, W, 3)")
        if resize is not None and (not bytes_ or len(space.shape) not in (2, 3)):
            raise UserError(f"{env_id}: option resize: found {found}, expected uint8 frames (H, W) or (H, W, C)")
        shape = space.shape[:2] if grey else space.shape
        self.shape: tuple[int, ...] = shape if resize is None else (resize, resize, *shape[2:])

    def __call__(self, frame: Array) -> Array:
        """Return a frame as it is kept; one that is not what the environment declares is refused."""
        space = self._space
        dtype, shape = getattr(frame, "dtype", type(frame).__name__), getattr(frame, "shape", None)
        if dtype != space.dtype or shape != space.shape:
            of = "" if shape is None else f" of shape {shape}"
            raise self._refused(f"{dtype}{of}", f"{space.dtype} of shape {space.shape}")
        if self._bounded and ((frame < space.low).any() or (frame > space.high).any()):
            raise self._refused(f"{frame.min()} to {frame.max()}", f"{space.low.min()} to {space.high.max()}")
        if self._grey:
            frame = (frame.astype(np.uint32) @ _LUMA // 1000).astype(np.uint8)
        return frame if self._resize is None else _resized(frame, self._resize)

    def _refused(self, found: str, expected: str) -> UserError:
        return UserError(
            f"environment {self._env_id!r}: its observation is not what its observation_space declares: "
            f"found {found}, expected {expected}"
        )


def _resized(frame: Array, size: int) -> Array:
    """Scale a frame (H, W) or (H, W, C) to `size` x `size`; a new pixel is the mean of what it covers."""
    channels = [frame] if frame.ndim == 2 else [frame[..., c] for c in range(frame.shape[2])]
    scaled = [np.asarray(Image.fromarray(one).resize((size, size), Image.Resampling.BOX)) for one in channels]
    return scaled[0] if frame.ndim == 2 else np.stack(scaled, axis=-1)


# What the methods of an environment must be, and how many values they return.
_METHODS = {
    "reset": ("reset(self, *, seed=None, options=None)", 2, "observation, info"),
    "step": ("step(self, action)", 5, "observation, reward, terminated, truncated, info"),
}


class _GymGame:
    """One Gymnasium environment; its actions may start at any number, ours start at 0."""

    def __init__(self, env_id: str, env: gymnasium.Env[Array, np.int64], frames: _Frames) -> None:
        self._what, self._env, self._frames = f"environment {env_id!r}", env, frames
        assert isinstance(env.action_space, Discrete)
        self._first_action = int(env.action_space.start)

    def reset(self, seed: int | None) -> Array:
        frame, _ = self._call("reset", seed=seed)
        return self._frames(frame)

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        frame, reward, terminated, truncated, _ = self._call("step", np.int64(self._first_action + action))
        return self._frames(frame), self._number(reward), bool(terminated), bool(truncated)

    def _call(self, method: str, *given: Any, **named: Any) -> Any:
        """Call a method of the environment and return its values, if they are as many as Gymnasium wants."""
        _, count, values = _METHODS[method]
        try:
            found = getattr(self._env, method)(*given, **named)
        except Exception as error:
            raise raised_in(self._of(method), error, f"; expected {_signature(method)}") from error
        if not isinstance(found, tuple | list) or len(found) != count:
            shown = f"{len(found)} values" if isinstance(found, tuple | list) else type(found).__name__
            old = (
                "; the done of old Gym is two: terminated and truncated" if (method, shown[0]) == ("step", "4") else ""
            )
            raise UserError(f"{self._of(method)}: returned {shown}, expected {count}: {values}{old}")
        return found

    def _of(self, method: str) -> str:
        """Name a method of the environment by where it is: the outermost that is not one of Gymnasium's wrappers."""
        layer: Any = self._env
        while getattr(layer, method).__module__.startswith("gymnasium.") and layer is not layer.unwrapped:
            layer = layer.env
        return f"{place_of(getattr(layer, method))}{method} of {self._what}"

    def _number(self, reward: Any) -> float:
        """Return a reward as a number; one that is none would be in every sum from here on."""
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{self._what}: its reward: found {reward!r}, expected a finite number")
        return value

    def close(self) -> None:
        self._env.close()

    def save_state(self) -> Any | None:
        return None  # Gymnasium has no way to ask for it

    def load_state(self, state: Any) -> None:
        raise NotImplementedError("a Gymnasium environment cannot go back to a saved state")


class Gym(Family):
    """Any registered Gymnasium environment with discrete actions and a uint8 or bool array as observation."""

    if_given: ClassVar[Collection[str]] = ("resize", "grey")

    def __init__(
        self, stack: int = 1, max_steps: int | None = None, resize: int | None = None, grey: bool = False
    ) -> None:
        self.resize, self.grey = resize, grey

    def make(self, env_id: str, game: str, num_envs: int) -> PythonEnv:
        """Make `num_envs` of a registered environment: its ID, or "module:ID", whose module is not imported."""
        module, _, registered = game.rpartition(":")
        if registered in gymnasium.registry:
            _note_file(gymnasium.registry[registered].entry_point)
        try:
            # Gymnasium's own checker would warn, in many lines, of what is refused here.
            envs: list[gymnasium.Env[Any, Any]] = [
                gymnasium.make(registered, disable_env_checker=True) for _ in range(num_envs)
            ]
        except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound) as error:
            raise UserError(
                f"environment {env_id!r}: {_line(error).removesuffix('.')}; {_how_to_register(registered, module)}"
            ) from error
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"environment {env_id!r}: {_line(error)}") from error
        except Exception as error:  # whatever its own code raises
            raise raised_in(f"environment {env_id!r}: cannot be made", error) from error
        _note_file(type(envs[0].unwrapped))
        _check_class(env_id, envs[0].unwrapped)
        actions, observation = envs[0].action_space, envs[0].observation_space
        if not isinstance(actions, Discrete):
            raise UserError(f"environment {env_id!r}: found actions {actions}, expected Discrete")
        if not isinstance(observation, Box) or observation.dtype not in (np.uint8, np.bool_):
            raise UserError(f"environment {env_id!r}: found observation {observation}, expected a uint8 or bool Box")
        frames = _Frames(env_id, observation, self.resize, self.grey)
        games = [_GymGame(env_id, env, frames) for env in envs]
        return PythonEnv(env_id, self.options, games, frames.shape, observation.dtype, int(actions.n))


def _check_class(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    """Refuse a class that leaves out what Gymnasium does not ask for before it is needed."""
    kind = type(env)
    missing = {name: _signature(name) for name in _METHODS if getattr(kind, name) is getattr(gymnasium.Env, name)}
    spaces = {"action_space": "a Discrete", "observation_space": "a uint8 or bool Box"}
    missing |= {name: expected for name, expected in spaces.items() if not hasattr(env, name)}
    for name, expected in missing.items():
        raise UserError(
            f"{place_of(kind)}class {kind.__name__} of environment {env_id!r} has no {name}, expected {expected}"
        )


def _signature(method: str) -> str:
    signature, _, values = _METHODS[method]
    return f"{signature} that returns {values}"


def _note_file(made_by: Any) -> None:
    """Count the file of an environment's class or function as the user's: its mistakes are told with its lines."""
    try:
        known_file(Path(inspect.getfile(made_by)))
    except TypeError:  # a name that is imported later, or a class without a file
        return


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _how_to_register(registered: str, module: str) -> str:
    named = f"gym/{module or 'MODULE'}:{registered}"
    return (
        f"a module that registers it is imported only if it is named on the command line (--env {named}), a file of "
        f"yours too (--env gym/FILE.py:{registered}), or in your study file, or if your own program imports it"
    )


ENVIRONMENT = Gym
