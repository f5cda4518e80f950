"""`pvn report`: what it writes and prints, that it repeats byte for byte, and what it refuses."""

import csv
import html
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.envs.base import Env
from protovalue.evaluate.config import EvaluateConfig
from protovalue.evaluate.episodes import evaluate_run
from protovalue.evaluate.features import ProbeStates, random_states
from protovalue.files import write_json
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.dqn import train_dqn
from protovalue.online.linear_dqn import train_online
from protovalue.report.galleries import look
from protovalue.report.reading import read_results
from tests.report import made

ENV, OTHER = "minatar/breakout", "minatar/freeway"


def files(folder: Any) -> dict[Any, Any]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two games, two encoders each of PVN and BC, DQN, random actions in one game only."""
    folder = tmp_path_factory.mktemp("study")
    cells: list[dict[str, Any]] = []
    for e, env in enumerate((ENV, OTHER)):
        for method, level in (("pvn", 6.0), ("bc", 3.0)):
            for seed in (0, 1):
                name = f"{method}-{e}-{seed}"
                encoder = made.encoder(folder / f"pretrain/{name}", method, seed)
                made.run(folder / f"online/{name}", env, [level + seed, level + seed + 2], encoder)
                cells.append(
                    {"env": env, "method": method, "pretraining_seed": seed, "seeds": [0, 1],
                     "encoder": f"pretrain/{name}", "run": f"online/{name}"}
                )  # fmt: skip
        made.run(folder / f"dqn/{e}", env, [10.0, 12.0], steps=9_000)
        cells.append({"env": env, "method": "dqn", "pretraining_seed": None, "seeds": [0, 1], "run": f"dqn/{e}"})
    cells.append({"env": OTHER, "method": "pvn", "pretraining_seed": 2, "seeds": [0, 1], "run": "online/never"})
    write_json(folder / "random.json", made.played(ENV, [1.0]))
    return made.study(folder, cells, random_policy={ENV: "random.json"})


@pytest.fixture(scope="module")
def out(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "report"
    assert main(["report", str(study), "--out", str(folder), "--features", "none", "--draws", "200"]) == 0
    return folder


def test_every_part_is_written(out: Path) -> None:
    assert set(files(out)) == {
        "index.html",
        "results.jsonl",
        *(
            f"tables/{name}.{ending}"
            for name in ("games", "aggregates", "improvement")
            for ending in ("md", "csv", "tex")
        ),
        *(
            f"figures/{name}.{ending}"
            for name in ("aggregates", "profile", "games", "curves-minatar-breakout", "curves-minatar-freeway")
            for ending in ("png", "svg")
        ),
    }


def test_numbers_by_hand(out: Path) -> None:
    with (out / "tables/games.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Encoders' means 7 and 8: mean 7.5, standard error 0.5, t of one degree of freedom 12.706.
    assert float(rows[0]["PVN"]) == 7.5
    assert float(rows[0]["PVN, low"]) == pytest.approx(7.5 - 0.5 * 12.706, abs=1e-3)
    with (out / "tables/aggregates.csv").open(newline="") as file:
        table = {row["Method"]: row for row in csv.DictReader(file)}
    # Random actions 1, DQN 11: (7.5 - 1) / 10 in the one game that has both.
    assert float(table["PVN"]["Mean"]) == pytest.approx(0.65)
    assert float(table["BC"]["Mean"]) == pytest.approx(0.35)


def test_the_same_runs_give_the_same_bytes_and_the_headline_is_printed(
    study: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(study), "--out", str(tmp_path), "--features", "none", "--draws", "200"]) == 0
    assert files(tmp_path) == files(out)
    printed = capsys.readouterr().out
    assert "PVN  7.50 [1.15, 13.85]  2 encoders x 2 agents" in printed
    assert "DQN  11.00 [-1.71, 23.71]  2 agents" in printed
    assert "over 1 game: Median, IQM, Mean, Optimality gap" in printed
    assert f"note: {OTHER} is left out of the aggregates: its random policy was not measured" in printed
    assert "1 missing, named on the page" in printed
    assert str(tmp_path / "index.html") in printed


def test_another_report_in_the_same_folder_leaves_nothing_of_the_first(study: Path, out: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    shutil.copytree(out, folder)
    (folder / "mine.txt").write_text("kept")
    (folder / "figures" / "mds-minatar-breakout.png").write_bytes(b"old")
    (folder / "mds.json").write_text("{}")
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    assert main(["report", str(tmp_path / "r"), "--out", str(folder), "--features", "none"]) == 0
    assert set(files(folder)) == {
        "index.html",
        "mine.txt",
        "results.jsonl",
        *(f"tables/games.{ending}" for ending in ("md", "csv", "tex")),
        *(f"figures/{name}.{ending}" for name in ("games", "curves-minatar-breakout") for ending in ("png", "svg")),
    }


def test_logs_without_an_episode_have_no_picture_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 3000, "loss": 0.5}\n')
    made.run(tmp_path / "s", OTHER, [1.0], "random:minatar:1")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "o"), "--features", "none"]) == 0
    assert [path.name for path in (tmp_path / "o" / "figures").glob("curves*.png")] == ["curves-minatar-freeway.png"]
    said = f"no training curves of {ENV}: the logs of its runs have no episode that ended"
    assert f"note: {said}" in capsys.readouterr().out
    assert said in (tmp_path / "o" / "index.html").read_text()


def test_versions_that_differ_between_methods_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    made.run(tmp_path / "d", ENV, [1.0], versions={"protovalue": "0.0.9", "torch": "2.13.0"})
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "o"), "--features", "none"]) == 0
    assert "note: the runs were made with several versions of protovalue: 0.0.9, 0.1.0" in capsys.readouterr().out


def test_a_method_may_be_called_anything(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    made.run(folder / "online/r", ENV, [1.0, 2.0], "random:minatar:1")
    cell = {"env": ENV, "method": "random", "seeds": [0, 1], "run": "online/r", "encoder": None}
    made.study(folder, [cell], methods={"random": {"title": r"a $\foo$ b_{2} $"}}, normalise="none")
    assert main(["report", str(folder), "--out", str(tmp_path / "o"), "--features", "none"]) == 0
    assert r"a $\foo$ b_{2} $" in (tmp_path / "o/index.html").read_text()


def test_the_paper_s_aggregates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--paper"]) == 0
    line = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("PVN"))
    numbers = [float(word.rstrip("*")) for word in line.split()[2:]]
    assert numbers == [0.410, 0.414, 1.488, 0.714]  # the paper's table over 44 games


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("report", "RUNS: found none, expected the folder of a study, folders of runs, or --paper"),
        ("report nowhere", "nowhere: found no folder, expected a study, a run, a folder of runs, or a results.jsonl"),
        ("report empty", "empty: no finished, evaluated run to report on"),
        ("report empty --draws 3", "--draws: found 3, expected at least 100"),
        ("report empty --features some", "--features"),
        ("report good --out file", "--out: file is a file, expected a folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    made.run(tmp_path / "good", ENV, [1.0], "random:minatar:1")
    before = files(tmp_path)
    assert main(words.split()) == 2
    printed = capsys.readouterr().err
    assert expected in printed
    assert printed.count("\n") == 1
    assert files(tmp_path) == before


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real agents, hardly trained: two random encoders, and DQN."""
    folder = tmp_path_factory.mktemp("real")
    small: dict[str, Any] = {"seeds": "0,1", "steps": 60, "replay_min": 20, "replay_size": 50}
    for seed in (0, 1):
        config = OnlineConfig(env=ENV, out=folder / f"on-{seed}", encoder=f"random:minatar:1:{seed}", **small)
        evaluate_run(EvaluateConfig(train_online(config, quiet=True), 2), quiet=True)
    whole = DqnConfig(env=ENV, out=folder / "dqn", **small)
    evaluate_run(EvaluateConfig(train_dqn(whole, quiet=True), 2), quiet=True)
    return folder


def test_states_that_are_all_alike_have_no_probe_and_a_note(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a game that nothing happens in: there is nothing to read out of the features."""

    def alike(env: Env) -> ProbeStates:
        states = random_states(env)
        return replace(states, observations=np.repeat(states.observations[:1], len(states.observations), axis=0))

    said = f"no probe in {ENV}: nothing that could be read out changes in a random policy's states"
    for drawn in (random_states, alike):
        monkeypatch.setattr("protovalue.report.galleries.random_states", drawn)
        assert main(["report", str(real), "--out", str(tmp_path), "--features", "first"]) == 0
        assert (f"note: {said}\n" in capsys.readouterr().out) == (drawn is alike)
    assert said in html.unescape((tmp_path / "index.html").read_text())
    with (tmp_path / "tables/features.csv").open(newline="") as file:
        assert {row["Linear probe R2"] for row in csv.DictReader(file)} == {""}


def test_features_of_real_encoders_are_drawn_and_measured(real: Path, tmp_path: Path) -> None:
    assert main(["report", str(real), "--out", str(tmp_path)]) == 0
    (game,) = json.loads((tmp_path / "mds.json").read_text())["games"]
    assert game["env"] == ENV
    assert [one["method"] for one in game["methods"]] == ["dqn", "random"]
    assert [one["encoder"] for one in game["methods"]] == ["dqn, seed 0", "random:minatar:1:0"]
    for one in game["methods"]:
        points = np.array(one["points"])
        assert points.shape == (len(game["steps"]), 2)
        assert np.linalg.norm(points, axis=1).max() == pytest.approx(1.0, abs=1e-5)
    with (tmp_path / "tables/features.csv").open(newline="") as file:
        rows = {row["Game and method"]: row for row in csv.DictReader(file)}
    row = rows[f"{ENV}, random"]
    assert (row["Encoders"], row["Features"]) == ("2", "128")
    assert 1 < float(row["Effective rank"]) < 128
    assert 0.5 < float(row["Linear probe R2"]) <= 1
    assert float(row["Smoothness, low"]) < float(row["Smoothness, high"])  # two encoders
    both = rows[f"{ENV}, dqn"]
    assert both["Encoders"] == "2"  # every end-to-end agent has a network of its own
    assert float(both["Effective rank, low"]) < float(both["Effective rank, high"])
    assert {"mds-minatar-breakout.png", "mds-minatar-breakout.svg"} <= {
        p.name for p in (tmp_path / "figures").iterdir()
    }


def test_looking_at_the_first_encoder_alone(real: Path) -> None:
    looked = look(read_results([real]), "first", quiet=True)
    assert [one.encoders for one in looked.features] == [1, 1]
    assert looked.galleries[0].frames[0].startswith(b"\x89PNG")
    assert len(looked.galleries[0].frames) == len(looked.galleries[0].steps)
    assert "best agent of dqn" in looked.galleries[0].player


def test_agents_of_several_runs_on_one_encoder_are_found_where_they_are(real: Path, tmp_path: Path) -> None:
    config = OnlineConfig(
        env=ENV, out=tmp_path / "more", encoder="random:minatar:1:0", seeds="5", steps=60, replay_min=20, replay_size=50
    )
    evaluate_run(EvaluateConfig(train_online(config, quiet=True), 2), quiet=True)
    results = read_results([real / "on-0", tmp_path / "more"])
    (cell,) = results.cells
    assert cell.seeds == (0, 1, 5)
    assert [cell.place(agent) for agent in range(3)] == [(real / "on-0", 0), (real / "on-0", 1), (tmp_path / "more", 0)]
    best = replace(cell, returns=np.array([0.0, 0.0, 1.0]))
    looked = look(replace(results, cells=(best,)), quiet=True)
    assert looked.notes == ()
    assert looked.galleries[0].player.startswith("the best agent of random")


def test_an_agent_that_is_gone_gives_a_note_and_random_actions(real: Path, tmp_path: Path) -> None:
    shutil.copytree(real / "on-0", tmp_path / "r")
    shutil.rmtree(tmp_path / "r" / "checkpoints")
    looked = look(read_results([tmp_path]), quiet=True)
    assert looked.galleries[0].player == "random actions"
    assert "is that of random actions" in looked.notes[0]
    assert looked.features[0].encoders == 1
