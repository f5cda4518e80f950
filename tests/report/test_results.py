"""Results: what a report reads out of run folders, and what it refuses or says."""

import json

import numpy as np
import pytest

from protovalue.errors import UserError
from protovalue.files import write_json
from protovalue.report.results import read_results
from tests.report import made

ENV = "minatar/breakout"


def two_encoders(folder, **settings):
    for seed, returns in ((0, [1.0, 3.0]), (1, [5.0, 7.0])):
        encoder = made.encoder(folder / f"pretrain/pvn-{seed}", seed=seed, tasks=50, **settings)
        made.run(folder / f"online/pvn-{seed}", ENV, returns, encoder)
    return folder


def test_loose_runs_become_cells(tmp_path):
    two_encoders(tmp_path)
    made.run(tmp_path / "online/random", ENV, [0.0, 1.0], "random:minatar:2:3")
    made.run(tmp_path / "dqn", ENV, [9.0, 11.0], width=4)
    results = read_results([tmp_path])
    assert results.methods == ("dqn", "pvn", "random")
    assert (results.envs, results.normalise, results.end_to_end) == ((ENV,), "none", "dqn")
    table = results.scores()
    np.testing.assert_array_equal(table["pvn"][ENV], [[1, 3], [5, 7]])  # encoders by agents
    np.testing.assert_array_equal(table["dqn"][ENV], [[9], [11]])  # every agent has a network of its own
    first, second = results.of("pvn", ENV)
    assert (first.pretraining_seed, first.tasks, first.seeds, first.episodes, first.steps) == (0, 50, (0, 1), 2, 3_000)
    assert (second.pretraining_seed, second.score) == (1, 6.0)
    assert first.encoder == tmp_path / "pretrain/pvn-0"
    (random,) = results.of("random", ENV)
    assert (random.width, random.pretraining_seed, random.encoder) == (2, 3, None)
    assert results.of("dqn", ENV)[0].width == 4
    assert [cell.settings["method"] for cell in results.cells] == ["dqn", "pvn", "pvn", "random"]


def test_a_training_curve_has_gaps_where_no_episode_ended(tmp_path):
    made.run(tmp_path / "r", ENV, [3.0, 6.0], "random:minatar:1")
    (cell,) = read_results([tmp_path / "r"]).cells
    np.testing.assert_array_equal(cell.curve_steps, [1000, 2000, 3000])
    np.testing.assert_array_equal(cell.curve, [[np.nan, 2, 3], [2, 4, 6]])


def test_cells_with_different_numbers_of_agents_are_cut_to_what_all_have(tmp_path):
    made.run(tmp_path / "a", ENV, [1.0, 2.0, 3.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [4.0, 5.0], "random:minatar:1:1")
    np.testing.assert_array_equal(read_results([tmp_path]).scores()["random"][ENV], [[1, 2], [4, 5]])


def test_atari_is_human_normalised(tmp_path):
    made.run(tmp_path / "r", "atari/Pong", [1.0], "random:impala:1")
    assert read_results([tmp_path]).normalise == "human"


def test_loose_runs_of_other_settings_or_versions_are_other_methods(tmp_path):
    two_encoders(tmp_path / "few", proportion=0.05)
    two_encoders(tmp_path / "many", proportion=0.01)
    results = read_results([tmp_path])
    assert results.methods == ("pvn, proportion 0.01", "pvn, proportion 0.05")
    assert results.notes == (
        "runs with different settings are shown as different methods; what differs: encoder.proportion",
    )
    made.run(tmp_path / "old", ENV, [1.0], "random:minatar:1:0", versions={"protovalue": "0.0.9", "torch": "2.13.0"})
    found = read_results([tmp_path])
    assert "random, protovalue 0.0.9" in found.methods
    assert "pvn, proportion 0.05, protovalue 0.1.0" in found.methods
    assert "version.protovalue" in found.notes[0]


def test_two_games_may_have_different_budgets(tmp_path):
    made.run(tmp_path / "a", ENV, [1.0], "random:minatar:1:0", batch_size=32)
    made.run(tmp_path / "b", "minatar/freeway", [1.0], "random:minatar:1:0", batch_size=64)
    assert read_results([tmp_path]).methods == ("random",)


def test_what_is_not_finished_is_missing_with_the_reason(tmp_path):
    made.run(tmp_path / "good", ENV, [1.0], "random:minatar:1:0")
    made.run(tmp_path / "half", ENV, [1.0], "random:minatar:1:1", done=False)
    made.run(tmp_path / "unseen", ENV, [1.0], "random:minatar:1:2", evaluated=False)
    missing = {one.reason for one in read_results([tmp_path]).missing}
    assert missing == {
        f"{tmp_path / 'half'}: not finished",
        f"{tmp_path / 'unseen'}: not evaluated (pvn evaluate {tmp_path / 'unseen'})",
    }


def test_nothing_to_report_on_is_said(tmp_path):
    with pytest.raises(UserError, match="no finished, evaluated run to report on$"):
        read_results([tmp_path])
    made.run(tmp_path / "half", ENV, [1.0], "random:minatar:1:1", done=False)
    with pytest.raises(UserError, match=r"no finished, evaluated run to report on \(online in .*half: not finished\)"):
        read_results([tmp_path])


def test_what_is_no_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere: found no folder"):
        read_results([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: found no folder"):
        read_results([tmp_path / "file"])


def test_an_encoder_that_is_gone_is_named(tmp_path):
    made.run(tmp_path / "r", ENV, [1.0], tmp_path / "gone")
    with pytest.raises(UserError, match="gone: found no encoder there"):
        read_results([tmp_path])


def test_a_damaged_evaluation_is_named(tmp_path):
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    path = tmp_path / "r" / "evaluation.json"
    path.write_text(path.read_text().replace("1.0", "9.0"))
    with pytest.raises(UserError, match="evaluation.json: damaged"):
        read_results([tmp_path])


def a_study(folder, **fields):
    two_encoders(folder)
    made.run(folder / "dqn/d", ENV, [10.0, 12.0])
    cells = [
        {"env": ENV, "method": "pvn", "tasks": 50, "pretraining_seed": seed, "seeds": [0, 1],
         "encoder": f"pretrain/pvn-{seed}", "run": f"online/pvn-{seed}"}
        for seed in (0, 1)
    ]  # fmt: skip
    cells.append({"env": ENV, "method": "dqn", "pretraining_seed": None, "seeds": [0, 1], "run": "dqn/d"})
    return cells, made.study(folder, cells, **fields)


def test_a_study_is_read_with_its_titles_order_and_commands(tmp_path):
    write_json(tmp_path / "random.json", {"mean_return": 0.25})
    _, folder = a_study(tmp_path, random_policy={ENV: "random.json", "minatar/freeway": "not/there.json"})
    results = read_results([folder])
    assert (results.title, results.normalise, results.methods) == ("A made study", "dqn", ("PVN", "DQN"))
    assert results.end_to_end == "DQN"
    assert results.random_policy == {ENV: 0.25}
    assert results.file == "title = 1"
    assert results.cells[0].commands == ("pvn online 'a b'",)
    assert [cell.pretraining_seed for cell in results.cells] == [0, 1, None]
    np.testing.assert_array_equal(results.scores()["PVN"][ENV], [[1, 3], [5, 7]])


def test_widths_and_tasks_are_told_apart_where_they_vary(tmp_path):
    cells, folder = a_study(tmp_path)
    cells[1] = {**cells[1], "tasks": 10}
    made.study(folder, cells)
    assert read_results([folder]).methods == ("PVN, 50 tasks", "PVN, 10 tasks", "DQN")


def test_times_are_summed_over_attempts_and_failures_named(tmp_path):
    _, folder = a_study(tmp_path)
    events = [
        {"stage": "online/pvn-0", "event": "interrupted", "seconds": 10.0},
        {"stage": "online/pvn-0", "event": "done", "seconds": 5.0},
        {"stage": "online/pvn-1", "event": "failed", "seconds": 1.0, "error": "disk full"},
        {"stage": "dqn/d", "event": "failed", "seconds": 2.0, "error": "killed"},
        {"stage": "dqn/d", "event": "done", "seconds": 4.0},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"stage": "cut')
    results = read_results([folder])
    assert results.stage_seconds == {"online": 16.0, "dqn": 6.0}
    (missing,) = results.missing
    assert (missing.method, missing.pretraining_seed, missing.reason) == ("PVN", 1, "online failed: disk full")
    assert [cell.seconds for cell in results.cells] == [15.0, 6.0]


def test_a_study_that_has_not_begun_says_so(tmp_path):
    made.study(tmp_path, [{"env": ENV, "method": "pvn", "seeds": [0], "run": "online/r"}])
    with pytest.raises(
        UserError, match=r"no finished, evaluated run to report on \(PVN in minatar/breakout: not begun"
    ):
        read_results([tmp_path])


def test_runs_of_one_method_with_other_settings_in_a_study_are_refused(tmp_path):
    cells, folder = a_study(tmp_path)
    made.run(folder / "online/odd", ENV, [1.0], folder / "pretrain/pvn-1", batch_size=64)
    made.study(folder, [*cells, {**cells[1], "run": "online/odd"}])
    with pytest.raises(
        UserError, match="odd: agent.batch_size is 64, but None in .*both are PVN: a report does not mix"
    ):
        read_results([folder])


def test_a_study_among_other_runs_is_refused(tmp_path):
    _, folder = a_study(tmp_path / "study")
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    with pytest.raises(UserError, match="found a study among other runs"):
        read_results([folder, tmp_path / "r"])


def test_a_study_of_another_version_is_refused(tmp_path):
    _, folder = a_study(tmp_path, version=2)
    with pytest.raises(UserError, match="not a study of format version 1"):
        read_results([folder])
