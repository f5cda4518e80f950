"""Splits by value: which iterations of which runs, the numbers of a flag, and an even proportion."""

import pytest

from protovalue.data.splits import SPLITS, Split, Thinning, check_iterations, check_runs, choose_split, numbers
from protovalue.errors import UserError


def test_the_published_splits() -> None:
    taken = {name: [c for c in range(51) if split.takes(c)] for name, split in SPLITS.items()}
    assert taken == {
        "full": list(range(51)),
        "weak": [0],
        "mixed": [0, 9, 19, 29, 39, 49],
        "mixed-small": [0, 24, 49],
        "sgi-weak": [0],
        "sgi-mixed": [0, 24, 49],
    }
    assert {name: split.runs for name, split in SPLITS.items() if split.runs} == {
        "weak": (1, 2, 3, 4, 5),
        "sgi-weak": (1, 2, 3, 4, 5),
    }


def test_a_split_or_listed_checkpoints() -> None:
    assert choose_split("weak", None) is SPLITS["weak"]
    assert choose_split("full", "3,1,3") == Split(frozenset({1, 3}))
    with pytest.raises(UserError, match="--iterations: found 0,1 beside --split mixed, expected one of the two"):
        choose_split("mixed", "0,1")


def test_numbers_of_a_flag() -> None:
    assert numbers("19, 0,9,0", "--runs") == [0, 9, 19]
    for text in ("", "1,", "1;2", "-1", "a", "1.5"):
        with pytest.raises(UserError, match=rf"--runs: found '{text}', expected numbers such as 0,9,19"):
            numbers(text, "--runs")


def test_the_runs_of_a_split() -> None:
    check_runs(SPLITS["weak"], "weak", [5, 1, 2, 2, 3, 4])
    check_runs(SPLITS["full"], "full", [])
    for runs, found in (([1, 2, 3, 4], "1, 2, 3, 4"), ([1, 2, 3, 4, 5, 6], "1, 2, 3, 4, 5, 6"), ([], "none that the")):
        with pytest.raises(UserError, match=rf"--split weak: found runs {found}.*, expected 1 to 5; --iterations 0"):
            check_runs(SPLITS["weak"], "weak", runs)


def test_the_checkpoints_of_a_source() -> None:
    check_iterations(SPLITS["mixed-small"], [49, 0, 24, 7], "--split mixed-small")
    check_iterations(SPLITS["full"], [], "--split full")
    with pytest.raises(UserError, match="^--split x: iteration 24, 49 is not in the source, which has 0 to 30$"):
        check_iterations(SPLITS["mixed-small"], [0, 30], "--split x")
    with pytest.raises(UserError, match="^--split x: iteration 0, 24, 49 is not in the source, which has none$"):
        check_iterations(SPLITS["mixed-small"], [], "--split x")


@pytest.mark.parametrize(
    ("proportion", "taken"),
    [(1.0, [0, 1, 2, 3, 4, 5, 6, 7]), (0.5, [0, 2, 4, 6]), (0.25, [0, 4]), (0.4, [0, 3, 5]), (0.01, [0])],
)
def test_a_proportion_of_each_checkpoint(proportion: float, taken: list[int]) -> None:
    """Item k is taken where k times the proportion passes a whole number, and the first always."""
    thinning = Thinning(proportion)
    for iteration in (3, 9):  # each is counted by itself
        assert [k for k in range(8) if thinning.take(iteration)] == taken
