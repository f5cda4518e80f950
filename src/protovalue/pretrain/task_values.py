"""What proto-value networks and random cumulants share: the values of m tasks by temporal differences (Algorithm 1)."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.losses import Backup, td_loss
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.base import Method, Sample, transitions
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, seeded


class TaskValues(Method):
    """psi_j(x, a) = phi(x)^T w_{j,a} + b_{j,a} for m tasks.

    A subclass calls `add_heads` in its constructor and says what the rewards are.
    """

    heads: TaskHeads
    target: TargetNetwork

    def add_heads(
        self, tasks: int, gamma: float, backup: Backup, target_ema: float | None, target_every: int | None = None
    ) -> None:
        """Make the heads, and the target network of encoder and heads."""
        self._gamma, self._backup = gamma, backup
        self.heads = TaskHeads(
            self.encoder.num_features, tasks, self.data.num_actions, seeded(self.config.seed, Purpose.METHOD)
        )
        self.target = TargetNetwork({"encoder": self.encoder, "heads": self.heads}, target_ema, target_every)

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return the rewards of the given transitions (B, m), boolean or float."""
        raise NotImplementedError

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
        loss, error = td_loss(prediction, next_value, sample["reward"], sample["terminal"], self._gamma)
        return loss, {"td_error_std": error.detach().std(), "prediction_mean": prediction.detach().mean()}

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()
