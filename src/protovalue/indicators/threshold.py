"""Thresholds that make each task's indicator fire on a given proportion of states: exactly, or by gradient descent."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.errors import UserError

ScorePass = Callable[[], Iterable[Tensor]]
"""One pass over a data set's scores: chunks (n_i, m), float32; each call gives the same scores again."""

Counts = NDArray[np.int64]

_DIGIT = 1 << 16  # values of one 16-bit digit


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of m tasks and what they achieve on the data they come from."""

    thresholds: Tensor
    """Threshold of each task, (m,) float32."""
    counts: Tensor
    """States with score >= threshold, (m,) int64."""
    total: int
    """States in all."""

    @property
    def proportions(self) -> Tensor:
        """Return the achieved proportion of each task, (m,) float64."""
        return self.counts.to(torch.float64) / self.total


def exact_thresholds(scores: ScorePass, proportion: float) -> Thresholds:
    """Find for each task the threshold whose proportion of scores >= threshold is the nearest possible to `proportion`.

    Exact for any number of states: radix selection over the 2^32 values of float32 in two passes, 16 bits in each,
    with counts of m * 65,536 * 8 bytes (52 MB for 100 tasks), whatever the number of states.

    With v the k-th largest score, k = ceil(p * N), no threshold can do better than v itself, which lets in all ties of
    v, or the next float above v, which lets in none of them. Of two that are equally near, v wins: a task that fires
    somewhere teaches more than one that never does.
    """
    _check_proportion(proportion)
    counts = _count(scores, None)
    total = int(counts[0].sum()) if len(counts) else 0
    if total == 0:
        raise UserError("thresholds: found no scores, expected at least one state")
    target = Fraction(repr(float(proportion))) * total  # p as it is written: 0.05 of 1000 states is 50, not a hair more
    rank = np.full(len(counts), math.ceil(target))  # k
    high, above_high, equal_high = _select(counts, rank)

    counts = _count(scores, high)
    if not np.array_equal(counts.sum(axis=1), equal_high):
        raise RuntimeError("exact thresholds: the second pass gave other scores than the first")
    low, above_low, ties = _select(counts, rank - above_high)
    value = _value(high, low)  # v
    above = above_high + above_low  # scores > v
    keep = np.array([a + t - target <= target - a for a, t in zip(above.tolist(), ties.tolist(), strict=True)])
    with np.errstate(over="ignore"):  # infinity is the next float above the largest, and a good threshold there
        thresholds = np.where(keep, value, np.nextafter(value, np.float32(np.inf)))
    return Thresholds(torch.from_numpy(thresholds), torch.from_numpy(np.where(keep, above + ties, above)), total)


def _check_proportion(proportion: float) -> None:
    if not 0.0 < proportion < 1.0:
        raise UserError(f"proportion: found {proportion}, expected more than 0 and less than 1")


def _keys(scores: Tensor) -> NDArray[np.int32]:
    """Map float32 to int32 with the same order; -0.0 and 0.0, which compare equal, become one."""
    bits = (scores.numpy() + np.float32(0.0)).view(np.int32)  # -0.0 + 0.0 = 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)  # a negative float's magnitude counts downwards: flip its bits


def _value(high: Counts, low: Counts) -> NDArray[np.float32]:
    """Invert `_keys`, given the two digits of the keys."""
    keys = (((high - _DIGIT // 2) << 16) | low).astype(np.int32)
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)


def _count(scores: ScorePass, high: Counts | None) -> Counts:
    """Count one 16-bit digit of all scores' keys, (m, 65536).

    Without `high` it is the high digit; with `high` (m,) it is the low digit, of the keys that have this high one.
    NumPy does it: as fast as PyTorch on one thread, and far faster than PyTorch on all threads of a busy machine.
    """
    counts = np.zeros((0, _DIGIT), np.int64)
    for chunk in scores():
        keys = _keys(_checked(chunk, len(counts) or None))  # (n, m)
        if not len(counts):
            counts = np.zeros((keys.shape[1], _DIGIT), np.int64)
        row = np.arange(len(counts)) * _DIGIT
        digit = (keys >> 16) + _DIGIT // 2  # 0 ... 65535, rising with the key
        index = (digit + row).ravel() if high is None else ((keys & (_DIGIT - 1)) + row)[digit == high]
        np.add.at(counts.reshape(-1), index, 1)
    return counts


def _checked(chunk: Tensor, num_tasks: int | None) -> Tensor:
    if chunk.dim() != 2 or chunk.dtype != torch.float32 or (num_tasks is not None and chunk.shape[1] != num_tasks):
        expected = f"torch.float32 of shape (n, {'m' if num_tasks is None else num_tasks})"
        raise ValueError(f"scores: found {chunk.dtype} of shape {tuple(chunk.shape)}, expected {expected}")
    chunk = chunk.cpu()
    values = chunk.numpy()
    bad = ~np.isfinite(values)
    if bad.any():
        row, task = np.argwhere(bad)[0]
        raise UserError(f"scores of task {task}: found {values[row, task]}, expected finite numbers")
    return chunk


def _select(counts: Counts, rank: Counts) -> tuple[Counts, Counts, Counts]:
    """Find each row's rank-th largest entry (rank from 1): its digit, how many have a larger one, how many the same."""
    found = []
    for row, k in zip(counts, rank, strict=True):
        at_least = row[::-1].cumsum()  # entries with the largest digit, with one of the two largest, ...
        place = int(at_least.searchsorted(k))  # the first that holds k
        digit = _DIGIT - 1 - place
        found.append((digit, at_least[place] - row[digit], row[digit]))
    digits, above, equal = np.array(found, np.int64).T
    return digits, above, equal


def quantile_loss(scores: Tensor, bias: Tensor, proportion: float) -> Tensor:
    """Return the pinball loss of each task's bias, (m,): mean over x of r' * ((1 - p) - 1[r' < 0]), r' = f(x) + b.

    The quantile regression of the paper's appendix, whose Sign stands for the indicator 1[r' < 0]. Its derivative with
    respect to b is P(r' >= 0) - p, so its minimum makes the indicator 1[f(x) + b >= 0] fire on a proportion p.

    Args:
        scores: network outputs f(x), (N, m).
        bias: b, (m,).
        proportion: p.
    """
    shifted = scores + bias
    below = (shifted < 0).to(shifted.dtype)
    return (shifted * ((1.0 - proportion) - below)).mean(dim=0)


def sgd_thresholds(
    batches: Iterable[Tensor],
    proportion: float,
    steps: int = 62_500,
    learning_rate: float = 1e-4,
) -> Tensor:
    """Tune biases by gradient descent on the quantile loss, as the paper does, and return the thresholds -b, (m,).

    The optimiser is the paper's: Adam with betas 0.9 and 0.999 and epsilon 1.5e-4. It moves a bias by at most about
    `learning_rate` per step, so the scores' scale decides how many steps are enough.

    Args:
        batches: scores (n, m) of random batches of states; `steps` of them are used.
        proportion: p.
        steps: the paper's burn-in.
        learning_rate: Adam's.
    """
    _check_proportion(proportion)
    bias: Tensor | None = None
    done = 0
    for batch in islice(batches, steps):
        scores = _checked(batch, None if bias is None else len(bias))
        if bias is None:
            bias = torch.zeros(scores.shape[1], requires_grad=True)
            optimizer = torch.optim.Adam([bias], learning_rate, betas=(0.9, 0.999), eps=1.5e-4)
        bias.grad = torch.autograd.grad(quantile_loss(scores, bias, proportion).sum(), bias)[0]
        optimizer.step()
        done += 1
    if bias is None or done < steps:
        raise UserError(f"thresholds: found {done} batches of scores, expected {steps}")
    return -bias.detach()


def proportion_warnings(achieved: Tensor | Sequence[float], proportion: float, tolerance: float = 0.5) -> list[str]:
    """Say in one line per kind which tasks fire on a proportion that is off by more than `tolerance * proportion`.

    A task that never or always fires has a constant reward and teaches next to nothing.
    """
    values = [float(x) for x in achieved]
    never = [j for j, x in enumerate(values) if x == 0.0]
    always = [j for j, x in enumerate(values) if x == 1.0]
    constant = {*never, *always}
    far = [j for j, x in enumerate(values) if j not in constant and abs(x - proportion) > tolerance * proportion]
    lines = []
    for tasks, what in ((never, "never fire"), (always, "always fire")):
        if tasks:
            why = "a constant score, or many ties"
            lines.append(f"{len(tasks)} of {len(values)} tasks {what} ({why}), wanted {proportion:g}: {_some(tasks)}")
    if far:
        worst = max(far, key=lambda j: abs(values[j] - proportion))
        lines.append(
            f"{len(far)} of {len(values)} tasks fire on a proportion far from {proportion:g} "
            f"(the furthest is {values[worst]:.4g}, task {worst}): {_some(far)}"
        )
    return lines


def _some(tasks: Sequence[int]) -> str:
    shown = ", ".join(str(task) for task in tasks[:10])
    return f"task {shown}" + (f", ... ({len(tasks)} in all)" if len(tasks) > 10 else "")
