"""The difference of two methods over tasks, with its interval, and how many units it would take to tell it from zero.

A unit is what was drawn independently: a data set with all that was trained on it, or an encoder where all share one
data set. It enters by the mean of its encoders, each by the mean of its agents. Units of two methods that stand on the
same data set are a pair; their differences are looked at, so that what the data set brings to both cancels. A method
with fewer data sets is compared on those.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from protovalue.evaluate.aggregate import LEVEL, Estimate

Units = Mapping[tuple[str, int], float]
"""The scores of a method's units in one task, by what they stand on: ("data", seed) or ("encoder", seed)."""
POWER = 0.8


@dataclass(frozen=True)
class Difference:
    """The mean over tasks of how much higher one method scores, with Student's 95% interval over units."""

    estimate: Estimate
    tasks: int
    units: tuple[int, int]
    """The least units of a task on each side."""
    paired: bool
    """Whether the units of all tasks are pairs."""
    variance: float
    """Of the estimate; NaN where a side of a task has one unit alone."""

    def needed(self, margin: float = 0.0) -> int | None:
        """Return how many units a task would need to tell the difference from `margin`, four times out of five.

        From the variance that was seen; None where there is none to go by, or nothing to tell.
        """
        distance = abs(self.estimate.point - margin)
        if not math.isfinite(self.variance) or distance == 0:
            return None
        z = float(special.ndtri((1 + LEVEL) / 2) + special.ndtri(POWER))
        return max(2, math.ceil(min(self.units) * self.variance * (z / distance) ** 2))


def difference(x: Mapping[str, Units], y: Mapping[str, Units]) -> Difference:
    """Compare two methods on the tasks that both have; each task weighs the same.

    With several tasks the degrees of freedom are Satterthwaite's, of the tasks' variances; in a task without pairs
    they are Welch's.
    """
    tasks = [task for task in x if task in y]
    if not tasks:
        raise ValueError(f"tasks: found {sorted(x)} and {sorted(y)}, expected at least one on both sides")
    points, parts, counts = [], list[tuple[float, int]](), list[tuple[int, int]]()
    paired = True
    for task in tasks:
        pairs = _pairs(x[task], y[task])
        samples = [pairs] if pairs is not None else [np.array([*side[task].values()]) for side in (x, y)]
        points.append(float(samples[0].mean() - (0.0 if pairs is not None else samples[1].mean())))
        parts += [(_variance_of_mean(sample), len(sample) - 1) for sample in samples]
        counts.append((len(samples[0]), len(samples[-1])))
        paired = paired and pairs is not None
    point = float(np.mean(points))
    variances = np.array([variance for variance, _ in parts]) / len(tasks) ** 2
    variance = float(variances.sum())
    units = (min(one for one, _ in counts), min(other for _, other in counts))
    if not math.isfinite(variance):
        return Difference(Estimate(point), len(tasks), units, paired, math.nan)
    spread = sum(own**2 / free for own, (_, free) in zip(variances, parts, strict=True))
    half = float(special.stdtrit(variance**2 / spread, (1 + LEVEL) / 2)) * math.sqrt(variance) if variance > 0 else 0.0
    return Difference(Estimate(point, point - half, point + half), len(tasks), units, paired, variance)


def _pairs(x: Units, y: Units) -> NDArray[np.float64] | None:
    """Return the differences of units that stand on the same; None where neither side has all units of the other.

    Where one side has units that the other has not, these do not count.
    """
    both = [unit for unit in x if unit in y]
    return np.array([x[unit] - y[unit] for unit in both]) if len(both) == min(len(x), len(y)) else None


def _variance_of_mean(sample: NDArray[np.float64]) -> float:
    return float(sample.var(ddof=1) / len(sample)) if len(sample) > 1 else math.nan
