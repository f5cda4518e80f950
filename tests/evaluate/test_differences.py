"""Differences of methods: against SciPy's t tests where there is one task, by hand where there are several."""

import math

import numpy as np
import pytest
from scipy import stats

from protovalue.evaluate.aggregate import Estimate
from protovalue.evaluate.differences import Difference, difference

X, Y = [3.0, 5.0, 4.5, 6.0, 4.0], [2.5, 4.0, 4.5, 4.0, 3.0]


def units(values: list[float], kind: str = "data") -> dict[tuple[str, int], float]:
    return {(kind, i): value for i, value in enumerate(values)}


def test_one_task_of_pairs_is_a_paired_t_test() -> None:
    found = difference({"a": units(X)}, {"a": units(Y)})
    expected = stats.ttest_rel(X, Y).confidence_interval(0.95)
    assert found.estimate.point == pytest.approx(0.9)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((expected.low, expected.high))
    assert (found.tasks, found.units, found.paired) == (1, (5, 5), True)


def test_pairs_are_found_by_what_they_stand_on_not_by_their_order() -> None:
    turned = dict(reversed(units(Y).items()))
    assert difference({"a": units(X)}, {"a": turned}).estimate == difference({"a": units(X)}, {"a": units(Y)}).estimate


def test_one_task_without_pairs_is_welch() -> None:
    found = difference({"a": units(X)}, {"a": units(Y[:3], "encoder")})
    expected = stats.ttest_ind(X, Y[:3], equal_var=False).confidence_interval(0.95)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((expected.low, expected.high))
    assert (found.units, found.paired) == ((5, 3), False)


def test_a_side_with_fewer_data_sets_is_compared_on_those() -> None:
    """The second and fourth of five: both sides have them, in whatever order."""
    some = {("data", 3): Y[3], ("data", 1): Y[1]}
    expected = stats.ttest_rel([X[1], X[3]], [Y[1], Y[3]]).confidence_interval(0.95)
    for x, y, sign in ((units(X), some, 1), (some, units(X), -1)):
        found = difference({"a": x}, {"a": y})
        assert sign * found.estimate.point == pytest.approx(((5 - 4) + (6 - 4)) / 2)
        low, high = sorted((sign * found.estimate.low, sign * found.estimate.high))
        assert (low, high) == pytest.approx((expected.low, expected.high))
        assert (found.units, found.paired) == ((2, 2), True)


def test_sides_that_share_some_data_sets_alone_are_not_paired() -> None:
    found = difference({"a": {("data", 0): 1.0, ("data", 1): 2.0}}, {"a": {("data", 1): 1.0, ("data", 2): 5.0}})
    assert (found.estimate.point, found.units, found.paired) == (-1.5, (2, 2), False)


def test_several_tasks_by_hand() -> None:
    """Pairs 1, 3 and pairs 0, 0, 6: means 2 and 2, variances of the means 2 / 2 = 1 and 12 / 3 = 4.

    Over both: variance (1 + 4) / 4 = 1.25, Satterthwaite 1.25^2 / ((1/4)^2 / 1 + 1^2 / 2) = 2.7777...
    """
    zero = [0.0, 0.0, 0.0]
    found = difference(
        {"a": units([1, 3]), "b": units([0, 0, 6]), "c": units([9])}, {"a": units(zero[:2]), "b": units(zero)}
    )
    half = stats.t.ppf(0.975, 1.5625 / 0.5625) * math.sqrt(1.25)
    assert found.estimate.point == pytest.approx(2)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((2 - half, 2 + half))
    assert (found.tasks, found.units) == (2, (2, 2))
    assert found.variance == pytest.approx(1.25)


def test_one_unit_alone_gives_no_interval() -> None:
    found = difference({"a": units(X), "b": units([1])}, {"a": units(Y), "b": units([0])})
    assert found.estimate.point == pytest.approx((0.9 + 1) / 2)
    assert not found.estimate.has_interval
    assert found.needed() is None


def test_what_differs_by_the_same_everywhere_is_certain() -> None:
    found = difference({"a": units([2, 3, 4])}, {"a": units([1, 2, 3])})
    assert (found.estimate.low, found.estimate.high) == (1, 1)
    assert found.needed() == 2


def test_units_that_are_needed() -> None:
    """(1.96 + 0.84)^2 = 7.849 variances of one unit over the squared difference: 0.5 * 4 * 7.849 / 0.25 = 62.8."""
    seen = Difference(Estimate(0.5, -1, 2), 3, (4, 6), paired=True, variance=0.5)
    assert seen.needed() == 63
    assert seen.needed(margin=-0.5) == 16
    assert seen.needed(margin=0.5) is None


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Two tasks of 4 pairs whose spreads differ five times: 2,000 draws, of which 95% should hold the difference."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        x = {task: units(list(rng.normal(0.3, spread, 4))) for task, spread in (("a", 1.0), ("b", 5.0))}
        y = {task: units([0.0] * 4) for task in x}
        estimate = difference(x, y).estimate
        held += estimate.low <= 0.3 <= estimate.high
    assert 0.94 < held / 2000 < 0.975


def test_methods_without_a_common_task_are_not_compared() -> None:
    with pytest.raises(ValueError, match="expected at least one on both sides"):
        difference({"a": units(X)}, {"b": units(Y)})
