"""Verdicts on the paper's claims: what is compared with what, over which units, and what the interval decides."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from protovalue.report import claims, summary
from protovalue.report.cells import CellResult
from protovalue.report.comparing import Subject, units
from protovalue.report.model import Estimate, FeatureNumbers, Spread, Verdict
from protovalue.report.numbers import TIMES
from protovalue.report.page import write_page
from protovalue.report.results import EncoderFeatures, Results
from protovalue.report.tables import CLAIMS
from tests.report import fake
from tests.report.test_page import Page

GAMES = ("minatar/breakout", "minatar/asterix")


def cell(
    method: str, env: str, score: float, data: int | None, seed: int, family: str = "pvn", **settings: Any
) -> CellResult:
    """An encoder whose two agents lie around a score; a random policy scores 0 and DQN 10."""
    encoder = {f"encoder.{name}": value for name, value in {"indicator": "rni", "backup": "mean", **settings}.items()}
    kind = "dqn" if family == "dqn" else "online"
    return CellResult(
        env, method, 1, None, data, None if kind == "dqn" else seed, (0, 1), np.array([score - 1, score + 1]), 10, 200,
        np.zeros(1), np.zeros((2, 1)), Path(f"{method}-{seed}"), None, None,
        {"kind": kind, "method": family, **encoder},
    )  # fmt: skip


def results(cells: list[CellResult]) -> Results:
    cells = [*cells, *(cell("DQN", env, 10, None, 0, "dqn") for env in GAMES)]
    methods = tuple(dict.fromkeys(one.method for one in cells))
    return Results("r", "R", "dqn", methods, GAMES, tuple(cells), random_policy=dict.fromkeys(GAMES, 0.0))


def subject(cells: list[CellResult], features: Sequence[FeatureNumbers] = ()) -> Subject:
    made = results(cells)
    return Subject(made, summary.scale_of(made), features)


def judge(cells: list[CellResult]) -> dict[str, Verdict]:
    return {verdict.claim: verdict for verdict in claims.verdicts(subject(cells))}


PVN = {GAMES[0]: [6.0, 7.0, 8.0], GAMES[1]: [2.0, 3.0, 2.5]}
CUMULANTS = {GAMES[0]: [5.0, 6.5, 7.0], GAMES[1]: [2.5, 2.5, 2.5]}


def both(family: str = "cumulants", data: Any = lambda seed: seed) -> list[CellResult]:
    return [
        *(cell("PVN", env, score, data(seed), seed) for env, row in PVN.items() for seed, score in enumerate(row)),
        *(
            cell(family, env, score, data(seed), seed, family)
            for env, row in CUMULANTS.items()
            for seed, score in enumerate(row)
        ),
    ]


def test_data_sets_are_compared_pair_by_pair() -> None:
    """Scores are tenths. Pairs of Breakout 0.1, 0.05, 0.1 and of Asterix -0.05, 0.05, 0: means 0.08333 and 0."""
    verdict = judge(both())["PVN scores higher than random cumulants"]
    pairs = np.array([[0.1, 0.05, 0.1], [-0.05, 0.05, 0]])
    parts = pairs.var(axis=1, ddof=1) / 3 / 4
    half = stats.t.ppf(0.975, parts.sum() ** 2 / (parts**2 / 2).sum()) * math.sqrt(parts.sum())
    assert verdict.difference.point == pytest.approx(0.25 / 6)
    assert (verdict.difference.low, verdict.difference.high) == pytest.approx((0.25 / 6 - half, 0.25 / 6 + half))
    assert verdict.methods == ("PVN", "cumulants")
    assert verdict.stands_on == f"2 games {TIMES} 3 encoders on 3 data sets {TIMES} 2 agents"
    assert verdict.verdict == f"cannot be told: about {verdict.needed} a game would tell"
    assert verdict.evidence == "IQM 0.41 against 0.17; higher in 34 of 46 games"


def test_encoders_of_one_data_set_are_no_pairs_by_their_data() -> None:
    """All on data set 0: encoders of the same seed start alike and see the same batches, so that they are pairs."""
    made = results(both(data=lambda seed: 0))
    found = units(made.of("PVN", GAMES[0]), summary.scale_of(made), GAMES[0])
    assert found == {("encoder", seed): pytest.approx(score / 10) for seed, score in enumerate(PVN[GAMES[0]])}


def test_several_encoders_of_a_data_set_are_one_unit() -> None:
    cells = [cell("PVN", GAMES[0], score, data, seed) for data, seed, score in ((0, 0, 1), (0, 1, 3), (1, 0, 6))]
    made = results(cells)
    found = units(made.of("PVN", GAMES[0]), summary.scale_of(made), GAMES[0])
    assert found == {("data", 0): pytest.approx(0.2), ("data", 1): pytest.approx(0.6)}


def test_variants_are_told_apart_by_their_settings() -> None:
    cells = [
        cell(title, env, score + seed / 10, seed, seed, "pvn", **settings)
        for title, score, settings in (
            ("hashed", 4, {"indicator": "hash"}),
            ("PVN", 6, {}),
            ("largest", 7, {"backup": "max"}),
            ("PVN, rare", 1, {"proportion": 0.01}),
        )
        for env in GAMES
        for seed in range(3)
    ]
    found = judge(cells)
    assert set(found) == {
        "Random networks are better indicators than hashes",
        "The mean backup is better than the maximum",
    }
    hashes, maximum = found.values()
    assert (hashes.methods, hashes.verdict) == (("PVN", "hashed"), "holds here")
    assert (maximum.methods, maximum.verdict) == (("PVN", "largest"), "does not hold here")
    assert maximum.difference.point == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("estimate", "margin", "expected"),
    [
        (Estimate(0.2, 0.1, 0.3), 0.0, "holds here"),
        (Estimate(0.2, -0.1, 0.5), 0.0, "cannot be told: about 12 a game would tell"),
        (Estimate(-0.2, -0.3, -0.1), 0.0, "does not hold here"),
        (Estimate(-0.03, -0.08, 0.02), -0.1, "holds here"),
        (Estimate(-0.3, -0.4, -0.2), -0.1, "does not hold here"),
        (Estimate(0.2), 0.0, "cannot be told: too few encoders"),
    ],
)
def test_the_interval_decides(estimate: Estimate, margin: float, expected: str) -> None:
    verdict = Verdict("A is better", "here", "a table", ("A", "B"), estimate, margin, "1 game", 12)
    assert verdict.verdict == expected
    assert replace(verdict, needed=None).verdict == expected.partition(": about")[0]


def test_methods_without_the_other_side_are_no_claim() -> None:
    assert judge([cell("PVN", env, 5, 0, 0) for env in GAMES]) == {}


def test_the_table_is_in_files_and_on_the_page(tmp_path: Path) -> None:
    verdict = Verdict("A is better", "here", "a table", ("A", "B"), Estimate(0.25, 0.125, 0.375), 0, "2 games", None)
    report = replace(fake.report(tmp_path), verdicts=(verdict,))
    table = CLAIMS.for_files(report)
    assert [number.text for number in table.rows[0]] == [
        "A is better", "holds here", "0.250 [0.125, 0.375]", "normalised score", "2 games", "a table", "here",
    ]  # fmt: skip
    shown = Page(write_page(report, tmp_path / "page.html")).tables["claims-table"]
    assert [entry["text"] for entry in shown[1]][:2] == ["A is better", "holds here 2 games; in normalised score"]
    assert "claims-table" not in Page(write_page(fake.report(tmp_path), tmp_path / "other.html")).tables


WIDE, NARROW = 2, 0.25
# Scores in tenths of three seeds by width and number of tasks. The wide network gains 1, 2 and 3 tenths a doubling and
# nothing else; the narrow one gains a tenth from 1 to 2 tasks and loses a tenth from 4 to 8, seed by seed more.
GRID: dict[tuple[float, int], list[float]] = {
    (WIDE, 1): [1, 1, 1], (WIDE, 2): [2, 3, 4], (WIDE, 4): [3, 5, 7], (WIDE, 8): [4, 7, 10],
    (NARROW, 1): [1, 1, 1], (NARROW, 2): [2, 2, 2], (NARROW, 4): [2, 2, 2], (NARROW, 8): [1, 0.5, 0],
    (WIDE, 0): [0.5, 0.5, 0.5], (NARROW, 0): [0, 0, 0],
}  # fmt: skip


def grid_cells(places: Sequence[tuple[float, int]] = tuple(GRID)) -> list[CellResult]:
    return [
        replace(
            cell(f"PVN, {width}x, {tasks} tasks", env, score, 0, seed, "pvn" if tasks else "random"),
            width=width, tasks=tasks,
        )
        for width, tasks in places for env in GAMES for seed, score in enumerate(GRID[width, tasks])
    ]  # fmt: skip


def test_claims_about_widths_and_tasks() -> None:
    """Slopes in scores: wide 0.1, 0.2, 0.3; narrow, over 0, 1, 2, 3 doublings, (-3, -1, 1, 3) . scores / 10."""
    found = judge(grid_cells())
    assert "PVN scores higher than the random initialisation" not in found  # of which width, with how many tasks?
    few = found["Wider networks score higher, even with few tasks"]
    assert (few.difference.point, few.methods) == (0, ("width 2, 1 tasks", "width 0.25, 1 tasks"))
    more = found["More tasks help the widest network"]
    half = stats.t.ppf(0.975, 4) * math.sqrt(0.01 / 3 / 2)  # two games alike: 2 degrees of freedom each
    assert more.difference.point == pytest.approx(0.2)
    assert more.difference.low == pytest.approx(0.2 - half)
    assert more.unit == "normalised score per doubling of the tasks"
    assert more.verdict == "holds here"
    carry = found["Wider networks carry more tasks"]
    narrow = np.array([0, -0.015, -0.03])
    assert carry.difference.point == pytest.approx(np.mean(np.array([0.1, 0.2, 0.3]) - narrow))
    suffer = found["Small networks suffer from too many tasks"]  # of 4 numbers, the last two: 4 and 8
    assert suffer.difference.point == pytest.approx((0.1 + 0.15 + 0.2) / 3)
    assert suffer.methods == ("no loss", "width 0.25, 4 tasks and more")
    some = found["Some tasks are better than none"]
    assert some.difference.point == pytest.approx(np.mean([np.mean(GRID[p]) for p in GRID if p[1]]) / 10 - 0.025)
    assert some.stands_on == f"2 games {TIMES} 3 encoders on 1 data set {TIMES} 2 agents"


def test_a_grid_with_few_places_has_fewer_claims() -> None:
    wide = [place for place in GRID if place[0] == WIDE]
    assert "More tasks help the widest network" not in judge(grid_cells(wide))  # of one width
    no_none = judge(grid_cells([place for place in GRID if place[1]]))
    assert "Some tasks are better than none" not in no_none
    assert "More tasks help the widest network" in no_none


def test_claims_about_features() -> None:
    """Ranks 32, 16 and 64 against 32: binary logarithms 0, -1 and 1 apart; smoothness 0.25 lower, each."""

    def seen(title: str, ranks: Sequence[float], smoothness: float) -> FeatureNumbers:
        each = tuple(EncoderFeatures(s, s, 64, rank, smoothness, None) for s, rank in enumerate(ranks))
        spread = Spread(0, 0, 0)
        return FeatureNumbers(GAMES[0], title, 3, 64, spread, spread, None, each)

    cells = [cell(title, GAMES[0], 5, seed, seed, family) for title, family in (("PVN", "pvn"), ("R", "random"))
             for seed in range(3)]  # fmt: skip
    features = (seen("PVN", (32, 16, 64), 0.5), seen("R", (32, 32, 32), 0.75))
    found = {one.claim: one for one in claims.verdicts(subject(cells, features))}
    rank = found["Features do not collapse: at least half the rank of the random initialisation"]
    assert (rank.difference.point, rank.margin, rank.stands_on[:6]) == (0, -1, "1 game")
    assert rank.difference.high == pytest.approx(stats.t.ppf(0.975, 2) / math.sqrt(3))
    near = found["Successive states are nearer than in the random initialisation"]
    assert (near.difference.point, near.verdict) == (0.25, "holds here")
    dead = (seen("PVN", (32, math.nan, 64), 0.5), features[1])
    assert rank.claim not in {one.claim for one in claims.verdicts(subject(cells, dead))}


def test_variants_are_compared_with_the_first() -> None:
    cells = [
        cell(title, env, score + seed, seed, seed, "pvn", **settings)
        for title, score, settings in (("PVN", 5, {}), ("p = 0.2", 7, {"proportion": 0.2}), ("raw", 5, {"n": 1}))
        for env in GAMES
        for seed in range(2)
    ]
    common, raw = claims.contrasts(subject(cells))
    assert (common.method, common.base, common.verdict) == ("p = 0.2", "PVN", "higher")
    assert common.difference.point == pytest.approx(0.2)
    assert (raw.difference.point, raw.verdict) == (0, "cannot be told")
    fewer = replace(common, difference=Estimate(-0.5, -0.75, -0.25))
    assert fewer.verdict == "lower"
