"""Collecting: the data set holds what the environments showed, for all families; interruption and continuation."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from protovalue.data.collect import RandomPolicy, collect, shape_note
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import Folder, open_dataset
from protovalue.data.format import End
from protovalue.data.sampler import Sampler
from protovalue.envs.options import EnvOptions
from protovalue.envs.registry import make
from protovalue.errors import UserError
from tests.data.helpers import manifest, reseal

CASES = [
    ("minatar/breakout", EnvOptions(stack=3), 400),
    ("minatar/asterix", EnvOptions(max_steps=9), 200),
    ("atari/Breakout", EnvOptions(max_steps=30, sticky=0.25), 200),
    ("gym/Counting-v0", EnvOptions(stack=2), 100),
]


@pytest.mark.parametrize(("env_id", "options", "steps"), CASES)
def test_every_transition_is_what_the_environment_showed(tmp_path: Path, env_id: Any, options: Any, steps: Any) -> None:
    """Play the same actions in a fresh environment and compare its own stacked observations with the sampler's."""
    config = CollectConfig(env_id, tmp_path / "set", steps=steps, num_envs=3, seed=7, options=options)
    data = collect(config, quiet=True)
    env_seed, policy_seed = np.random.SeedSequence(7, spawn_key=(0,)).spawn(2)
    env = make(env_id, 3, **options.given())
    policy = RandomPolicy(env.num_actions, np.random.default_rng(policy_seed))
    obs, _ = env.reset(seed=env_seed.generate_state(3) >> 1)
    shown, running = [], [list[Any]() for _ in range(3)]  # episodes in the order in which they ended
    for step in range(-(-steps // 3)):
        actions = policy(obs)
        after, rewards, terminated, truncated, info = env.step(actions)
        for i in range(min(3, steps - 3 * step)):
            over = terminated[i] or truncated[i]
            next_obs = info["final_obs"][i] if over else after[i]
            running[i].append((obs[i], actions[i], rewards[i], next_obs, terminated[i]))
            if over:
                shown.append((running[i], End.TERMINATED if terminated[i] else End.TRUNCATED))
                running[i] = []
        obs = after
    shown += [(part, End.CUT) for part in running if part]

    assert data.num_transitions == steps
    assert data.lengths.tolist() == [len(part) for part, _ in shown]
    assert data.ends.tolist() == [end for _, end in shown]
    batch = Sampler(data, 1, 0).transitions(np.arange(steps))
    expected = [transition for part, _ in shown for transition in part]
    for i, (x, action, reward, next_x, terminal) in enumerate(expected):
        assert np.array_equal(batch.obs[i], x), i
        assert np.array_equal(batch.next_obs[i], next_x), i
        assert (batch.action[i], batch.reward[i], batch.terminal[i]) == (action, reward, terminal), i
    assert len({End(end) for end in data.ends}) >= 2, "the case must contain different kinds of ends"


def test_same_seed_same_data_other_seed_other_data(tmp_path: Path) -> None:
    def checksum(name: Any, seed: Any) -> str:
        return collect(CollectConfig("minatar/freeway", tmp_path / name, steps=300, seed=seed), quiet=True).checksum

    assert checksum("a", 0) == checksum("b", 0) != checksum("c", 1)


def test_continuing_adds_new_experience(tmp_path: Path) -> None:
    first = collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=300), quiet=True)
    before = [first.episode(i) for i in range(first.num_episodes)]
    same = collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=300), quiet=True)
    assert same.checksum == first.checksum, "nothing to do"
    more = collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=500), quiet=True)
    assert more.num_transitions == 500
    for index, episode in enumerate(before):
        assert np.array_equal(more.episode(index).frames, episode.frames)
    parts = more.folders[0].manifest.provenance
    assert [(part["part"], part["first_episode"]) for part in parts] == [(0, 0), (1, len(before))]
    assert not np.array_equal(more.episode(0).actions[:5], more.episode(len(before)).actions[:5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "--seed: found 1, expected 0"),
        ({"env": "minatar/asterix"}, "holds a data set with env_id minatar/breakout, expected minatar/asterix"),
        ({"options": EnvOptions(sticky=0.0)}, "holds a data set with env_options"),
    ],
)
@pytest.mark.parametrize("steps", [99, 20])
def test_continuing_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, steps: int
) -> None:
    """Also where nothing is left to do: what lies there is not what was asked for."""
    collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=50), quiet=True)
    usual: dict[str, Any] = {"env": "minatar/breakout", "out": tmp_path / "set", "steps": steps}
    with pytest.raises(UserError, match=message):
        collect(CollectConfig(**usual | changes), quiet=True)


def test_what_a_collection_says_of_where_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, said = tmp_path / "set", []
    for steps in (40, 40, 64):
        collect(CollectConfig("minatar/breakout", out, steps=steps))
        said.append(capsys.readouterr().err)
    assert "collect minatar/breakout: 40/40 steps" in said[0]
    assert str(out) not in said[0]
    assert said[1] == f"{out}: has 40 transitions already; it is left as it is\n"
    assert f"{out}: continuing at step 40 of 64\n" in said[2]
    assert "collect minatar/breakout: 64/64 steps" in said[2]


def test_frames_of_two_axes_are_images() -> None:
    assert [bool(shape_note(manifest(frame_shape=shape))) for shape in ((7,), (4, 4), (4, 4, 3), (2, 2, 2, 2))] == [
        True, False, False, True,
    ]  # fmt: skip


def test_sixteen_environments_if_nothing_else_is_said(tmp_path: Path) -> None:
    data = collect(CollectConfig("minatar/breakout", tmp_path / "set", steps=32), quiet=True)
    assert data.lengths.tolist() == [2] * 16


def test_a_set_that_has_all_but_the_mark_of_its_end_gets_it(tmp_path: Path) -> None:
    config = CollectConfig("minatar/breakout", tmp_path / "set", steps=50)
    before = collect(config, quiet=True)
    reseal(tmp_path / "set", complete=False)  # as a writer leaves it that is killed just then
    after = collect(config, quiet=True)
    found = Folder(tmp_path / "set").manifest
    assert (found.complete, len(found.provenance)) == (True, 1)
    assert after.checksum == before.checksum


def test_a_module_that_the_user_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import gymnasium\ngymnasium.register('OfAModule-v0', gymnasium.spec('Counting-v0').entry_point)\n"
    (tmp_path / "its_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert collect(CollectConfig("gym/its_module:OfAModule-v0", tmp_path / "set", steps=5), quiet=True).num_actions == 3
    del gymnasium.registry["OfAModule-v0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_continued_from_the_command_line(tmp_path: Path, number: Any) -> None:
    command = [sys.executable, "-m", "protovalue.cli", "collect", "minatar/breakout", "--out", str(tmp_path / "set")]
    process = subprocess.Popen([*command, "--steps", "100000000"], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "set" / "episodes.bin").exists() or not (tmp_path / "set" / "episodes.bin").stat().st_size:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted; the same command continues" in errors
    found = open_dataset(tmp_path / "set")
    assert found.folders[0].interrupted == (number == signal.SIGKILL)
    assert found.num_transitions > 0
    wanted = found.num_transitions + 1000
    done = subprocess.run([*command, "--steps", str(wanted)], capture_output=True, text=True, check=True)
    assert f"{wanted:,} transitions of minatar/breakout" in done.stdout
    assert open_dataset(Path(tmp_path / "set")).num_transitions == wanted


class Memory(gymnasium.Env[Any, Any]):
    """Ends after three steps; what is seen are four bytes."""

    observation_space = gymnasium.spaces.Box(0, 255, (4,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.full(4, self.t, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(4, self.t, np.uint8), 1.0, self.t == 3, False, {}


def test_what_no_encoder_of_ours_can_take_is_said_when_it_is_collected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is collected all the same: an encoder of the user's own may learn from it."""
    gymnasium.register("Memory-v0", Memory)  # type: ignore[arg-type]  # a class that takes no options
    try:
        data = collect(CollectConfig("gym/Memory-v0", tmp_path / "data", steps=20))
        said = capsys.readouterr().err
        collect(CollectConfig("minatar/breakout", tmp_path / "pictures", steps=20))
        assert "only an encoder of your own" not in capsys.readouterr().err
    finally:
        del gymnasium.registry["Memory-v0"]
    assert "gym/Memory-v0: a frame has the shape (4,), not (H, W) or (H, W, C): only an encoder of your own" in said
    assert data.num_transitions == 20
