"""The zoo: made of a finished study by its command, found by name, and no file in it can be another."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import protovalue
from protovalue.card import read_results
from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import read_json, write_json
from protovalue.study import command as study_command
from protovalue.zoo import index as zoo
from tests.options.world import InTurn

STUDY = """name = "small"
title = "A small study"
normalise = "dqn"
environments = ["minatar/breakout"]
[env]
max_steps = 30
[data]
steps = 60
[seeds]
data = 2
pretraining = 2
pair = true
online = 2
[pretrain]
steps = 2
batch_size = 8
[online]
steps = 25
replay_min = 20
[dqn]
steps = 25
replay_min = 20
seeds = 2
[evaluate]
episodes = 1
[methods.pvn]
title = "PVN (RNI)"
tasks = 2
[methods.random]
[methods.dqn]
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zoo")
    (root / "small.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOVALUE_CACHE", str(root / "cache"))
        patch.setattr(study_command, "LocalProcesses", InTurn)
        patch.chdir(root)
        assert main(["study", "run", "small.toml"]) == 0
    return root / "runs" / "small"


@pytest.fixture(scope="module")
def _made(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "zoo"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(study.parents[1])
        assert main(["zoo", "make", "runs/small", "--methods", "pvn", "random", "--out", str(out)]) == 0
    return out


@pytest.fixture
def place(_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of one's own, which a test may damage."""
    shutil.copytree(_made, tmp_path / "zoo")
    monkeypatch.setenv("PROTOVALUE_ZOO", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def encoder_of(study: Path, method: str, seed: int) -> Path:
    (found,) = (study / "pretrain").glob(f"breakout-{method}-*-s{seed}-*")
    return found


def test_an_encoder_by_name_is_that_of_the_study(study: Path, place: Path) -> None:
    obs = np.random.default_rng(0).random((5, 1, 10, 10, 4)) < 0.2
    found = protovalue.load_encoder("zoo:minatar/breakout/pvn")
    for seed, same in ((0, True), (1, False)):
        other = protovalue.load_encoder(encoder_of(study, "pvn", seed))
        assert torch.equal(found.features(obs), other.features(obs)) == same
    assert sorted(zoo.read_index(place).encoders) == [  # type: ignore[union-attr]
        "minatar/breakout/pvn", "minatar/breakout/random",
    ]  # fmt: skip
    assert all(tensor.dtype == torch.float32 for tensor in found.parameters())


def test_agents_on_it_record_its_name(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["online", "--encoder", "zoo:minatar/breakout/pvn", "--steps", "25", "--replay-min", "20"]
    assert main([*words, "--out", str(out)]) == 0
    recorded = read_json(out / "config.json")["config"]
    assert (recorded["encoder"], recorded["env"]) == ("zoo:minatar/breakout/pvn", "minatar/breakout")
    assert main(["evaluate", str(out), "--episodes", "1"]) == 0


def test_its_results_are_those_of_the_study(study: Path, place: Path) -> None:
    (result,) = read_results(place / "minatar/breakout/pvn")
    (run,) = (study / "online").glob("breakout-pvn-*-s0-*")
    evaluation = read_json(run / "evaluation.json")
    assert list(result.returns) == [row["mean_return"] for row in evaluation["seeds"]]
    assert (result.seeds, result.steps, result.episodes, result.study) == ((0, 1), 25, 1, "A small study")
    scores = [read_json(one / "evaluation.json")["mean_return"] for one in (study / "online").glob("breakout-pvn-*")]
    by_name = {row.name: row for row in result.table}
    assert by_name["PVN (RNI)"].mean == pytest.approx(sum(scores) / 2)
    assert {name: row.runs for name, row in by_name.items()} == {
        "random play": 0, "PVN (RNI)": 2, "random": 2, "dqn": 2,
    }  # fmt: skip
    assert [line.split()[:2] for line in result.commands] == [
        ["pvn", "collect"], ["pvn", "pretrain"], ["pvn", "online"], ["pvn", "evaluate"],
    ]  # fmt: skip


def test_the_list_and_a_card(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (result,) = read_results(place / "minatar/breakout/random")
    (row,) = [line.split() for line in lines if line.startswith("zoo:minatar/breakout/random ")]
    assert row[1:3] == [f"{result.mean:.2f}", "2"]
    assert lines[-1].startswith("made by: pvn zoo make runs/small --methods pvn random --out ")
    assert main(["zoo", "list", "minatar/breakout/random"]) == 0
    card = capsys.readouterr().out
    assert card == (place / "minatar/breakout/random/README.md").read_text()
    assert 'load_encoder("zoo:minatar/breakout/random")' in card
    assert "| PVN (RNI) | " in card
    assert "random initialisation" in card or "Encoder for minatar/breakout: random" in card
    assert "Apache-2.0" in card
    assert str(place.parent.parent) not in "".join(path.read_text() for path in place.rglob("*.md"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md", "features.png", "results.json"])
def test_a_file_with_another_checksum_is_refused(place: Path, name: str) -> None:
    path = place / "minatar/breakout/pvn" / name
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(UserError, match=re.escape(f"{path}: damaged: its checksum is not the one in")):
        protovalue.load_encoder("zoo:minatar/breakout/pvn")
    path.unlink()
    with pytest.raises(UserError, match=re.escape(f"{path}: missing, expected it in the zoo")):
        protovalue.load_encoder("zoo:minatar/breakout/pvn")
    protovalue.load_encoder("zoo:minatar/breakout/random")


def test_names_that_are_not_there(place: Path) -> None:
    with pytest.raises(UserError, match="unknown encoder of the zoo 'minatar/breakout/pv': did you mean"):
        protovalue.load_encoder("zoo:minatar/breakout/pv")
    with pytest.raises(UserError, match="unknown encoder of the zoo"):
        protovalue.load_encoder("zoo:../zoo/minatar/breakout/pvn")


def test_an_index_leads_nowhere_else(place: Path) -> None:
    fields = json.loads((place / "index.json").read_text())
    for encoders, message in (
        ({"../elsewhere": {"config.json": "0"}}, "expected names such as"),
        ({"minatar/breakout/pvn": {"../../config.json": "0"}}, "expected names of files"),
    ):
        write_json(place / "index.json", {**{k: v for k, v in fields.items() if k != "sha256"}, "encoders": encoders})
        with pytest.raises(UserError, match=message):
            protovalue.load_encoder("zoo:minatar/breakout/pvn")


def test_an_empty_zoo_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROTOVALUE_ZOO", str(tmp_path / "none"))
    empty = f"the zoo in {tmp_path / 'none'} is empty; `pvn zoo make` fills it from a finished study"
    assert main(["zoo", "list"]) == 2
    assert capsys.readouterr().err == f"pvn: {empty}\n"
    assert main(["online", "--encoder", "zoo:minatar/breakout/pvn", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"pvn: --encoder: zoo:minatar/breakout/pvn: {empty}\n"
    assert not (tmp_path / "run").exists()


def test_the_package_s_own_zoo_holds_only_what_the_command_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of it is listed with its checksum, and is of the study that its index names; it may be empty."""
    monkeypatch.delenv("PROTOVALUE_ZOO", raising=False)
    index = zoo.read_index(zoo.HOME)
    listed = {zoo.HOME / name / file for name, files in index.encoders.items() for file in files} if index else set()
    there = {path for path in zoo.HOME.rglob("*") if path.is_file() and path.name != "index.json"}
    assert there == listed
    assert index is None or index.made_by.startswith("pvn zoo make runs/minatar-claims --methods pvn ")
    for name in index.encoders if index else ():
        found = protovalue.load_encoder(f"zoo:{name}")
        assert found.about["config"]["steps"] == 3_000 or found.about["method"] == "random"


def test_what_cannot_be_made_leaves_nothing(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*words: str) -> str:
        assert main(["zoo", "make", *words, "--out", str(tmp_path / "zoo")]) == 2
        assert list(tmp_path.glob("zoo*")) == []
        return capsys.readouterr().err

    assert "unknown method of the study 'pv'" in refusal(str(study), "--methods", "pv")
    assert "--methods: found pvn twice" in refusal(str(study), "--methods", "pvn", "pvn")
    assert "found no encoder of pvn with pretraining seed 7" in refusal(str(study), "--methods", "pvn", "--seed", "7")
    monkeypatch.setattr("protovalue.publish.zoo_make.MOST", 500_000)
    assert "expected at most 500,000: choose fewer" in refusal(str(study), "--methods", "pvn")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(study, unfinished)
    (run,) = (unfinished / "online").glob("breakout-pvn-*-s0-*")
    (run / "evaluation.json").unlink()
    said = refusal(str(unfinished), "--methods", "pvn")
    assert f"{unfinished}: pvn in minatar/breakout, seed 0: not evaluated" in said


def test_a_zoo_is_replaced_and_other_folders_are_not(place: Path, study: Path, tmp_path: Path) -> None:
    assert main(["zoo", "make", str(study), "--methods", "random", "--seed", "1", "--out", str(place)]) == 0
    assert list(zoo.read_index(place).encoders) == ["minatar/breakout/random"]  # type: ignore[union-attr]
    assert not (place / "minatar/breakout/pvn").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.tex").write_text("years of work")
    assert main(["zoo", "make", str(study), "--methods", "pvn", "--out", str(tmp_path / "thesis")]) == 2
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]
