"""Rigged parts for the online tests: an encoder and an environment whose every number can be worked out."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from protovalue.encoder import FrozenEncoder
from protovalue.nets.encoders import Encoder

STATES = 7


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """A corridor of seven cells: left, right; the right end pays 1 and terminates; a gust moves the walker at times.

    An episode is truncated after 11 steps. The frame is the walker's cell, one pixel of a 1 x 7 picture.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (1, STATES), np.uint8)
        self.action_space = Discrete(2)

    def _frame(self) -> np.ndarray:
        frame = np.zeros((1, STATES), np.uint8)
        frame[0, self.cell] = 255
        return frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cell, self.t = int(self.np_random.integers(3)), 0
        return self._frame(), {}

    def step(self, action: np.int64) -> Any:
        self.t += 1
        gust = int(self.np_random.integers(8) == 0)
        self.cell = int(np.clip(self.cell + (1 if action == 1 else -1) + gust, 0, STATES - 1))
        over = self.cell == STATES - 1
        return self._frame(), 1.0 if over else -0.25, over, not over and self.t == 11, {}


class OneHot(Encoder):
    """Features are the pixels themselves: one of them is 1. Sums over them are exact in any order."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__(observation_shape)
        self.num_features = int(np.prod(observation_shape))
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, obs: Tensor) -> Tensor:
        return (obs.flatten(1) > 0).float()


def one_hot(shape: tuple[int, ...] = (1, 1, STATES)) -> FrozenEncoder:
    return FrozenEncoder(OneHot(shape), {"env_id": "gym/Corridor-v0"})
