"""Results: what a report reads out of run folders, and what it refuses or says."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.errors import UserError
from protovalue.files import write_json
from protovalue.report.reading import read_results
from tests.report import made

ENV = "minatar/breakout"


def two_encoders(folder: Any, **settings: Any) -> Any:
    for seed, returns in ((0, [1.0, 3.0]), (1, [5.0, 7.0])):
        encoder = made.encoder(folder / f"pretrain/pvn-{seed}", seed=seed, tasks=50, **settings)
        made.run(folder / f"online/pvn-{seed}", ENV, returns, encoder)
    return folder


def test_loose_runs_become_cells(tmp_path: Path) -> None:
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


def test_a_training_curve_has_gaps_where_no_episode_ended(tmp_path: Path) -> None:
    made.run(tmp_path / "r", ENV, [3.0, 6.0], "random:minatar:1")
    (cell,) = read_results([tmp_path / "r"]).cells
    np.testing.assert_array_equal(cell.curve_steps, [1000, 2000, 3000])
    np.testing.assert_array_equal(cell.curve, [[np.nan, 2, 3], [2, 4, 6]])


def test_cells_with_different_numbers_of_agents_are_cut_to_what_all_have(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [1.0, 2.0, 3.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [4.0, 5.0], "random:minatar:1:1")
    results = read_results([tmp_path])
    np.testing.assert_array_equal(results.scores()["random"][ENV], [[1, 2], [4, 5]])
    assert results.notes == (f"random in {ENV}: its encoders have 2 to 3 agents; the first 2 of each count",)


def test_atari_is_human_normalised(tmp_path: Path) -> None:
    made.run(tmp_path / "r", "atari/Pong", [1.0], "random:impala:1")
    assert read_results([tmp_path]).normalise == "human"


def test_loose_runs_of_other_settings_or_versions_are_other_methods(tmp_path: Path) -> None:
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


def test_encoders_of_another_precision_are_another_method(tmp_path: Path) -> None:
    """What a run records is the precision that it used; the device, a place, tells nothing apart."""
    for precision, device in (("float32", "cpu"), ("bfloat16", "cuda")):
        two_encoders(tmp_path / precision, precision=precision, device=device)
    assert read_results([tmp_path]).methods == ("pvn, precision bfloat16", "pvn, precision float32")
    cells = [
        {"env": ENV, "method": "pvn", "seeds": [0, 1], "pretraining_seed": seed,
         "encoder": f"{precision}/pretrain/pvn-{seed}", "run": f"{precision}/online/pvn-{seed}"}
        for seed, precision in enumerate(("float32", "bfloat16"))
    ]  # fmt: skip
    with pytest.raises(UserError, match="encoder.precision is bfloat16, but float32 in .*: a report does not mix them"):
        read_results([made.study(tmp_path, cells)])


def test_two_games_may_have_different_budgets(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [1.0], "random:minatar:1:0", batch_size=32)
    made.run(tmp_path / "b", "minatar/freeway", [1.0], "random:minatar:1:0", batch_size=64)
    assert read_results([tmp_path]).methods == ("random",)


def test_what_is_not_finished_is_missing_with_the_reason(tmp_path: Path) -> None:
    made.run(tmp_path / "good", ENV, [1.0], "random:minatar:1:0")
    made.run(tmp_path / "half", ENV, [1.0], "random:minatar:1:1", done=False)
    made.run(tmp_path / "unseen", ENV, [1.0], "random:minatar:1:2", evaluated=False)
    missing = {one.reason for one in read_results([tmp_path]).missing}
    assert missing == {
        f"{tmp_path / 'half'}: not finished",
        f"{tmp_path / 'unseen'}: not evaluated (pvn evaluate {tmp_path / 'unseen'})",
    }


def test_nothing_to_report_on_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished, evaluated run to report on$"):
        read_results([tmp_path])
    made.run(tmp_path / "half", ENV, [1.0], "random:minatar:1:1", done=False)
    with pytest.raises(UserError, match=r"no finished, evaluated run to report on \(online in .*half: not finished\)"):
        read_results([tmp_path])


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: found no folder"):
        read_results([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: found no folder"):
        read_results([tmp_path / "file"])


def test_an_encoder_that_is_gone_is_named(tmp_path: Path) -> None:
    made.run(tmp_path / "r", ENV, [1.0], tmp_path / "gone")
    with pytest.raises(UserError, match="gone: found no encoder there"):
        read_results([tmp_path])


def test_a_damaged_evaluation_is_named(tmp_path: Path) -> None:
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    path = tmp_path / "r" / "evaluation.json"
    path.write_text(path.read_text().replace("1.0", "9.0"))
    with pytest.raises(UserError, match="evaluation.json: damaged"):
        read_results([tmp_path])


def a_study(folder: Any, **fields: Any) -> tuple[list[dict[str, Any]], Path]:
    two_encoders(folder)
    made.run(folder / "dqn/d", ENV, [10.0, 12.0])
    cells: list[dict[str, Any]] = [
        {"env": ENV, "method": "pvn", "tasks": 50, "pretraining_seed": seed, "seeds": [0, 1],
         "encoder": f"pretrain/pvn-{seed}", "run": f"online/pvn-{seed}"}
        for seed in (0, 1)
    ]  # fmt: skip
    cells.append({"env": ENV, "method": "dqn", "pretraining_seed": None, "seeds": [0, 1], "run": "dqn/d"})
    return cells, made.study(folder, cells, **fields)


def test_a_study_is_read_with_its_titles_order_and_commands(tmp_path: Path) -> None:
    write_json(tmp_path / "random.json", made.played(ENV, [0.25]))
    _, folder = a_study(tmp_path, random_policy={ENV: "random.json", "minatar/freeway": "not/there.json"})
    results = read_results([folder])
    assert (results.title, results.normalise, results.methods) == ("A made study", "dqn", ("PVN", "DQN"))
    assert results.end_to_end == "DQN"
    assert results.random_policy == {ENV: 0.25}
    assert results.file == "title = 1"
    assert results.cells[0].commands == ("pvn online 'a b'",)
    assert [cell.pretraining_seed for cell in results.cells] == [0, 1, None]
    np.testing.assert_array_equal(results.scores()["PVN"][ENV], [[1, 3], [5, 7]])


def test_widths_and_tasks_are_told_apart_where_they_vary(tmp_path: Path) -> None:
    cells, folder = a_study(tmp_path)
    cells[1] = {**cells[1], "tasks": 10}
    made.study(folder, cells)
    assert read_results([folder]).methods == ("PVN, 50 tasks", "PVN, 10 tasks", "DQN")


def test_times_are_summed_over_attempts_and_failures_named(tmp_path: Path) -> None:
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


def test_a_study_that_has_not_begun_says_so(tmp_path: Path) -> None:
    made.study(tmp_path, [{"env": ENV, "method": "pvn", "seeds": [0], "run": "online/r"}])
    with pytest.raises(
        UserError, match=r"no finished, evaluated run to report on \(PVN in minatar/breakout: not begun"
    ):
        read_results([tmp_path])


def test_runs_of_one_method_with_other_settings_in_a_study_are_refused(tmp_path: Path) -> None:
    cells, folder = a_study(tmp_path)
    made.run(folder / "online/odd", ENV, [1.0, 1.0], folder / "pretrain/pvn-1", batch_size=64)
    made.study(folder, [*cells, {**cells[1], "run": "online/odd"}])
    with pytest.raises(
        UserError, match="odd: agent.batch_size is 64, but None in .*both are PVN: a report does not mix"
    ):
        read_results([folder])


ONE_DATA_SET = "encoders of a game learned from one data set: intervals hold for that one, and say nothing of others"
OWN_DATA_SETS = "every encoder of a game learned from a data set of its own: intervals hold their differences too"


@pytest.mark.parametrize(
    ("data_seeds", "notes"),
    [
        ([0, 0, 0], [ONE_DATA_SET]),
        ([1, 2, 3], [OWN_DATA_SETS]),
        ([1, 1, 2], ["encoders that learned from one data set count as independent of each other: where data sets "
                     "differ much, intervals are too narrow"]),
        ([None, None, None], []),
        ([5], []),  # has no interval
    ],
)  # fmt: skip
def test_the_report_says_what_data_the_intervals_are_over(tmp_path: Path, data_seeds: list[Any], notes: Any) -> None:
    cells = []
    for seed, data_seed in enumerate(data_seeds):
        made.run(tmp_path / f"online/{seed}", ENV, [1.0], made.encoder(tmp_path / f"pretrain/{seed}", seed=seed))
        cells.append(
            {"env": ENV, "method": "pvn", "seeds": [0], "data_seed": data_seed, "pretraining_seed": seed,
             "encoder": f"pretrain/{seed}", "run": f"online/{seed}"}
        )  # fmt: skip
    results = read_results([made.study(tmp_path, cells)])
    assert list(results.notes) == notes
    assert [cell.data_seed for cell in results.cells] == data_seeds


def variants(folder: Any, *envs: Any) -> list[dict[str, Any]]:
    """Write a study in which DQN plays with more sticky actions than two other methods."""
    cells = []
    for env in envs:
        for method in ("pvn", "bc"):
            encoder = made.encoder(folder / f"pretrain/{method}-{env}", method)
            made.run(folder / f"online/{method}-{env}", env, [1.0], encoder)
            cells.append(
                {"env": env, "method": method, "seeds": [0], "encoder": f"pretrain/{method}-{env}",
                 "run": f"online/{method}-{env}"}
            )  # fmt: skip
        made.run(folder / f"dqn/{env}", env, [2.0], evaluation={"env_options": {"sticky": 0.25}})
        cells.append({"env": env, "method": "dqn", "pretraining_seed": None, "seeds": [0], "run": f"dqn/{env}"})
    return cells


def test_methods_of_a_study_may_play_variants_and_the_report_says_which(tmp_path: Path) -> None:
    cells = variants(tmp_path, ENV, "minatar/freeway")
    results = read_results([made.study(tmp_path, cells)])
    said = "sticky is 0.25 for DQN and 0.1 for the others"
    assert results.notes == (f"methods play different variants of all games: {said}",)
    results = read_results([made.study(tmp_path, [cell for cell in cells if cell["run"] != "dqn/minatar/freeway"])])
    assert results.notes == (f"methods play different variants of {ENV}: {said}",)


def test_encoders_of_one_method_in_a_study_may_not(tmp_path: Path) -> None:
    cells = variants(tmp_path, ENV)
    encoder = made.encoder(tmp_path / "pretrain/odd", seed=1)
    made.run(tmp_path / "online/odd", ENV, [1.0], encoder, evaluation={"env_options": {"sticky": 0.2}})
    made.study(tmp_path, [*cells, {**cells[0], "encoder": "pretrain/odd", "run": "online/odd"}])
    with pytest.raises(UserError, match=r"odd: env.sticky is 0.2, but 0.1 in .*both are PVN: a report does not mix"):
        read_results([tmp_path])


def test_methods_of_a_study_that_were_evaluated_differently_are_refused(tmp_path: Path) -> None:
    cells = variants(tmp_path, ENV)
    path = tmp_path / cells[-1]["run"] / "evaluation.json"
    write_json(path, {**made.played(ENV, [2.0]), "epsilon": 0.05})
    with pytest.raises(UserError, match=r"evaluation.epsilon is 0.05, but 0.001 in .*one game: a report does not mix"):
        read_results([made.study(tmp_path, cells)])


def test_agents_of_several_runs_on_one_encoder_are_one_cell(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [3.0, 6.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [9.0], "random:minatar:1:0", seeds=[2])
    made.run(tmp_path / "c", ENV, [1.0, 1.0, 1.0], "random:minatar:1:1")
    results = read_results([tmp_path])
    np.testing.assert_array_equal(results.scores()["random"][ENV], [[3, 6, 9], [1, 1, 1]])  # two encoders, not three
    cell = results.cells[0]
    assert (cell.seeds, cell.runs) == ((0, 1, 2), (tmp_path / "a", tmp_path / "b"))
    np.testing.assert_array_equal(cell.curve, [[np.nan, 2, 3], [2, 4, 6], [3, 6, 9]])
    assert results.notes == ()


def test_the_same_agents_twice_are_refused(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [3.0, 6.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [3.0], "random:minatar:1:0", seeds=[1])
    with pytest.raises(UserError, match=r"b: has the same encoder, settings and agent seed 1 as .*a, expected every"):
        read_results([tmp_path])
    assert len(read_results([tmp_path / "a", tmp_path / "a"]).cells) == 1  # the same folder, named twice
    made.run(tmp_path / "dqn/a", ENV, [3.0], seeds=[4])
    made.run(tmp_path / "dqn/b", ENV, [3.0], seeds=[4])
    with pytest.raises(UserError, match=r"dqn/b: has the same environment, settings and agent seed 4 as .*dqn/a"):
        read_results([tmp_path / "dqn"])


def test_end_to_end_agents_of_other_settings_are_not_the_same(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [3.0], gamma=0.9)
    made.run(tmp_path / "b", ENV, [3.0], gamma=0.99)
    assert read_results([tmp_path]).methods == ("dqn, gamma 0.9", "dqn, gamma 0.99")


def test_a_study_below_a_folder_of_runs_is_refused(tmp_path: Path) -> None:
    a_study(tmp_path / "x/study")
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    with pytest.raises(UserError, match=r"x/study: found a study among loose runs, expected `pvn report .*x/study`"):
        read_results([tmp_path])
    made.run(tmp_path / "z/r", ENV, [1.0], "random:minatar:1")
    (tmp_path / "z/y").mkdir()
    (tmp_path / "z/y/study.json").write_text('{"of": "somebody else"}')
    assert len(read_results([tmp_path / "z"]).cells) == 1


def test_encoders_that_are_the_same_count_once_in_a_study(tmp_path: Path) -> None:
    """As those of method random do, which learns nothing from the data sets of two data seeds."""
    cells, folder = a_study(tmp_path)
    made.run(folder / "online/again", ENV, [1.5, 3.5], folder / "pretrain/pvn-0")
    made.study(folder, [*cells, {**cells[0], "data_seed": 1, "run": "online/again"}])
    results = read_results([folder])
    np.testing.assert_array_equal(results.scores()["PVN"][ENV], [[1, 3], [5, 7]])
    said = f"PVN in {ENV}: again has the same encoder and agents as pvn-0 and does not count again"
    assert results.notes == (said, ONE_DATA_SET)


@pytest.mark.parametrize(
    ("evaluation", "name"),
    [
        ({"epsilon": 1.0}, "random, evaluation epsilon 1.0"),
        ({"seed": 7}, "random, evaluation seed 7"),
        ({"episodes": 50}, "random, evaluation episodes 50"),
        ({"env_options": {"sticky": 0.25}}, "random, sticky 0.25"),
    ],
)
def test_loose_runs_that_were_evaluated_otherwise_are_other_methods(
    tmp_path: Path, evaluation: dict[str, Any], name: str
) -> None:
    made.run(tmp_path / "a", ENV, [1.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [9.0], "random:minatar:1:1", evaluation=evaluation)
    made.run(tmp_path / "d", ENV, [5.0])
    methods = read_results([tmp_path]).methods
    assert name in methods
    assert len(methods) == 3
    assert methods[0] != "dqn"  # it too says how it was evaluated


def test_a_run_that_went_on_after_its_evaluation_is_missing(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [1.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [1.0], "random:minatar:1:1", evaluation={"steps": 1_500})
    (missing,) = read_results([tmp_path]).missing
    assert missing.reason == f"{tmp_path / 'b'}: evaluated at step 1,500 of 3,000"


def test_architectures_are_told_apart(tmp_path: Path) -> None:
    made.run(tmp_path / "a", ENV, [1.0], "random:minatar:1")
    made.run(tmp_path / "b", ENV, [1.0], "random:nature:1")
    made.run(tmp_path / "c", ENV, [1.0])
    made.run(tmp_path / "d", ENV, [1.0], network="nature")
    for seed, name in enumerate(("minatar", "nature")):
        made.run(tmp_path / f"e{seed}", ENV, [1.0], made.encoder(tmp_path / f"p{seed}", "spr", seed, architecture=name))
    assert read_results([tmp_path]).methods == (
        "dqn, architecture minatar", "dqn, architecture nature", "random, architecture minatar",
        "random, architecture nature", "spr, architecture minatar", "spr, architecture nature",
    )  # fmt: skip


def test_data_of_loose_encoders_are_told_apart_and_data_seeds_of_a_study_are_not(tmp_path: Path) -> None:
    encoders = [made.encoder(tmp_path / f"pretrain/{i}", seed=i, data_checksum=letter * 64) for i, letter in
                enumerate("ab")]  # fmt: skip
    for i, encoder in enumerate(encoders):
        made.run(tmp_path / f"online/{i}", ENV, [1.0], encoder)
    assert read_results([tmp_path]).methods == ("pvn, data checksum aaaaaaaa", "pvn, data checksum bbbbbbbb")
    cells = [
        {"env": ENV, "method": "pvn", "seeds": [0], "data_seed": i, "encoder": f"pretrain/{i}", "run": f"online/{i}"}
        for i in range(2)
    ]
    assert read_results([made.study(tmp_path, cells)]).methods == ("PVN",)


def test_every_version_that_a_run_or_its_encoder_saw_counts(tmp_path: Path) -> None:
    old = {"protovalue": "0.0.9", "torch": "2.13.0"}
    made.run(tmp_path / "a", ENV, [1.0], "random:minatar:1:0")
    made.run(tmp_path / "b", ENV, [1.0], "random:minatar:1:1", versions=[old, made.VERSIONS])
    assert read_results([tmp_path]).methods == ("random, protovalue 0.0.9 then 0.1.0", "random, protovalue 0.1.0")
    for seed, version in enumerate((old, made.VERSIONS)):
        encoder = made.encoder(tmp_path / f"p/pretrain/{seed}", seed=seed)
        fields = {"format": "protovalue run", "version": 1, "config": {"kind": "pretrain"}, "versions": [version]}
        write_json(encoder / "config.json", fields)
        made.run(tmp_path / f"p/online/{seed}", ENV, [1.0], encoder / "encoder" if seed else encoder)
    methods = read_results([tmp_path / "p"]).methods
    assert methods == ("pvn, pretrained with protovalue 0.0.9", "pvn, pretrained with protovalue 0.1.0")


def test_runs_with_the_games_of_the_package_are_not_mixed_with_ours(tmp_path: Path) -> None:
    for seed, games in enumerate(("1.0.15", "protovalue-1")):
        versions = {**made.VERSIONS, "minatar": games}
        made.run(tmp_path / games, "minatar/breakout", [1.0], f"random:minatar:1:{seed}", versions=versions)
    assert read_results([tmp_path]).methods == ("random, minatar 1.0.15", "random, minatar protovalue-1")


def test_agents_of_before_they_were_compiled_are_not_mixed_with_those_of_today(tmp_path: Path) -> None:
    """Their last bits differ."""
    today = {**made.VERSIONS, "compiled": "1"}
    for seed, versions in enumerate(([made.VERSIONS], [today], [made.VERSIONS, today])):
        made.run(tmp_path / f"online/{seed}", ENV, [1.0], f"random:minatar:1:{seed}", versions=versions)
        made.run(tmp_path / f"dqn/{seed}", ENV, [1.0], seeds=[seed], versions=versions)
    for kind, name in (("online", "random"), ("dqn", "dqn")):
        expected = tuple(f"{name}, compiled {version}" for version in ("1", "none", "none then 1"))
        assert read_results([tmp_path / kind]).methods == expected


@pytest.mark.parametrize("method", ["pvn", "random"])
@pytest.mark.parametrize("normalized", [True, False])
def test_agents_that_saw_layer_norm_by_pytorch_are_not_mixed_with_those_of_today(
    tmp_path: Path, method: str, normalized: bool
) -> None:
    """The last bits of their features differ; others' do not."""
    for seed, versions in enumerate((made.VERSIONS, {**made.VERSIONS, "normalized": "1"})):
        given = {"layer_norm": True} if normalized else {}
        encoder = made.encoder(tmp_path / f"pretrain/{seed}", method, seed, architecture="nature", **given)
        made.run(tmp_path / f"online/{seed}", ENV, [1.0], encoder, versions=versions)
    expected = (f"{method}, normalized 1", f"{method}, normalized none") if normalized else (method,)
    assert read_results([tmp_path]).methods == expected


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"method": "pvn", "indicator": "rni", "architecture": "impala"}, True),
        ({"method": "cumulants", "architecture": "nature"}, True),
        ({"method": "pvn", "indicator": "hash", "architecture": "impala"}, False),
        ({"method": "pvn", "indicator": "rni", "architecture": "minatar"}, False),
        ({"method": "bc", "architecture": "impala"}, False),
    ],
)
def test_random_networks_on_large_frames_of_before_are_not_mixed_with_those_of_today(
    tmp_path: Path, config: dict[str, str], told: bool
) -> None:
    """The last bits of their scores differ; small frames', and what was not learned from them, do not."""
    for seed, versions in enumerate((made.VERSIONS, {**made.VERSIONS, "patches": "1"})):
        encoder = made.encoder(tmp_path / f"pretrain/{seed}", seed=seed)
        fields = {"config": {"kind": "pretrain", **config}, "versions": [versions]}
        write_json(encoder / "config.json", {"format": "protovalue run", "version": 2, **fields})
        made.run(tmp_path / f"online/{seed}", ENV, [1.0], encoder)
    expected = ("pvn, pretrained with patches 1", "pvn, pretrained with patches none") if told else ("pvn",)
    assert read_results([tmp_path]).methods == expected


def test_versions_that_a_study_mixes_are_refused(tmp_path: Path) -> None:
    _, folder = a_study(tmp_path)
    path = folder / "online/pvn-1/config.json"
    fields = json.loads(path.read_text())
    fields.pop("sha256")
    write_json(path, {**fields, "versions": [{"protovalue": "0.0.9", "torch": "2.13.0"}, *fields["versions"]]})
    with pytest.raises(UserError, match=r"pvn-1: version.protovalue is 0.0.9 then 0.1.0, but 0.1.0 in .*pvn-0"):
        read_results([folder])


def with_expect(folder: Any, cells: Any, **expect: Any) -> None:
    """Add the stages that evaluate the runs of a study, with what they are expected to hold."""
    cells = [{**cell, "stages": [cell["run"], f"evaluate/{cell['run']}"]} for cell in cells]
    made.study(folder, cells)
    study = json.loads((folder / "study.json").read_text())
    study.pop("sha256")
    whole = {"episodes": 2, "epsilon": 0.001, "seed": 0, "steps": 3_000, "env_options": {"sticky": 0.1}, **expect}
    for cell in cells:
        expected = {**whole, "file": f"{cell['run']}/evaluation.json"}
        study["stages"].append(
            {"id": f"evaluate/{cell['run']}", "kind": "evaluate", "folder": cell["run"], "needs": [],
             "command": ["pvn"], "expect": expected}
        )  # fmt: skip
    study["stages"].append(
        {"id": "random", "kind": "random-policy", "folder": "dqn/d", "needs": [], "command": ["pvn"],
         "expect": {**whole, "epsilon": 1.0, "file": "random.json"}}
    )  # fmt: skip
    write_json(folder / "study.json", {**study, "random_policy": {ENV: "random.json"}})


@pytest.mark.parametrize(
    ("evaluation", "reason"),
    [
        ({"epsilon": 1.0}, "evaluated with epsilon 1.0, the study says 0.001"),
        ({"episodes": 1}, "evaluated with episodes 1, the study says 2"),
        ({"seed": 3}, "evaluated with seed 3, the study says 0"),
        (
            {"env_options": {"sticky": 0.2}},
            "evaluated with env_options {'sticky': 0.2}, the study says {'sticky': 0.1}",
        ),
        ({"steps": 30}, "evaluated at step 30 of 3,000"),
    ],
)
def test_what_a_study_did_not_evaluate_so_is_missing(tmp_path: Path, evaluation: dict[str, Any], reason: str) -> None:
    cells, folder = a_study(tmp_path)
    with_expect(folder, cells)
    write_json(folder / "random.json", {**made.played(ENV, [0.25]), "epsilon": 1.0})
    results = read_results([folder])
    assert (results.missing, results.random_policy) == ((), {ENV: 0.25})
    path = folder / "online/pvn-1/evaluation.json"
    write_json(path, {**made.played(ENV, [5.0, 7.0], (0, 1)), **evaluation})
    write_json(folder / "random.json", made.played(ENV, [0.25]))
    results = read_results([folder])
    (missing,) = results.missing
    assert (missing.method, missing.pretraining_seed, missing.reason) == ("PVN", 1, reason)
    assert results.random_policy == {}
    said = f"the random policy of {ENV} is not used: evaluated with epsilon 0.001, the study says 1.0"
    assert said in results.notes


def test_a_cell_of_a_study_with_other_agents_is_missing(tmp_path: Path) -> None:
    cells, folder = a_study(tmp_path)
    made.study(folder, [{**cells[0], "seeds": [0, 1, 2]}, *cells[1:]])
    (missing,) = read_results([folder]).missing
    assert missing.reason == "evaluated agents of seeds 0, 1, the study says 0, 1, 2"
    assert missing.seeds == (0, 1, 2)


def damage(path: Any) -> None:
    path.write_text(path.read_text().replace("5.0", "9.0"))


def nothing(path: Any) -> None:
    write_json(path, {"env": ENV})


def not_a_number(path: Any) -> None:
    write_json(path, made.played(ENV, [float("nan"), 1.0], (0, 1)))


def no_encoder(path: Any) -> None:
    shutil.rmtree(path.parents[2] / "pretrain/pvn-1")


def bad_metrics(path: Any) -> None:
    (path.parent / "metrics.jsonl").write_text("{}\nnot json\n")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "evaluation.json: damaged"),
        (nothing, "evaluation.json: not an evaluation"),
        (not_a_number, "mean return is nan, expected a finite number"),
        (no_encoder, "pvn-1: found no encoder there"),
        (bad_metrics, "metrics.jsonl: damaged"),
    ],
)
def test_one_damaged_run_does_not_lose_the_others(tmp_path: Path, spoil: Any, reason: str) -> None:
    _, folder = a_study(tmp_path / "study")
    spoil(folder / "online/pvn-1/evaluation.json")
    results = read_results([folder])
    assert [cell.run.name for cell in results.cells] == ["pvn-0", "d"]
    (missing,) = results.missing
    assert reason in missing.reason
    assert "\n" not in missing.reason
    (folder / "study.json").unlink()  # the same runs, loose
    (missing,) = read_results([folder]).missing
    assert reason in missing.reason


def test_lines_of_the_log_that_say_nothing_are_passed_over(tmp_path: Path) -> None:
    _, folder = a_study(tmp_path)
    lines = ['{"stage": "dqn/d", "event": "done", "seconds": 4.0}', "garbage", "{}", "[]", "\x00"]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    results = read_results([folder])
    assert results.stage_seconds == {"dqn": 4.0}
    assert "4 lines cannot be read" in results.notes[0]


def test_what_has_no_recorded_time_is_counted(tmp_path: Path) -> None:
    _, folder = a_study(tmp_path)
    events = [
        {"stage": "online/pvn-0", "event": "start"},  # killed
        {"stage": "online/pvn-0", "event": "start"},
        {"stage": "online/pvn-0", "event": "done", "seconds": 5.0},
        {"stage": "online/pvn-1", "event": "start"},  # killed when it was all but done
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    results = read_results([folder])
    assert results.stage_seconds == {"online": 5.0}
    assert (results.stages_without_time, results.attempts_without_time) == (2, 2)  # stages pvn-1 and dqn


def test_foreign_files_are_passed_over_unless_they_are_named(tmp_path: Path) -> None:
    made.run(tmp_path / "runs/r", ENV, [1.0], "random:minatar:1")
    (tmp_path / "runs/x").mkdir()
    for text in ('{"format": 3}', "[]", "no json"):
        (tmp_path / "runs/x/config.json").write_text(text)
        assert len(read_results([tmp_path / "runs"]).cells) == 1
        with pytest.raises(UserError, match=r"x/config.json: damaged"):
            read_results([tmp_path / "runs/x"])


def test_a_study_among_other_runs_is_refused(tmp_path: Path) -> None:
    _, folder = a_study(tmp_path / "study")
    made.run(tmp_path / "r", ENV, [1.0], "random:minatar:1")
    with pytest.raises(UserError, match="found a study among other runs"):
        read_results([folder, tmp_path / "r"])


def test_a_study_of_another_version_is_refused(tmp_path: Path) -> None:
    _, folder = a_study(tmp_path, version=2)
    with pytest.raises(UserError, match="not a study of format version 1"):
        read_results([folder])
