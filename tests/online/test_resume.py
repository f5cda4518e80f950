"""What a resumed run repeats: with agents that are greedy, whose encoders learn, stopped right after an update."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protovalue.data.format import Manifest
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.dqn import Dqn, train_dqn
from protovalue.online.linear_dqn import LinearDqn, train_online
from protovalue.online.loop import Loop
from protovalue.online.replay import Layout, Replay
from protovalue.runs import read_checkpoint
from tests.online.rigged import Killed, config, killed_at, learned, numbers, run

EVERY = 2  # steps between checkpoints; there is an update in every step, so each of them is right after one


def train(kind: str, out: Path, every: int = 20) -> None:
    """Train an agent that never explores; its steps are so large that an update often changes the best action."""
    common: dict[str, Any] = {
        "env": "minatar/breakout", "out": out / "run", "steps": 41, "epsilon": 0.0, "epsilon_start": 0.0,
        "replay_min": 6, "replay_size": 20, "update_every": 1, "batch_size": 4, "learning_rate": 0.03, "n_step": 1,
        "target_every": 7, "log_every": 20, "checkpoint_every": every, "keep_replay": True,
        "options": EnvOptions(max_steps=5),
    }  # fmt: skip
    if kind == "dqn":
        train_dqn(DqnConfig(**common, seeds="3-4"), quiet=True)
    elif kind == "recorded":
        train_dqn(DqnConfig(**common, seeds="6", record=out / "data", iterations=5), quiet=True)
    else:
        train_online(OnlineConfig(**common, seeds="0-1", encoder="random:minatar:1", finetune=kind == "finetune"), True)


def recorded(folder: Path) -> dict[str, bytes]:
    """All bytes of the recorded data set."""
    return {path.name: path.read_bytes() for path in (folder / "data").iterdir() if path.name != "lock"}


def remembered(folder: Path, kind: str) -> list[np.ndarray]:
    """All that the replay can sample, and the items of the open slots."""
    written = read_checkpoint(folder / "run").state["written"]
    if kind == "frozen":
        layout = Layout((128,), np.float16, 3, reward_dtype=np.float16)
    else:
        layout = Layout((10, 10, 4), np.bool_, 3, stack=1)
    replay = Replay(len(written), 20, layout, 2 * EVERY + 8)
    replay.load(folder / "run" / "replay", written)
    found = []
    for s, (first, end) in enumerate(zip(*replay.window(1), strict=True)):
        batch = replay.batch(np.tile(np.arange(first, end), (len(written), 1)), 1, 0.9)
        found += [getattr(batch, name)[s] for name in ("obs", "action", "reward", "discount", "next_obs")]
    return found


def changing_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the steps after which features from before the update would lead to another action."""
    found, real = [], Loop.learn

    def learn(self: Any) -> None:
        agent = self._agent
        before = agent.see(self._obs).clone()
        real(self)
        now, stale = (agent.values(features).argmax(dim=-1) for features in (agent.see(self._obs), before))
        if not now.equal(stale):
            found.append(self.step)

    monkeypatch.setattr(Loop, "learn", learn)
    return found


@pytest.mark.parametrize("kind", ["dqn", "finetune", "recorded", "frozen"])
def test_a_greedy_agent_killed_right_after_an_update_ends_bit_for_bit_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with monkeypatch.context() as patch:
        noticed = changing_steps(patch)
        train(kind, tmp_path / "whole", EVERY)
    if kind == "frozen":
        assert noticed == []
        after = [10, 25, 40]
    else:
        after = [step for step in noticed if step % EVERY == 0][:3]
        assert len(after) >= 2
    killed_at(monkeypatch, kills := [step + 1 for step in after])
    while kills:
        with pytest.raises(Killed):
            train(kind, tmp_path / "cut", EVERY)
    train(kind, tmp_path / "cut", EVERY)
    whole, cut = (read_checkpoint(tmp_path / name / "run") for name in ("whole", "cut"))
    assert whole.tensors.keys() == cut.tensors.keys()
    for name, array in whole.tensors.items():
        np.testing.assert_array_equal(cut.tensors[name], array, err_msg=name)
    assert cut.state == whole.state
    assert numbers(tmp_path / "cut" / "run") == numbers(tmp_path / "whole" / "run")
    for found, expected in zip(*(remembered(tmp_path / name, kind) for name in ("cut", "whole")), strict=True):
        np.testing.assert_array_equal(found, expected)
    if kind == "recorded":
        assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["dqn", "finetune", "frozen"])
def test_agents_act_on_their_current_parameters_and_see_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cls = LinearDqn if kind == "frozen" else Dqn
    see, act, add = cls.see, Loop.act, Replay.add
    passes, truncations, expected, acted = [], [], [], []

    def spy_see(self: Any, obs: Any) -> torch.Tensor:
        passes.append(len(obs))
        return see(self, obs)

    def spy_act(self: Any) -> None:
        expected.append(self._agent.values(see(self._agent, self._obs))[:, 0].argmax(dim=1).tolist())
        act(self)

    def spy_add(self: Any, actions: Any, rewards: Any, terminated: Any, truncated: Any, *items: Any) -> None:
        acted.append(actions.tolist())
        truncations.append(truncated.any())
        add(self, actions, rewards, terminated, truncated, *items)

    for owner, name, spy in ((cls, "see", spy_see), (Loop, "act", spy_act), (Replay, "add", spy_add)):
        monkeypatch.setattr(owner, name, spy)
    train(kind, tmp_path)
    assert acted == expected
    assert len(acted) == 41
    # Frozen: the layout's blank observation, the first one, one for each step, and the last of a truncated episode.
    assert sum(truncations) > 0
    assert passes == [2] * (2 + 41 + sum(truncations) if kind == "frozen" else 41)


def test_a_recording_goes_on_in_its_own_data_set_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(monkeypatch, [39])
    with pytest.raises(Killed):
        train("recorded", tmp_path)
    (tmp_path / "data").rename(tmp_path / "away")
    with pytest.raises(UserError, match=r"data: found 0 episodes, expected the \d+ that the run has recorded$"):
        train("recorded", tmp_path)
    assert not (tmp_path / "data").exists()
    (tmp_path / "away").rename(tmp_path / "data")
    manifest = (tmp_path / "data" / "manifest.json").read_text()
    other = replace(Manifest.read(tmp_path / "data"), provenance=[{"by": "another", "first_episode": 0}])
    other.write(tmp_path / "data")
    with pytest.raises(UserError, match="holds a data set that this run did not begin"):
        train("recorded", tmp_path)
    assert Manifest.read(tmp_path / "data") == other
    (tmp_path / "data" / "manifest.json").write_text(manifest)
    train("recorded", tmp_path)
    assert Manifest.read(tmp_path / "data").transitions == 41


@pytest.mark.parametrize("kills", [[7], [41, 79], [120, 121, 229]])
@pytest.mark.parametrize("options", [{}, {"prioritised": True, "n_step": 2}, {"finetune": True}, {"mapped": True}])
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: list[int], options: dict[str, Any]
) -> None:
    options = dict(options)
    mapped = options.pop("mapped", False)
    if options.get("finetune"):
        options |= {"update_every": 8}  # its updates are slow
    settings = {"env": "minatar/breakout", "options": EnvOptions(max_steps=9), **options}

    def where(name: Any) -> OnlineConfig:
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


def test_killed_with_9_on_the_command_line_and_repeated(tmp_path: Path) -> None:
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


def test_an_environment_without_a_state_starts_a_new_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_agents_on_atari_killed_at_the_same_steps_end_the_same_and_lose_only_their_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kills between checkpoints, twice over, beside a run without: no game of Pong ends by itself in 120 steps."""

    def pong(name: str) -> Path:
        return train_online(
            OnlineConfig(
                env="atari/Pong", encoder="random:der:1", out=tmp_path / name, seeds="0-1", steps=120, replay_min=20,
                batch_size=8, learning_rate=0.03, epsilon_steps=60, log_every=20, checkpoint_every=20, threads=1,
                keep_replay=True,
            ),
            quiet=True,
        )  # fmt: skip

    whole = pong("whole")
    for name in ("cut", "again"):
        killed_at(monkeypatch, kills := [50, 95])
        while kills:
            with pytest.raises(Killed):
                pong(name)
    cut, again = pong("cut"), pong("again")
    for tensor, array in learned(cut).items():
        np.testing.assert_array_equal(array, learned(again)[tensor], err_msg=tensor)
    assert read_checkpoint(cut).state == read_checkpoint(again).state
    assert numbers(cut) == numbers(again)
    assert numbers(cut)[:2] == numbers(whole)[:2]  # to the checkpoint at step 40 nothing was lost
    ends = {}
    for path in (whole, cut):
        written = read_checkpoint(path).state["written"][0]
        kinds = np.fromfile(path / "replay" / "codes.bin", np.uint8)[:written] % 4
        ends[path.name] = np.flatnonzero(kinds == 2).tolist()
        assert (kinds[np.array(ends[path.name], int) + 1] == 3).all()  # followed by what it is bootstrapped from
    # Transitions 0 to 39, of which the last is cut, its final observation in slot 40, then 40 more: 41 to 80.
    assert ends == {"whole": [], "cut": [39, 80]}


def test_ctrl_c_saves_and_the_same_command_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(config(tmp_path / "whole", env="minatar/breakout"))
    real = Loop.act

    def act(self: Any) -> None:
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


def test_more_steps_continue_a_finished_run_if_its_replay_was_kept(tmp_path: Path) -> None:
    whole = run(config(tmp_path / "whole", env="minatar/breakout", steps=260))
    run(config(tmp_path / "r", env="minatar/breakout"))
    path = run(config(tmp_path / "r", env="minatar/breakout", steps=260))
    np.testing.assert_array_equal(learned(path)["agent.theta"], learned(whole)["agent.theta"])
    done = run(config(tmp_path / "done", keep_replay=False))
    assert not (done / "replay").exists()
    assert run(config(tmp_path / "done", keep_replay=False)) == done  # nothing left to do
    with pytest.raises(UserError, match="--steps: found 260, expected 230: .*/done was finished .* --keep-replay"):
        run(config(tmp_path / "done", steps=260))


def test_many_truncations_do_not_outrun_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a one-step episode takes two slots: checkpoints come early enough to keep what they hold."""
    settings = {"env": "minatar/breakout", "options": EnvOptions(max_steps=1), "steps": 300}
    whole = run(config(tmp_path / "whole", **settings))
    killed_at(monkeypatch, steps := [99, 150, 219])
    while steps:
        with pytest.raises(Killed):
            run(config(tmp_path / "r", **settings))
    path = run(config(tmp_path / "r", **settings))
    np.testing.assert_array_equal(learned(path)["agent.theta"], learned(whole)["agent.theta"])
