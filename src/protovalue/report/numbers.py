"""How a report writes numbers: with fixed decimals in files, with about three digits on the page and in sentences."""

import math
from collections.abc import Iterable

from protovalue.evaluate.aggregate import Estimate

MINUS = "\N{MINUS SIGN}"
NONE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
SCORE_DIGITS = 3  # decimals of normalised scores and probabilities


def return_digits(envs: Iterable[str]) -> int:
    """Return the decimals of returns: 1 for Atari, as in the paper, and 2 for others."""
    return 1 if all(env.startswith("atari/") for env in envs) else 2


def fixed(value: float, digits: int) -> str:
    """Write a number as in the paper: 1,042.8; never -0.0."""
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text


def short(value: float, like: float | None = None) -> str:
    """Write a number with about three digits; `like` takes the decimals of another number."""
    if not math.isfinite(value):
        return NONE
    size = abs(value if like is None or not math.isfinite(like) else like)
    return fixed(value, 0 if size >= 99.5 else 1 if size >= 9.95 else 2).replace("-", MINUS)


def interval(estimate: Estimate) -> str:
    """Write a 95% interval in short numbers; empty where one run alone gives none."""
    return span(estimate.point, estimate.low, estimate.high) if estimate.has_interval else ""


def span(point: float, low: float, high: float) -> str:
    """Write a range with the decimals of the number that it is around."""
    return f"{short(low, point)} to {short(high, point)}"


def plural(count: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
