"""The paper's own numbers, aggregated: what `pvn report --paper` prints."""

from collections.abc import Mapping

import numpy as np

from protovalue.evaluate.aggregate import STATISTIC_TITLES, STATISTICS, Estimate, aggregates
from protovalue.evaluate.scores import (
    PAPER_REFERENCES,
    PAPER_TITLES,
    dopamine_dqn,
    human_normalised,
    paper_scores,
    with_human_scores,
)
from protovalue.randomness import numpy_generator
from protovalue.report.model import Aggregate
from protovalue.report.numbers import SCORE_DIGITS, fixed
from protovalue.report.table import Table, as_table, filled
from protovalue.report.tables import AGGREGATE_COLUMNS, AGGREGATES


def paper_aggregates() -> dict[str, dict[str, Estimate]]:
    """Return median, IQM, mean and optimality gap of every column of the paper's table, human-normalised, by title.

    The table has one number for each game, so that there are no intervals.
    """
    return {PAPER_TITLES[method]: _aggregates(games) for method, games in paper_scores().items()}


def paper_report() -> Table:
    """Return the paper's aggregates as a table with the notes that belong to it.

    `rendering.plain` prints it, as `pvn report --paper` does.
    """
    kept, left_out = with_human_scores(paper_scores()["dqn"])
    at_the_end = _aggregates(dopamine_dqn()["tf_dqn_last5"])
    numbers = ", ".join(
        f"{STATISTIC_TITLES[name]} {fixed(at_the_end[name].point, SCORE_DIGITS)}" for name in STATISTICS
    )
    references = [PAPER_TITLES[method] for method in PAPER_REFERENCES]
    notes = [
        f"Computed from the paper's per-game table, human-normalised: 0 is as good as random actions, 1 as good as a "
        f"human. {' and '.join(left_out)} have no published human score: {len(kept)} of {len(kept) + len(left_out)} "
        "games count. The table has one number per game (one encoder, three agents), so there are no intervals. "
        f"The best is marked, {' and '.join(references)} apart.",
        "DQN: the paper calls it the score after 50M agent steps, but in every game its number is the mean over the "
        "whole training curve of Dopamine's TensorFlow DQN. The last five iterations of the same curves give: "
        f"{numbers}.",
    ]
    rows = [Aggregate(method, len(kept), 1, 3, found) for method, found in paper_aggregates().items()]
    names = [row.method for row in rows]
    return as_table(
        f"The paper's results over {len(kept)} Atari games, human-normalised",
        AGGREGATES.head,
        AGGREGATE_COLUMNS,
        names,
        filled(AGGREGATE_COLUMNS, rows, names, references),
        "\n".join(notes),
    )


def _aggregates(returns: Mapping[str, float]) -> dict[str, Estimate]:
    kept, _ = with_human_scores(returns)
    scores = {game: np.array([[human_normalised(game, returns[game])]]) for game in kept}
    return aggregates(scores, numpy_generator(0))  # nothing is drawn: one number for each game
