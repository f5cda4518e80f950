"""Linear agents on encoders of a folder or drawn at random: what fits, what they play, how features are scaled."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.cli import main
from protovalue.data.importing import atari_manifest
from protovalue.encoder import save_encoder
from protovalue.envs import minatar
from protovalue.envs.probe import random_observations
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate.config import EvaluateConfig
from protovalue.evaluate.episodes import evaluate_run
from protovalue.feature_env import feature_scale
from protovalue.nets.encoders import make_encoder
from protovalue.online import linear_dqn
from protovalue.online.agent import Rule
from protovalue.online.config import OnlineConfig
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn, find_encoder, train_online, with_environment
from protovalue.presets import resolved
from protovalue.randomness import Purpose, seeded
from protovalue.runs import read_run
from tests.online.rigged import one_hot
from tests.online.test_agent import batch as stored


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    made = make_encoder("minatar", (1, 10, 10, 4), 1, seeded(5, Purpose.ENCODER))
    about = {"env_id": "minatar/breakout", "summary": {"feature_rms": 0.25}}
    save_encoder(tmp_path / "encoder", made, "minatar", 1, about, ["card"])
    return tmp_path / "encoder"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--encoder E --env minatar/asterix", "was trained on minatar/breakout, expected minatar/asterix"),
        ("--encoder E --env minatar/freeway", "is for observations (1, 10, 10, 4), expected (1, 10, 10, 7)"),
        ("--encoder E --env minatar/breakuot", "did you mean 'minatar/breakout'?"),
        ("--encoder E --env minatar/breakout --seeds 0-3,2", "--seeds: found 2 twice in '0-3,2', expected each"),
        ("--encoder E --env minatar/breakout --seeds 3-1", "--seeds: found '3-1', expected a range that goes up"),
        ("--encoder E --env minatar/breakout --seeds one", "--seeds: found 'one', expected numbers and ranges"),
        ("--encoder nowhere --env minatar/breakout", "nowhere: no encoder here"),
        ("--encoder random:impala --env minatar/breakout", "expected random:der|impala|minatar|nature:WIDTH"),
        ("--encoder E --env minatar/breakout --replay-size 10", "--replay-size: found 10, expected at least"),
        ("--encoder E --env minatar/breakout --head c51 --huber", "--huber: found it together with --head c51"),
        ("--encoder E --env minatar/breakout --epsilon 2", "--epsilon: found 2.0, expected between 0 and 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    flags: str, expected: str, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"online {flags} --out {tmp_path}/r".replace("--encoder E", f"--encoder {encoder}")
    assert main(command.split()) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.err.splitlines()[-1].startswith("pvn: ")
    assert not (tmp_path / "r").exists()


def test_another_config_or_encoder_in_the_same_folder_is_refused(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--env minatar/breakout --steps 30 --replay-min 10 --replay-size 50 --out {tmp_path}/r"
    assert main(f"online --encoder {encoder} {flags}".split()) == 0
    capsys.readouterr()
    assert main(f"online --encoder {encoder} {flags} --double".split()) == 2
    assert "holds a run with another config: double True (the run has False)" in capsys.readouterr().err
    assert main(f"online --encoder random:minatar:1 {flags}".split()) == 2
    assert "encoder_checksum" in capsys.readouterr().err
    others = "--head c51 --n-step 2 --gamma 0.5 --double --epsilon 0.3 --hidden 7 --learning-rate 1"
    assert main(f"online --encoder {encoder} {flags} {others}".split()) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    listed = "atoms 51 (the run has None), double True (the run has False), epsilon 0.3 (the run has 0.01), gamma 0.5"
    assert line == (
        f"pvn: {tmp_path}/r: holds a run with another config: {listed} (the run has 0.99) and 5 more; "
        "choose another folder or the same config"
    )


def test_a_folder_of_another_command_is_refused_in_few_words(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose run it is; and that agents have no encoder, not that they are not finished."""
    agents, pretrained = tmp_path / "agents", tmp_path / "pretrained"
    flags = "--env minatar/breakout --steps 30 --replay-min 10 --replay-size 50"
    assert main(f"online --encoder {encoder} {flags} --out {agents}".split()) == 0
    assert main(f"pretrain --method random --env minatar/breakout --out {pretrained}".split()) == 0
    for words, expected in [
        (f"online --encoder {encoder} {flags} --out {pretrained}",
         f"{pretrained}: found a run of pvn pretrain, expected another folder for pvn online"),
        (f"pretrain --method random --env minatar/breakout --out {agents}",
         f"{agents}: found a run of pvn online, expected another folder for pvn pretrain"),
        (f"online --encoder {agents} {flags} --out {tmp_path}/r",
         f"--encoder: {agents}: no encoder here: found the agents of pvn online, expected a run of pvn pretrain"),
    ]:  # fmt: skip
        capsys.readouterr()
        assert main(words.split()) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"pvn: {expected}"


def test_the_feature_scale_is_the_encoder_s_own_or_a_random_policy_s(encoder: Path, tmp_path: Path) -> None:
    def settings(name: Any, **changes: Any) -> OnlineConfig:
        return OnlineConfig(
            env="minatar/breakout", out=tmp_path / name, steps=12, replay_min=10, replay_size=20, **changes
        )

    stored = train_online(settings("a", encoder=str(encoder)), quiet=True)
    assert read_run(stored)["config"]["feature_divisor"] == 0.25
    none = train_online(settings("b", encoder=str(encoder), feature_scale="none"), quiet=True)
    assert read_run(none)["config"]["feature_divisor"] == 1.0
    env = make("minatar/breakout")
    random = linear_dqn.find_encoder("random:minatar:1:5", env)
    scale = feature_scale(random, env)
    assert scale == feature_scale(random, env)
    obs = random_observations(env)
    assert obs.shape == (512, 1, 10, 10, 4)
    assert scale == pytest.approx(float(random.features(obs).square().mean().sqrt()))
    same = linear_dqn.find_encoder(str(encoder), env)  # the encoder folder holds the same initialisation
    np.testing.assert_array_equal(same.features(obs[:8]), random.features(obs[:8]))


def test_the_transfer_to_another_game_can_be_allowed(encoder: Path, tmp_path: Path) -> None:
    flags = f"--encoder {encoder} --env minatar/asterix --other-game --steps 20 --replay-min 10 --replay-size 50"
    assert main(f"online {flags} --out {tmp_path}/r".split()) == 0
    assert json.loads((tmp_path / "r" / "done.json").read_text())["steps"] == 20


MADE = {"sticky": 0.3, "stack": 2, "actions": "full", "max_steps": 500}  # options of the data of the encoder below


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An encoder of stacked frames, from data of another game than the family's default."""
    made = make_encoder("minatar", (2, 10, 10, 4), 1, seeded(5, Purpose.ENCODER))
    about = {
        "env_id": "minatar/breakout", "env_options": MADE, "config": {"data": ["somewhere"]},
        "summary": {"feature_rms": 0.25},
    }  # fmt: skip
    save_encoder(tmp_path / "other", made, "minatar", 1, about, ["card"])
    return tmp_path / "other"


SHORT = "--steps 8 --replay-min 5 --replay-size 9"
FAMILY = {"actions": "minimal", "sticky": 0.1, "max_steps": 10_000}
UNSET = {"frameskip": None, "noop_max": None, "episodic_life": None}


@pytest.mark.parametrize(
    ("flags", "options", "said"),
    [
        ("", {**FAMILY, "stack": 2}, "sticky 0.3, actions full, max_steps 500; agents play with sticky 0.1, "
         "actions minimal, max_steps 10000 (--sticky 0.3 --actions full --max-steps 500 to change)"),
        ("--env minatar/breakout", {**FAMILY, "stack": 2}, "sticky 0.3, actions full, max_steps 500; agents play"),
        ("--finetune", {**FAMILY, "stack": 2}, "sticky 0.3, actions full, max_steps 500; agents play"),
        ("--sticky 0.3 --actions full", {**MADE, "max_steps": 10_000},
         "max_steps 500; agents play with max_steps 10000 (--max-steps 500 to change)"),
        ("--env minatar/breakout --sticky 0.3 --actions full --max-steps 500", MADE, None),
    ],
)  # fmt: skip
def test_the_game_is_what_the_command_says_and_only_the_stack_is_the_encoder_s(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, options: Any, said: str | None
) -> None:
    """Typed or not, the environment has the family's defaults where nothing is set, and evaluation plays the same."""
    assert main(f"online --encoder {other} {flags} {SHORT} --out {tmp_path}/r".split()) == 0
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if "the data was collected with" in line]
    assert len(lines) == (said is not None)
    if said:
        assert f"{other}: the data was collected with {said}" in lines[0]
    recorded = read_run(tmp_path / "r")["config"]
    assert recorded["env"] == "minatar/breakout"
    assert recorded["options"] == {**UNSET, **options}
    assert evaluate_run(EvaluateConfig(tmp_path / "r", 1), quiet=True)["env_options"] == options


def test_another_stack_than_the_encoder_s_is_refused(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"online --encoder {other} --stack 1 {SHORT} --out {tmp_path}/r".split()) == 2
    assert "is for observations (2, 10, 10, 4), expected (1, 10, 10, 4)" in capsys.readouterr().err


def test_a_random_encoder_plays_the_same_game(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"online --encoder random:minatar:1 --env minatar/breakout {SHORT} --out {tmp_path}/r".split()) == 0
    assert "the data was collected" not in capsys.readouterr().err
    assert read_run(tmp_path / "r")["config"]["options"] == {**UNSET, **FAMILY, "stack": 1}
    assert main(f"online --encoder random:minatar:1 --out {tmp_path}/none".split()) == 2
    assert "--env: missing; random:minatar:1 is an encoder for any environment" in capsys.readouterr().err


def test_agents_on_rl_unplugged_play_without_sticky_actions(tmp_path: Path) -> None:
    """With and without --env: the public data has sticky actions of 0.25, Atari's default is 0."""
    manifest = atari_manifest("Pong", "full")
    assert manifest.env_options["sticky"] == 0.25
    made = make_encoder("nature", (4, 84, 84), 1, seeded(0, Purpose.ENCODER))
    about = {"env_id": manifest.env_id, "env_options": manifest.env_options, "config": {"data": ["rlu"]}}
    save_encoder(tmp_path / "e", made, "nature", 1, about, ["card"])
    for name in ("", "atari/Pong"):
        config = with_environment(OnlineConfig(encoder=str(tmp_path / "e"), env=name, out=tmp_path))
        env = make(config.env, 1, **config.options.given())
        assert env.env_id == "atari/Pong"
        assert env.options == {
            "actions": "minimal", "sticky": 0.0, "stack": 4, "max_steps": 27_000, "frameskip": 4, "noop_max": 0,
            "episodic_life": False,
        }  # fmt: skip
        assert linear_dqn.other_options(config.encoder, env) == (
            f"{tmp_path}/e: the data was collected with actions full, sticky 0.25; agents play with actions minimal, "
            "sticky 0.0 (--actions full --sticky 0.25 to change)"
        )
        env.close()


def test_what_the_line_says_of_options_that_are_switches_or_unlimited(tmp_path: Path) -> None:
    made = make_encoder("minatar", (1, 10, 10, 4), 1, seeded(0, Purpose.ENCODER))

    def said(data: Any, played: Any, env_options: Any) -> str | None:
        about = {"env_id": "x", "env_options": env_options, "config": {"data": data}}
        save_encoder(tmp_path / "e", made, "minatar", 1, about, ["card"])
        env = make("minatar/breakout")
        env.options = played
        return linear_dqn.other_options(str(tmp_path / "e"), env)

    begin = f"{tmp_path}/e: the data was collected with"
    assert said(["d"], {"episodic_life": True}, {"episodic_life": False}) == (
        f"{begin} episodic_life False; agents play with episodic_life True (--no-episodic-life to change)"
    )
    line = said(["d"], {"episodic_life": False}, {"episodic_life": True})
    assert line is not None
    assert line.endswith("(--episodic-life to change)")
    assert said(["d"], {"max_steps": 5}, {"max_steps": None}) == (
        f"{begin} max_steps None; agents play with max_steps 5"
    )
    assert said(["d"], {"sticky": 0.5}, {"sticky": 0.5, "frameskip": 4}) is None  # what the game does not have
    assert said([], {"sticky": 0.5}, {"sticky": 0.1}) is None  # made without data


def test_evaluation_plays_what_was_trained_in_also_when_a_default_has_changed(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OnlineConfig(encoder=str(encoder), out=tmp_path / "r", steps=8, replay_min=5, replay_size=9)
    run = train_online(config, quiet=True)
    usual = minatar.MinAtar.__init__.__defaults__
    assert usual is not None
    monkeypatch.setattr(minatar.MinAtar.__init__, "__defaults__", (usual[0], 0.5, *usual[2:]))
    assert make("minatar/breakout").options["sticky"] == 0.5
    assert evaluate_run(EvaluateConfig(run, 1), quiet=True)["env_options"]["sticky"] == 0.1


def test_a_quiet_run_says_nothing(other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"steps": 8, "replay_min": 5, "replay_size": 9}
    train_online(OnlineConfig(encoder=str(other), out=tmp_path / "r", **settings), quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_are_seen_once_and_stored_scaled(dtype: Any) -> None:
    """One-hot features divided by 4: S * E observations, E of each seed; the first of each is stored."""
    agent = LinearDqn(Rule(0.1, 1e-3, 10.0, 10), (0, 1), 2, one_hot(), 4.0, dtype=dtype)
    obs = np.zeros((4, 1, 1, 7), np.uint8)
    obs[range(4), 0, 0, [1, 2, 3, 4]] = 255
    expected = np.eye(7)[[1, 2, 3, 4]].reshape(2, 2, 7) / 4
    np.testing.assert_array_equal(agent.see(obs), expected)
    items, features = agent.items(obs[::2])
    np.testing.assert_array_equal(items, expected[:, 0])
    np.testing.assert_array_equal(features, expected[:, :1])
    assert features is not None
    assert (items.dtype, features.dtype) == (dtype, torch.float32)


@pytest.mark.parametrize("double", [False, True])
def test_stored_features_serve_for_all(double: bool) -> None:
    agent = LinearDqn(Rule(0.1, 1e-3, 10.0, 10, double=double), (0,), 2, one_hot(), 4.0)
    data = stored(1, 3)
    x, target, choice = agent.features_of(data)
    np.testing.assert_array_equal(x, data.obs)
    np.testing.assert_array_equal(target, data.next_obs)
    assert (choice is target) == double
    assert (choice is None) != double


@pytest.mark.parametrize(
    ("changes", "kind", "dtype"),
    [
        ({}, LinearDqn, np.float16),
        ({"replay_dtype": "float32"}, LinearDqn, np.float32),
        ({"finetune": True}, Dqn, np.bool_),
    ],
)
def test_agents_are_made_as_the_config_says(encoder: Path, changes: dict[str, Any], kind: Any, dtype: Any) -> None:
    config = with_environment(OnlineConfig(encoder=str(encoder), out=Path("x"), seeds="0-1", **changes))
    env, agent, recorded = linear_dqn.prepare(resolved(config, config.env))
    assert type(agent) is kind
    obs, _ = env.reset(seed=0)
    items, _ = agent.items(obs)
    assert (items.dtype, agent.num_seeds, agent.num_actions) == (dtype, 2, 3)
    expected = find_encoder(str(encoder), env).features(obs) * 4  # its features have a root mean square of .25
    torch.testing.assert_close(agent.see(obs)[:, 0], expected, rtol=1e-5, atol=1e-5)
    assert (recorded["kind"], recorded["feature_divisor"], recorded["encoder"]) == ("online", 0.25, str(encoder))
    assert recorded["replay_dtype"] == (None if kind is Dqn else np.dtype(dtype).name)


def test_a_run_is_found_from_anywhere(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_environment(OnlineConfig(encoder="encoder", out=Path("x")))
    config = resolved(config, config.env)
    assert linear_dqn.prepare(config)[2]["encoder"] == str(tmp_path / "encoder")
    config = OnlineConfig(encoder="random:minatar:1", env="minatar/breakout", out=Path("x"))
    assert linear_dqn.prepare(resolved(config, config.env))[2]["encoder"] == "random:minatar:1"


def test_random_encoders_are_those_of_their_seed() -> None:
    env = make("minatar/breakout", stack=3)
    named: list[tuple[str, float, int]] = [("random:minatar:0.5", 0.5, 0), ("random:minatar:1.0:3", 1, 3)]
    for name, width, seed in (
        *named,
        ("random:minatar:1", 1, 0),
        ("random:minatar:2:0", 2, 0),
        ("random:minatar:1:7", 1, 7),
    ):
        found = find_encoder(name, env)
        expected = make_encoder("minatar", (3, 10, 10, 4), width, seeded(seed, Purpose.ENCODER))
        assert found.about == {"env_id": "minatar/breakout", "method": "random"}
        for mine, theirs in zip(found.encoder.parameters(), expected.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    for wrong in ("random:minatar", "random:minatar:1:2:3", "random:minatar:x", "random:minatar:1:y", "random:other:1"):
        with pytest.raises(UserError) as error:
            find_encoder(wrong, env)
        assert f"--encoder: found '{wrong}', expected random:der|impala|minatar|nature:WIDTH or" in str(error.value)


def test_an_encoder_of_another_game_is_refused_unless_allowed(encoder: Path) -> None:
    env = make("minatar/asterix")
    with pytest.raises(UserError, match="was trained on minatar/breakout, expected minatar/asterix; --other-game"):
        find_encoder(str(encoder), env)
    assert find_encoder(str(encoder), env, other_game=True).num_features == 128
    assert find_encoder(str(encoder), make("minatar/breakout"), other_game=True).num_features == 128


def test_features_that_are_all_zero_have_no_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("minatar/breakout")
    random = find_encoder("random:minatar:1", env)
    for parameter in random.parameters():
        parameter.zero_()
    with pytest.raises(UserError, match="--feature-scale: the encoder's features are all zero on its data, expected"):
        feature_scale(random, env)
    random.about["summary"] = {"feature_rms": 1e-6}
    assert feature_scale(random, env) == 1e-6


def test_the_observations_of_the_random_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth of 320 steps of 16 environments, seeds 0 to 15, actions of generator 0, with the same options."""
    closed = []
    like = make("minatar/breakout", 1, sticky=0.5, stack=2)
    monkeypatch.setattr(type(like), "close", lambda self: closed.append(self.num_envs))
    found = random_observations(like)
    assert closed == [16]
    env, rng, kept = make("minatar/breakout", 16, sticky=0.5, stack=2), np.random.default_rng(0), []
    obs, _ = env.reset(seed=list(range(16)))
    for _ in range(32):
        kept.append(obs)
        for _ in range(10):
            obs, *_ = env.step(rng.integers(3, size=16))
    np.testing.assert_array_equal(found, np.concatenate(kept))
    assert found.shape == (512, 2, 10, 10, 4)


def test_the_checksum_of_an_encoder() -> None:
    """SHA-256 over names and bytes of its parameters, sorted by name."""
    random = find_encoder("random:minatar:1", make("minatar/breakout"))
    digest = hashlib.sha256()
    for name in ("dense.bias", "dense.weight", "trunk.convs.0.bias", "trunk.convs.0.weight"):
        digest.update(name.encode() + random.encoder.get_parameter(name).numpy().tobytes())
    assert linear_dqn.encoder_checksum(random) == digest.hexdigest()


def test_the_command_says_what_there_is(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"online --encoder {encoder} {SHORT} --out {tmp_path}/r".split()) == 0
    printed = capsys.readouterr()
    assert f"play with it: pvn evaluate {tmp_path}/r --video episode.gif" in printed.out
    assert "train minatar/breakout (1 thread): 8/8 steps" in printed.err
    with pytest.raises(UserError, match="--env: missing"):
        with_environment(OnlineConfig(encoder="random:minatar:1", out=tmp_path))
