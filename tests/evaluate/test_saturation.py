"""Where a score stops rising with the number of tasks: on lines that rise and fall, and on noise."""

import numpy as np
import pytest

from protovalue.evaluate.saturation import saturation
from protovalue.randomness import numpy_generator

TASKS = (1, 2, 4, 8, 16, 32)


def lines(
    until: int, slope: float, then: float, spread: float = 0.0, encoders: int = 3
) -> dict[int, dict[str, np.ndarray]]:
    """Two games around 0.5 plus `slope` a doubling until a number and `then` after it, one above and one below."""
    offsets = np.linspace(-spread, spread, encoders)
    found = {}
    for tasks in TASKS:
        doublings, last = np.log2(tasks), np.log2(until)
        score = 0.5 + slope * min(doublings, last) + then * max(doublings - last, 0)
        found[tasks] = {game: score + shift + offsets for game, shift in (("a", 0.125), ("b", -0.125))}
    return found


@pytest.mark.parametrize("until", [2, 8, 16])
def test_lines_are_found_exactly(until: int) -> None:
    found = saturation(lines(until, 0.25, -0.125), numpy_generator(0), 50)
    assert (found.tasks.point, found.tasks.low, found.tasks.high) == (until, until, until)
    assert found.gain is not None
    assert found.beyond is not None
    assert (found.gain.point, found.gain.low, found.gain.high) == pytest.approx((0.25, 0.25, 0.25))
    assert (found.beyond.point, found.beyond.low, found.beyond.high) == pytest.approx((-0.125, -0.125, -0.125))


def test_nothing_lies_before_the_first_and_beyond_the_last() -> None:
    rising = saturation(lines(32, 0.25, 0), numpy_generator(0), 50)
    assert (rising.tasks.point, rising.beyond) == (32, None)
    falling = saturation(lines(1, 0, -0.25), numpy_generator(0), 50)
    assert (falling.tasks.point, falling.gain) == (1, None)
    assert falling.beyond is not None
    assert falling.beyond.point == pytest.approx(-0.25)


def test_of_equally_good_numbers_the_smallest_is_best() -> None:
    level = saturation(lines(4, 0.25, 0), numpy_generator(0), 50)
    assert level.tasks.point == 4
    assert level.beyond is not None
    assert level.beyond.point == pytest.approx(0)


def test_the_interval_holds_what_encoders_differ_by() -> None:
    """Offsets of -0.2, 0 and 0.2 move the mean of a cell, so that the place and the slopes are not sure any more."""
    found = saturation(lines(8, 0.1, -0.1, 0.2), numpy_generator(0), 500)
    assert found.tasks.point == 8
    assert found.tasks.low < 8 < found.tasks.high
    assert {found.tasks.low, found.tasks.high} <= set(map(float, TASKS))
    wider = saturation(lines(8, 0.1, -0.1, 0.4), numpy_generator(0), 500)
    for one, other, slope in ((found.gain, wider.gain, 0.1), (found.beyond, wider.beyond, -0.1)):
        assert one is not None
        assert other is not None
        assert one.low < slope < one.high
        assert other.high - other.low > one.high - one.low


def test_every_game_weighs_the_same() -> None:
    cells = lines(8, 0.25, -0.25)
    many = {tasks: games | {"a": np.repeat(games["a"], 4)} for tasks, games in cells.items()}
    flat = {tasks: games | {"a": np.full(30, 0.5)} for tasks, games in cells.items()}
    for found, slope in (
        (saturation(many, numpy_generator(0), 10), 0.25),
        (saturation(flat, numpy_generator(0), 10), 0.125),
    ):
        assert found.gain is not None
        assert found.gain.point == pytest.approx(slope)


def test_one_encoder_has_no_interval() -> None:
    found = saturation(lines(8, 0.25, -0.25, encoders=1), numpy_generator(0), 50)
    assert found.gain is not None
    assert found.gain.point == pytest.approx(0.25)
    assert not found.tasks.has_interval
    assert not found.gain.has_interval


@pytest.mark.parametrize(
    "cells",
    [
        {1: {"a": np.ones(2)}, 2: {"a": np.ones(2)}},
        {0: {"a": np.ones(2)}, 1: {"a": np.ones(2)}, 2: {"a": np.ones(2)}},
        {1: {"a": np.ones(2)}, 2: {"a": np.ones(2)}, 4: {"b": np.ones(2)}},
    ],
)
def test_what_cannot_be_compared_is_refused(cells: dict[int, dict[str, np.ndarray]]) -> None:
    with pytest.raises(ValueError, match="expected three or more from 1 on"):
        saturation(cells, numpy_generator(0), 10)


def test_the_interval_s_ends_are_percentiles() -> None:
    """One encoder of five is off by 5 in the last cell: k of five drawn move its mean by k and the slope by k / 2.

    k is binomial with chance 0.2: P(k <= 2) = 0.942 and P(k <= 3) = 0.993, so that 3 is the percentile 97.5. The slope
    of three points 0, 0, k at 0, 1, 2 doublings is k / 2. With k = 0, a third of the draws, the first number is best.
    """
    cells = {1: {"a": np.zeros(5)}, 2: {"a": np.zeros(5)}, 4: {"a": np.array([0, 0, 0, 0, 5.0])}}
    found = saturation(cells, numpy_generator(0), 4_000)
    assert (found.tasks.point, found.tasks.low, found.tasks.high) == (4, 1, 4)
    assert found.gain is not None
    assert (found.gain.point, found.gain.low, found.gain.high) == pytest.approx((0.5, 0, 1.5))
    below = {number: {"a": -games["a"]} for number, games in cells.items()}
    falling = saturation(below, numpy_generator(0), 4_000).beyond
    assert falling is not None
    assert (falling.point, falling.low, falling.high) == pytest.approx((-0.5, -1.5, 0))
    two = saturation({n: {"a": own["a"][-2:]} for n, own in cells.items()}, numpy_generator(0), 50)
    assert two.tasks.has_interval
