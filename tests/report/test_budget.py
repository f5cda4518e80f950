"""What returns stand on, beside what the paper's stand on: read from runs, kept in files, shown on the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protovalue.cli import main
from protovalue.evaluate.scores import paper_results
from protovalue.report.budget import budgets
from protovalue.report.cells import transitions_of
from protovalue.report.model import Budget
from protovalue.report.reading import read_results
from protovalue.report.results import Results
from protovalue.report.tables import BUDGETS
from tests.report import fake, made

GAME = "atari/Pong"
PAPERS = Budget("The paper's", ("impala 8x",), (50_000_000,), (1_562_500,), (256,), (3_750_000,), (100,))


def results(*cells: Any) -> Results:
    return Results("x", "X", "none", tuple(dict.fromkeys(one.method for one in cells)), (GAME,), cells)


def cell(title: str, transitions: int | None, settings: dict[str, Any]) -> Any:
    found = replace(fake.cell(fake.ENVS[0], fake.PVN, 0), env=GAME, method=title, steps=70, episodes=20)
    return replace(found, transitions=transitions, settings={"kind": "online", **settings})


def pvn(steps: int, transitions: int) -> Any:
    own = {"method": "pvn", "encoder.architecture": "der", "encoder.steps": steps, "encoder.batch_size": 64}
    return cell("PVN", transitions, own)


def test_every_method_and_last_the_paper() -> None:
    """The paper's table of hyperparameters: Impala 8x, 1,562,500 steps of 256, 3.75 million agent steps, 100 episodes.

    Where encoders of a method differ, each value is there; of what was not trained there is none.
    """
    untrained = cell("Random", None, {"method": "random", "encoder.architecture": "der", "encoder.width": 2})
    dqn = cell("DQN", None, {"kind": "dqn", "agent.architecture": "nature", "agent.width": 1})
    paper = {GAME: paper_results(GAME)}
    assert budgets(results(pvn(5, 900), pvn(5, 700), untrained, dqn), paper) == (
        Budget("PVN", ("der 1x",), (700, 900), (5,), (64,), (70,), (20,)),
        Budget("Random", ("der 2x",), (), (), (), (70,), (20,)),
        Budget("DQN", ("nature 1x",), (), (), (), (70,), (20,)),
        PAPERS,
    )
    assert budgets(results(pvn(5, 900)), {}) == ()  # nothing of MinAtar is in the paper


def test_the_table(tmp_path: Path) -> None:
    found = budgets(results(pvn(5_000, 50_000), pvn(5_000, 40_000)), {GAME: paper_results(GAME)})
    table = BUDGETS.for_files(replace(fake.report(tmp_path), budgets=found))
    assert table.columns == (
        "Returns", "Network", "Transitions", "Gradient steps", "Batch", "Agent steps", "Evaluation episodes",
    )  # fmt: skip
    assert [[one.text for one in row] for row in table.rows] == [
        ["PVN", "der 1x", "40,000 to 50,000", "5,000", "64", "70", "20"],
        ["The paper's", "impala 8x", "50,000,000", "1,562,500", "256", "3,750,000", "100"],
    ]


def test_transitions_are_counted_while_the_data_is_there(tmp_path: Path) -> None:
    for name, steps in (("a", "300"), ("b", "200")):
        assert main(["collect", "minatar/breakout", "--steps", steps, "--out", str(tmp_path / name)]) == 0
    assert transitions_of([tmp_path / "a", tmp_path / "b"]) == 500
    assert transitions_of([tmp_path / "a", tmp_path / "gone"]) is None
    assert transitions_of([]) is None


@pytest.mark.parametrize(("method", "expected"), [("pvn", 300), ("random", None)])
def test_from_runs_to_files_and_the_page(tmp_path: Path, method: str, expected: int | None) -> None:
    """A run's encoder names its data; a file of results keeps the count when the data is gone."""
    data = tmp_path / "data"
    assert main(["collect", "minatar/breakout", "--steps", "300", "--out", str(data)]) == 0
    encoder = made.encoder(tmp_path / "encoder", method, data=[str(data)], architecture="der", steps=9, batch_size=4)
    made.run(tmp_path / "runs", GAME, [1.0, 2.0], encoder)
    assert [one.transitions for one in read_results([tmp_path / "runs"]).cells] == [expected]
    words = ["--features", "none", "--draws", "100"]
    assert main(["report", str(tmp_path / "runs"), *words, "--out", str(tmp_path / "report")]) == 0
    (data / "manifest.json").unlink()
    assert main(["report", str(tmp_path / "report" / "results.jsonl"), *words, "--out", str(tmp_path / "again")]) == 0
    for folder in ("report", "again"):
        text = (tmp_path / folder / "tables" / "budgets.md").read_text()
        assert "| The paper's | impala 8x | 50,000,000 | 1,562,500 | 256 | 3,750,000 | 100 |" in text
        assert ("| 300 | 9 | 4 |" in text) == (method == "pvn")
        assert 'id="budgets-table"' in (tmp_path / folder / "index.html").read_text()
