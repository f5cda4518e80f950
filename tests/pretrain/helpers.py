"""Small worlds as data sets: a state is a picture with one pixel on, so that every oracle knows what it sees."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from protovalue.config import PretrainConfig
from protovalue.data.dataset import Dataset
from protovalue.data.format import End
from protovalue.pretrain.base import Method
from protovalue.pretrain.loop import pretrain
from protovalue.pretrain.methods import method_class
from protovalue.runs import read_checkpoint
from protovalue.tabular.gridworlds import World
from tests.data.helpers import MadeUp, write

ATARI = {"frame_shape": (84, 84), "stack": 4, "env_id": "atari/Pong", "env_options": {}}
SIZE = 4  # pixels of a picture's side: up to 16 states


def pictures(states: np.ndarray) -> np.ndarray:
    """Draw states (N,) as frames (N, 4, 4), bool."""
    return np.eye(SIZE * SIZE, dtype=bool)[states].reshape(-1, SIZE, SIZE)


def successors(world: World) -> np.ndarray:
    """Return the state that each action leads to, (A, n), of a world without chance."""
    return np.stack([matrix.toarray().argmax(axis=1) for matrix in world.transitions])


def walks(
    path: Path,
    after: np.ndarray,
    episodes: int,
    length: int,
    policy: Callable[[int], int] | None = None,
    reward: Callable[[int], float] = lambda state: 0.0,
    ends: tuple[int, ...] = (),
) -> Dataset:
    """Record walks from random states by `policy` (None: uniform), rewarded and perhaps ended by the state reached."""
    rng = np.random.default_rng(0)
    actions, n = after.shape
    starts = [state for state in range(n) if state not in ends]
    made = []
    for _ in range(episodes):
        states, taken = [int(rng.choice(starts))], []
        while len(taken) < length and states[-1] not in ends:
            taken.append(policy(states[-1]) if policy else int(rng.integers(actions)))
            states.append(int(after[taken[-1], states[-1]]))
        rewards = np.array([reward(state) for state in states[1:]], np.float32)
        end = End.TERMINATED if states[-1] in ends else End.TRUNCATED
        made.append(MadeUp(pictures(np.array(states)), np.array(taken, np.int32), rewards, end))
    return write(path, made, frame_shape=(SIZE, SIZE), frame_dtype="bool", stack=1, num_actions=actions, env_options={})


def trained(config: PretrainConfig, data: Dataset) -> Method:
    """Run a config to its end and return the method with what it learned."""
    pretrain(config, quiet=True)
    cls = method_class(config.method)
    method = cls(cls.resolve(replace(config, threads=1), data.env_id), data, data.observation_shape, "cpu")
    tensors = read_checkpoint(config.out).tensors
    method.load_state_dict(
        {name[7:]: torch.from_numpy(array) for name, array in tensors.items() if name.startswith("method.")}
    )
    return method.eval()


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
