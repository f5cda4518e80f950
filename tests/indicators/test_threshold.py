"""Thresholds: the exact ones against a sort, the quantile loss against values by hand, the warnings."""

import inspect
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from torch import Tensor

from protovalue.errors import UserError
from protovalue.indicators.threshold import (
    ScorePass,
    exact_thresholds,
    proportion_warnings,
    quantile_loss,
    sgd_thresholds,
)


def passes(scores: Tensor, chunk: int = 7) -> ScorePass:
    return lambda: iter(scores.split(chunk))


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def best_count(scores: NDArray[np.float32], proportion: float) -> int:
    """Try every threshold: each score, and one above them all. Of two counts equally near, the larger."""
    target = Fraction(str(proportion)) * len(scores)
    counts = {0} | {int((scores >= value).sum()) for value in scores}
    return min(counts, key=lambda count: (abs(count - target), -count))


few = st.sampled_from(
    [-3.4028235e38, -1.5, -1.1754944e-38, -1e-45, -0.0, 0.0, 1e-45, 0.25, 0.25000003, 2.0, 3.4028235e38]
)
many = st.floats(width=32, allow_nan=False, allow_infinity=False)
tables = array_shapes(min_dims=2, max_dims=2, max_side=20).flatmap(
    lambda shape: arrays(np.float32, (shape[0], min(shape[1], 3)), elements=few | many)
)
proportions = st.floats(0.001, 0.999) | st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.5, 0.75])


def test_without_ties_it_is_the_quantile() -> None:
    scores = torch.stack([torch.randperm(1000, generator=torch.Generator().manual_seed(j)) for j in range(3)], 1)
    found = exact_thresholds(passes(scores.float() - 500, 64), 0.05)
    assert found.thresholds.tolist() == [450.0] * 3  # 450 ... 499 are the 50 largest
    assert found.counts.tolist() == [50] * 3
    assert found.proportions.tolist() == [0.05] * 3


@pytest.mark.parametrize(
    ("scores", "proportion", "threshold", "count"),
    [
        ([3.0], 0.01, np.nextafter(np.float32(3), np.float32(4)), 0),  # one state: all or none; none is nearer
        ([3.0], 0.6, 3.0, 1),
        ([3.0], 0.5, 3.0, 1),  # equally near: the one that fires
        ([1.0, 2.0, 2.0, 2.0], 0.4, 2.0, 3),  # 3 of 4 or none of 4 for 1.6 of 4
        ([1.0, 2.0, 2.0, 2.0], 0.3, np.nextafter(np.float32(2), np.float32(3)), 0),
        ([-0.0, 0.0, -1.0, -1.0], 0.5, 0.0, 2),  # the two zeros are equal
        ([-0.0, 0.0, -1.0, 1.0], 0.25, 1.0, 1),
        ([-1.0, -2.0, -3.0, -4.0], 0.5, -2.0, 2),
    ],
)
def test_by_hand(scores: list[float], proportion: float, threshold: float, count: int) -> None:
    found = exact_thresholds(passes(column(*scores), 3), proportion)
    assert found.thresholds.tolist() == [threshold]
    assert found.counts.tolist() == [count]
    assert str(found.thresholds.item()) != "-0.0"


def test_bad_scores_are_named() -> None:
    scores = torch.zeros(20, 4)
    for bad in (torch.nan, torch.inf, -torch.inf):
        scores[13, 2] = bad
        with pytest.raises(UserError, match=rf"scores of task 2: found {bad}, expected finite numbers"):
            exact_thresholds(passes(scores), 0.1)
    with pytest.raises(UserError, match="found no scores"):
        exact_thresholds(list, 0.1)
    with pytest.raises(UserError, match="found no scores"):
        exact_thresholds(lambda: [torch.zeros(0, 3)], 0.1)
    with pytest.raises(ValueError, match=r"found torch.float32 of shape \(2, 4\), expected .* \(n, 3\)"):
        exact_thresholds(lambda: [torch.zeros(2, 3), torch.zeros(2, 4)], 0.1)
    with pytest.raises(ValueError, match=r"found torch.float64"):
        exact_thresholds(lambda: [torch.zeros(2, 3, dtype=torch.float64)], 0.1)
    for bad in (0.0, 1.0, 1.5, float("nan")):
        with pytest.raises(UserError, match=f"proportion: found {bad}, expected more than 0 and less than 1"):
            exact_thresholds(passes(torch.zeros(2, 2)), bad)
        with pytest.raises(UserError, match=f"proportion: found {bad}, expected more than 0 and less than 1"):
            sgd_thresholds([torch.zeros(2, 2)], bad, steps=1)


def test_passes_that_differ_are_noticed() -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(RuntimeError, match="the second pass gave other scores"):
        exact_thresholds(lambda: [torch.randn(1000, 2, generator=generator)], 0.1)


def test_quantile_loss_by_hand() -> None:
    scores = torch.tensor([[1.0, -3.0], [-2.0, 0.0], [4.0, 1.0], [0.5, 2.0]], dtype=torch.float64)
    bias = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    # p = 0.25: r' (0.75 - 1[r' < 0]).
    # Task 0: r' = 0, -3, 3, -.5 -> 0, 0.75, 2.25, 0.125; mean 0.78125.
    # Task 1: r' = -2, 1, 2, 3   -> 0.5, 0.75, 1.5, 2.25; mean 1.25.
    torch.testing.assert_close(quantile_loss(scores, bias, 0.25), torch.tensor([0.78125, 1.25], dtype=torch.float64))


def test_quantile_loss_slopes_with_the_proportion_that_is_too_much() -> None:
    scores = column(1.0, -2.0, 4.0, 0.5)
    bias = torch.tensor([-0.5], requires_grad=True)  # r' = .5, -2.5, 3.5 and 0: three of four fire
    quantile_loss(scores, bias, 0.25).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [0.75 - 0.25]


@pytest.mark.parametrize(
    ("scores", "proportion", "minimum", "loss"),
    [
        # The (1 - p)-quantile of each, as the smallest score that at least a share 1 - p does not exceed.
        # 3/5 of 5 is the third: 2. r' = -1, 0, 0, 0, 3: 0.4 + 3 * 0.6 over 5.
        ([1.0, 2.0, 2.0, 2.0, 5.0], 0.4, 2.0, 2.2 / 5),
        # 0.85 of 5 is the fifth: 5. r' = -4, -3, -3, -3, 0: 13 * 0.15 over 5.
        ([1.0, 2.0, 2.0, 2.0, 5.0], 0.15, 5.0, 13 * 0.15 / 5),
        # 0.1 of 5 is the first: 1. r' = 0, 1, 1, 1, 4: 7 * 0.1 over 5.
        ([2.0, 5.0, 2.0, 1.0, 2.0], 0.9, 1.0, 7 * 0.1 / 5),
        ([-3.0, -3.0, -3.0], 0.5, -3.0, 0.0),
    ],
)
def test_the_quantile_loss_is_least_at_the_quantile_also_with_ties(
    scores: list[float], proportion: float, minimum: float, loss: float
) -> None:
    column_of = column(*scores).double()
    assert quantile_loss(column_of, torch.tensor([-minimum]).double(), proportion).item() == pytest.approx(loss)
    for threshold in np.arange(-6.0, 8.0, 0.25).tolist():
        if threshold != minimum:
            assert quantile_loss(column_of, torch.tensor([-threshold]).double(), proportion).item() > loss
    # The exact threshold is that score, or the next float above it where without its ties the proportion is nearer.
    found = exact_thresholds(passes(column(*scores)), proportion).thresholds.item()
    assert found in (minimum, np.nextafter(np.float32(minimum), np.float32(np.inf)))


@pytest.mark.parametrize("proportion", [0.05, 0.3, 0.9])
def test_the_exact_threshold_minimises_the_quantile_loss(proportion: float) -> None:
    scores = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    best = exact_thresholds(passes(scores, 100), proportion).thresholds
    here = quantile_loss(scores.double(), -best.double(), proportion)
    for shift in (-0.1, -0.02, 0.02, 0.1):
        assert quantile_loss(scores.double(), -best.double() + shift, proportion) > here


def test_gradient_descent_finds_the_quantile() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, 2, generator=generator) * torch.tensor([1.0, 0.5]) + torch.tensor([1.0, -0.5])

    def batches() -> Iterator[Tensor]:
        while True:
            yield scores[torch.randint(4000, (256,), generator=generator)]

    found = sgd_thresholds(batches(), 0.1, steps=1500, learning_rate=5e-3)
    achieved = (scores >= found).double().mean(0)
    assert achieved.tolist() == pytest.approx([0.1, 0.1], abs=0.03)
    # Two steps move by at most about two learning rates.
    assert sgd_thresholds(batches(), 0.1, steps=2, learning_rate=5e-3).abs().max() < 0.011


def test_two_steps_of_adam_by_hand() -> None:
    """Rate 0.1, epsilon 1.5e-4; the slope is the proportion that fires minus p = 1/4."""
    first, second = column(1.0, 2.0, -1.0, 3.0), column(-1.0, -2.0, -3.0, -4.0)  # slopes 3/4 - 1/4 and 0 - 1/4
    one = 0.1 * 0.5 / (0.5 + 1.5e-4)  # the first step is the slope over its own size
    assert sgd_thresholds([first], 0.25, 1, 0.1).tolist() == pytest.approx([one], rel=1e-5)
    mean = (0.9 * 0.1 * 0.5 + 0.1 * -0.25) / (1 - 0.9**2)
    square = (0.999 * 0.001 * 0.25 + 0.001 * 0.0625) / (1 - 0.999**2)
    two = one + 0.1 * mean / (square**0.5 + 1.5e-4)  # 0.09997 + 0.02662
    assert sgd_thresholds([first, second], 0.25, 2, 0.1).tolist() == pytest.approx([two], rel=1e-5)


def test_adams_epsilon_slows_small_slopes_down() -> None:
    """3/4 fire where 0.7499 should: a slope of 1e-4 over 1e-4 + 1.5e-4 is 0.4 of the rate."""
    found = sgd_thresholds([column(1.0, 2.0, -1.0, 3.0)], 0.7499, 1, 0.1)
    assert found.tolist() == pytest.approx([0.04], rel=2e-3)


def test_the_papers_burn_in_and_rate_are_the_defaults() -> None:
    defaults = {name: one.default for name, one in inspect.signature(sgd_thresholds).parameters.items()}
    assert (defaults["steps"], defaults["learning_rate"]) == (62_500, 1e-4)


def test_gradient_descent_wants_all_its_batches() -> None:
    with pytest.raises(UserError, match="found 3 batches of scores, expected 4"):
        sgd_thresholds(iter([torch.zeros(2, 2)] * 3), 0.1, steps=4)
    with pytest.raises(UserError, match="scores of task 1: found nan"):
        sgd_thresholds([torch.tensor([[0.0, torch.nan]])], 0.1, steps=1)


def test_warnings_name_the_tasks() -> None:
    assert proportion_warnings([0.01, 0.014, 0.006], 0.01) == []
    lines = proportion_warnings(torch.tensor([0.01, 0.0, 1.0, 0.02, 0.0, 0.4]), 0.01)
    assert lines == [
        "2 of 6 tasks never fire (a constant score, or many ties), wanted 0.01: task 1, 4",
        "1 of 6 tasks always fire (a constant score, or many ties), wanted 0.01: task 2",
        "2 of 6 tasks fire on a proportion far from 0.01 (the furthest is 0.4, task 5): task 3, 5",
    ]
    (line,) = proportion_warnings([0.0] * 12, 0.01)
    assert line.endswith("task 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... (12 in all)")
    assert proportion_warnings([0.014], 0.01, tolerance=0.3) != []
    assert proportion_warnings([0.01498, 0.00502], 0.01) == []  # half of the proportion is not yet far
    (line,) = proportion_warnings([0.01502, 0.00498], 0.01)
    assert line.startswith("2 of 2 tasks fire on a proportion far from 0.01 (the furthest is")
    assert proportion_warnings([0.75, 0.25], 0.5) == []  # exactly half, without rounding
    (line,) = proportion_warnings([1.0] * 10, 0.01)
    assert line.endswith("task 0, 1, 2, 3, 4, 5, 6, 7, 8, 9")
    (line,) = proportion_warnings([1.0] * 11, 0.01)
    assert line.endswith("8, 9, ... (11 in all)")
    (line,) = proportion_warnings([0.8, 0.05], 0.5, tolerance=0.1)  # further below than the other is above
    assert "the furthest is 0.05, task 1)" in line


def test_a_constant_network_is_warned_about() -> None:
    scores = torch.stack([torch.full((100,), 0.7), torch.arange(100.0)], 1)
    found = exact_thresholds(passes(scores), 0.01)
    assert found.counts.tolist() == [0, 1]
    (line,) = proportion_warnings(found.proportions, 0.01)
    assert line.startswith("1 of 2 tasks never fire")


@settings(max_examples=200, deadline=None)
@given(tables, proportions, st.integers(1, 50))
@example(np.zeros((2, 1), np.float32), 0.5, 1)
@example(np.array([[-0.0], [0.0], [1.0]], np.float32), 0.4, 1)
def test_no_threshold_comes_nearer(scores: NDArray[np.float32], proportion: float, chunk: int) -> None:
    found = exact_thresholds(passes(torch.from_numpy(scores), chunk), proportion)
    assert found.total == len(scores)
    for task in range(scores.shape[1]):
        threshold = found.thresholds[task].numpy()
        assert int((scores[:, task] >= threshold).sum()) == int(found.counts[task])
        assert int(found.counts[task]) == best_count(scores[:, task], proportion)


def test_counts_beyond_the_integers_of_float32_are_exact() -> None:
    chunk = torch.randn(500_000, 1, generator=torch.Generator().manual_seed(0))

    def scores() -> Iterator[Tensor]:
        for _ in range(40):
            yield chunk

    found = exact_thresholds(scores, 0.01)
    # 200,000 of 20 million are the 5,000 largest of the chunk, 40 times each.
    expected = np.sort(chunk.numpy()[:, 0])[-5000]
    assert found.total == 20_000_000
    assert found.thresholds.item() == expected
    assert found.counts.item() == 200_000
