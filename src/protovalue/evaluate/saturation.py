"""How many tasks a network gains from: where its score stops rising with the number of tasks, and how steeply it rose.

The score is modelled as rising along a line in the logarithm of the number of tasks until a number T, and level from
there. T is one of the numbers that were tried; it and the line are those of least squares over the means of the cells.
Intervals are percentiles of a bootstrap in which the encoders of every cell and game are drawn again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protovalue.evaluate.aggregate import LEVEL, RESAMPLES, Estimate

Floats = NDArray[np.float64]
Cells = Mapping[int, Mapping[str, Floats]]
"""Scores of encoders (P,) by number of tasks, at least 1, and by game."""


@dataclass(frozen=True)
class Saturation:
    """Where a score stops rising with the number of tasks; without intervals where a cell has one encoder alone."""

    tasks: Estimate
    """T, after which it is level."""
    slope: Estimate
    """What it gains below T with every doubling of the number of tasks; where that is not above 0, T says nothing."""


def saturation(cells: Cells, rng: np.random.Generator, resamples: int = RESAMPLES) -> Saturation:
    """Find where the mean over games stops rising with the number of tasks.

    Args:
        cells: at least three numbers of tasks, all with the same games.
        rng: where the resamples come from.
        resamples: how many.
    """
    numbers = sorted(cells)
    if len(numbers) < 3 or numbers[0] < 1 or any(cells[n].keys() != cells[numbers[0]].keys() for n in numbers):
        raise ValueError(f"cells: found tasks {numbers}, expected three or more from 1 on, all with the same games")
    doublings = np.log2(numbers)
    means = np.array([[np.mean([scores.mean() for scores in cells[number].values()]) for number in numbers]])
    last, slope = _fitted(doublings, means)
    if any(len(scores) < 2 for games in cells.values() for scores in games.values()):
        return Saturation(Estimate(float(numbers[last[0]])), Estimate(float(slope[0])))
    drawn = np.stack([_resampled(cells[number], rng, resamples) for number in numbers], axis=1)  # (R, K)
    lasts, slopes = _fitted(doublings, drawn)
    low, high = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    tasks = [float(numbers[int(i)]) for i in np.quantile(lasts, [low, high], method="inverted_cdf")]
    return Saturation(
        Estimate(float(numbers[last[0]]), *tasks),
        Estimate(float(slope[0]), *(float(one) for one in np.quantile(slopes, [low, high]))),
    )


def _fitted(doublings: Floats, means: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Fit every row of means (R, K): the index of T, the smallest of equally good ones, and the slope below it."""
    errors, slopes = [], []
    for last in range(1, len(doublings)):
        x = np.minimum(doublings, doublings[last])
        x = x - x.mean()
        slope = means @ x / (x @ x)
        left = means - means.mean(axis=1, keepdims=True) - np.outer(slope, x)
        errors.append(np.square(left).sum(axis=1))
        slopes.append(slope)
    best = np.argmin(np.stack(errors), axis=0)
    return best + 1, np.stack(slopes)[best, np.arange(len(means))]


def _resampled(games: Mapping[str, Floats], rng: np.random.Generator, resamples: int) -> Floats:
    """Return means over games (R,) of encoders drawn again in each."""
    drawn = [scores[rng.integers(len(scores), size=(resamples, len(scores)))].mean(axis=1) for scores in games.values()]
    return np.asarray(np.mean(drawn, axis=0))
