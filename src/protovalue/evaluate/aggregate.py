"""Statistics over tasks and runs: aggregates, performance profiles, probability of improvement, 95% intervals.

Scores are a mapping from a task (a game) to an array (P, S): P pretrained encoders with S agents on each. A method
that has no pretraining, such as DQN end to end, has a network for each of its agents: (P, 1). P and S may differ
between tasks; every task weighs the same.

Intervals are percentiles of a stratified bootstrap with nested seeds. The tasks are the strata. In each of them, a
resample draws P encoders with replacement, and for each one drawn S of its agents with replacement: two draws of
one encoder share what pretraining gave it. One encoder says nothing about how encoders differ, so that there is an
interval only where every task has at least two; it is NaN otherwise. What to expect of it: with x_ps the scores of a
task, m_p the mean of encoder p and m that of all, the bootstrap's variance of m is

    1/P [ 1/P sum_p (m_p - m)^2 + 1/S 1/(PS) sum_ps (x_ps - m_p)^2 ].

Where V = sigma_P^2 / P + sigma_S^2 / (PS) is the true one, its expectation is (P-1)/P V + (S-1)/S sigma_S^2 / (PS): too
small, and the interval too narrow, where few encoders differ much; too large where only the agents differ.
`mean_interval`, Student's t over the means of encoders, has neither fault and is for single tasks.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]
Scores = Mapping[str, Floats]
"""Scores (P, S) by task."""

RESAMPLES = 2_000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; `low` and `high` are NaN where there are too few encoders for an interval."""

    point: float
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


@dataclass(frozen=True)
class Profile:
    """A performance profile: the share of runs above each threshold, with its pointwise 95% interval (NaN if none)."""

    taus: Floats
    share: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class _Flat:
    """The scores of all tasks in one line."""

    scores: Floats
    """(N,), task after task, in a task encoder after encoder."""
    shapes: tuple[tuple[int, int], ...]
    """(P, S) of each task."""
    starts: NDArray[np.int64]
    """Where each task begins."""
    sizes: NDArray[np.int64]
    """P S of each task."""

    @property
    def weights(self) -> Floats:
        """The weight of each run (N,), 1 in all: the same for every task, the same for every run of a task."""
        return np.repeat(1 / (len(self.sizes) * self.sizes), self.sizes)


def median(scores: Scores) -> float:
    """Median over tasks of the mean over runs."""
    return _point(_median, scores)


def iqm(scores: Scores) -> float:
    """Interquartile mean over the runs of all tasks: the mean of what a quarter cut off at both ends leaves.

    Of N runs, floor(N / 4) are cut off at each end. Where tasks have different numbers of runs, a run weighs as much
    as its share in its task, the same share of the weight is cut off, and a run on the edge counts in part.
    """
    return _point(_iqm, scores)


def mean(scores: Scores) -> float:
    """Mean over tasks of the mean over runs."""
    return _point(_mean, scores)


def optimality_gap(scores: Scores) -> float:
    """Mean over tasks and runs of 1 - min(score, 1): how far below the yardstick, without credit for being above."""
    return _point(_optimality_gap, scores)


def performance_profile(scores: Scores, taus: ArrayLike) -> Floats:
    """Share of runs with a score above tau, mean over tasks, for each tau."""
    flat = _flatten(scores)
    return np.ravel(_profile(flat, _once(flat), _thresholds(taus)))


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """Probability that a run of X scores higher than one of Y on the same task, ties counting half; mean over tasks."""
    flat_x, flat_y = _paired(x, y)
    return float(_improvement(flat_x, flat_y, _once(flat_x), _once(flat_y))[0])


def aggregates(scores: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, Estimate]:
    """All of STATISTICS with their intervals, from the same resamples.

    Args:
        scores: Normalised scores (P, S) by task.
        rng: Where the resamples come from.
        resamples: How many of them.
    """
    flat = _flatten(scores)
    points = {name: float(statistic(flat, _once(flat))[0]) for name, statistic in _STATISTICS.items()}
    if not _enough(flat):
        return {name: Estimate(point) for name, point in points.items()}
    values = bootstrap(scores, rng, resamples)
    return {name: Estimate(point, *map(float, _percentiles(values[name]))) for name, point in points.items()}


def bootstrap(scores: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, Floats]:
    """The values (R,) of each of STATISTICS in R nested resamples."""
    flat = _flatten(scores)
    counts = _resample(flat, rng, resamples)
    return {name: statistic(flat, counts) for name, statistic in _STATISTICS.items()}


def profile_with_interval(
    scores: Scores, taus: ArrayLike, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Profile:
    """A performance profile with its pointwise intervals."""
    flat, at = _flatten(scores), _thresholds(taus)
    share = np.ravel(_profile(flat, _once(flat), at))
    low = high = np.full(len(at), np.nan)
    if _enough(flat):
        low, high = _percentiles(_profile(flat, _resample(flat, rng, resamples), at))
    return Profile(at, share, low, high)


def improvement_with_interval(x: Scores, y: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """The probability of improvement of X over Y with its interval; X and Y are resampled independently."""
    flat_x, flat_y = _paired(x, y)
    point = float(_improvement(flat_x, flat_y, _once(flat_x), _once(flat_y))[0])
    if not (_enough(flat_x) and _enough(flat_y)):
        return Estimate(point)
    counts_x, counts_y = _resample(flat_x, rng, resamples), _resample(flat_y, rng, resamples)
    low, high = _percentiles(_improvement(flat_x, flat_y, counts_x, counts_y))
    return Estimate(point, float(low), float(high))


def mean_interval(values: ArrayLike) -> Estimate:
    """Mean and Student's t interval over encoders, of the scores (P, S) of one task or of the encoders' means (P,).

    The unit is the encoder: agents on the same encoder are not independent, and enter by their mean.
    """
    array = np.asarray(values, np.float64)
    if array.ndim not in (1, 2) or not array.size or not np.isfinite(array).all():
        raise ValueError(f"scores: found shape {array.shape}, expected finite numbers (P,) or (P, S)")
    means = array.reshape(len(array), -1).mean(axis=1)
    P = len(means)
    if P < 2:
        return Estimate(float(means[0]))
    point = float(means.mean())
    half = float(special.stdtrit(P - 1, (1 + LEVEL) / 2) * means.std(ddof=1) / math.sqrt(P))
    return Estimate(point, point - half, point + half)


# The statistics below take counts (R, N), how often each of R resamples holds each run, and return (R,) or (R, K).
# Once each, counts of ones, is the sample itself: point estimates and intervals come from the same code.


def _median(flat: _Flat, counts: Floats) -> Floats:
    return np.asarray(np.median(_task_means(flat, counts), axis=1))


def _mean(flat: _Flat, counts: Floats) -> Floats:
    return np.asarray(counts @ (flat.weights * flat.scores))


def _optimality_gap(flat: _Flat, counts: Floats) -> Floats:
    return np.asarray(1 - counts @ (flat.weights * np.minimum(flat.scores, 1)))


def _iqm(flat: _Flat, counts: Floats) -> Floats:
    order = np.argsort(flat.scores)
    # Whole numbers, so that no rounding decides whether a run on the edge is in.
    unit = math.lcm(*map(int, flat.sizes))
    weights = np.repeat(unit // flat.sizes, flat.sizes)[order]
    total, N = unit * len(flat.sizes), len(flat.scores)
    cut = total * (N // 4) / N
    above = np.clip(np.cumsum(counts[:, order] * weights, axis=1), cut, total - cut)  # weight up to each run, in (R, N)
    kept = np.diff(above, axis=1, prepend=cut)
    return np.asarray(kept @ flat.scores[order] / (total - 2 * cut))


def _profile(flat: _Flat, counts: Floats, taus: Floats) -> Floats:
    return np.asarray(counts @ (flat.weights[:, None] * (flat.scores[:, None] > taus)))


def _improvement(x: _Flat, y: _Flat, counts_x: Floats, counts_y: Floats) -> Floats:
    total = np.zeros(len(counts_x))
    for i in range(len(x.sizes)):
        in_x, in_y = (slice(flat.starts[i], flat.starts[i] + flat.sizes[i]) for flat in (x, y))
        of_x, of_y = x.scores[in_x, None], y.scores[None, in_y]
        wins = (of_x > of_y) + 0.5 * (of_x == of_y)  # (runs of X, runs of Y)
        total += np.einsum("rx,xy,ry->r", counts_x[:, in_x], wins, counts_y[:, in_y], optimize=True) / wins.size
    return total / len(x.sizes)


def _task_means(flat: _Flat, counts: Floats) -> Floats:
    """(R, tasks)."""
    return np.asarray(np.add.reduceat(counts * flat.scores, flat.starts, axis=1) / flat.sizes)


_Statistic = Callable[[_Flat, Floats], Floats]
_STATISTICS: dict[str, _Statistic] = {
    "median": _median,
    "iqm": _iqm,
    "mean": _mean,
    "optimality_gap": _optimality_gap,
}
STATISTICS = tuple(_STATISTICS)
"""The names of the aggregates, in the order of the tables."""
STATISTIC_TITLES = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality_gap": "Optimality gap"}
LESS_IS_BETTER = frozenset({"optimality_gap"})


def _resample(flat: _Flat, rng: np.random.Generator, resamples: int) -> Floats:
    """Draw nested resamples: counts (R, N) of how often each run is in each of them."""
    N = len(flat.scores)
    rows = N * np.arange(resamples)[:, None, None]
    drawn = []
    for start, (P, S) in zip(flat.starts, flat.shapes, strict=True):
        encoders = rng.integers(P, size=(resamples, P))
        agents = rng.integers(S, size=(resamples, P, S))  # fresh ones for every encoder drawn, also if drawn twice
        drawn.append((rows + start + encoders[:, :, None] * S + agents).ravel())
    return np.bincount(np.concatenate(drawn), minlength=resamples * N).reshape(resamples, N).astype(np.float64)


def _point(statistic: _Statistic, scores: Scores) -> float:
    flat = _flatten(scores)
    return float(statistic(flat, _once(flat))[0])


def _percentiles(values: Floats) -> tuple[Floats, Floats]:
    """The middle 95% over resamples, the first axis."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def _enough(flat: _Flat) -> bool:
    return all(P >= 2 for P, _ in flat.shapes)


def _once(flat: _Flat) -> Floats:
    return np.ones((1, len(flat.scores)))


def _thresholds(taus: ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(taus, np.float64))


def _paired(x: Scores, y: Scores) -> tuple[_Flat, _Flat]:
    if set(x) != set(y):
        raise ValueError(f"tasks: found {sorted(set(x) ^ set(y))} on one side only, expected the same on both")
    return _flatten(x), _flatten({task: y[task] for task in x})


def _flatten(scores: Scores) -> _Flat:
    if not scores:
        raise ValueError("scores: found no task, expected at least one")
    arrays = [np.asarray(array, np.float64) for array in scores.values()]
    for task, array in zip(scores, arrays, strict=True):
        if array.ndim != 2 or not array.size or not np.isfinite(array).all():
            raise ValueError(f"{task}: found scores of shape {array.shape}, expected finite numbers (P, S)")
    sizes = np.array([array.size for array in arrays], np.int64)
    shapes = tuple((array.shape[0], array.shape[1]) for array in arrays)
    return _Flat(np.concatenate([array.ravel() for array in arrays]), shapes, np.cumsum(sizes) - sizes, sizes)
