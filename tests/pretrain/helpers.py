"""Small worlds as data sets: a state is a picture with one pixel on, so that every oracle knows what it sees."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.indicators.base import Indicator
from protovalue.nets.encoders import Encoder
from protovalue.nets.heads import TaskHeads
from protovalue.nets.layers import Dense, planes
from protovalue.presets import resolved
from protovalue.pretrain.config import PretrainConfig
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.methods import method_class
from protovalue.runs import read_checkpoint
from protovalue.tabular.gridworlds import World
from tests.data.helpers import MadeUp, write

ATARI = {"frame_shape": (84, 84), "stack": 4, "env_id": "atari/Pong", "env_options": {}}
SIZE = 4  # pixels of a picture's side: up to 16 states


class Table(Encoder):
    """Features that are the pixels: with one pixel on, a linear head has one free number for each state."""

    def __init__(self, observation_shape: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        self.num_features = int(np.prod(observation_shape))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return planes(obs, self.observation_shape).flatten(1)


class Embedding(Encoder):
    """As many free numbers for each pixel as `width` says: with one pixel on, features that are learned freely."""

    def __init__(self, observation_shape: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__(observation_shape)
        self.num_features = int(width)
        self.dense = Dense(int(np.prod(observation_shape)), self.num_features, generator)
        self.dense.bias.requires_grad_(False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.dense(planes(obs, self.observation_shape).flatten(1))
        return features


class Singletons(Indicator):
    """Set j holds the states whose pixel j is on."""

    name = "singletons"
    tuned_on_data = False

    def __init__(self, observation_shape: Any, num_tasks: Any, proportion: Any, generator: Any) -> None:
        super().__init__(observation_shape, num_tasks, proportion)
        self.set_thresholds(torch.ones(num_tasks))

    def scores(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.flatten(1)[:, : self.num_tasks].float()


def pictures(states: np.ndarray) -> np.ndarray:
    """Draw states (N,) as frames (N, 4, 4), bool."""
    drawn: np.ndarray = np.eye(SIZE * SIZE, dtype=bool)[states].reshape(-1, SIZE, SIZE)
    return drawn


def episodes(
    path: Path, *given: tuple[Sequence[int], Sequence[int], Sequence[float], End], actions: int = 2, stack: int = 1
) -> Dataset:
    """Write episodes given as states, actions, rewards and how they ended; an observation is `stack` pictures."""
    made_up = [
        MadeUp(pictures(np.array(states)), np.array(taken, np.int32), np.array(rewards, np.float32), end)
        for states, taken, rewards, end in given
    ]
    shape = {"frame_shape": (SIZE, SIZE), "frame_dtype": "bool", "stack": stack, "env_options": {}}
    return write(path, made_up, num_actions=actions, **shape)


# Transitions (x, a, x', terminal) of `two_episodes`.
TRANSITIONS = [(0, 1, 1, False), (1, 0, 2, True), (2, 0, 0, False), (0, 1, 1, False)]


def two_episodes(path: Path, stack: int = 1) -> Dataset:
    """Write 0 -> 1 -> 2 by actions 1, 0, where it terminates, and 2 -> 0 -> 1 by actions 0, 1, cut by a time limit."""
    first, second = ((0, 1, 2), (1, 0), (0, 0), End.TERMINATED), ((2, 0, 1), (0, 1), (0, 0), End.TRUNCATED)
    return episodes(path, first, second, stack=stack)


def successors(world: World) -> np.ndarray:
    """Return the state that each action leads to, (A, n), of a world without chance."""
    return np.stack([matrix.toarray().argmax(axis=1) for matrix in world.transitions])


def walks(
    path: Path,
    after: np.ndarray,
    count: int,
    length: int,
    policy: Callable[[int], int] | None = None,
    reward: Callable[[int], float] = lambda state: 0.0,
    ends: tuple[int, ...] = (),
) -> Dataset:
    """Record walks from random states by `policy` (None: uniform), rewarded and perhaps ended by the state reached."""
    rng = np.random.default_rng(0)
    actions, n = after.shape
    starts = [state for state in range(n) if state not in ends]
    made_up = []
    for _ in range(count):
        states, taken = [int(rng.choice(starts))], list[int]()
        while len(taken) < length and states[-1] not in ends:
            taken.append(policy(states[-1]) if policy else int(rng.integers(actions)))
            states.append(int(after[taken[-1], states[-1]]))
        end = End.TERMINATED if states[-1] in ends else End.TRUNCATED
        made_up.append((states, taken, [reward(state) for state in states[1:]], end))
    return episodes(path, *made_up, actions=actions)


def trained(config: PretrainConfig, data: Dataset) -> Any:
    """Run a config to its end and return the method with what it learned."""
    pretrain(config, quiet=True)
    method = made(replace(config, threads=1), data)
    tensors = read_checkpoint(config.out).tensors
    method.load_state_dict(
        {name[7:]: torch.from_numpy(array) for name, array in tensors.items() if name.startswith("method.")}
    )
    return method.eval()


def made(config: PretrainConfig, data: Dataset) -> Any:  # of the class of its method, whose networks tests look at
    """Build the method of a config as the loop does, before its first step."""
    cls = method_class(config.method)
    return cls(resolved(config, data.env_id), data, data.observation_shape, "cpu")


def fill_table(heads: TaskHeads, values: np.ndarray) -> None:
    """Let heads on `Table` predict values (n, m, A)."""
    with torch.no_grad():
        heads.bias.zero_()
        heads.weight.zero_()
        heads.weight[:, :, : len(values)] = torch.from_numpy(values).float().permute(2, 1, 0)


def atari_shaped(path: Path, transitions: int = 40) -> Dataset:
    """Write two episodes of 84 x 84 noise in stacks of 4."""
    rng, half = np.random.default_rng(0), transitions // 2
    made = [
        MadeUp(
            rng.integers(0, 256, (half + 1, 84, 84), np.uint8),
            rng.integers(4, size=half).astype(np.int32),
            rng.normal(size=half).astype(np.float32),
            end,
        )
        for end in (End.TERMINATED, End.TRUNCATED)
    ]
    return write(path, made, **ATARI)
