"""What several tests share: a tiny Gymnasium environment whose every frame can be computed by hand."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete


class CountingEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Episode k lasts 1 + (k mod 4) steps; its frame t is [k, t, last action] and its reward t; actions start at 5.

    Even episodes terminate, odd ones end by a time limit.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (3,), np.uint8)
        self.action_space = Discrete(3, start=5)
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode % 256, 0, 0], np.uint8), {}

    def step(self, action: np.int64) -> Any:
        assert 5 <= action < 8
        self.t += 1
        frame = np.array([self.episode % 256, self.t, action], np.uint8)
        over = self.t == 1 + self.episode % 4
        return frame, float(self.t), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache."""
    monkeypatch.setenv("PROTOVALUE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small networks on busy cores are fastest on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _register() -> None:
    gymnasium.register("Counting-v0", CountingEnv)  # type: ignore[arg-type]  # a class that takes no options
    gymnasium.register("Floats-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
