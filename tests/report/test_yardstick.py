"""Reports on the scale of another study: its random policy and its DQN, and nothing else of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import write_json
from protovalue.report.model import FeatureNumbers, Spread
from protovalue.report.reading import read_results
from protovalue.report.results import EncoderFeatures
from protovalue.report.results_file import RESULTS, write_results
from protovalue.report.yardstick import with_yardstick
from tests.report.test_results_file import ENV, OTHER, kept, study, table


def without(folder: Path, methods: tuple[str, ...] = ("pvn",)) -> Path:
    """A study as `study` makes it, with neither DQN nor random policy, and scores that are not normalised."""
    mine = study(folder, methods=methods)
    plain = json.loads((mine / "study.json").read_text())
    plain.pop("sha256", None)
    write_json(mine / "study.json", {**plain, "normalise": "none", "name": "mine", "random_policy": {}})
    return mine


def test_methods_of_the_same_names_are_measured_by_it_and_not_joined_with_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, mine = study(tmp_path / "theirs", methods=("pvn", "bc", "dqn")), without(tmp_path / "mine")
    yardstick = kept(tmp_path, read_results([theirs]))
    words = ["report", str(mine), "--out", str(tmp_path / "out"), "--features", "none", "--draws", "200"]
    assert main([*words, "--yardstick", str(yardstick)]) == 0
    assert "random policy (0) and end-to-end DQN (1; mean of 2 agents), both of made and taken as exact" in (
        capsys.readouterr().out
    )
    by_method = {row["Method"]: row for row in table(tmp_path / "out", "aggregates")}
    assert by_method.keys() == {"PVN", "DQN"}
    assert float(by_method["PVN"]["Mean"]) == pytest.approx(0.65)  # (7.5 - 1) / (11 - 1)
    assert float(by_method["DQN"]["Mean"]) == pytest.approx(1.0)
    results = read_results([tmp_path / "out"])
    assert (results.name, results.normalise, results.yardstick) == ("mine", "dqn", "made")
    # What it wrote is measured by itself: a part of the study that comes later joins it.
    shutil.rmtree(mine / "online/freeway-pvn-1")
    part = kept(tmp_path, with_yardstick(read_results([mine]), theirs))
    rest = without(tmp_path / "rest")
    for name in ("breakout-pvn-0", "breakout-pvn-1", "freeway-pvn-0"):
        shutil.rmtree(rest / "online" / name)
    whole = read_results([part, rest])
    assert (len(whole.cells), whole.missing, whole.normalise) == (6, (), "dqn")


def test_only_games_of_the_runs_are_taken_and_those_that_it_lacks_are_named(tmp_path: Path) -> None:
    theirs, mine = study(tmp_path / "theirs"), read_results([without(tmp_path / "mine")])
    other = replace(mine, envs=(ENV,), cells=tuple(cell for cell in mine.cells if cell.env == ENV))
    found = with_yardstick(other, theirs)
    assert {cell.env for cell in found.cells} == {ENV}
    assert found.random_policy == {ENV: 1.0}
    for name in ("dqn/freeway", "online/breakout-pvn-0"):
        shutil.rmtree(theirs / name)
    found = with_yardstick(mine, theirs)
    assert [(one.env, one.method) for one in found.missing] == [(OTHER, "DQN")]
    assert with_yardstick(other, theirs).missing == ()
    only = replace(mine, envs=(OTHER,), cells=tuple(cell for cell in mine.cells if cell.env == OTHER))
    with pytest.raises(UserError, match=f"theirs: found no end-to-end DQN in {OTHER}, expected one to measure by"):
        with_yardstick(only, theirs)
    shutil.rmtree(theirs / "dqn/breakout")
    with pytest.raises(UserError, match=f"theirs: found no end-to-end DQN in {ENV}, {OTHER}, expected one to measure"):
        with_yardstick(mine, theirs)


def test_what_cannot_be_measured_by_it_is_refused(tmp_path: Path) -> None:
    theirs, mine = study(tmp_path / "theirs"), without(tmp_path / "mine")
    with pytest.raises(UserError, match="--yardstick .*theirs: found runs with a yardstick of their own"):
        with_yardstick(read_results([theirs]), theirs)
    own = replace(read_results([mine]), random_policy={ENV: 1.0})
    with pytest.raises(UserError, match="found runs with a yardstick of their own, expected none with a DQN or random"):
        with_yardstick(own, theirs)
    named = replace(read_results([mine]), methods=("PVN", "DQN"))
    with pytest.raises(UserError, match="found DQN among the runs, expected the name for their yardstick alone"):
        with_yardstick(named, theirs)
    for wrong in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UserError, match=f"{wrong}: found neither a study nor results of a report"):
            with_yardstick(read_results([mine]), wrong)
    shutil.rmtree(theirs)
    study(theirs, methods=("dqn",))
    for cell in (theirs / "dqn").iterdir():
        played = json.loads((cell / "evaluation.json").read_text())
        played.pop("sha256", None)
        write_json(cell / "evaluation.json", {**played, "epsilon": 0.5})
    with pytest.raises(UserError, match="evaluation.epsilon is 0.5.*one game: a report does not mix them"):
        with_yardstick(read_results([mine]), theirs)


def test_what_was_measured_of_its_networks_comes_along(tmp_path: Path) -> None:
    theirs, mine = study(tmp_path / "theirs"), read_results([without(tmp_path / "mine")])
    numbers = (EncoderFeatures(0, None, 128, 9.0, 0.5, None),)
    features = {(env, method): numbers for env in (ENV, OTHER) for method in ("PVN", "DQN")}
    spread = Spread(9, 9, 9)
    listed = [FeatureNumbers(*key, 1, 128, spread, spread, None, own) for key, own in features.items()]
    file = write_results(read_results([theirs]), listed, tmp_path / RESULTS)
    assert with_yardstick(mine, file).features == {(env, "DQN"): numbers for env in (ENV, OTHER)}
    other = replace(mine, envs=(ENV,), cells=tuple(cell for cell in mine.cells if cell.env == ENV))
    assert with_yardstick(other, file).features == {(ENV, "DQN"): numbers}
