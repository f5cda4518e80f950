"""What proto-value networks and random cumulants share: the values of m tasks by temporal differences (Algorithm 1)."""

from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.data.format import End
from protovalue.distributed.group import gathered
from protovalue.losses import Backup, td_loss
from protovalue.nets.heads import TaskHeads
from protovalue.pretrain.base import Method, Sample, transitions
from protovalue.pretrain.groups import Group
from protovalue.pretrain.holdout import discounted_sums
from protovalue.pretrain.method_configs import TaskConfig
from protovalue.pretrain.target import TargetNetwork
from protovalue.randomness import Purpose, seeded

HeadStart = Literal["zero", "mean"]
_BLOCK = 1 << 16  # transitions whose rewards are summed at a time
_MEASURED = 200_000  # transitions that a spread is measured on


class TaskValues(Method):
    """psi_j(x, a) = phi(x)^T w_{j,a} + b_{j,a} for m tasks.

    A subclass calls `add_heads` in its constructor and says what the rewards are.
    """

    several_processes = True
    heads: TaskHeads
    target: TargetNetwork
    _gammas: Tensor
    _weights: Tensor
    _greedy: Tensor

    def add_heads(
        self,
        config: TaskConfig,
        target_ema: float | None,
        target_every: int | None = None,
        start: HeadStart = "zero",
        mask: bool = True,
        scale: Callable[[], NDArray[Any]] | None = None,
    ) -> None:
        """Make the heads, whose biases start at `start`, and the target network of encoder and heads.

        Args:
            config: the tasks and what groups of them have of their own.
            target_ema: share of the target network that is kept in each step.
            target_every: copy it every so many steps, in place of that.
            start: where the heads' biases start.
            mask: without it a value flows across the end of an episode, as the formula of the paper reads.
            scale: gives what each task's errors are divided by (m,).
        """
        self._mask, self._sizes = mask, [size for _, size in config.task_groups()]
        gammas = _of_tasks(config, lambda group: config.of_group(group, "gamma"))
        greedy = _of_tasks(config, lambda group: config.of_group(group, "backup") == "max")
        self._gamma = float(gammas[0]) if (gammas == gammas[0]).all() else gammas  # today's arithmetic where it will do
        self._backup: Backup | None = None if greedy.min() != greedy.max() else "max" if greedy[0] else "mean"
        weights = _of_tasks(config, lambda group: group.weight)
        if scale is not None:
            divisor = np.asarray(scale(), np.float64)
            weights = weights / np.where(divisor > 0, divisor, 1.0) ** 2
        self._weighted = not (weights == 1).all()
        for name, values in (("_gammas", gammas), ("_weights", weights)):
            self.register_buffer(name, torch.from_numpy(values.astype(np.float32)), persistent=False)
        self.register_buffer("_greedy", torch.from_numpy(greedy), persistent=False)
        self.heads = TaskHeads(
            self.encoder.num_features, config.tasks, self.data.num_actions, seeded(self.config.seed, Purpose.METHOD)
        )
        if start == "mean":
            with torch.no_grad():
                self.heads.bias.copy_(torch.from_numpy(self.mean_values().astype(np.float32)))
        self.target = TargetNetwork({"encoder": self.encoder, "heads": self.heads}, target_ema, target_every)

    def rewards(self, index: NDArray[Any]) -> NDArray[Any]:
        """Return the rewards of the given transitions (B, m), boolean or float."""
        raise NotImplementedError

    def mean_values(self) -> NDArray[np.float64]:
        """Return the best constant prediction of each task (m,): what temporal differences give without features.

        With the mean reward r and the share z of transitions that end an episode it is v = r + gamma (1 - z) v.
        """
        data, total = self.data, 0.0
        for first in range(0, data.num_transitions, _BLOCK):
            index = np.arange(first, min(first + _BLOCK, data.num_transitions))
            total = total + self.rewards(index).sum(axis=0, dtype=np.float64)
        ends = np.count_nonzero(data.ends == End.TERMINATED) if self._mask else 0
        return np.asarray(total / (data.num_transitions - self._gamma * (data.num_transitions - ends)))

    def spreads(self) -> NDArray[np.float64]:
        """Return the standard deviation of each task's discounted sum of rewards over the data (m,).

        The sums are those of the logged episodes, whatever the backup is. The mean value of the task follows an episode
        that was cut off. Whole episodes, evenly spaced, of some 200,000 transitions are looked at. Sums that differ by
        rounding alone have no spread.
        """
        data, mean = self.data, self.mean_values()
        count = max(1, min(data.num_episodes, data.num_episodes * _MEASURED // data.num_transitions))
        sums = []
        for episode in np.unique(np.linspace(0, data.num_episodes - 1, count).astype(np.int64)):
            index = data.starts[episode] + np.arange(data.lengths[episode])
            ends = self._mask and data.ends[episode] == End.TERMINATED
            after = np.zeros_like(mean) if ends else mean
            sums.append(discounted_sums(self.rewards(index).astype(np.float64), self._gamma, after))
        whole = np.concatenate(sums)
        spread, rounding = whole.std(axis=0), 1e-9 * np.abs(whole).max(axis=0)
        return np.where(spread > rounding, spread, 0.0)

    def sample(self, step: int) -> Sample:
        """Return transitions and their rewards for all tasks."""
        batch = self.sampler.batch(step)
        return {**transitions(batch), "reward": torch.from_numpy(self.rewards(batch.index))}

    def loss(self, sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared TD error of all tasks."""
        obs, next_obs = sample["frames"][:, :-1], sample["frames"][:, 1:]
        features = self.encoder(obs)
        prediction = self.heads.taken(features, sample["action"])  # (B, m)
        with torch.no_grad():
            next_value = self._next_values(self.target["encoder"](next_obs))
        terminal = sample["terminal"] if self._mask else torch.zeros_like(sample["terminal"])
        whole = gathered(prediction, next_value, sample["reward"], terminal)
        loss, logged = self._td_loss(*whole)
        return self.with_inverse((loss, logged), features, next_obs, sample["action"])

    def _td_loss(
        self, prediction: Tensor, next_value: Tensor, reward: Tensor, terminal: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a whole batch, and what to log of it."""
        gamma = self._gamma if isinstance(self._gamma, float) else self._gammas
        weight = self._weights if self._weighted else None
        loss, error = td_loss(prediction, next_value, reward, terminal, gamma, weight)
        error = error.detach()
        logged = {"td_error_std": error.std(), "prediction_mean": prediction.detach().mean()}
        if len(self._sizes) > 1:
            parts = (error.square() * self._weights).mean(dim=0).split(self._sizes)
            logged |= {f"loss_of_group_{number}": part.mean() for number, part in enumerate(parts, 1)}
        return loss, logged | self.noted(reward)

    def noted(self, reward: Tensor) -> dict[str, Tensor]:
        """Return what to log of a batch's rewards (B, m)."""
        raise NotImplementedError

    def _next_values(self, features: Tensor) -> Tensor:
        """Return the target network's values of the next state (B, m), by the backup of each task."""
        heads = self.target["heads"]
        if self._backup is not None:
            return cast("Tensor", heads.backed_up(features, self._backup))
        return torch.where(self._greedy, heads.backed_up(features, "max"), heads.backed_up(features, "mean"))

    def after_step(self) -> None:
        """Let the target follow."""
        self.target.follow()


def _of_tasks(config: TaskConfig, of: Callable[[Group], Any]) -> NDArray[Any]:
    """Return what each task has of its group, (m,)."""
    return np.concatenate([np.full(size, of(group)) for group, size in config.task_groups()])
