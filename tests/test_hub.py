"""The Hub: an encoder goes there and comes back from a local server that speaks its API, also when things go wrong."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, ModelCardData, constants, file_download
from huggingface_hub.utils import _http

from protovalue.cli import main
from protovalue.encoder import lasting_name, load_encoder, save_encoder
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.evaluate.episodes import evaluate_run
from protovalue.files import read_json
from protovalue.hub import Repository
from protovalue.nets.encoders import make_encoder
from protovalue.online.config import OnlineConfig
from protovalue.online.linear_dqn import train_online
from protovalue.report.reading import read_results
from tests.hub_server import TOKEN, Hub, connected

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own, in uploads

OPTIONS = {"actions": "minimal", "sticky": 0.1, "stack": 1, "max_steps": 10_000}
CARD = ["# Encoder for minatar/breakout: pvn", "", 'encoder = protovalue.load_encoder("path/to/this/folder")', "",
        "pvn pretrain --out /home/somebody/runs/pvn --data data/breakout"]  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with connected(monkeypatch, tmp_path) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(3))
    about = {
        "env_id": "minatar/breakout", "env_options": OPTIONS, "method": "pvn",
        "config": {"out": "/home/somebody/runs/pvn", "data": ["data/breakout"], "seed": 0, "width": 1},
        "summary": {"feature_rms": 0.5},
    }  # fmt: skip
    save_encoder(tmp_path / "encoder", made, "minatar", 1, about, CARD)
    return tmp_path / "encoder"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def said(capsys: pytest.CaptureFixture[str], command: list[str]) -> str:
    """Run a command that is refused; return its one line, without the progress of transfers."""
    capsys.readouterr()
    assert main(command) == 2
    *_, line = re.split(r"[\r\n]+", capsys.readouterr().err.strip())
    assert line.startswith("pvn: ")
    return line


def same_features(one: Any, other: Any) -> bool:
    obs = np.random.default_rng(0).random((5, 1, 10, 10, 4)) < 0.2
    return torch.equal(load_encoder(one).features(obs), load_encoder(other).features(obs))


def test_an_encoder_comes_from_the_hub_with_two_files_and_no_others(hub: Hub, folder: Path, tmp_path: Path) -> None:
    evil = {"setup.py": b"raise SystemExit", "pytorch_model.bin": b"\x80\x04."}
    first = hub.repo("me/x").commit({**files(folder), **evil})
    assert same_features("hf://me/x", folder)
    assert not any(name in line for line in hub.asked for name in evil)
    assert lasting_name("hf://me/x") == f"hf://me/x@{first}"
    hub.repo("me/x").commit({"config.json": b"{}"})
    assert same_features(f"hf://me/x@{first}", folder)  # a commit stays what it was
    with pytest.raises(UserError, match="no encoder here"):
        load_encoder("hf://me/x")


def test_a_commit_that_was_downloaded_needs_no_connection(hub: Hub, folder: Path) -> None:
    commit = hub.repo("me/x").commit(files(folder))
    load_encoder("hf://me/x")
    hub.asked.clear()
    assert same_features(f"hf://me/x@{commit}", folder)
    assert hub.asked == []


def test_offline_takes_what_was_downloaded(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repo("me/x").commit(files(folder))
    load_encoder("hf://me/x")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert same_features("hf://me/x", folder)
    with pytest.raises(UserError, match="hf://me/y: not downloaded yet, and HF_HUB_OFFLINE is set"):
        load_encoder("hf://me/y")
    assert hub.asked == []


def test_agents_are_trained_evaluated_and_reported_on_it(hub: Hub, folder: Path, tmp_path: Path) -> None:
    """The run records the commit: what it stands on does not change when the repository does."""
    commit = hub.repo("me/x").commit(files(folder))
    config = OnlineConfig(encoder="hf://me/x", out=tmp_path / "run", steps=40, replay_min=20)
    run = train_online(config, quiet=True)
    assert read_json(run / "config.json")["config"]["encoder"] == f"hf://me/x@{commit}"
    hub.repo("me/x").commit({"config.json": b"{}"})
    found = evaluate_run(EvaluateConfig(run, episodes=2), quiet=True)
    (cell,) = read_results([run]).cells
    assert (cell.method, cell.env, list(cell.returns)) == ("pvn", "minatar/breakout", [found["mean_return"]])


def test_what_is_pushed_comes_back_with_a_card(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_online(
        OnlineConfig(encoder=str(folder), out=tmp_path / "run", steps=40, seeds="0-1", replay_min=20), True
    )
    found = evaluate_run(EvaluateConfig(run, episodes=2), quiet=True)
    assert main(["push", str(folder), "hf://me/new", "--license", "mit", "--runs", str(run)]) == 0
    ((_, there),) = hub.repo("me/new").commits
    assert sorted(there) == ["README.md", "config.json", "features.png", "model.safetensors", "results.json"]
    assert there["features.png"].startswith(b"\x89PNG")
    assert same_features("hf://me/new", folder)
    assert not any(b"/home/somebody" in data or str(tmp_path).encode() in data for data in there.values())

    card = ModelCard(there["README.md"].decode())  # as the Hub reads it
    assert isinstance(card.data, ModelCardData)
    assert (card.data.license, card.data.library_name) == ("mit", "protovalue")
    assert {"protovalue", "pvn", "minatar", "breakout"} <= set(card.data.tags or [])
    (score,) = card.data.eval_results or []
    assert (score.task_type, score.dataset_name, score.metric_type) == (
        "reinforcement-learning", "minatar/breakout", "mean_reward",
    )  # fmt: skip
    assert score.metric_value == pytest.approx(found["mean_return"])
    assert 'load_encoder("hf://me/new")' in card.text
    assert "![features of random play" in card.text
    assert "pvn pretrain --out pvn --data data/breakout" in card.text
    (online,) = re.findall(r"^pvn (online .*)$", card.text, re.MULTILINE)
    (evaluate,) = re.findall(r"^pvn (evaluate .*)$", card.text, re.MULTILINE)
    monkeypatch.chdir(tmp_path / "hub")  # elsewhere the commands on the card repeat the result
    assert main(online.split()) == 0
    assert main(evaluate.split()) == 0
    assert read_json(Path("run/evaluation.json"))["seeds"] == read_json(run / "evaluation.json")["seeds"]


def test_pushing_again_replaces_an_encoder_and_nothing_else(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["push", str(folder), "hf://me/new", "--license", "mit"]
    assert main([*command, "--private"]) == 0
    assert hub.repo("me/new").private
    assert main(command) == 0
    assert len(hub.repo("me/new").commits) == 2
    hub.repo("me/bert").commit({"config.json": b'{"model_type": "bert"}'})
    line = said(capsys, ["push", str(folder), "hf://me/bert", "--license", "mit"])
    assert "hf://me/bert: holds something else than an encoder" in line
    assert len(hub.repo("me/bert").commits) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hf://me/new@v1"], "found a revision"),
        (["me/new"], "expected hf://ORG/NAME"),
        (["hf://datasets/me/new"], "expected hf://ORG/NAME"),
        (["hf://me/new", "--license", "My own!"], "--license: found 'My own!'"),
        (["hf://me/new", "--runs", "{folder}"], "config.json"),
        (["hf://me/new", "--picture", "{folder}/config.json"], "found no PNG file"),
    ],
)
def test_what_push_refuses(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given = [word.format(folder=folder) for word in words]
    licence = [] if "--license" in words else ["--license", "mit"]
    assert message in said(capsys, ["push", str(folder), *given, *licence])
    assert not hub.repos


def test_runs_on_another_encoder_are_refused(hub: Hub, folder: Path, tmp_path: Path) -> None:
    config = OnlineConfig(
        encoder="random:minatar:1", env="minatar/breakout", out=tmp_path / "run", steps=40, replay_min=20
    )
    run = train_online(config, quiet=True)
    assert main(["push", str(folder), "hf://me/new", "--license", "mit", "--runs", str(run)]) == 2
    assert not hub.repos


def test_no_token(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(monkeypatch, tmp_path, token=None) as hub:
        line = said(capsys, ["push", str(folder), "hf://me/new", "--license", "mit"])
        assert line == (
            "pvn: hf://me/new: found no token of the Hub, expected one that may write: `hf auth login`, or HF_TOKEN"
        )
        assert not hub.repos
        hub.repo("me/secret").commit(files(folder))
        hub.repo("me/secret").private = True
        line = said(capsys, ["online", "--encoder", "hf://me/secret", "--out", str(tmp_path / "run")])
        assert line == (
            f"pvn: hf://me/secret: found no such repository at {hub.url}; "
            "if it is private: `hf auth login`, or HF_TOKEN"
        )
        hub.repo("me/gated").commit(files(folder))
        hub.repo("me/gated").gated = True
        assert "gives access on request only" in said(capsys, ["online", "--encoder", "hf://me/gated", "--out", "run"])
    with connected(monkeypatch, tmp_path, token="hf_that_may_read") as hub:
        line = said(capsys, ["push", str(folder), "hf://me/new", "--license", "mit"])
        assert (
            line == "pvn: hf://me/new: the Hub refuses this (401): "
            "a token is needed that may do it: `hf auth login`, or HF_TOKEN"
        )
        assert not hub.repos


class _NoWaiting:
    """Python's own time, but for the pauses between tries."""

    sleep = staticmethod(lambda _: None)

    def __getattr__(self, name: str) -> Any:
        import time

        return getattr(time, name)


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (file_download, _http):
        monkeypatch.setattr(module, "time", _NoWaiting())


@pytest.mark.usefixtures("_no_waiting")
def test_a_connection_that_is_cut_once_is_gone_on_with(hub: Hub, folder: Path) -> None:
    hub.repo("me/x").commit(files(folder))
    hub.cuts = 1
    assert same_features("hf://me/x", folder)
    assert hub.cuts == 0


@pytest.mark.usefixtures("_no_waiting")
def test_a_connection_that_is_always_cut_leaves_nothing_that_could_be_taken_for_an_encoder(
    hub: Hub, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repo("me/x").commit(files(folder))
    hub.cuts = 1_000
    line = said(capsys, ["online", "--encoder", "hf://me/x", "--out", str(tmp_path / "run")])
    assert re.match(rf"pvn: --encoder: hf://me/x.*: the transfer from or to {hub.url} failed: ", line)
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "hub").rglob("*.safetensors")) == []
    hub.cuts = 0
    assert same_features("hf://me/x", folder)  # and the next try goes well


@pytest.mark.usefixtures("_no_waiting")
def test_an_upload_that_is_cut_leaves_no_commit(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.cut_uploads = True
    line = said(capsys, ["push", str(folder), "hf://me/new", "--license", "mit"])
    assert line.startswith(f"pvn: hf://me/new: the transfer from or to {hub.url} failed: ")
    assert hub.repo("me/new").commits == []


@pytest.mark.usefixtures("_no_waiting")
def test_a_hub_that_is_down(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.down = True
    assert "pvn: hf://me/x: the Hub answered 503" in said(capsys, ["online", "--encoder", "hf://me/x", "--out", "run"])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_wrong_checksum_is_seen_and_not_kept(hub: Hub, folder: Path, tmp_path: Path, name: str) -> None:
    hub.repo("me/x").commit(files(folder))
    hub.wrong.add(name)
    with pytest.raises(UserError, match=f"hf://me/x.*: {name}: its checksum is not the one that the Hub lists"):
        load_encoder("hf://me/x")
    assert list((tmp_path / "hub").rglob(name)) == []
    hub.wrong.clear()
    assert same_features("hf://me/x", folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no encoder here: config.json is missing"),
        ({"README.md": b"# A data set"}, "no encoder here: config.json is missing"),
        ({"config.json": b'{"model_type": "bert"}'}, "no encoder here: model.safetensors is missing"),
        ({"config.json": b'{"model_type": "bert"}', "model.safetensors": b"x" * 9},
         "no encoder here: field format of config.json: found null, expected 'protovalue encoder'"),
        ({"config.json": b"[1]", "model.safetensors": b"x"}, "field format of config.json: found [1]"),
        ({"config.json": b"\xff", "model.safetensors": b"x"}, "config.json: damaged: not JSON"),
        ({"config.json": b'{"format": "protovalue encoder"}', "model.safetensors": b"x"},
         "its checksum does not match"),
    ],
)  # fmt: skip
def test_a_repository_that_is_no_encoder(hub: Hub, content: dict[str, bytes], message: str) -> None:
    hub.repo("me/x").commit(content)
    with pytest.raises(UserError) as error:
        load_encoder("hf://me/x")
    assert message in str(error.value)
    assert not any("GET /me/x/resolve" in line and "safetensors" in line for line in hub.asked) or "sum" in message


def test_a_file_that_is_too_large_is_not_asked_for(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repo("me/x").commit(files(folder))
    monkeypatch.setattr("protovalue.encoder._MOST_BYTES", 1_000)
    with pytest.raises(UserError, match=r"model.safetensors: found 527,528 bytes, expected at most 1,000|config.json"):
        load_encoder("hf://me/x")
    assert not any("resolve" in line for line in hub.asked)


@pytest.mark.parametrize(
    "address", ["hf://me", "hf://me/x/y", "hf://../x", "hf://me/..", "hf://me/x@", "hf://", "hf://me/x@a b"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UserError, match="expected hf://ORG/NAME or hf://ORG/NAME@REVISION"):
        load_encoder(address)


def test_addresses_by_hand() -> None:
    assert Repository.of("hf://me/x.y-z_1@refs/pr/3") == Repository("me/x.y-z_1", "refs/pr/3")
    assert str(Repository.of("hf://datasets/me/x", "dataset")) == "hf://datasets/me/x"
    with pytest.raises(UserError, match="expected hf://datasets/ORG/NAME"):
        Repository.of("hf://me/x", "dataset")


def test_a_revision_that_is_not_there(hub: Hub, folder: Path) -> None:
    hub.repo("me/x").commit(files(folder))
    with pytest.raises(UserError, match="hf://me/x@v9: found no revision 'v9' there"):
        load_encoder("hf://me/x@v9")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"hf://me/x: hf:// needs another package: .*pip install -e '.\[hub\]'"):
        load_encoder("hf://me/x")


def test_in_a_process_of_its_own_by_the_environment_s_variables(hub: Hub, folder: Path, tmp_path: Path) -> None:
    """As a user has it: HF_ENDPOINT and HF_HOME are read when huggingface_hub is imported."""
    hub.repo("me/x").commit(files(folder))
    script = (
        "import protovalue, json; encoder = protovalue.load_encoder('hf://me/x');"
        "print(json.dumps([encoder.num_features, encoder.about['method']]))"
    )
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [128, "pvn"]
