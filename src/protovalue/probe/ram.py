"""Labels of Atari games: bytes of the console's RAM, which the vector environment does not show.

So every game has a shadow: an emulator with the same seed that gets the same actions. Emulation is deterministic,
sticky actions included; that rewards and ends agree is checked in every step.
"""

import csv
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protovalue.envs.atari import game_names
from protovalue.envs.base import Env
from protovalue.errors import UserError, unknown
from protovalue.evaluate.probe_file import Variable
from protovalue.probe.labels import SHORTEST, Labelled
from protovalue.progress import ProgressBar
from protovalue.randomness import numpy_generator

ENTROPY = 0.6
"""Nats that a variable must have, as in the benchmark."""


@cache
def ram_table() -> dict[str, tuple[tuple[Variable, int], ...]]:
    """Return variables and their bytes by game."""
    found: dict[str, list[tuple[Variable, int]]] = {}
    for row in _rows("atari_ram_labels.csv"):
        variable = Variable(row["variable"], row["category"].replace("_", " "))
        found.setdefault(row["game"], []).append((variable, int(row["ram_byte"])))
    return {game: tuple(rows) for game, rows in found.items()}


@cache
def published_f1() -> dict[str, dict[str, float]]:
    """Return the benchmark's printed mean F1 over categories, by game and method: of another input, a landmark."""
    return {
        row["game"]: {name: float(value) for name, value in row.items() if name != "game"}
        for row in _rows("atariari_probe_f1.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    text = files("protovalue.probe").joinpath("tables", name).read_text()
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def variables_of(env_id: str) -> tuple[tuple[Variable, int], ...]:
    """Return variables and bytes of an environment atari/GAME; a game that has none is a UserError."""
    game = env_id.removeprefix("atari/")
    if game not in ram_table():
        raise unknown("game with labels", env_id, [f"atari/{name}" for name in ram_table()])
    return ram_table()[game]


class Shadow:
    """One emulator that follows an environment of the vector."""

    def __init__(self, env: Env, seed: int) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = ALEInterface()
        self._ale.setInt("random_seed", seed)
        self._ale.setFloat("repeat_action_probability", env.options["sticky"])
        rom = roms.get_rom_path(game_names()[env.env_id.removeprefix("atari/")])
        if rom is None:
            raise RuntimeError(f"{env.env_id}: found no ROM, though the environment has one")
        self._ale.loadROM(rom)
        full = env.options["actions"] == "full"
        self._actions = self._ale.getLegalActionSet() if full else self._ale.getMinimalActionSet()
        self._frames = int(env.options["frameskip"])
        self._ale.reset_game()

    def step(self, action: int) -> tuple[float, bool]:
        """Take an action; return the reward and whether the game is over."""
        reward = 0.0
        for _ in range(self._frames):
            reward += self._ale.act(self._actions[action])
            if self._ale.game_over():
                break
        return reward, bool(self._ale.game_over())

    def restart(self) -> None:
        """Begin the next episode."""
        self._ale.reset_game()

    @property
    def ram(self) -> NDArray[np.uint8]:
        """The 128 bytes."""
        return np.asarray(self._ale.getRAM())


def ram_states(env: Env, states: int, seed: int, quiet: bool = False) -> Labelled:
    """Play uniformly random actions and label every state after a step; states after which a game ends are left out.

    Episodes of at most SHORTEST steps are left out. `env` is of noop_max 0: its first state is the console's.
    """
    table = variables_of(env.env_id)
    places = np.array([place for _, place in table])
    rng = numpy_generator(seed)
    env.reset(seed=[seed + i for i in range(env.num_envs)])
    shadows = [Shadow(env, seed + i) for i in range(env.num_envs)]
    numbers, following = list(range(env.num_envs)), env.num_envs
    kept: list[tuple[NDArray[Any], int, NDArray[np.uint8]]] = []
    with ProgressBar("states", states, "states", quiet=quiet) as bar:
        while len(kept) < states:
            actions = rng.integers(env.num_actions, size=env.num_envs)
            obs, rewards, terminated, truncated, _ = env.step(actions)
            for i, shadow in enumerate(shadows):
                reward, over = shadow.step(int(actions[i]))
                if (reward, over) != (float(rewards[i]), bool(terminated[i])):
                    raise RuntimeError(f"{env.env_id}: an emulator does not follow the environment's game {i}")
                if over or truncated[i]:
                    shadow.restart()
                    numbers[i], following = following, following + 1
                else:
                    kept.append((obs[i].copy(), numbers[i], shadow.ram[places]))
            bar.advance(env.num_envs)
    episodes = np.array([number for _, number, _ in kept])
    long = np.flatnonzero(np.bincount(episodes)[episodes] > SHORTEST)
    if not len(long):
        what = f"more: none of the {len(set(numbers))} games that play side by side lasts longer than {SHORTEST} steps"
        raise UserError(f"--states: found {states}, expected {what}")
    observations = np.stack([kept[i][0] for i in long])
    labels = np.stack([kept[i][2] for i in long]).astype(np.int64)
    return Labelled(observations, episodes[long], labels, tuple(variable for variable, _ in table), ENTROPY)
