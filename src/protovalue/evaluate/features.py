"""What features are like: their picture in the plane, their rank, how smooth they are in time, what can be read out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from protovalue.envs.base import Env
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.nets.statistics import effective_rank
from protovalue.online.agent import Agent
from protovalue.randomness import numpy_generator

__all__ = [
    "Plane", "ProbeStates", "Scaling", "Trajectory", "effective_rank", "features_of", "linear_probe", "mds",
    "random_states", "state_variables", "temporal_smoothness", "trajectory",
]  # fmt: skip

Array = NDArray[np.float64]
Scaling = Literal["classical", "metric"]
FOLDS = 5
RIDGES = tuple(10.0**power for power in range(-4, 4))  # strengths that are tried on the training rows
_CHUNK = 256  # observations that pass an encoder together


@dataclass(frozen=True)
class Trajectory:
    """One episode from its first observation, to its end or as far as it was asked for."""

    observations: NDArray[Any]
    """(T + 1, stack, *frame_shape); the last is the one that the episode ended in."""
    rewards: Array
    """(T,), raw."""
    complete: bool
    """Whether the episode came to its end."""


@dataclass(frozen=True)
class ProbeStates:
    """Observations of many episodes, and which of them belong together."""

    observations: NDArray[Any]
    """(N, stack, *frame_shape)."""
    groups: NDArray[np.int64]
    """(N,): states of one environment's stream share a number."""


@dataclass(frozen=True)
class Plane:
    """Points in the plane whose distances are near those of the features."""

    points: Array
    """(N, 2), with mean 0."""
    stress: float
    """sqrt(sum (delta - d)^2 / sum delta^2) over all pairs: delta between features, d in the plane. 0 is exact."""


def mds(features: NDArray[Any], method: Scaling = "classical") -> Plane:
    """Place features (N, k) in the plane by multidimensional scaling.

    Classical: the two leading eigenvectors of the doubly centred matrix of squared distances, which is that of the
    centred features' products. Metric: SMACOF, which begins there and lowers the stress, so that nothing is drawn at
    random. Signs are fixed: in each coordinate the entry of largest magnitude is positive.
    """
    x = np.asarray(features, np.float64)
    between = pdist(x)
    if len(x) < 3 or not between.any():  # two states, or all the same: nothing to decompose
        points = np.zeros((len(x), 2))
        if len(x) == 2:
            points[:, 0] = np.array([0.5, -0.5]) * between[0]
        return Plane(points, 0.0)
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)  # rising
    # Features on a line have a second value of 0, of which rounding can make less.
    points = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))
    if method == "metric":
        from sklearn.manifold import MDS  # here and not above: a report seldom needs it, and it takes long to import

        scaling = MDS(metric="precomputed", n_init=1, init="classical_mds")
        points = np.asarray(scaling.fit_transform(squareform(between), init=points), np.float64)
    largest = points[np.abs(points).argmax(axis=0), [0, 1]]
    points = points * np.sign(largest)
    stress = np.sqrt(np.square(between - pdist(points)).sum() / np.square(between).sum())
    return Plane(points, float(stress))


def temporal_smoothness(features: NDArray[Any]) -> float:
    """Return the mean distance of consecutive states over the mean distance of all pairs, features (T, k) in time.

    1 where the next state is no nearer than any other, towards 0 the smoother the path; NaN where nothing moves.
    """
    x = np.asarray(features, np.float64)
    anywhere = float(pdist(x).mean()) if len(x) > 1 else 0.0
    if anywhere == 0:
        return float("nan")
    return float(np.linalg.norm(np.diff(x, axis=0), axis=1).mean()) / anywhere


def linear_probe(
    features: NDArray[Any], targets: NDArray[Any], groups: NDArray[np.int64] | None = None, folds: int = FOLDS
) -> Array:
    """Return the held-out R^2 of each target (J,) when ridge regression reads targets (N, J) from features (N, k).

    Every row is predicted by a regression that has not seen its group; without groups, rows in time order are cut into
    `folds` blocks, because neighbours in time are nearly copies. Features are divided by one number, and the strength
    of the ridge is chosen, on the training rows. A target that is the same everywhere has no R^2: NaN.
    """
    x, y = np.asarray(features, np.float64), np.asarray(targets, np.float64)
    if groups is None:
        groups = np.arange(len(x)) * folds // len(x)
    if len(np.unique(groups)) < 2:
        raise UserError("linear_probe: found rows of one group, expected two or more: nothing would be held out")
    predicted, baseline = np.zeros_like(y), np.zeros_like(y)
    for train, test in _folds(groups, folds):
        known, seen = x[train], y[train]
        # One scale for all features: by its own, a unit that is nearly dead would be magnified on rows not yet seen.
        scale = float(known.std(axis=0).max()) or 1.0
        weights, level = _ridge(known / scale, seen)
        predicted[test] = x[test] / scale @ weights + level
        baseline[test] = seen.mean(axis=0)
    varies = np.ptp(y, axis=0) > 0  # not by the deviation: one of 0 can be rounded up
    wrong, total = np.square(y - predicted).sum(axis=0), np.square(y - baseline).sum(axis=0)
    return np.asarray(1.0 - np.divide(wrong, total, out=np.full_like(total, np.nan), where=varies))


def _folds(groups: NDArray[np.int64], count: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield training and test rows of each fold: the largest groups come first, each to the smallest fold so far."""
    names, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    held = np.zeros(min(count, len(names)))
    fold = np.zeros(len(names), np.int64)
    for group in np.argsort(sizes, kind="stable")[::-1]:
        fold[group] = held.argmin()
        held[fold[group]] += sizes[group]
    for one in range(len(held)):
        test = fold[number] == one
        yield np.flatnonzero(~test), np.flatnonzero(test)


def _ridge(x: Array, y: Array) -> tuple[Array, Array]:
    """Return weights (k, J) and levels (J,) of ridge regression from x (N, k) to y (N, J).

    Every target has the strength a of `RIDGES` with which its rows, each left out, are predicted best. With x centred
    and x = U diag(s) V^T, the row n that is left out has the error (y_n - f_n) / (1 - 1/N - h_n), where
    f = U diag(s^2 / (s^2 + a)) U^T y and h_n = sum_i U_ni^2 s_i^2 / (s_i^2 + a): one product for all strengths.
    """
    middle, level = x.mean(axis=0), y.mean(axis=0)
    u, s, v = np.linalg.svd(x - middle, full_matrices=False)
    along = u.T @ (y - level)  # (r, J)
    kept = s[:, None] ** 2 / (s[:, None] ** 2 + np.array(RIDGES))  # (r, R): of each direction
    fitted = u @ (along[:, :, None] * kept[:, None]).reshape(len(s), -1)  # (N, J * R)
    rest = 1 - 1 / len(x) - np.square(u) @ kept  # (N, R)
    errors = np.square(((y - level)[:, :, None] - fitted.reshape(*y.shape, -1)) / rest[:, None]).mean(axis=0)  # (J, R)
    best = np.array(RIDGES)[errors.argmin(axis=1)]
    weights = v.T @ (along * s[:, None] / (s[:, None] ** 2 + best))
    return weights, level - middle @ weights


def state_variables(observations: NDArray[Any]) -> tuple[Array, tuple[str, ...]] | None:
    """Return what is where in observations (N, stack, rows, columns, channels) of bits, such as MinAtar's.

    For each channel of the newest frame: how many cells are on, and their mean row and column in cells, the middle of
    the grid where none is. Shape (N, 3 * channels) and the variables' names; None for environments that show pixels.
    """
    if observations.dtype != np.bool_ or observations.ndim != 5:
        return None
    frames = observations[:, -1].astype(np.float64)
    _, rows, columns, channels = frames.shape
    count = frames.sum(axis=(1, 2))  # (N, channels)
    some = np.maximum(count, 1)
    row = np.where(count > 0, np.einsum("nrcx,r->nx", frames, np.arange(rows)) / some, (rows - 1) / 2)
    column = np.where(count > 0, np.einsum("nrcx,c->nx", frames, np.arange(columns)) / some, (columns - 1) / 2)
    names = [f"{what} of channel {x}" for what in ("count", "row", "column") for x in range(channels)]
    return np.concatenate([count, row, column], axis=1), tuple(names)


@torch.inference_mode()
def features_of(see: Any, observations: NDArray[Any]) -> NDArray[np.float32]:
    """Return the features (N, k) of observations, in chunks; `see` maps an array of some to a tensor."""
    parts: list[Tensor] = [see(observations[i : i + _CHUNK]) for i in range(0, len(observations), _CHUNK)]
    features: NDArray[np.float32] = torch.cat(parts).float().cpu().numpy()
    return features


def trajectory(
    env_id: str,
    options: dict[str, Any],
    seed: int = 0,
    agent: Agent | None = None,
    which: int = 0,
    epsilon: float = 0.001,
    max_steps: int = 1_000,
) -> Trajectory:
    """Play one episode with one of an agent's seeds, or with uniformly random actions, for at most `max_steps`.

    Args:
        env_id: the environment.
        options: its options.
        seed: of the environment and of random actions.
        agent: S agents; None plays at random.
        which: the index of the one that plays.
        epsilon: probability of a random action.
        max_steps: where to stop an episode that has not ended.
    """
    env = make(env_id, 1, **options)
    rng = numpy_generator(seed)
    obs, _ = env.reset(seed=seed)
    seen, ended = [obs[0].copy()], False
    rewards: list[float] = []
    while not ended and len(rewards) < max_steps:
        action = int(rng.integers(env.num_actions))
        if rng.random() >= epsilon and agent is not None:
            several = np.repeat(obs, agent.num_seeds, axis=0)
            action = int(agent.values(agent.see(several))[which, 0].argmax())
        obs, reward, terminated, truncated, info = env.step(np.array([action]))
        ended = bool(terminated[0] or truncated[0])
        seen.append((info["final_obs"] if ended else obs)[0].copy())
        rewards.append(float(reward[0]))
    env.close()
    return Trajectory(np.stack(seen), np.array(rewards, np.float64), ended)


def random_states(env: Env, steps: int = 640, every: int = 10, seed: int = 0) -> ProbeStates:
    """Let uniformly random actions play in all environments of `env` and keep every tenth observation."""
    rng = numpy_generator(seed)
    obs, _ = env.reset(seed=seed)
    kept = []
    for step in range(steps):
        if step % every == 0:
            kept.append(obs.copy())
        obs = env.step(rng.integers(env.num_actions, size=env.num_envs))[0]
    groups = np.tile(np.arange(env.num_envs), len(kept))
    return ProbeStates(np.concatenate(kept), groups)
