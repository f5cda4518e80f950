"""The online loop on a rigged encoder and environment: seeds that never mix, exact resumption, options, mistakes."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.config import EnvOptions, OnlineConfig
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.nets.encoders import make_encoder
from protovalue.online import linear_dqn, loop, replay
from protovalue.online.agent import Rule
from protovalue.online.dqn import Dqn
from protovalue.online.linear_dqn import LinearDqn
from protovalue.online.loop import Loop, epsilon_at, train
from protovalue.online.presets import resolve
from protovalue.pretrain.base import seeded
from protovalue.runs import read_checkpoint, read_metrics
from tests.online.rigged import one_hot

CORRIDOR = "gym/Corridor-v0"


def config(out: Path, env=CORRIDOR, **changes) -> OnlineConfig:
    settings = {
        "encoder": "rigged",
        "steps": 230,
        "seeds": "0-2",
        "replay_min": 20,
        "replay_size": 60,
        "batch_size": 8,
        "target_every": 10,
        "learning_rate": 0.05,
        "epsilon_steps": 100,
        "log_every": 25,
        "checkpoint_every": 40,
        "keep_replay": True,
    }
    return resolve(OnlineConfig(env=env, out=out, **{**settings, **changes}), linear_dqn.PRESETS)


def run(settings: OnlineConfig) -> Path:
    """Train on one-hot features, or end to end where the config says finetune."""
    seeds = settings.seed_list()
    env = make(settings.env, len(seeds), **settings.options.given())
    shape = env.single_observation_space.shape
    if settings.finetune:
        agent = Dqn(Rule.of(settings), seeds, env.num_actions, make_encoder("minatar", shape, 1, seeded(0, 0)))
    else:
        dtype = np.dtype(settings.replay_dtype)
        agent = LinearDqn(Rule.of(settings), seeds, env.num_actions, one_hot(shape), 1.0, dtype=dtype)
    return train(settings, {"seeds": settings.seeds, "n": settings.n_step}, env, agent, quiet=True)


def learned(path: Path):
    return read_checkpoint(path).tensors


def numbers(path: Path):
    return [{k: v for k, v in row.items() if k not in ("time", "agent_steps_per_second")} for row in read_metrics(path)]


@pytest.mark.parametrize(
    "options",
    [{}, {"double": True, "n_step": 3}, {"prioritised": True}, {"head": "c51", "atoms": 7}],
)
def test_three_seeds_together_are_three_seeds_alone_number_for_number(tmp_path, options):
    together = learned(run(config(tmp_path / "all", **options)))
    for s in range(3):
        path = run(config(tmp_path / str(s), seeds=str(s), **options))
        alone = learned(path)
        for name in ("agent.theta", "agent.target", "agent.exp_avg", "agent.exp_avg_sq"):
            np.testing.assert_array_equal(together[name][s : s + 1], alone[name])
        rows = {row["step"]: row for row in numbers(tmp_path / "all")}
        for row in numbers(path):
            assert rows[row["step"]].get(f"return/seed-{s}") == row.get("return")
        for name in ("items", "codes", "rewards"):
            array = np.fromfile(path / "replay" / f"{name}.bin", np.uint8)
            whole = np.fromfile(tmp_path / "all" / "replay" / f"{name}.bin", np.uint8)
            size = 60 + 88 + 1  # slots of a seed: capacity, slack, the open one
            width = {"items": 14, "codes": 1, "rewards": 2}[name]
            start = s * size * width
            np.testing.assert_array_equal(whole[start : start + len(array)], array)


@pytest.mark.parametrize("options", [{"hidden": (5,)}, {"env": "minatar/breakout", "finetune": True}])
def test_sums_in_another_order_differ_in_the_last_bits_only(tmp_path, options):
    """Networks whose sums are not exact, as features of a real encoder: the batch's size may change their order."""
    together = learned(run(config(tmp_path / "all", steps=60, learning_rate=1e-3, **options)))
    for s in range(3):
        alone = learned(run(config(tmp_path / str(s), steps=60, learning_rate=1e-3, seeds=str(s), **options)))
        np.testing.assert_allclose(together["agent.theta"][s : s + 1], alone["agent.theta"], rtol=0, atol=1e-4)


def test_agents_learn_to_walk_to_the_right(tmp_path):
    path = run(config(tmp_path / "r", steps=1000))
    returns = [row["return"] for row in read_metrics(path) if "return" in row]
    assert np.mean(returns[:3]) < -0.3
    assert np.mean(returns[-3:]) > -0.1  # the best policy takes four or five steps of -.25, less with gusts, and then 1


class Killed(BaseException):
    """Stands for kill -9 between two steps: nothing is written after it."""


def killed_at(monkeypatch, steps: list[int]):
    real = Loop.act

    def act(self):
        real(self)
        if steps and self.step == steps[0]:
            steps.pop(0)
            raise Killed

    monkeypatch.setattr(Loop, "act", act)


@pytest.mark.parametrize("kills", [[7], [41, 79], [120, 121, 229]])
@pytest.mark.parametrize("options", [{}, {"prioritised": True, "n_step": 2}, {"finetune": True}, {"mapped": True}])
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(tmp_path, monkeypatch, kills, options):
    options = dict(options)
    mapped = options.pop("mapped", False)
    if options.get("finetune"):
        options |= {"update_every": 8}  # its updates are slow
    settings = {"env": "minatar/breakout", "options": EnvOptions(max_steps=9), **options}

    def where(name):
        return config(tmp_path / name, replay_dir=tmp_path / f"{name}-replay" if mapped else None, **settings)

    whole = run(where("whole"))
    killed_at(monkeypatch, steps := list(kills))
    while steps:
        with pytest.raises(Killed):
            run(where("cut"))
    path = run(where("cut"))
    expected, found = learned(whole), learned(path)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert read_checkpoint(path).state == read_checkpoint(whole).state
    assert numbers(path) == numbers(whole)


def test_killed_with_9_on_the_command_line_and_repeated(tmp_path):
    flags = "online --encoder random:minatar:1 --env minatar/breakout --seeds 0-1 --steps 900 --replay-min 50"
    command = [sys.executable, "-m", "protovalue.cli", *f"{flags} --checkpoint-every 100 --threads 1 --out".split()]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    process = subprocess.Popen([*command, str(tmp_path / "cut")], stderr=subprocess.DEVNULL)
    while not list((tmp_path / "cut").glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut" / "done.json").exists()
    subprocess.run([*command, str(tmp_path / "cut")], check=True, capture_output=True)
    np.testing.assert_array_equal(learned(tmp_path / "cut")["agent.theta"], learned(tmp_path / "whole")["agent.theta"])
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")


def test_an_environment_without_a_state_starts_a_new_episode(tmp_path, monkeypatch):
    killed_at(monkeypatch, [50, 130])
    for _ in range(2):
        with pytest.raises(Killed):
            run(config(tmp_path / "r"))
    path = run(config(tmp_path / "r"))
    state = read_checkpoint(path).state
    assert state["env"] is None
    codes = np.fromfile(path / "replay" / "codes.bin", np.uint8)[:149]
    # Every truncated transition is followed by its final observation, also those that the resumptions cut.
    kinds = codes[: min(state["written"][0], 149)] % 4
    assert all(kinds[i + 1] == 3 for i in np.flatnonzero(kinds == 2) if i + 1 < len(kinds))


def test_ctrl_c_saves_and_the_same_command_continues(tmp_path, monkeypatch):
    whole = run(config(tmp_path / "whole", env="minatar/breakout"))
    real = Loop.act

    def act(self):
        real(self)
        if self.step == 33:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Loop, "act", act)
    with pytest.raises(KeyboardInterrupt):
        run(config(tmp_path / "r", env="minatar/breakout"))
    assert (tmp_path / "r" / "checkpoints" / "step-000000000033").is_dir()
    monkeypatch.undo()
    path = run(config(tmp_path / "r", env="minatar/breakout"))
    np.testing.assert_array_equal(learned(path)["agent.theta"], learned(whole)["agent.theta"])


def test_more_steps_continue_a_finished_run_if_its_replay_was_kept(tmp_path):
    whole = run(config(tmp_path / "whole", env="minatar/breakout", steps=260))
    run(config(tmp_path / "r", env="minatar/breakout"))
    path = run(config(tmp_path / "r", env="minatar/breakout", steps=260))
    np.testing.assert_array_equal(learned(path)["agent.theta"], learned(whole)["agent.theta"])
    done = run(config(tmp_path / "done", keep_replay=False))
    assert not (done / "replay").exists()
    assert run(config(tmp_path / "done", keep_replay=False)) == done  # nothing left to do
    with pytest.raises(UserError, match="items.bin: missing: the run cannot go on without its replay"):
        run(config(tmp_path / "done", steps=260))


def test_many_truncations_do_not_outrun_the_checkpoints(tmp_path, monkeypatch):
    """Each step of a one-step episode takes two slots: checkpoints come early enough to keep what they hold."""
    settings = {"env": "minatar/breakout", "options": EnvOptions(max_steps=1), "steps": 300}
    whole = run(config(tmp_path / "whole", **settings))
    killed_at(monkeypatch, steps := [99, 150, 219])
    while steps:
        with pytest.raises(Killed):
            run(config(tmp_path / "r", **settings))
    path = run(config(tmp_path / "r", **settings))
    np.testing.assert_array_equal(learned(path)["agent.theta"], learned(whole)["agent.theta"])


@pytest.mark.parametrize(
    "change",
    [
        {"n_step": 3}, {"double": True}, {"updates": 2}, {"update_every": 2}, {"huber": True}, {"head": "c51"},
        {"prioritised": True}, {"hidden": (8,)}, {"clip_rewards": False}, {"epsilon": 0.5}, {"epsilon_start": 0.2},
        {"epsilon_steps": 10}, {"gamma": 0.5}, {"max_gradient_norm": 0.01}, {"target_every": 40}, {"replay_size": 30},
        {"replay_min": 40}, {"batch_size": 4}, {"adam_epsilon": 0.1}, {"learning_rate": 0.01}, {"finetune": True},
        {"replay_dtype": "float32"},
    ],
)  # fmt: skip
def test_every_option_changes_something(tmp_path, change):
    # Seaquest is left out: MinAtar's rewards are never beyond 1 there. The corridor pays 1, and -.25 for a step.
    settings = {"steps": 120, "seeds": "0", "env": CORRIDOR}
    if "finetune" in change:
        settings["env"] = "minatar/breakout"
    if "clip_rewards" in change:
        settings["env"] = "gym/Counting-v0"  # rewards up to 4
    if "replay_dtype" in change:
        path = run(config(tmp_path / "half", **settings))
        assert (path / "replay" / "items.bin").stat().st_size < (
            run(config(tmp_path / "float", **{**settings, **change})) / "replay" / "items.bin"
        ).stat().st_size
        return
    if "clip_rewards" in change:
        settings["options"] = EnvOptions(stack=1)
        first, second = (
            make_counting(tmp_path / name, **{**settings, **changes}) for name, changes in (("a", {}), ("b", change))
        )
    else:
        first, second = (
            learned(run(config(tmp_path / name, **{**settings, **changes})))["agent.theta"]
            for name, changes in (("a", {}), ("b", change))
        )
    assert first.shape != second.shape or not np.array_equal(first, second)


def make_counting(path, **settings):
    """Train on the counting environment, whose frames are rows of three numbers."""
    chosen = config(path, **settings)
    env = make(chosen.env, 1)
    loop_agent = LinearDqn(Rule.of(chosen), (0,), env.num_actions, one_hot((1, 1, 3)), 1.0)
    loop_agent.encoder.encoder.forward = lambda obs: (obs.flatten(1) > 0).float()
    train(chosen, {}, env, loop_agent, quiet=True)
    return learned(path)["agent.theta"]


def test_epsilon_waits_and_goes_down():
    assert [epsilon_at(step, 1.0, 0.1, 10, 20) for step in (0, 9, 10, 20, 30, 99)] == pytest.approx(
        [1, 1, 1, 0.55, 0.1, 0.1]
    )
    assert epsilon_at(0, 0.01, 0.01, 0, 0) == 0.01


def test_memory_is_printed_and_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    flags = f"online --encoder random:minatar:1 --env minatar/breakout --seeds 0-8 --steps 90 --out {tmp_path}/r"
    monkeypatch.setattr(replay, "available_memory", lambda: 100)
    assert main(flags.split()) == 2
    error = capsys.readouterr().err
    # 128 features of 2 bytes, 1 for action and kind, 2 for the reward; 91 slots for 90 steps.
    assert "replay: 9 seeds x 91 steps x 259 bytes = 0.2 MiB in memory" in error
    assert "--replay-size: 9 seeds x 91 steps x 259 bytes needs 0.2 MiB, found 0.0 MiB of memory" in error
    assert not (tmp_path / "r").exists()


def test_a_replay_folder_belongs_to_one_run(tmp_path):
    owner = tmp_path / "replay" / "owner.txt"
    owner.parent.mkdir()
    owner.write_text("/some/other/run")
    with pytest.raises(UserError, match="holds the replay of /some/other/run, expected an empty folder"):
        run(config(tmp_path / "r", replay_dir=tmp_path / "replay"))
    owner.unlink()
    run(config(tmp_path / "r", replay_dir=tmp_path / "replay", keep_replay=False))
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == ["lock"]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "WATCH_EVERY", 1)
    settings = config(tmp_path / "r", learning_rate=1e38)
    with pytest.raises(UserError, match="is not finite; .*; try a smaller --learning-rate"):
        run(replace(settings, n_step=1))
