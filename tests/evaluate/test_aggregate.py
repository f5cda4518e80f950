"""Aggregates and intervals, against rliable, closed forms, all resamples listed, and examples by hand."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rliable import library, metrics

from protovalue.evaluate import aggregate as agg

ORACLE = {
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


def by_task(matrix: Any) -> dict[Any, Any]:
    """Turn rliable's runs x tasks into our arrays (P, 1) by task."""
    return {f"task {i}": column[:, None] for i, column in enumerate(matrix.T)}


def matrix_of(seed: Any, runs: int = 5, tasks: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.6, 1, (runs, tasks)) * np.linspace(0.5, 2, tasks)


@pytest.fixture
def global_seed() -> Iterator[None]:
    """rliable draws from NumPy's global generator, whatever it is given."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield
    np.random.set_state(state)  # noqa: NPY002


OURS, THEIRS = 20_000, 10_000  # resamples


def same(ours: Any, theirs: Any, step: float = 0.0) -> Any:
    """Whether intervals agree: both ends to 4 standard errors of a percentile, and the width to 4 of its own.

    The q-quantile of R draws of a normal distribution has the standard error sqrt(q (1 - q) / R) / density, for
    q = 0.025 2.67 sigma / sqrt(R), and 3.92 sigma are the width w. With OURS and THEIRS that is 0.0083 w for an end and
    0.0118 w for the width; `step` is the distance of neighbouring values where these are few.
    """
    (low, high), (their_low, their_high) = ours, theirs
    width = their_high - their_low
    error = 2.67 / 3.92 * width * np.sqrt(1 / OURS + 1 / THEIRS)
    ends = max(abs(low - their_low), abs(high - their_high)) < 4 * error + step
    return ends and abs((high - low) - width) < 4 * np.sqrt(2) * error + step


def near(ours: Any, theirs: Any) -> None:
    """Assert that intervals agree, and that one a tenth narrower, or wider, would not."""
    assert same(ours, theirs)
    low, high = ours
    for change in (-0.05, 0.05):
        assert not same((low - change * (high - low), high + change * (high - low)), theirs)


def test_probability_of_improvement_by_hand() -> None:
    x = {"a": np.array([[1.0, 2.0]]), "b": np.array([[5.0]])}
    y = {"b": np.array([[5.0], [7.0]]), "a": np.array([[1.0], [0.0]])}  # tasks in another order
    # a: 1 against 1 and 0 is 1/2 + 1, 2 against both is 2: 3.5 of 4. b: 5 against 5 and 7 is 1/2 of 2.
    assert agg.probability_of_improvement(x, y) == pytest.approx((3.5 / 4 + 0.5 / 2) / 2)
    assert agg.probability_of_improvement(y, x) == pytest.approx(1 - (3.5 / 4 + 0.5 / 2) / 2)


def test_tasks_weigh_the_same_whatever_their_number_of_runs() -> None:
    scores = {"a": np.array([[0.0]]), "b": np.array([[1.0, 2.0, 6.0]]), "c": np.array([[3.0], [5.0]])}
    assert agg.mean(scores) == pytest.approx((0 + 3 + 4) / 3)
    assert agg.median(scores) == pytest.approx(3)
    assert agg.optimality_gap(scores) == pytest.approx(1 / 3)
    np.testing.assert_allclose(agg.performance_profile(scores, [0.0, 2.5]), [2 / 3, (0 + 1 / 3 + 1) / 3])


def test_iqm_of_unequal_numbers_of_runs_by_hand() -> None:
    scores = {"a": np.array([[0.0]]), "b": np.array([[1.0, 2.0, 6.0]])}
    # Weights 1/2 for 0 and 1/6 for 1, 2 and 6. A quarter at the bottom is half of the 0; a quarter at the top is the 6
    # and half of the 2. Left are 1/4 of 0, 1/6 of 1 and 1/12 of 2: 1/3 over 1/2.
    assert agg.iqm(scores) == pytest.approx(2 / 3)


def test_all_statistics_of_one_table_by_hand() -> None:
    """Eight runs in two tasks: a quarter, two, is cut off at each end of -1 0 .2 .4 .6 1 2 4."""
    scores = {"a": np.array([[-1.0, 0.4], [1.0, 2.0]]), "b": np.array([[0.0], [0.2], [0.6], [4.0]])}
    assert agg.iqm(scores) == pytest.approx((0.2 + 0.4 + 0.6 + 1) / 4)
    assert agg.mean(scores) == pytest.approx((2.4 / 4 + 4.8 / 4) / 2)
    assert agg.median(scores) == pytest.approx((0.6 + 1.2) / 2)
    assert agg.optimality_gap(scores) == pytest.approx((2 + 0.6 + 0 + 0 + 1 + 0.8 + 0.4 + 0) / 8)
    # More than tau, not as much: 1 is not above 1.
    assert agg.performance_profile(scores, [-1.0, 0.2, 1.0, 4.0]).tolist() == [7 / 8, 5 / 8, 2 / 8, 0]
    assert agg.performance_profile(scores, 0.5).tolist() == [4 / 8]


def test_student_interval_by_hand() -> None:
    # Means 1, 2, 3: standard deviation 1, t with 2 degrees of freedom 4.30265, half of the width 4.30265 / sqrt(3).
    for values in ([1.0, 2.0, 3.0], [[0.0, 2.0], [2.0, 2.0], [3.0, 3.0]]):
        found = agg.mean_interval(values)
        assert (found.point, found.low, found.high) == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-5)
    # Means 0 and 2: standard deviation sqrt(2), t with 1 degree of freedom 12.7062.
    found = agg.mean_interval([[0.0, 0.0], [1.0, 3.0]])
    assert (found.point, found.low, found.high) == pytest.approx((1, 1 - 12.7062, 1 + 12.7062), abs=1e-4)
    one = agg.mean_interval([[1.0, 2.0, 6.0]])
    assert one.point == 3
    assert not one.has_interval
    for bad in (3.0, [], [1.0, np.inf], np.ones((2, 2, 2))):
        with pytest.raises(ValueError, match=r"expected finite numbers \(P,\) or \(P, S\)"):
            agg.mean_interval(bad)


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_points_are_rliables(seed: Any, runs: Any, tasks: Any) -> None:
    matrix = matrix_of(seed, runs, tasks)
    found = agg.aggregates(by_task(matrix), np.random.default_rng(0), resamples=2)
    assert tuple(found) == agg.STATISTICS == tuple(ORACLE)
    for name, oracle in ORACLE.items():
        assert found[name].point == pytest.approx(oracle(matrix), rel=1e-12, abs=1e-14)
        assert getattr(agg, name)(by_task(matrix)) == found[name].point


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_nested_runs_count_one_by_one_in_points(seed: Any) -> None:
    nested = np.random.default_rng(seed).normal(size=(4, 3, 2))  # tasks, P, S
    matrix = nested.reshape(4, 6).T
    scores = dict(zip("abcd", nested, strict=True))
    for name, oracle in ORACLE.items():
        assert getattr(agg, name)(scores) == pytest.approx(oracle(matrix), rel=1e-12, abs=1e-14)


@pytest.mark.usefixtures("global_seed")
def test_intervals_are_rliables() -> None:
    matrix = matrix_of(3)
    _, theirs = library.get_interval_estimates(
        {"x": matrix}, lambda x: np.array([oracle(x) for oracle in ORACLE.values()]), reps=THEIRS
    )
    ours = agg.aggregates(by_task(matrix), np.random.default_rng(0), resamples=OURS)
    for i, name in enumerate(ORACLE):
        near((ours[name].low, ours[name].high), theirs["x"][:, i])


@pytest.mark.usefixtures("global_seed")
def test_performance_profiles_are_rliables() -> None:
    matrix, taus = matrix_of(4, runs=10, tasks=20), np.linspace(-1, 2, 31)
    points, intervals = library.create_performance_profile({"x": matrix}, taus, reps=THEIRS)
    ours = agg.profile_with_interval(by_task(matrix), taus, np.random.default_rng(0), resamples=OURS)
    np.testing.assert_allclose(ours.share, points["x"], rtol=1e-12)
    np.testing.assert_array_equal(agg.performance_profile(by_task(matrix), taus), ours.share)
    for i in range(len(taus)):
        assert same((ours.low[i], ours.high[i]), intervals["x"][:, i], step=1 / matrix.size)
    # A share is a multiple of 1 / 200, a twentieth of an interval: only the mean over thresholds is sharper than that.
    assert np.mean(ours.high - ours.low) == pytest.approx(np.mean(np.diff(intervals["x"], axis=0)), rel=0.03)


@pytest.mark.usefixtures("global_seed")
def test_probability_of_improvement_is_rliables() -> None:
    rng = np.random.default_rng(5)
    # Whole numbers, for ties; more than 8 runs, so that SciPy computes no exact p-values, which nobody asks for.
    x, y = rng.integers(0, 6, (10, 2)) * 1.0, rng.integers(0, 5, (9, 2)) * 1.0

    def compared(a: Any, b: Any) -> np.ndarray:
        """rliable's own statistic takes 30 times as long, for a p-value."""
        return np.array([np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b))])

    points, intervals = library.get_interval_estimates({"x,y": [x, y]}, compared, reps=THEIRS)
    ours = agg.improvement_with_interval(by_task(x), by_task(y), np.random.default_rng(0), resamples=OURS)
    assert metrics.probability_of_improvement(x, y) == pytest.approx(points["x,y"][0], rel=1e-12)
    assert ours.point == pytest.approx(points["x,y"][0], rel=1e-12)
    assert agg.probability_of_improvement(by_task(x), by_task(y)) == ours.point
    near((ours.low, ours.high), intervals["x,y"][:, 0])


def test_every_resample_has_its_probability() -> None:
    """Two encoders with two agents: 4 draws of encoders times 16 of agents, all listed, are equally likely."""
    scores = np.array([[0.0, 1.0], [3.0, 10.0]])
    expected = defaultdict[tuple[float, float], float](float)
    for encoders in itertools.product(range(2), repeat=2):
        for agents in itertools.product(range(2), repeat=4):
            drawn = [scores[encoders[0], agents[:2]], scores[encoders[1], agents[2:]]]
            expected[float(np.mean(drawn)), float(metrics.aggregate_iqm(np.array(drawn)))] += 1 / 64
    R = 100_000
    values = agg.bootstrap({"task": scores}, np.random.default_rng(0), R)
    found = Counter(zip(values["mean"].tolist(), values["iqm"].tolist(), strict=True))
    assert found.keys() == expected.keys()
    for key, p in expected.items():
        assert abs(found[key] / R - p) < 5 * np.sqrt(p * (1 - p) / R)


def test_variance_of_a_nested_mean() -> None:
    """1/P [mean square of encoders' means + mean square within encoders / S]; with T tasks their sum over T^2."""
    # a: means 1 and 12 around 6.5, within 1 and 4: (5.5^2 + 2.5 / 2) / 2 = 15.75. Runs drawn one by one would give
    # 8.19, encoders without their agents 15.125.
    a = np.array([[0.0, 2.0], [10.0, 14.0]])
    # b: means 2, 5, 8 around 5, within 9, 0, 0: (6 + 3 / 3) / 3 = 7 / 3, with S = 3 and mean square 9 in the first
    within = 3 * np.sqrt(1.5)
    b = np.array([[2 - within, 2.0, 2 + within], [5.0, 5.0, 5.0], [8.0, 8.0, 8.0]])
    for scores, variance in [
        ({"a": a}, 15.75),
        ({"b": b}, 7 / 3),
        ({"a": a, "b": b}, (15.75 + 7 / 3) / 4),
    ]:
        values = agg.bootstrap(scores, np.random.default_rng(0), 200_000)["mean"]
        assert values.mean() == pytest.approx(agg.mean(scores), abs=5 * np.sqrt(variance / 200_000))
        assert values.var() == pytest.approx(variance, rel=0.015)


def test_one_encoder_gives_no_interval() -> None:
    rng = np.random.default_rng(0)
    scores = {"a": rng.normal(size=(1, 9)), "b": rng.normal(size=(3, 3))}
    assert all(np.isfinite(found.point) for found in agg.aggregates(scores, rng).values())
    assert not any(found.has_interval for found in agg.aggregates(scores, rng).values())
    assert np.isnan(agg.profile_with_interval(scores, [0.0, 1.0], rng).low).all()
    assert not agg.improvement_with_interval(scores, {**scores, "a": rng.normal(size=(3, 3))}, rng).has_interval
    several = {"a": rng.normal(size=(2, 1)), "b": rng.normal(size=(3, 3))}
    found = agg.aggregates(several, rng)
    assert all(one.has_interval and one.low <= one.point <= one.high for one in found.values())


def test_the_generator_decides_and_nothing_else() -> None:
    scores = by_task(matrix_of(1))
    before = {task: array.copy() for task, array in scores.items()}
    first = agg.aggregates(scores, np.random.default_rng(7))
    assert agg.aggregates(scores, np.random.default_rng(7)) == first
    assert agg.aggregates(scores, np.random.default_rng(8)) != first
    for task, array in scores.items():
        np.testing.assert_array_equal(array, before[task])


def test_intervals_are_the_middle_95_percent_of_2000_resamples() -> None:
    scores = by_task(matrix_of(2))
    values = agg.bootstrap(scores, np.random.default_rng(3))
    found = agg.aggregates(scores, np.random.default_rng(3))
    for name, drawn in values.items():
        assert drawn.shape == (2000,)
        # The 0.025-quantile of 2,000 in order lies between the 50th and the 51st from below.
        below, above = np.sort(drawn)[[49, 50]], np.sort(drawn)[[1949, 1950]]
        assert below[0] <= found[name].low <= below[1]
        assert above[0] <= found[name].high <= above[1]


@pytest.mark.parametrize("scores", [np.array([1.0, 2.0]), np.zeros((0, 3)), np.array([[1.0, np.nan]])])
def test_scores_that_are_none_are_refused(scores: Any) -> None:
    with pytest.raises(ValueError, match=r"Pong: found scores of shape"):
        agg.mean({"Pong": scores})
    with pytest.raises(ValueError, match="no task"):
        agg.mean({})
    with pytest.raises(ValueError, match=r"found \['b'\] on one side only"):
        agg.probability_of_improvement({"a": np.ones((1, 1))}, {"a": np.ones((1, 1)), "b": np.ones((1, 1))})
