"""How many tasks a network gains from: the number with the best score, the slope up to it, and the slope beyond.

A slope is what the score gains with every doubling of the number of tasks, by least squares over the means of the
cells. Intervals are percentiles of a bootstrap in which the encoders of every cell and game are drawn again: the best
number is found anew in every draw, the slopes are over the same numbers of tasks in all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protovalue.evaluate.aggregate import LEVEL, RESAMPLES, Estimate

Floats = NDArray[np.float64]
QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
Cells = Mapping[int, Mapping[str, Floats]]
"""Scores of encoders (P,) by number of tasks, at least 1, and by game."""


@dataclass(frozen=True)
class Saturation:
    """Where a score stops rising with the number of tasks; without intervals where a cell has one encoder alone."""

    tasks: Estimate
    """The number of tasks with the best score; of equally good ones the smallest."""
    gain: Estimate | None
    """What a doubling of the tasks brings up to that number; None where it is the smallest."""
    beyond: Estimate | None
    """What a doubling brings from that number on; None where it is the largest."""


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
    means = np.array([np.mean([scores.mean() for scores in cells[number].values()]) for number in numbers])
    drawn: Floats | None = None
    if all(len(scores) > 1 for games in cells.values() for scores in games.values()):
        drawn = np.stack([_resampled(cells[number], rng, resamples) for number in numbers], axis=1)  # (R, K)
    best = int(means.argmax())
    tasks = Estimate(float(numbers[best]))
    if drawn is not None:
        found = np.quantile(drawn.argmax(axis=1), QUANTILES, method="inverted_cdf")
        tasks = Estimate(tasks.point, *(float(numbers[int(place)]) for place in found))
    doublings = np.log2(numbers)
    below, above = slice(0, best + 1), slice(best, len(numbers))
    slopes = [_slope(doublings[part], means[part], drawn, part) for part in (below, above)]
    return Saturation(tasks, *slopes)


def _slope(doublings: Floats, means: Floats, drawn: Floats | None, part: slice) -> Estimate | None:
    """Return the slope of least squares over some of the cells, with its interval over resamples (R, K)."""
    if len(doublings) < 2:
        return None
    x = doublings - doublings.mean()
    weights = x / (x @ x)
    point = float(means @ weights)
    if drawn is None:
        return Estimate(point)
    return Estimate(point, *(float(one) for one in np.quantile(drawn[:, part] @ weights, QUANTILES)))


def _resampled(games: Mapping[str, Floats], rng: np.random.Generator, resamples: int) -> Floats:
    """Return means over games (R,) of encoders drawn again in each."""
    drawn = [scores[rng.integers(len(scores), size=(resamples, len(scores)))].mean(axis=1) for scores in games.values()]
    return np.asarray(np.mean(drawn, axis=0))
