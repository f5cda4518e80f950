"""Verdicts on the paper's claims: what is compared with what, over which units, and what the interval decides."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from protovalue.report import claims, summary
from protovalue.report.cells import CellResult
from protovalue.report.model import Estimate, Verdict
from protovalue.report.numbers import TIMES
from protovalue.report.page import write_page
from protovalue.report.results import Results
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


def judge(cells: list[CellResult]) -> dict[str, Verdict]:
    made = results(cells)
    return {verdict.claim: verdict for verdict in claims.verdicts(made, summary.scale_of(made))}


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
    found = claims.units(made.of("PVN", GAMES[0]), summary.scale_of(made), GAMES[0])
    assert found == {("encoder", seed): pytest.approx(score / 10) for seed, score in enumerate(PVN[GAMES[0]])}


def test_several_encoders_of_a_data_set_are_one_unit() -> None:
    cells = [cell("PVN", GAMES[0], score, data, seed) for data, seed, score in ((0, 0, 1), (0, 1, 3), (1, 0, 6))]
    made = results(cells)
    found = claims.units(made.of("PVN", GAMES[0]), summary.scale_of(made), GAMES[0])
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
        "A is better", "holds here", "0.250 [0.125, 0.375]", "2 games", "a table", "here",
    ]  # fmt: skip
    shown = Page(write_page(report, tmp_path / "page.html")).tables["claims-table"]
    assert [entry["text"] for entry in shown[1]][:2] == ["A is better", "holds here 2 games"]
    assert "claims-table" not in Page(write_page(fake.report(tmp_path), tmp_path / "other.html")).tables
