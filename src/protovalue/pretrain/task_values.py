"""What proto-value networks and random cumulants share: the values of m tasks by temporal differences (Algorithm 1)."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.data.format import End
from protovalue.distributed.group import gathered
from protovalue.losses import Backup, td_loss
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.base import Method, Sample, transitions
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, seeded

HeadStart = Literal["zero", "mean"]
_BLOCK = 1 << 16  # transitions whose rewards are summed at a time


class TaskValues(Method):
    """psi_j(x, a) = phi(x)^T w_{j,a} + b_{j,a} for m tasks.

    A subclass calls `add_heads` in its constructor and says what the rewards are.
    """

    several_processes = True
    heads: TaskHeads
    target: TargetNetwork

    def add_heads(
        self,
        tasks: int,
        gamma: float,
        backup: Backup,
        target_ema: float | None,
        target_every: int | None = None,
        start: HeadStart = "zero",
        mask: bool = True,
    ) -> None:
        """Make the heads, whose biases start at `start`, and the target network of encoder and heads.

        Without `mask` a value flows across the end of an episode, as the formula of the paper reads.
        """
        self._gamma, self._backup, self._mask = gamma, backup, mask
        self.heads = TaskHeads(
            self.encoder.num_features, tasks, self.data.num_actions, seeded(self.config.seed, Purpose.METHOD)
        )
        if start == "mean":
            with torch.no_grad():
                self.heads.bias.copy_(torch.from_numpy(self.mean_values()))
        self.target = TargetNetwork({"encoder": self.encoder, "heads": self.heads}, target_ema, target_every)

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return the rewards of the given transitions (B, m), boolean or float."""
        raise NotImplementedError

    def mean_values(self) -> NDArray[np.float32]:
        """Return the best constant prediction of each task (m,): what temporal differences give without features.

        With the mean reward r and the share z of transitions that end an episode it is v = r + gamma (1 - z) v.
        """
        data, total = self.data, 0.0
        for first in range(0, data.num_transitions, _BLOCK):
            index = np.arange(first, min(first + _BLOCK, data.num_transitions))
            total = total + self.rewards(index).sum(axis=0, dtype=np.float64)
        ends = np.count_nonzero(data.ends == End.TERMINATED) if self._mask else 0
        mean = total / (data.num_transitions - self._gamma * (data.num_transitions - ends))
        return np.asarray(mean, np.float32)

    def sample(self, step: int) -> Sample:
        """Return transitions and their rewards for all tasks."""
        batch = self.sampler.batch(step)
        return {**transitions(batch), "reward": torch.from_numpy(self.rewards(batch.index))}

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared TD error of all tasks."""
        obs, next_obs = sample["frames"][:, :-1], sample["frames"][:, 1:]
        prediction = self.heads.taken(self.encoder(obs), sample["action"])  # (B, m)
        with torch.no_grad():
            next_value = self.target["heads"].backed_up(self.target["encoder"](next_obs), self._backup)
        terminal = sample["terminal"] if self._mask else torch.zeros_like(sample["terminal"])
        prediction, next_value, reward, terminal = gathered(prediction, next_value, sample["reward"], terminal)
        loss, error = td_loss(prediction, next_value, reward, terminal, self._gamma)
        logged = {"td_error_std": error.detach().std(), "prediction_mean": prediction.detach().mean()}
        return loss, logged | self.noted(reward)

    def noted(self, reward: Tensor) -> dict[str, Tensor]:
        """Return what to log of a batch's rewards (B, m)."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()
