"""Are the predictions right? Monte Carlo estimates of the successor measure on held-out rollouts of a random policy."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.data.dataset import Dataset, open_distinct
from protovalue.data.format import End
from protovalue.errors import UserError

Floats = NDArray[np.float64]


def open_holdout(paths: Sequence[Path], learned: Dataset) -> Dataset:
    """Open held-out rollouts; refuse those of another game, those that were learned from, and those without an end."""
    found = open_distinct(paths, "--holdout")
    where = ", ".join(str(path) for path in paths)
    for name in ("env_id", "observation_shape", "num_actions"):
        here, expected = getattr(found, name), getattr(learned, name)
        if here != expected:
            raise UserError(f"--holdout: {where}: found {name} {here}, expected {expected} of --data")
    for folder in found.folders:
        same = next((other for other in learned.folders if other.manifest.checksum == folder.manifest.checksum), None)
        if same is not None:
            raise UserError(f"--holdout: {folder.path} holds the episodes of --data {same.path}, expected other ones")
    if not (found.ends == End.TERMINATED).any():
        raise UserError(f"--holdout: {where}: found no episode that terminated, expected some")
    return found


def discounted_sums(rewards: Floats, gamma: float | Floats, after: Floats | None = None) -> Floats:
    """Return sum over k >= 0 of gamma^k r_{t+k} for every step t of one episode: (T, m) to (T, m).

    The discount may be that of each task (m,). `after` (m,) is what follows the last step; None is nothing.
    """
    sums = np.zeros_like(rewards)
    following = np.zeros(rewards.shape[1]) if after is None else after
    for t in range(len(rewards) - 1, -1, -1):
        sums[t] = following = rewards[t] + gamma * following
    return sums


def compare_with_rollouts(
    data: Dataset,
    rewards: Callable[[Tensor], Tensor],
    predict: Callable[[Tensor, Tensor], Tensor],
    gamma: float | Floats,
    device: str,
    most: int = 20_000,
) -> tuple[Floats, Floats, Floats]:
    """Compare predictions psi_j(x, a) with the discounted rewards that followed in the data.

    Only episodes that terminated count: elsewhere the sum is not known to its end. Each sum is one random sample of
    what the prediction should be the mean of, so that even exact predictions correlate by less than 1.

    Args:
        data: rollouts of a random policy, not those that were learned from; some of them terminated.
        rewards: r_j of the transitions between successive observations (N, *shape), (N - 1, m).
        predict: psi_j(x, a) of observations and actions, (N, m).
        gamma: discount factor, or that of each task (m,).
        device: where the two functions expect their input.
        most: transitions at the most; whole episodes are taken from the beginning.

    Returns:
        Per task (m,): correlation, mean of the predictions, mean of the sums.
    """
    predictions, sums, count = [], [], 0
    for index in np.flatnonzero(data.ends == End.TERMINATED):
        episode = data.episode(int(index))
        every = torch.from_numpy(episode.observations(data.stack)).to(device)
        obs = every[:-1]
        actions = torch.from_numpy(episode.actions.astype(np.int64)).to(device)
        values = []
        for part, chosen in zip(torch.split(obs, 512), torch.split(actions, 512), strict=True):
            values.append(predict(part, chosen).to(torch.float32).cpu().numpy())
        fired = [rewards(every[first : first + 513]).cpu().numpy() for first in range(0, len(obs), 512)]
        sums.append(discounted_sums(np.concatenate(fired).astype(np.float64), gamma))
        predictions.append(np.concatenate(values).astype(np.float64))
        count += len(obs)
        if count >= most:
            break
    y, z = np.concatenate(predictions), np.concatenate(sums)
    return _correlation(y, z), y.mean(axis=0), z.mean(axis=0)


def _correlation(x: Floats, y: Floats) -> Floats:
    """Return the Pearson correlation of each column; NaN where one of the two is constant."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    spread = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    correlation: Floats = np.divide((x * y).sum(axis=0), spread, out=np.full(x.shape[1], np.nan), where=spread > 0)
    return correlation
