"""Rigged parts for the online tests: an encoder and an environment whose every number can be worked out, and kills."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from protovalue.encoder import FrozenEncoder
from protovalue.envs.registry import make
from protovalue.nets.encoders import Encoder, make_encoder
from protovalue.online.agent import Agent, Rule
from protovalue.online.config import OnlineConfig
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import Loop, train
from protovalue.presets import resolved
from protovalue.randomness import Purpose, seeded
from protovalue.runs import read_checkpoint, read_metrics

STATES = 7
CORRIDOR = "gym/Corridor-v0"


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


def config(out: Path, env: Any = CORRIDOR, **changes: Any) -> OnlineConfig:
    settings = {
        "encoder": "rigged",
        "steps": 230,
        "seeds": "0-2",
        "replay_min": 20,
        "replay_size": 60,
        "batch_size": 8,
        "target_every": 10,
        "learning_rate": 0.05,
        "epsilon_steps": 100,
        "log_every": 25,
        "checkpoint_every": 40,
        "keep_replay": True,
    }
    return resolved(OnlineConfig(env=env, out=out, **{**settings, **changes}), env)


def run(settings: OnlineConfig) -> Path:
    """Train on one-hot features, or end to end where the config says finetune."""
    seeds = settings.seed_list()
    env = make(settings.env, len(seeds), **settings.options.given())
    shape = env.single_observation_space.shape
    agent: Agent
    if settings.finetune:
        agent = Dqn(
            Rule.of(settings), seeds, env.num_actions, make_encoder("minatar", shape, 1, seeded(0, Purpose.ENCODER))
        )
    else:
        dtype = np.dtype(settings.replay_dtype)
        agent = LinearDqn(Rule.of(settings), seeds, env.num_actions, one_hot(shape), 1.0, dtype=dtype)
    recorded = {"seeds": settings.seeds, "n": settings.n_step, "steps": settings.steps}
    return train(settings, recorded, env, agent, quiet=True)


def learned(path: Path) -> Any:
    return read_checkpoint(path).tensors


def numbers(path: Path) -> list[Any]:
    return [{k: v for k, v in row.items() if k not in ("time", "agent_steps_per_second")} for row in read_metrics(path)]


class Killed(BaseException):
    """Stands for kill -9 between two steps: nothing is written after it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    real = Loop.act

    def act(self: Any) -> None:
        real(self)
        if steps and self.step == steps[0]:
            steps.pop(0)
            raise Killed

    monkeypatch.setattr(Loop, "act", act)
