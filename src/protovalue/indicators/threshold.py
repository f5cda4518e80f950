"""Thresholds that make each task's indicator fire on a given proportion of states: exactly, or by gradient descent."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import torch
from torch import Tensor

from protovalue.errors import UserError

ScorePass = Callable[[], Iterable[Tensor]]
"""One pass over a data set's scores: chunks (n_i, m), float32; each call gives the same scores again."""

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

    Exact for any number of states: two passes of radix selection over the 2^32 values of float32, 16 bits each, with
    16-digit counts per task in m * 65,536 * 8 bytes (52 MB for 100 tasks), whatever the number of states.

    With v the k-th largest score, k = ceil(p * N), no threshold can do better than v itself, which lets in all ties of
    v, or the next float above v, which lets in none of them. Of two that are equally near, v wins: a task that fires
    somewhere teaches more than one that never does.
    """
    _check_proportion(proportion)
    high = _count(scores, lambda keys: (keys >> 16, None))
    total = int(high[0].sum())
    rank = math.ceil(Fraction(proportion) * total)  # k; exact, because a Fraction holds the float without rounding
    high_digit, above_digit = _select(high, torch.full((len(high),), rank))

    low = _count(scores, lambda keys: (keys & (_DIGIT - 1), (keys >> 16) == high_digit))
    tasks = torch.arange(len(high))
    if not torch.equal(low.sum(1), high[tasks, high_digit]):
        raise RuntimeError("exact thresholds: the second pass gave other scores than the first")
    low_digit, above_low = _select(low, rank - above_digit)
    above = above_digit + above_low  # scores > v
    ties = low[tasks, low_digit]  # scores == v

    value = _value((high_digit << 16) | low_digit)
    target = Fraction(proportion) * total
    keep = torch.tensor([a + t - target <= target - a for a, t in zip(above.tolist(), ties.tolist(), strict=True)])
    after = torch.nextafter(value, torch.tensor(torch.inf))
    return Thresholds(torch.where(keep, value, after), torch.where(keep, above + ties, above), total)


def _check_proportion(proportion: float) -> None:
    if not 0.0 < proportion < 1.0:
        raise UserError(f"proportion: found {proportion}, expected more than 0 and less than 1")


def _keys(scores: Tensor) -> Tensor:
    """Map float32 to int64 in 0 ... 2^32 - 1 with the same order; -0.0 and 0.0, which compare equal, become one."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 = 0.0
    # A negative float's magnitude bits count downwards: flip them, then move the range from [-2^31, 2^31) to [0, 2^32).
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered.to(torch.int64) + (1 << 31)


def _value(keys: Tensor) -> Tensor:
    """Invert `_keys`."""
    ordered = (keys - (1 << 31)).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def _count(scores: ScorePass, digit: Callable[[Tensor], tuple[Tensor, Tensor | None]]) -> Tensor:
    """Count one 16-bit digit of all scores' keys: (m, 65536) int64; `digit` gives it, and which keys to count."""
    counts: Tensor | None = None
    for chunk in scores():
        chunk = _checked(chunk, None if counts is None else len(counts))
        if counts is None:
            counts = torch.zeros(chunk.shape[1], _DIGIT, dtype=torch.int64)
        digits, wanted = digit(_keys(chunk))  # (n, m) each
        flat = digits + torch.arange(len(counts)) * _DIGIT
        flat = flat.flatten() if wanted is None else flat[wanted]
        counts.view(-1).scatter_add_(0, flat, torch.ones_like(flat))
    if counts is None or int(counts[0].sum()) == 0 and wanted is None:
        raise UserError("thresholds: found no scores, expected at least one state")
    return counts


def _checked(chunk: Tensor, num_tasks: int | None) -> Tensor:
    if chunk.dim() != 2 or chunk.dtype != torch.float32 or (num_tasks is not None and chunk.shape[1] != num_tasks):
        expected = "m" if num_tasks is None else num_tasks
        raise ValueError(
            f"scores: found {chunk.dtype} of shape {tuple(chunk.shape)}, expected torch.float32 of shape (n, {expected})"
        )
    chunk = chunk.cpu()
    finite = chunk.isfinite().all(dim=0)
    if not bool(finite.all()):
        task = int((~finite).nonzero()[0])
        column = chunk[:, task]
        row = int((~column.isfinite()).nonzero()[0])
        raise UserError(f"scores of task {task}: found {float(column[row])}, expected finite numbers")
    return chunk


def _select(counts: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per row, the digit of the rank-th largest entry (rank from 1) and how many entries have a larger digit."""
    at_least = counts.flip(1).cumsum(1).flip(1)  # (m, digits): entries with this digit or a larger one, falling
    digit = (at_least >= rank[:, None]).sum(1) - 1  # the last digit that enough entries reach
    above = at_least.gather(1, digit[:, None]).squeeze(1) - counts.gather(1, digit[:, None]).squeeze(1)
    return digit, above


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
    """Say which tasks fire on a proportion further than `tolerance * proportion` from the wanted one; one line per kind.

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
