"""The paper's aggregates over 44 games, against numbers that were worked out from its table without this code."""

import pytest

from protovalue.evaluate.aggregate import STATISTICS
from protovalue.report import rendering
from protovalue.report.paper import paper_aggregates, paper_report

# Over the 44 games with human scores: median, IQM, mean, optimality gap.
EXPECTED = {
    "DQN": (0.763, 0.898, 3.267, 0.368),
    "Environment Reward": (1.357, 1.664, 8.537, 0.231),
    "Random Initialization": (-0.005, -0.005, -0.253, 1.253),
    "Behavior Cloning": (0.099, 0.108, 0.398, 0.868),
    "SPR": (0.122, 0.117, 0.154, 0.963),
    "Random Cumulants": (0.087, 0.171, 0.421, 0.935),
    "PVN (RNI)": (0.410, 0.414, 1.488, 0.714),
}


def test_all_seven_columns_and_four_statistics() -> None:
    found = paper_aggregates()
    assert list(found) == list(EXPECTED)
    for method, numbers in EXPECTED.items():
        assert [found[method][name].point for name in STATISTICS] == pytest.approx(numbers, abs=0.0005)
        assert not any(found[method][name].has_interval for name in STATISTICS)


def test_the_table_shows_them_and_says_what_they_are() -> None:
    table = paper_report()
    for row, (method, numbers) in zip(table.rows, EXPECTED.items(), strict=True):
        assert [cell.text for cell in row] == [method, *(f"{number:.3f}" for number in numbers)]
        assert [cell.is_best for cell in row] == [False] + [method == "PVN (RNI)"] * 4
    assert "44 Atari games" in table.title
    assert "Carnival and Pooyan have no published human score: 44 of 46 games count" in table.note
    assert "mean over the whole training curve of Dopamine's TensorFlow DQN" in table.note


def test_it_prints_in_a_terminal() -> None:
    text = rendering.plain(paper_report())
    lines = text.splitlines()
    assert "PVN (RNI)               0.410*   0.414*   1.488*           0.714*" in lines
    assert "Random Initialization  -0.005   -0.005   -0.253            1.253" in lines
    assert max(map(len, lines)) <= 100
