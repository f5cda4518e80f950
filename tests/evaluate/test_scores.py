"""Normalised scores and the tables in the package, against the paper's text and the names of ale-py's games."""

import csv
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from protovalue.envs.atari import game_names
from protovalue.errors import UserError
from protovalue.evaluate.scores import (
    PAPER_TITLES,
    dopamine_dqn,
    game_name,
    human_normalised,
    normalised,
    paper_results,
    paper_scores,
    paper_title,
    random_and_human,
    with_human_scores,
)

TABLES = files("protovalue.evaluate") / "tables"


@pytest.mark.parametrize("name", ["atari_human_random.csv", "paper_results.csv", "dopamine_dqn.csv"])
def test_every_table_has_its_source_and_the_46_games_of_ale_py(name: str) -> None:
    lines = (TABLES / name).read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert any("Source: " in line for line in comments)
    games = [row["game"] for row in csv.DictReader(lines[len(comments) :])]
    assert len(games) == len(set(games)) == 46
    assert set(games) <= set(game_names())


def test_human_normalised_by_hand() -> None:
    assert human_normalised("Pong", -20.7) == 0
    assert human_normalised("atari/Pong", 14.6) == 1
    # Breakout: random 1.7, human 30.5
    assert human_normalised("Breakout", 16.1) == pytest.approx(14.4 / 28.8)
    # Double Dunk: random -18.6, human -16.4; worse than random is negative
    assert human_normalised("DoubleDunk", -20.8) == pytest.approx(-1)
    np.testing.assert_allclose(human_normalised("Pong", np.array([[-20.7, 14.6], [49.9, -56.0]])), [[0, 1], [2, -1]])


def test_random_and_human_of_video_pinball_are_of_one_table() -> None:
    assert random_and_human("atari/VideoPinball") == (16256.9, 17667.9)


def test_games_without_human_scores_are_left_out_and_named() -> None:
    games = ["atari/Pong", "atari/Carnival", "Alien", "Pooyan", "atari/Venture"]
    assert with_human_scores(games) == (["atari/Pong", "Alien"], ["atari/Carnival", "Pooyan", "atari/Venture"])
    kept, left_out = with_human_scores(paper_scores()["pvn"])
    assert (len(kept), left_out) == (44, ["Carnival", "Pooyan"])
    with pytest.raises(UserError, match="atari/Carnival: the table of human scores has none"):
        human_normalised("atari/Carnival", 1.0)


@pytest.mark.parametrize(("name", "nearest"), [("SpaceInvader", "SpaceInvaders"), ("atari/pong", "Pong")])
def test_an_unknown_game_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    for function in (game_name, random_and_human, lambda game: with_human_scores([game])):
        with pytest.raises(UserError, match=f"unknown Atari game .*did you mean '{nearest}'"):
            function(name)


def test_normalised_puts_the_random_policy_at_0_and_dqn_at_1() -> None:
    assert normalised(0.4, low=0.4, high=8.4) == 0
    assert normalised(8.4, low=0.4, high=8.4) == 1
    np.testing.assert_allclose(normalised(np.array([4.4, 12.4]), 0.4, 8.4), [0.5, 1.5])


@pytest.mark.parametrize("high", [2.0, 1.0, float("nan")])
def test_a_yardstick_that_is_not_above_random_is_refused(high: Any) -> None:
    with pytest.raises(UserError, match=f"minatar/seaquest: cannot be normalised: .* {high:g}, not above .* 2"):
        normalised(3.0, 2.0, high, name="minatar/seaquest")


def test_the_papers_table_as_printed() -> None:
    assert list(paper_scores()) == list(PAPER_TITLES)
    # Rows as they stand in the paper, in the order of its columns.
    printed = {
        "Alien": [1932.2, 2681.1, 403.7, 414.8, 962.8, 104.7, 1042.8],
        "Boxing": [74.7, 99.5, -30.2, -4.7, 53.0, -2.8, 87.2],
        "Zaxxon": [2985.8, 14329.2, 313.8, 3013.2, 283.8, 1170.9, 4215.0],
    }
    for game, row in printed.items():
        assert [paper_scores()[method][game] for method in PAPER_TITLES] == row
        assert paper_results(f"atari/{game}") == dict(zip(PAPER_TITLES.values(), row, strict=True))
    assert paper_results("minatar/breakout") == {}


def test_the_papers_dqn_is_dopamines_mean_over_training_in_every_game() -> None:
    for game, printed in paper_scores()["dqn"].items():
        assert abs(dopamine_dqn()["tf_dqn_mean_over_training"][game] - printed) < 0.051  # both are rounded
    ends = dopamine_dqn()["tf_dqn_last5"]
    assert sum(abs(ends[game] - printed) < 0.051 for game, printed in paper_scores()["dqn"].items()) == 0


def test_names_of_the_papers_methods() -> None:
    assert paper_title("pvn") == paper_title("PVN (RNI)") == "PVN (RNI)"
    assert paper_title("Random initialisation") == paper_title("random") == "Random Initialization"
    assert paper_title("Behaviour cloning") == "Behavior Cloning"
    assert paper_title("PVN (hash)") is None
