"""The paper's claims about scores, an entry for each: what it says, where, on what evidence, and what is compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protovalue.evaluate.aggregate import iqm
from protovalue.evaluate.differences import Units, difference
from protovalue.evaluate.scores import human_normalised, paper_scores, with_human_scores
from protovalue.report.cells import CellResult
from protovalue.report.model import Verdict
from protovalue.report.numbers import TIMES, fixed, plural
from protovalue.report.results import Results
from protovalue.report.summary import Scale

NEAR = 0.1
"""A method is near another if it is less than this below it, in normalised scores."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a method, with what tells its variant from others of the same method."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def has(self, cell: CellResult) -> bool:
        """Whether a cell is of this side."""
        own = cell.settings
        return own.get("method") == self.method and all(own.get(f"encoder.{k}") == v for k, v in self.settings.items())


@dataclass(frozen=True)
class Claim:
    """A claim that one method scores higher than another, or at most `margin` lower."""

    text: str
    place: str
    first: Side
    second: Side
    margin: float = 0.0
    figure: str = ""
    """The paper's figure, where its table has no numbers of the two."""

    def evidence(self) -> str:
        """Say what the paper has for it: from its own table, or in a figure without numbers."""
        return self.figure or printed(self.first.method, self.second.method)


PVN = Side("pvn", {"indicator": "rni", "backup": "mean"})
BASELINES, ABLATIONS = 'section "Evaluating the learned representation"', 'section "Ablations"'

CLAIMS = (
    Claim("PVN scores higher than the random initialisation", BASELINES, PVN, Side("random")),
    Claim("PVN scores higher than random cumulants", BASELINES, PVN, Side("cumulants")),
    Claim("PVN scores higher than SPR", BASELINES, PVN, Side("spr")),
    Claim("PVN scores higher than behaviour cloning", BASELINES, PVN, Side("bc")),
    Claim("PVN is near the oracle, which saw the reward", BASELINES, PVN, Side("reward"), -NEAR),
    Claim(
        "Random networks are better indicators than hashes",
        ABLATIONS,
        PVN,
        Side("pvn", {"indicator": "hash"}),
        figure="a figure without numbers",
    ),
    Claim(
        "The mean backup is better than the maximum",
        ABLATIONS,
        PVN,
        Side("pvn", {"indicator": "rni", "backup": "max"}),
        figure="a figure without numbers",
    ),
)


def printed(first: str, second: str) -> str:
    """Compare two methods of the paper's per-game table: IQM of human-normalised scores, and in how many games."""
    table = paper_scores()
    games, _ = with_human_scores(table[first])
    aggregate = [
        iqm({game: np.array([[human_normalised(game, table[method][game])]]) for game in games})
        for method in (first, second)
    ]
    higher = sum(table[first][game] > table[second][game] for game in table[first])
    values = " against ".join(fixed(value, 2) for value in aggregate)
    return f"IQM {values}; higher in {higher} of {len(table[first])} games"


def verdicts(results: Results, scale: Scale, claims: Sequence[Claim] = CLAIMS) -> tuple[Verdict, ...]:
    """Say of each claim that the results have both sides of whether it holds in them."""
    return tuple(_judged(results, scale, claims))


def _judged(results: Results, scale: Scale, claims: Sequence[Claim]) -> Iterator[Verdict]:
    for claim in claims:
        first, second = (_title(results, side) for side in (claim.first, claim.second))
        if first is None or second is None:
            continue
        sides = [{env: units(results.of(title, env), scale, env) for env in scale.yardsticks
                  if results.of(title, env)} for title in (first, second)]  # fmt: skip
        if not sides[0].keys() & sides[1].keys():
            continue
        found = difference(*sides)
        yield Verdict(
            claim.text, claim.place, claim.evidence(), (first, second), found.estimate, claim.margin,
            _stands_on(results, first, second, found.tasks), found.needed(claim.margin),
        )  # fmt: skip


def _title(results: Results, side: Side) -> str | None:
    """Return the method of a side: of several that fit, the first, as the study has them."""
    return next(
        (title for title in results.methods if any(side.has(c) for c in results.cells if c.method == title)), None
    )


def units(cells: Sequence[CellResult], scale: Scale, env: str) -> Units:
    """Return normalised scores of what was drawn independently: data sets where there are several, else encoders."""
    several = len({cell.data_seed for cell in cells}) > 1
    grouped: dict[tuple[str, int], list[float]] = {}
    for number, cell in enumerate(cells):
        seed = cell.pretraining_seed if cell.pretraining_seed is not None else number
        unit = ("data", cell.data_seed) if several and cell.data_seed is not None else ("encoder", seed)
        grouped.setdefault(unit, []).append(float(np.mean(scale.apply(env, cell.returns))))
    return {unit: float(np.mean(scores)) for unit, scores in grouped.items()}


def _stands_on(results: Results, first: str, second: str, games: int) -> str:
    """Say how many games, data sets, encoders and agents a comparison stands on: of the side that has fewer."""
    counts = []
    for title in (first, second):
        per_game = [results.of(title, env) for env in results.envs if results.of(title, env)]
        data = min(len({cell.data_seed for cell in cells}) for cells in per_game)
        encoders, agents = min(map(len, per_game)), min(len(cell.returns) for cells in per_game for cell in cells)
        drawn = all(cell.data_seed is None for cells in per_game for cell in cells)
        counts.append((None if drawn else data, encoders, agents))
    data_sets = [data for data, _, _ in counts if data is not None]
    many = plural(min(encoders for _, encoders, _ in counts), "encoder")
    on = f" on {plural(min(data_sets), 'data set')}" if data_sets else ""
    each = plural(min(agents for _, _, agents in counts), "agent")
    return f" {TIMES} ".join([plural(games, "game"), f"{many}{on}", each])
