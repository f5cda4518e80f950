"""Scores on a scale that games share: human-normalised for Atari, between random policy and DQN for MinAtar.

The tables that this needs lie beside it, in `tables/`, each with its source in its first lines.
"""

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protovalue.errors import UserError, unknown

Score = TypeVar("Score", float, NDArray[np.float64])

PREFIX = "atari/"
PAPER_TITLES = {
    "dqn": "DQN",
    "reward": "Environment Reward",
    "random": "Random Initialization",
    "bc": "Behavior Cloning",
    "spr": "SPR",
    "cumulants": "Random Cumulants",
    "pvn": "PVN (RNI)",
}
"""The columns of the paper's per-game table, in its order: this package's name of a method and the paper's."""
PAPER_REFERENCES = ("dqn", "reward")
"""The columns that the paper sets apart, because they saw the reward: the best of the others is in bold."""


def game_name(env: str) -> str:
    """Return the name of an Atari game, "Pong" for both "atari/Pong" and "Pong"; an unknown one is a UserError."""
    name = env.removeprefix(PREFIX)
    if name in _human_random():
        return name
    from protovalue.envs.atari import game_names  # needs ale-py, which a report over other games does not

    known = game_names()
    if name not in known:
        raise unknown("Atari game", name, known)
    return name


def with_human_scores(games: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split Atari games into those that can be human-normalised and those that are left out.

    Left out are Carnival and Pooyan, which have no published human score, and games that RL Unplugged does not have.

    Returns:
        The names as they were given, in the order given: (with human scores, left out).
    """
    kept: list[str] = []
    left_out: list[str] = []
    for game in games:
        (kept if _human_random().get(game_name(game)) else left_out).append(game)
    return kept, left_out


def random_and_human(game: str) -> tuple[float, float]:
    """Return the mean returns of random actions and of a human in an Atari game."""
    found = _human_random().get(game_name(game))
    if found is None:
        raise UserError(f"{game}: the table of human scores has none for this game, so it cannot be human-normalised")
    return found


def human_normalised(game: str, score: Score) -> Score:
    """Return (score - random) / (human - random): 0 is as good as random actions, 1 as good as a human."""
    return normalised(score, *random_and_human(game), name=game)


def normalised(score: Score, low: float, high: float, name: str = "scores") -> Score:
    """Return (score - low) / (high - low), as with the random policy's return as `low` and DQN's as `high`.

    Args:
        score: A return or an array of them.
        low: The return that becomes 0.
        high: The return that becomes 1; a yardstick that is not above `low` measures nothing and is a UserError.
        name: What the scores are of, for the error.
    """
    if not high > low:
        raise UserError(f"{name}: cannot be normalised: the upper yardstick is {high:g}, not above the lower, {low:g}")
    return (score - low) / (high - low)


@cache
def paper_scores() -> Mapping[str, Mapping[str, float]]:
    """Return the paper's per-game table: mean evaluation return by method (see PAPER_TITLES) and game.

    The column "dqn" is not what the paper says: see `dopamine_dqn`.
    """
    return _columns("paper_results.csv")


def paper_title(method: str) -> str | None:
    """Return the paper's name of a method that is called as in the paper, in either spelling, or as in this package."""
    american = method.lower().replace("initialisation", "initialization").replace("behaviour", "behavior")
    named = {**PAPER_TITLES, **{title.lower(): title for title in PAPER_TITLES.values()}}
    return named.get(american)


def paper_results(env: str) -> dict[str, float]:
    """Return the mean returns that the paper prints for an environment, by its name of the method; mostly empty."""
    game = env.removeprefix(PREFIX)
    return {PAPER_TITLES[method]: games[game] for method, games in paper_scores().items() if game in games}


@cache
def dopamine_dqn() -> Mapping[str, Mapping[str, float]]:
    """Return the mean return of Dopamine's DQN by part of its training and game.

    "tf_dqn_mean_over_training" is, rounded, the paper's DQN column; "tf_dqn_last5" is the end of the same training.
    """
    return _columns("dopamine_dqn.csv")


@cache
def _human_random() -> Mapping[str, tuple[float, float] | None]:
    rows = _rows("atari_human_random.csv")
    return {row["game"]: (float(row["random"]), float(row["human"])) if row["human"] else None for row in rows}


def _columns(table: str) -> dict[str, dict[str, float]]:
    rows = _rows(table)
    return {name: {row["game"]: float(row[name]) for row in rows} for name in rows[0] if name != "game"}


def _rows(table: str) -> list[dict[str, str]]:
    text = (files("protovalue.evaluate") / "tables" / table).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
