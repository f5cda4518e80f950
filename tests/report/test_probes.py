"""Probes in a report: joined with returns by the encoders' parameters, correlated, refused where they do not fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import write_json
from protovalue.report.model import ProbeRow
from protovalue.report.probes import read_probes
from protovalue.report.results import Results
from protovalue.report.tables import PROBES
from tests.report import fake

GAME = "minatar/breakout"
AREA = {"a0": [0.9, 0.9, 0.7], "a1": [0.8, 0.8, 0.8], "b0": [0.7, 0.7, 0.9], "gone": [0.5, 0.5, 0.5]}
F1 = {"a0": [0.1, 0.3, 0.9], "a1": [0.3, 0.5, 0.5], "b0": [0.5, 0.7, 0.1], "gone": [0.9, 0.9, 0.9]}


def results() -> Results:
    """Encoders a0, a1 and b0 with agents that reach 1, 3 and 7."""
    cells = []
    for name, method, seed, score in (("a0", "A", 0, 1.0), ("a1", "A", 1, 3.0), ("b0", "B", 0, 7.0)):
        cell = replace(fake.cell(fake.ENVS[0], fake.PVN, seed), env=GAME, method=method)
        cells.append(replace(cell, checksum=name, returns=np.array([score - 0.5, score + 0.5])))
    return Results("runs", "Runs", "none", ("A", "B"), (GAME,), tuple(cells))


def probed(method: str, name: str | None, f1: list[float], area: list[float]) -> dict[str, Any]:
    return {"method": method, "encoder": name or "", "checksum": name, "scores": {"f1": f1, "area": area}}


def probe(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    beside = [probed("majority", None, [0.0, 0.1, 0.2], [0.5, 0.5, 0.5])]
    found = {
        "format": "protovalue probe",
        "version": 4,
        "env": GAME,
        "feature_scale": "whitened",
        "states": {"train": 7, "stop": 1, "judge": 2},
        "variables": [
            {"name": "row", "category": "places"},
            {"name": "column", "category": "places"},
            {"name": "left", "category": "beside"},
        ],
        "probed": beside + [probed("x", name, f1, AREA[name]) for name, f1 in F1.items()],
    }
    write_json(folder / "probe.json", found | changes)
    return folder


def points(row: ProbeRow) -> dict[str, float]:
    return {name: one.point for name, one in row.scores.items()}


def test_means_by_category_and_how_they_go_with_the_return(tmp_path: Path) -> None:
    """Places: 0.2 and 0.4 of A, 0.6 of B, in the order of returns; beside: the other way round."""
    rows, notes = read_probes([probe(tmp_path)], results())
    assert [(row.category, row.kind) for row in rows] == [
        (category, kind) for kind in ("F1", "area") for category in ("places", "beside", "all categories")
    ]
    places, beside, both, area, *_ = rows
    assert points(area) == pytest.approx({"A": 0.85, "B": 0.7, "majority": 0.5})
    assert area.correlation is not None
    assert area.correlation.point == pytest.approx(-1.0)
    assert points(places) == pytest.approx({"A": 0.3, "B": 0.6, "majority": 0.05})
    # Student's t with one degree of freedom: 12.7062 * 0.1.
    assert places.scores["A"].high == pytest.approx(0.3 + 1.27062, abs=1e-5)
    assert not places.scores["B"].has_interval
    assert points(beside) == pytest.approx({"A": 0.7, "B": 0.1, "majority": 0.2})
    assert points(both) == pytest.approx({"A": 0.5, "B": 0.35, "majority": 0.125})
    assert places.correlation is not None
    assert beside.correlation is not None
    assert (places.correlation.point, beside.correlation.point) == pytest.approx((1.0, -1.0))
    assert {row.encoders for row in rows} == {3}
    assert notes == [f"probes of {GAME}: 1 of the probed encoders are not in these runs"]


def test_the_table_has_a_column_for_each_method_and_the_best_in_bold(tmp_path: Path) -> None:
    rows, _ = read_probes([probe(tmp_path)], results())
    table = PROBES.for_files(replace(fake.report(tmp_path), probes=tuple(rows)))
    assert table.columns == (
        "Game, category, score and scale", "Encoders", "A", "B", "majority", "Rank correlation with the return",
    )  # fmt: skip
    texts = [[number.text for number in row] for row in table.rows]
    assert texts[0] == [f"{GAME}, places, F1, whitened", "3", "0.300 [-0.971, 1.571]", "0.600", "0.050", "1.00"]
    assert [[number.is_best for number in row].index(True) for row in table.rows] == [3, 2, 2, 2, 3, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "minatar/asterix"}, f"is of minatar/asterix, expected one of {GAME}"),
        ({"probed": []}, "none of its encoders is in these runs"),
        ({"variables": []}, "field variables: found 'none', expected at least one"),
        ({"version": 3}, "field version"),
        ({"feature_scale": "none"}, "field feature_scale"),
        ({"probed": [probed("x", "a0", [1.0], [1.0, 1.0, 1.0])]}, "probed[0].scores.f1"),
        ({"probed": [probed("x", "a0", [1.0, 1.0, 1.0], [1.0])]}, "probed[0].scores.area"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_probes([probe(tmp_path / "probe", **changes)], results())
    assert said in str(caught.value)


def test_twice_and_nothing_are_refused(tmp_path: Path) -> None:
    one = probe(tmp_path / "probe")
    with pytest.raises(UserError, match="found places of minatar/breakout a second time"):
        read_probes([one, one], results())
    other = probe(tmp_path / "other", feature_scale="rms")  # the other scale stands beside it
    assert [row.feature_scale for row in read_probes([one, other], results())[0]] == ["whitened"] * 6 + ["rms"] * 6
    with pytest.raises(UserError, match=r"nowhere: found no probe\.json"):
        read_probes([tmp_path / "nowhere"], results())


def test_real_encoders_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two encoders are trained, played on, probed and reported: the commands of the documentation."""
    data = str(tmp_path / "data")
    assert main(["collect", GAME, "--steps", "400", "--out", data]) == 0
    for seed in "01":
        encoder, agents = str(tmp_path / f"bc-{seed}"), str(tmp_path / "agents" / seed)
        small = ["--steps", "2", "--batch-size", "8", "--width", "0.25", "--seed", seed, "--out", encoder]
        assert main(["pretrain", "--method", "bc", "--data", data, *small]) == 0
        assert main(["online", "--encoder", encoder, "--seeds", "0", "--steps", "1000", "--out", agents]) == 0
        assert main(["evaluate", agents, "--episodes", "1"]) == 0
    words = ["--states", "300", "--epochs", "1", "--random", "1", "--out", str(tmp_path / "probe")]
    assert main(["probe", str(tmp_path / "bc-0"), str(tmp_path / "bc-1"), *words]) == 0
    report = ["--features", "none", "--out", str(tmp_path / "report"), "--probes", str(tmp_path / "probe")]
    capsys.readouterr()
    assert main(["report", str(tmp_path / "agents"), *report]) == 0
    assert "1 of the probed encoders are not in these runs" in capsys.readouterr().out  # the random one
    text = (tmp_path / "report" / "tables" / "probes.md").read_text()
    assert f"{GAME}, beside the player, F1, whitened | 2 |" in text
    assert '<section id="probes"' in (tmp_path / "report" / "index.html").read_text()


def test_several_probes_of_several_games(tmp_path: Path) -> None:
    """One category has no row of all; an encoder counts in the game that it was probed in; strangers are counted."""
    known, other = results(), "minatar/asterix"
    elsewhere = replace(known.cells[0], env=other, returns=np.array([100.0]))
    both = replace(known, envs=(GAME, other), cells=(*known.cells, elsewhere))
    player = [{"name": "action", "category": "player"}]
    own = [probed("x", name, f1[:1], f1[:1]) for name, f1 in F1.items()]
    more = [probed("x", "far", [0.2], [0.2])]
    second = probe(tmp_path / "player", variables=player, probed=own + more)
    third = probe(tmp_path / "asterix", env=other, variables=player, probed=own[:1])
    rows, notes = read_probes([probe(tmp_path / "cells"), second, third], both)
    rows = [row for row in rows if row.kind == "F1"]
    assert [(row.env, row.category, row.encoders) for row in rows] == [
        (GAME, "places", 3),
        (GAME, "beside", 3),
        (GAME, "all categories", 3),
        (GAME, "player", 3),
        (other, "player", 1),
    ]
    assert rows[3].scores["A"].point == pytest.approx(0.2)
    assert rows[3].correlation is not None
    assert rows[3].correlation.point == pytest.approx(1.0)
    assert rows[4].correlation is None
    assert [note.partition(": ")[2][:1] for note in notes] == ["1", "2"]
