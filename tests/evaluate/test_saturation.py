"""Where a score stops rising with the number of tasks: on scores that are exactly of the model, and on noise."""

import numpy as np
import pytest

from protovalue.evaluate.saturation import saturation
from protovalue.randomness import numpy_generator

TASKS = (1, 2, 4, 8, 16, 32)


def rising(until: int, slope: float, spread: float = 0.0, encoders: int = 3) -> dict[int, dict[str, np.ndarray]]:
    """Two games around 0.5 + slope min(log2 tasks, log2 until), one above and one below the mean of both."""
    offsets = np.linspace(-spread, spread, encoders)
    return {
        tasks: {
            game: 0.5 + shift + slope * min(np.log2(tasks), np.log2(until)) + offsets
            for game, shift in (("a", 0.125), ("b", -0.125))
        }
        for tasks in TASKS
    }


@pytest.mark.parametrize("until", [2, 8, 32])
def test_a_score_of_the_model_is_found_exactly(until: int) -> None:
    found = saturation(rising(until, 0.25), numpy_generator(0), 50)
    assert (found.tasks.point, found.tasks.low, found.tasks.high) == (until, until, until)
    assert (found.slope.point, found.slope.low, found.slope.high) == pytest.approx((0.25, 0.25, 0.25))


def test_the_interval_holds_what_encoders_differ_by() -> None:
    """Offsets of -0.2, 0 and 0.2 move the mean of a cell, so that the place and the slope are not sure any more."""
    found = saturation(rising(8, 0.1, 0.2), numpy_generator(0), 500)
    assert found.tasks.point == 8
    assert found.tasks.low < 8 < found.tasks.high
    assert {found.tasks.low, found.tasks.high} <= set(map(float, TASKS))
    assert found.slope.low < 0.1 < found.slope.high
    wider = saturation(rising(8, 0.1, 0.4), numpy_generator(0), 500)
    assert wider.slope.high - wider.slope.low > found.slope.high - found.slope.low


def test_falling_scores_have_a_negative_slope() -> None:
    assert saturation(rising(32, -0.125), numpy_generator(0), 50).slope.point == pytest.approx(-0.125)


def test_every_game_weighs_the_same() -> None:
    cells = rising(8, 0.25)
    many = {tasks: games | {"a": np.repeat(games["a"], 4)} for tasks, games in cells.items()}
    assert saturation(many, numpy_generator(0), 10).slope.point == pytest.approx(0.25)
    one_game_flat = {tasks: games | {"a": np.full(30, 0.5)} for tasks, games in cells.items()}
    assert saturation(one_game_flat, numpy_generator(0), 10).slope.point == pytest.approx(0.125)


def test_one_encoder_has_no_interval() -> None:
    found = saturation(rising(8, 0.25, encoders=1), numpy_generator(0), 50)
    assert not found.tasks.has_interval
    assert not found.slope.has_interval


@pytest.mark.parametrize(
    "cells",
    [
        {1: {"a": np.ones(2)}, 2: {"a": np.ones(2)}},
        {0: {"a": np.ones(2)}, 1: {"a": np.ones(2)}, 2: {"a": np.ones(2)}},
        {1: {"a": np.ones(2)}, 2: {"a": np.ones(2)}, 4: {"b": np.ones(2)}},
    ],
)
def test_what_cannot_be_fitted_is_refused(cells: dict[int, dict[str, np.ndarray]]) -> None:
    with pytest.raises(ValueError, match="expected three or more from 1 on"):
        saturation(cells, numpy_generator(0), 10)


@pytest.mark.parametrize("side", [1, -1])
def test_the_interval_s_ends_are_percentiles(side: int) -> None:
    """One encoder of five is off by 5 in the last cell: k of five drawn move its mean by k and the slope by k / 2.

    k is binomial with chance 0.2: P(k <= 2) = 0.942 and P(k <= 3) = 0.993, so that 3 is the percentile 97.5. The slope
    of three points 0, 0, k at 0, 1, 2 doublings is k / 2 where they rise to the end, which fits better than to 2.
    """
    cells = {1: {"a": np.zeros(5)}, 2: {"a": np.zeros(5)}, 4: {"a": np.array([0, 0, 0, 0, 5.0 * side])}}
    found = saturation(cells, numpy_generator(0), 4_000)
    assert found.tasks.point == 4
    assert found.slope.point == pytest.approx(0.5 * side)
    assert sorted((found.slope.low, found.slope.high), key=abs) == pytest.approx([0, 1.5 * side])
    assert saturation({n: {"a": own["a"][-2:]} for n, own in cells.items()}, numpy_generator(0), 50).slope.has_interval
