"""`pvn probe` on real games: what is printed, what is written, and what is refused."""

from pathlib import Path

import pytest

from protovalue.cli import main
from protovalue.files import read_json


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["probe", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_random_networks_of_minatar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two networks, one of them also asked for as the first random one; a supervised one beside them."""
    words = ["random:minatar:0.25:0", "random:minatar:0.25:7", "--env", "minatar/breakout", "--states", "600"]
    more = ["--epochs", "2", "--random", "2", "--supervised", "1", "--out", str(tmp_path / "probe")]
    code, out, _ = run(capsys, *words, *more)
    assert code == 0
    assert "What can be read from features in minatar/breakout" in out
    assert "benchmark" not in out
    found = read_json(tmp_path / "probe" / "probe.json")
    assert [one["method"] for one in found["probed"]] == ["majority", "random", "random", "random", "supervised"]
    assert [one["encoder"] for one in found["probed"][1:4]] == [
        "random:minatar:0.25:0", "random:minatar:0.25:7", "random:minatar:0.25:1",
    ]  # fmt: skip
    for name in ("f1", "area"):
        assert all(len(one["scores"][name]) == len(found["variables"]) for one in found["probed"])
    assert sum(found["states"].values()) <= 600
    assert {variable["category"] for variable in found["variables"]} == {"beside the player", "places"}
    for name in ("categories-f1", "variables-f1", "categories-area", "variables-area"):
        assert (tmp_path / "probe" / f"{name}.csv").is_file()
    assert out.count("majority") == 2
    assert "Area under the curve on" in out


def test_an_encoder_names_its_game_and_a_player_its_actions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, encoder = str(tmp_path / "data"), str(tmp_path / "bc")
    assert main(["collect", "minatar/breakout", "--steps", "400", "--out", data]) == 0
    small = ["--steps", "2", "--batch-size", "8", "--width", "0.25", "--out", encoder]
    assert main(["pretrain", "--method", "bc", "--data", data, *small]) == 0
    capsys.readouterr()
    words = [encoder, "--player", data, "--states", "300", "--epochs", "2", "--random", "1"]
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "probe"))
    assert code == 0, err
    found = read_json(tmp_path / "probe" / "probe.json")
    assert [one["method"] for one in found["probed"]] == ["majority", "bc", "random"]
    assert found["probed"][2]["encoder"] == "random:minatar:0.25:0"
    assert "action" in [variable["name"] for variable in found["variables"]]


def test_atari_has_its_landmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["random:nature:0.25", "--env", "atari/Boxing", "--states", "900", "--epochs", "1", "--random", "0"]
    code, out, err = run(capsys, *words, "--out", str(tmp_path / "probe"))
    assert code == 0, err  # eight games side by side are eight episodes, however short
    assert " ".join(out.split()).count("as the benchmark printed: majority 0.01, random cnn 0.19") == 1
    found = read_json(tmp_path / "probe" / "probe.json")
    assert "agent localization" in {variable["category"] for variable in found["variables"]}


def test_too_few_states_for_an_episode_of_atari_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["random:nature:0.25", "--env", "atari/Boxing", "--states", "512", "--random", "0"]  # 64 of each game
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "probe"))
    assert code == 2
    assert "--states: found 512, expected more: none of the 8 games that play side by side lasts longer than 64" in err


def test_what_cannot_be_probed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        ([], "ENCODERS: found none, expected folders of pretraining runs"),
        (["random:minatar:1"], "--env: missing, expected an environment"),
        (["random:nature:1", "--env", "atari/Asterix"], "atari/Asterix"),
        (["random:nature:1", "--env", "gym/CartPole-v1"], "expected a uint8 or bool Box"),
        (["nowhere", "--env", "minatar/breakout"], "nowhere"),
    ):
        code, _, err = run(capsys, *words, "--out", str(tmp_path / "probe"))
        assert code == 2, words
        assert said in err
        assert "Traceback" not in err
    assert not (tmp_path / "probe").exists()
