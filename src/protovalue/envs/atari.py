"""Atari games through ale-py's vector environment, which emulates, preprocesses and stacks in C++ threads."""

from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from protovalue.envs.base import Array, Env, Family, StepResult
from protovalue.errors import unknown

FRAME = (84, 84)  # height and width to which the screen is scaled


def game_names() -> dict[str, str]:
    """Return ROM by game name, CamelCase as in the paper's table: {"SpaceInvaders": "space_invaders", ...}."""
    from ale_py import roms

    return {"".join(word.capitalize() for word in rom.split("_")): rom for rom in roms.get_all_rom_ids()}


class AtariEnv(Env):
    """A vector of one Atari game: frames (84, 84) uint8, grey, maximum of the last two emulator frames."""

    def __init__(self, env_id: str, rom: str, num_envs: int, options: dict[str, Any], num_threads: int = 0) -> None:
        from ale_py import ALEInterface, LoggerMode
        from ale_py.vector_env import AtariVectorEnv

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = AtariVectorEnv(
            rom,
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=options["max_steps"] * options["frameskip"],
            repeat_action_probability=options["sticky"],
            full_action_space=options["actions"] == "full",
            autoreset_mode=AutoresetMode.SAME_STEP,
            stack_num=options["stack"],
            frameskip=options["frameskip"],
            noop_max=options["noop_max"],
            episodic_life=options["episodic_life"],
            reward_clipping=False,
            use_fire_reset=False,
        )
        self._describe(env_id, options, num_envs, FRAME, np.uint8, len(self._ale.ale.get_action_set()))

    def start(self, seeds: list[int] | None) -> Array:
        """Start an episode in every environment."""
        obs: Array = self._ale.reset(seed=None if seeds is None else np.array(seeds))[0]
        return obs

    def step(self, actions: Array) -> StepResult:
        """Step every environment; see the package's docstring for what is returned at the end of an episode."""
        obs, rewards, terminated, truncated, ale_info = self._ale.step(np.asarray(actions, np.int64))
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        truncated = truncated & ~terminated
        ended = terminated | truncated
        info = {"final_obs": ale_info["final_obs"], "_final_obs": ended} if ended.any() else {}
        return obs, np.asarray(rewards, np.float32), terminated, truncated, info


class Atari(Family):
    """The games of the Arcade Learning Environment, named as in the paper: Pong, SpaceInvaders."""

    # The paper's settings. 27,000 steps of 4 frames are the 108,000 frames after which an Atari episode is cut.
    def __init__(
        self,
        actions: Literal["minimal", "full"] = "minimal",
        sticky: float = 0.0,
        stack: int = 4,
        max_steps: int = 27_000,
        frameskip: int = 4,
        noop_max: int = 0,
        episodic_life: bool = False,
    ) -> None:
        """Options are checked before they come here, and kept in `options`."""

    def make(self, env_id: str, game: str, num_envs: int) -> AtariEnv:
        """Make `num_envs` of one game."""
        return AtariEnv(env_id, _rom(env_id, game), num_envs, self.options)

    def frame_shape(self, env_id: str, game: str) -> tuple[int, ...]:
        """Return the shape of a frame, without the quarter of a second that it takes to start an emulator."""
        _rom(env_id, game)
        return FRAME


def _rom(env_id: str, game: str) -> str:
    roms = game_names()
    if game not in roms:
        raise unknown("environment", env_id, [f"atari/{name}" for name in roms])
    return roms[game]


ENVIRONMENT = Atari
