"""Rank correlation with its interval."""

import math
from collections.abc import Sequence

import numpy as np

from protovalue.evaluate.aggregate import LEVEL, Estimate

LEAST = 5  # pairs: with fewer there is no interval


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Estimate | None:
    """Return Spearman's rank correlation of pairs; None where one of the two does not vary, or there is no pair.

    The interval is Fisher's, in atanh(rho), with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and Wright (2000).
    """
    if len(first) != len(second):
        raise ValueError(f"pairs: found {len(first)} and {len(second)} numbers, expected as many")
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    from scipy import stats  # here and not above: few reports need it, and it takes long to import

    rho = float(stats.spearmanr(first, second).statistic)
    if len(first) < LEAST or abs(rho) > 1 - 1e-9:  # 1 but for rounding: the variance says nothing there
        return Estimate(rho)
    half = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt((1 + rho**2 / 2) / (len(first) - 3))
    low, high = (math.tanh(math.atanh(rho) + sign * half) for sign in (-1, 1))
    return Estimate(rho, low, high)
