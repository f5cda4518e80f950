"""Recording a DQN's training: every transition once, in order, with its stage, also when the process was killed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.data.dataset import open_dataset
from protovalue.data.format import End
from protovalue.data.record import Recorder
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from protovalue.online.config import DqnConfig
from protovalue.online.dqn import train_dqn
from protovalue.online.loop import Loop
from protovalue.runs import Run, read_checkpoint, read_run
from tests.online.rigged import Killed, killed_at


def config(folder: Any, **changes: Any) -> DqnConfig:
    settings = {
        "env": "minatar/breakout",
        "steps": 150,
        "iterations": 5,
        "replay_min": 140,
        "replay_size": 150,
        "checkpoint_every": 40,
        "update_every": 4,
        "seeds": "3",
    }
    return DqnConfig(out=folder / "run", record=folder / "data", **{**settings, **changes})


def test_the_data_set_is_what_the_agent_lived_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived = []
    real = Loop._record

    def spy(self: Any, recorder: Any, action: Any, reward: Any, terminated: Any, info: Any) -> None:
        ended = "_final_obs" in info and info["_final_obs"][0]
        lived.append((action, reward, (info["final_obs"] if ended else self._obs)[0, -1].copy(), terminated))
        real(self, recorder, action, reward, terminated, info)

    monkeypatch.setattr(Loop, "_record", spy)
    train_dqn(config(tmp_path, options=EnvOptions(max_steps=15)), quiet=True)
    data = open_dataset(tmp_path / "data")
    assert data.num_transitions == 150
    episodes = [data.episode(i) for i in range(data.num_episodes)]
    frames = np.concatenate([episode.frames[1:] for episode in episodes])
    np.testing.assert_array_equal(frames, [row[2] for row in lived])
    np.testing.assert_array_equal(np.concatenate([e.actions for e in episodes]), [row[0] for row in lived])
    np.testing.assert_array_equal(np.concatenate([e.rewards for e in episodes]), [row[1] for row in lived])
    assert episodes[-1].end in (End.CUT, End.TERMINATED, End.TRUNCATED)
    starts = np.cumsum([0, *(len(e.actions) for e in episodes[:-1])])
    assert [e.iteration for e in episodes] == [start * 5 // 150 for start in starts]
    assert {e.iteration for e in episodes} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("kills", [[39], [45, 81], [121, 149]])
def test_a_killed_recording_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: list[int]
) -> None:
    train_dqn(config(tmp_path / "whole"), quiet=True)
    killed_at(monkeypatch, steps := list(kills))
    while steps:
        with pytest.raises(Killed):
            train_dqn(config(tmp_path / "cut"), quiet=True)
    train_dqn(config(tmp_path / "cut"), quiet=True)
    whole, cut = (open_dataset(tmp_path / name / "data") for name in ("whole", "cut"))
    assert cut.num_transitions == whole.num_transitions == 150
    for i in range(whole.num_episodes):
        first, second = whole.episode(i), cut.episode(i)
        for name in ("frames", "actions", "rewards"):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert (first.end, first.iteration) == (second.end, second.iteration)
    theta = [read_checkpoint(tmp_path / name / "run").tensors["agent.theta"] for name in ("whole", "cut")]
    np.testing.assert_array_equal(theta[0], theta[1])
    assert main(["data", "verify", str(tmp_path / "cut" / "data")]) == 0


def recorded(folder: Any) -> dict[Any, Any]:
    """All bytes of the data set."""
    return {path.name: path.read_bytes() for path in (folder / "data").iterdir() if path.name != "lock"}


@pytest.mark.parametrize("moment", ["before the data set is closed", "after it"])
def test_a_recording_killed_at_its_very_end_is_still_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    train_dqn(config(tmp_path / "whole", steps=30, replay_min=20), quiet=True)

    def killed(*args: Any, **kwargs: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "after it":
            patch.setattr(Run, "finish", killed)
        else:
            close = Recorder.close
            patch.setattr(Recorder, "close", lambda self, complete: killed() if complete else close(self, complete))
        with pytest.raises(Killed):
            train_dqn(config(tmp_path / "cut", steps=30, replay_min=20), quiet=True)
    assert not (tmp_path / "cut" / "run" / "done.json").exists()
    train_dqn(config(tmp_path / "cut", steps=30, replay_min=20), quiet=True)
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")
    with monkeypatch.context() as patch:  # done: the data set is not even opened
        patch.setattr(Recorder, "resume", killed)
        train_dqn(config(tmp_path / "cut", steps=30, replay_min=20), quiet=True)
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")


def test_an_environment_without_a_state_cuts_its_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"env": "gym/Corridor-v0", "architecture": "nature", "replay_min": 148}
    killed_at(monkeypatch, [61])
    with pytest.raises(Killed):
        train_dqn(config(tmp_path, **settings), quiet=True)
    train_dqn(config(tmp_path, **settings), quiet=True)
    data = open_dataset(tmp_path / "data")
    assert data.num_transitions == 150
    assert sum(data.episode(i).end == End.CUT for i in range(data.num_episodes)) in (1, 2)


def test_collect_with_a_dqn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"collect minatar/breakout --policy dqn --steps 60 --seed 4 --out {tmp_path}/d"
    assert main(flags.split()) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/d: 60 transitions of minatar/breakout in" in printed
    assert f"the agent: pvn evaluate {tmp_path}/d-agent; its iterations: pvn data info {tmp_path}/d" in printed
    agent = read_run(tmp_path / "d-agent")
    assert (agent["config"]["seeds"], agent["config"]["iterations"], agent["done"]["steps"]) == ("4", 50, 60)
    data = open_dataset(tmp_path / "d")
    assert data.folders[0].manifest.provenance[0]["policy"] == "dqn"
    assert (tmp_path / "d-agent" / "done.json").is_file()
    assert main(["data", "info", str(tmp_path / "d")]) == 0
    assert "iterations" in capsys.readouterr().out
    assert main(flags.split()) == 0  # done: nothing happens
    assert open_dataset(tmp_path / "d").checksum == data.checksum
    assert main(f"collect minatar/breakout --steps 80 --seed 4 --out {tmp_path}/d".split()) == 2
    assert "--policy: found random, expected dqn" in capsys.readouterr().err


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="--record: found it with seeds 0-1, expected one seed"):
        config(tmp_path, seeds="0-1")
    assert main(f"collect minatar/breakout --policy dqn --num-envs 4 --out {tmp_path}/x".split()) == 2
    assert "--num-envs: found 4, expected 1 with dqn" in capsys.readouterr().err
    collect(CollectConfig("minatar/breakout", tmp_path / "data", steps=50), quiet=True)
    with pytest.raises(UserError, match="holds a data set that this run did not begin"):
        train_dqn(config(tmp_path), quiet=True)
    assert open_dataset(tmp_path / "data").num_transitions == 50
    assert not (tmp_path / "run").exists()
